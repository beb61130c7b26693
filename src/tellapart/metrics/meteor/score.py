"""METEOR 1.5 for English, as the COCO caption tool calls it (`-l en -norm`, task "rank"), without Java."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tellapart.errors import LimitError
from tellapart.metrics.equal import keep_freed_memory
from tellapart.metrics.meteor.beam import align_all
from tellapart.metrics.meteor.definition import align, find_matches
from tellapart.metrics.meteor.lexicon import Lexicon, open_lexicon
from tellapart.metrics.meteor.matches import LONGEST_CAPTION, CaptionArrays, Ints, find_all_matches

ALPHA, BETA, GAMMA, DELTA = 0.85, 0.20, 0.60, 0.75
MODULE_WEIGHTS = (1.0, 0.6, 0.8, 0.6)
# These bound memory; the table of words has a byte for each pair of different words.
_REFERENCES_AT_ONCE = 40_000
_WORD_PAIRS_AT_ONCE = 1 << 27
_MEMORY_FOR_A_REFERENCE = 3_000
# Longest caption in words: the time of an alignment grows with the square of its length.
MAX_WORDS = 200

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MeteorScores:
    """METEOR: `per_image` has shape [images]; `corpus` comes from the summed counts and is not the mean."""

    corpus: float
    per_image: Floats


@dataclass(frozen=True)
class _Counts:
    """The counts behind a score, for each pair of captions.

    length, function_words: [pairs, 2], of candidate and reference
    matched:                [pairs, 2, 4 modules, 2], words matched: content words, function words
    """

    length: Floats
    function_words: Floats
    matched: Floats
    chunks: Floats

    def __getitem__(self, chosen: Ints) -> _Counts:
        return _Counts(self.length[chosen], self.function_words[chosen], self.matched[chosen], self.chunks[chosen])


def meteor_scores(references: Sequence[Sequence[str]], candidates: Sequence[str]) -> MeteorScores:
    """METEOR of one candidate per image, with the reference that gives the highest score.

    The words of candidate and reference are aligned: equal ones first, then by stem, synonym (WordNet) and paraphrase.
    Content words weigh δ = .75, function words 1 - δ; equal words weigh 1, stems .6, synonyms .8, paraphrases .6. The
    harmonic mean favours recall, and an alignment in many chunks (runs contiguous in both) is penalised:

        P, R  = weight of the matched words / weight of all words, of the candidate and of the reference
        F     = P·R / (α·P + (1 - α)·R),                     α = .85
        score = (1 - γ·(chunks / matched words)^β)·F,        β = .20, γ = .60; no penalty for one perfect chunk

    Captions are tokens joined by spaces (Penn Treebank tokens without punctuation, to equal the COCO tool);
    `references[i]` belongs to `candidates[i]`. An empty candidate scores 0. A caption of more than `MAX_WORDS` words is
    a `LimitError`. Needs the extra `metrics`, whose word data are converted at the first call (see `data.py`).

    Example:
        >>> from tellapart.metrics.meteor import meteor_scores  # doctest: +SKIP
        >>> scores = meteor_scores([["a dog runs on the grass"]], ["a dog ran on the lawn"])  # doctest: +SKIP
        >>> round(scores.corpus, 4)  # doctest: +SKIP
        0.3956

    Reference: Denkowski & Lavie, "Meteor Universal: Language Specific Translation Evaluation for Any Target Language",
    WMT 2014.
    """
    if len(references) != len(candidates) or not all(references):
        raise ValueError("every candidate needs a list of at least one reference")
    # Most captions have fewer characters than that.
    for text in (text for text in chain(candidates, *references) if len(text) >= MAX_WORDS):
        words = text.count(" ") + 1
        if words > MAX_WORDS:
            raise LimitError(f"a caption has {words:,} words; METEOR is computed for at most {MAX_WORDS}")
    lexicon = open_lexicon()
    keep_freed_memory(_MEMORY_FOR_A_REFERENCE * sum(map(len, references)))
    groups, texts = references, candidates
    if any("|||" in text for text in chain(candidates, *references)):
        # The tool removes its separator from a candidate; in a reference it starts another one.
        groups = [[part for text in texts for part in text.split("|||")] for texts in references]
        texts = [text.replace("|||", "") for text in candidates]
    portions = _portions([len(group) for group in groups])
    best = [_best_counts(lexicon, groups[portion], texts[portion]) for portion in portions]
    counts = _joined(best)
    return MeteorScores(corpus=float(_scores(_summed(counts))[0]), per_image=_scores(counts))


def _portions(sizes: Sequence[int]) -> Iterable[slice]:
    """Portions of images with a bounded number of references; at least one portion."""
    begin, total = 0, 0
    for image, size in enumerate(sizes):
        if total + size > _REFERENCES_AT_ONCE and image > begin:
            yield slice(begin, image)
            begin, total = image, 0
        total += size
    yield slice(begin, len(sizes))


def _best_counts(lexicon: Lexicon, references: Sequence[Sequence[str]], candidates: Sequence[str]) -> _Counts:
    """The counts of each candidate with its highest-scoring reference (the first of equals)."""
    image = np.repeat(np.arange(len(candidates)), [len(texts) for texts in references])
    texts = list(chain.from_iterable(references))
    one = CaptionArrays.of(lexicon.words_of(texts), texts)
    other = CaptionArrays.of(lexicon.words_of(candidates), candidates)
    if one.different_words() * other.different_words() > _WORD_PAIRS_AT_ONCE and len(candidates) > 1:
        half = len(candidates) // 2
        parts = slice(half), slice(half, None)
        return _joined([_best_counts(lexicon, references[part], candidates[part]) for part in parts])
    counts = _count(lexicon, one, other, image)
    scores = _scores(counts)
    highest = np.maximum.reduceat(scores, np.searchsorted(image, np.arange(len(candidates))))
    pairs = np.flatnonzero(scores == highest[image])
    return counts[pairs[np.searchsorted(image[pairs], np.arange(len(candidates)))]]


def _joined(parts: Sequence[_Counts]) -> _Counts:
    return _Counts(*(np.concatenate([getattr(part, name) for part in parts]) for name in _Counts.__annotations__))


def _count(lexicon: Lexicon, references: CaptionArrays, candidates: CaptionArrays, image: Ints) -> _Counts:
    """The counts of every reference with the candidate of its image."""
    chunks, matches = _align(lexicon, references, candidates, image)
    sides = (
        _count_side(lexicon, candidates, image, matches[:, [0, 3, 4, 5]]),
        _count_side(lexicon, references, np.arange(len(image)), matches[:, [0, 1, 2, 5]]),
    )
    return _Counts(
        length=np.stack([candidates.length[image], references.length], axis=1).astype(np.float64),
        function_words=np.stack([function_words for function_words, _ in sides], axis=1),
        matched=np.stack([matched for _, matched in sides], axis=1),
        chunks=chunks.astype(np.float64),
    )


def _align(lexicon: Lexicon, references: CaptionArrays, candidates: CaptionArrays, image: Ints) -> tuple[Ints, Ints]:
    """Chunks [pairs], and the aligned matches [matches, 6]: their pair, then the fields of `definition.Match`."""
    long = (references.length > LONGEST_CAPTION) | (candidates.length > LONGEST_CAPTION)[image]
    done = np.flatnonzero(~long)
    some = references[done] if long.any() else references
    matches = find_all_matches(lexicon, candidates, some, image[done])
    alignments = align_all(matches, some.length)
    spans = (matches.start, matches.length, matches.candidate_start, matches.candidate_length)
    rows = np.stack([column[alignments.chosen] for column in (matches.pair, *spans, matches.module)], axis=1)
    rows[:, 0] = done[rows[:, 0]]
    chunks = np.zeros(len(image), dtype=np.int64)
    chunks[done] = alignments.chunks
    long[done[alignments.too_large]] = True

    others: list[list[int]] = []
    for pair in np.flatnonzero(long).tolist():
        reference, candidate = references.words_of(pair), candidates.words_of(image[pair])
        chunks[pair], chosen = align(find_matches(lexicon, reference, candidate), len(candidate))
        others += [[pair, *match] for match in chosen]
    rows = rows[~long[rows[:, 0]]]
    return chunks, np.concatenate([rows, np.array(others, dtype=np.int64).reshape(-1, rows.shape[1])])


def _count_side(lexicon: Lexicon, captions: CaptionArrays, caption_of: Ints, spans: Ints) -> tuple[Floats, Floats]:
    """Function words [pairs], and matched words [pairs, modules, 2], by spans: pair, start, length, module."""
    before = np.concatenate([[0], np.cumsum(lexicon.arrays().is_function_word[captions.words])])
    pair, start, length, module = spans.T
    begin = captions.first[caption_of[pair]] + start
    function = before[begin + length] - before[begin]
    size = len(caption_of) * len(MODULE_WEIGHTS)
    place = pair * len(MODULE_WEIGHTS) + module
    matched = np.stack([np.bincount(place, weight, minlength=size) for weight in (length - function, function)], axis=1)
    function_words = (before[captions.first + captions.length] - before[captions.first])[caption_of]
    return function_words.astype(np.float64), matched.reshape(-1, len(MODULE_WEIGHTS), 2).astype(np.float64)


def _scores(counts: _Counts) -> Floats:
    """The score of each row of counts; 0 where nothing matches."""
    weight = DELTA * (counts.length - counts.function_words) + (1 - DELTA) * counts.function_words
    matched_weight = np.zeros_like(weight)
    for module, module_weight in enumerate(MODULE_WEIGHTS):
        content, function = counts.matched[:, :, module, 0], counts.matched[:, :, module, 1]
        matched_weight += module_weight * (DELTA * content + (1 - DELTA) * function)
    scores = np.zeros(len(weight))
    some = np.flatnonzero((matched_weight > 0).all(axis=1))
    precision, recall = (matched_weight[some] / weight[some]).T
    mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
    fragments = counts.chunks[some] / (counts.matched[some].sum(axis=(1, 2, 3)) / 2)
    fragments[_perfect(counts)[some]] = 0
    scores[some] = mean * (1 - GAMMA * fragments**BETA)
    return scores


def _perfect(counts: _Counts) -> NDArray[np.bool_]:
    """Whether one chunk covers all words on both sides."""
    covered: NDArray[np.bool_] = (counts.matched.sum(axis=(2, 3)) == counts.length).all(axis=1)
    perfect: NDArray[np.bool_] = covered & (counts.chunks == 1)
    return perfect


def _summed(counts: _Counts) -> _Counts:
    """One row: all counts added up. A perfect match has no fragments, so its one chunk is left out."""
    return _Counts(
        counts.length.sum(axis=0, keepdims=True),
        counts.function_words.sum(axis=0, keepdims=True),
        counts.matched.sum(axis=0, keepdims=True),
        np.where(_perfect(counts), 0.0, counts.chunks).sum(keepdims=True),
    )
