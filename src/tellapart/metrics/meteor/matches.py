"""All matches of many pairs of captions at once, in the order of the search.

Which words of references and candidates match is computed once per pair of *different* words, in a small table that all
captions share. Phrases of several words are rarer: they are joined by the pairs of the paraphrase table that have one
phrase in a candidate and the other in a reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tellapart.metrics.meteor.data import LONGEST_PHRASE
from tellapart.metrics.meteor.definition import EXACT, PARAPHRASE, STEM, SYNONYM
from tellapart.metrics.meteor.lexicon import Lexicon, WordArrays

Ints = NDArray[np.int64]

# Five kinds of match, in search order: paraphrases from the reference's side come first.
_FROM_REFERENCE, _FROM_CANDIDATE = 3, 4
_MODULE = np.array([EXACT, STEM, SYNONYM, PARAPHRASE, PARAPHRASE])
_FLAGS = 1 << 22
_WORDS_AT_ONCE = 1 << 13
LONGEST_CAPTION = 63  # of a pair handled here: its words are bits of a mask, and places take 6 bits of a sort key


@dataclass(frozen=True)
class CaptionArrays:
    """Captions concatenated as word numbers; caption n is words[first[n] : first[n] + length[n]].

    With their texts, their phrases are remembered: references are scored with every model.
    """

    words: Ints
    first: Ints
    length: Ints
    texts: Sequence[str] | None = None

    @classmethod
    def of(cls, captions: Sequence[Sequence[int]], texts: Sequence[str] | None = None) -> CaptionArrays:
        length = np.fromiter(map(len, captions), np.int64, len(captions))
        words = np.fromiter(chain.from_iterable(captions), np.int64, int(length.sum()))
        return cls(words, np.cumsum(length) - length, length, texts)

    def __getitem__(self, chosen: Ints) -> CaptionArrays:
        length = self.length[chosen]
        texts = None if self.texts is None else [self.texts[place] for place in chosen.tolist()]
        words = self.words[expand(self.first[chosen], length)[1]]
        return CaptionArrays(words, np.cumsum(length) - length, length, texts)

    def words_of(self, caption: int) -> list[int]:
        words: list[int] = self.words[self.first[caption] : self.first[caption] + self.length[caption]].tolist()
        return words

    def different_words(self) -> int:
        return int(np.count_nonzero(np.bincount(self.words)))

    def caption_of_words(self) -> Ints:
        return np.repeat(np.arange(len(self.length)), self.length)


@dataclass(frozen=True)
class Matches:
    """[matches] each, sorted by pair and start: see `definition.Match`."""

    pair: Ints
    start: Ints
    length: Ints
    candidate_start: Ints
    candidate_length: Ints
    module: Ints


@dataclass(frozen=True)
class _Phrases:
    """Phrases of the paraphrase table in captions, single words too, in no order: [occurrences] each."""

    caption: Ints
    start: Ints
    length: Ints
    word: Ints  # the first, by its number in the captions' own vocabulary
    number: Ints

    def __getitem__(self, chosen: Ints) -> _Phrases:
        return _Phrases(
            self.caption[chosen], self.start[chosen], self.length[chosen], self.word[chosen], self.number[chosen]
        )


def expand(first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Concatenate the ranges first[n] … first[n] + count[n] - 1: for each element its n, and the element."""
    owner = np.repeat(np.arange(len(count)), count)
    return owner, np.arange(len(owner)) + (first - (np.cumsum(count) - count)).take(owner)


def _join(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """All places (in left, in right) of equal values."""
    order = np.argsort(right, kind="stable")
    ordered = right[order]
    first = np.searchsorted(ordered, left)
    owner, place = expand(first, np.searchsorted(ordered, left, side="right") - first)
    return owner, order[place]


def find_all_matches(
    lexicon: Lexicon, candidates: CaptionArrays, references: CaptionArrays, candidate_of: Ints
) -> Matches:
    """The matches of every reference with its candidate `candidate_of[reference]`."""
    arrays = lexicon.arrays()
    vocabulary, words = _own_vocabulary(references.words, len(lexicon))
    candidate_vocabulary, candidate_words = _own_vocabulary(candidates.words, len(lexicon))
    phrases = _phrases_of(lexicon, arrays, references, words)
    candidate_phrases = _phrases_of(lexicon, arrays, candidates, candidate_words)

    table = _related_words(arrays, vocabulary, candidate_vocabulary)
    word_pairs, places, found = [], [], []
    for kind in (_FROM_REFERENCE, _FROM_CANDIDATE):
        one, other, place = _related_phrases(lexicon, phrases, candidate_phrases, kind)
        single = (phrases.length[one] == 1) & (candidate_phrases.length[other] == 1)
        row, column = phrases.word[one[single]], candidate_phrases.word[other[single]]
        table[row, column] |= 1 << kind
        word_pairs.append((row * len(candidate_vocabulary) + column) * 8 + kind)
        places.append(place[single])
        several = np.stack([phrases.number[one], candidate_phrases.number[other], place], axis=1)[~single]
        found.append(_phrase_matches(lexicon, phrases, candidate_phrases, candidate_of, several, kind))
    found.append(
        _word_matches(
            table,
            np.concatenate(word_pairs),
            np.concatenate(places),
            references,
            words,
            candidates,
            candidate_words,
            candidate_of,
        )
    )
    pair, start, length, candidate_start, candidate_length, kind_of, place_of = np.concatenate(found, axis=1)
    keep = (kind_of == 0) | ~_equal(references, candidates, candidate_of)[pair]
    # Search order: by word of the reference and kind; within a kind of paraphrase by the phrase it starts from.
    within = np.where(
        kind_of == _FROM_REFERENCE,
        length << 29 | place_of << 6 | candidate_start,
        candidate_start << 26 | candidate_length << 23 | place_of,
    )
    key = ((pair << 6 | start) << 3 | kind_of) << 32 | within
    order = np.flatnonzero(keep)[np.argsort(key[keep])]
    return Matches(
        pair[order],
        start[order],
        length[order],
        candidate_start[order],
        candidate_length[order],
        _MODULE[kind_of[order]],
    )


def _own_vocabulary(words: Ints, size: int) -> tuple[Ints, Ints]:
    """The different words, and each word as its place among them."""
    place = np.zeros(size, dtype=np.int64)
    place[words] = 1
    vocabulary = np.flatnonzero(place)
    place[vocabulary] = np.arange(len(vocabulary))
    return vocabulary, place[words]


def _phrases_of(lexicon: Lexicon, arrays: WordArrays, captions: CaptionArrays, words: Ints) -> _Phrases:
    """The phrases in captions; `words` are the captions' words in their own vocabulary."""
    if captions.texts is None:
        caption, start, length, number = _find_phrases(lexicon, arrays, captions)
    else:
        packed = [lexicon.phrases.get(text) for text in captions.texts]
        new = np.flatnonzero([one is None for one in packed])
        for place, found in zip(new.tolist(), _packed_phrases(lexicon, arrays, captions[new]), strict=True):
            packed[place] = lexicon.phrases[captions.texts[place]] = found
        whole = [one for one in packed if one is not None]
        code = np.frombuffer(b"".join(whole), dtype=np.int64)
        count = np.fromiter(map(len, whole), np.int64, len(whole)) // code.itemsize
        caption = np.repeat(np.arange(len(whole)), count)
        start, length, number = code & 0xFF, code >> 8 & 0xF, code >> 12
    return _Phrases(caption, start, length, words[captions.first[caption] + start], number)


def _packed_phrases(lexicon: Lexicon, arrays: WordArrays, captions: CaptionArrays) -> list[bytes]:
    """The phrases of each caption, to be remembered: an integer each, of start, length and number."""
    caption, start, length, number = _find_phrases(lexicon, arrays, captions)
    order = np.argsort(caption, kind="stable")
    code = (start | length << 8 | number << 12)[order]
    ends = np.cumsum(np.bincount(caption, minlength=len(captions.length))) * code.itemsize
    every, ends = code.tobytes(), ends.tolist()
    return [every[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _find_phrases(lexicon: Lexicon, arrays: WordArrays, captions: CaptionArrays) -> tuple[Ints, Ints, Ints, Ints]:
    """Caption, start, length and number of every phrase in captions."""
    caption = captions.caption_of_words()
    left = (captions.first + captions.length)[caption] - np.arange(len(caption))  # words from here to the end
    word_hashes, word_powers = arrays.hashes[captions.words], arrays.powers[captions.words]
    places, numbers, lengths = [], [], []
    hashes, powers = np.zeros_like(word_hashes), np.ones_like(word_hashes)
    for length in range(1, min(LONGEST_PHRASE, int(captions.length.max(initial=1))) + 1):
        size = len(caption) - length + 1
        hashes = hashes[:size] + powers[:size] * word_hashes[length - 1 :]
        powers = powers[:size] * word_powers[length - 1 :]
        within = np.flatnonzero(left[: len(hashes)] >= length)
        number = arrays.phrases[captions.words] if length == 1 else lexicon.data.phrase_numbers(hashes[within])
        places.append(within[number >= 0])
        numbers.append(number[number >= 0])
        lengths.append(np.full(len(places[-1]), length))
    place = np.concatenate(places)
    return caption[place], place - captions.first[caption[place]], np.concatenate(lengths), np.concatenate(numbers)


def _related_words(arrays: WordArrays, vocabulary: Ints, candidate_vocabulary: Ints) -> NDArray[np.uint8]:
    """[reference words, candidate words]: bit k is set where a match of kind k is possible."""
    table = np.zeros((len(vocabulary), len(candidate_vocabulary)), dtype=np.uint8)
    table[_join(arrays.stems[vocabulary], arrays.stems[candidate_vocabulary])] |= 1 << STEM
    row, sets = expand(
        arrays.synonym_first[vocabulary], arrays.synonym_first[vocabulary + 1] - arrays.synonym_first[vocabulary]
    )
    column, candidate_sets = expand(
        arrays.synonym_first[candidate_vocabulary],
        arrays.synonym_first[candidate_vocabulary + 1] - arrays.synonym_first[candidate_vocabulary],
    )
    one, other = _join(arrays.synonym_sets[sets], arrays.synonym_sets[candidate_sets])
    table[row[one], column[other]] |= 1 << SYNONYM
    table[_join(vocabulary, candidate_vocabulary)] = 1 << EXACT
    return table


class _Places:
    """Position of each phrase in a list, as a lookup over the whole table that is not initialised."""

    def __init__(self, lexicon: Lexicon, numbers: Ints) -> None:
        self.has = np.zeros(len(lexicon.data.hashes), dtype=bool)
        self.has[numbers] = True
        self._place = np.empty(len(self.has), dtype=np.int32)
        self._place[numbers] = np.arange(len(numbers))

    def of(self, numbers: Ints | NDArray[np.int32]) -> Ints:
        return self._place[numbers].astype(np.int64)


def _related_phrases(
    lexicon: Lexicon, phrases: _Phrases, candidate_phrases: _Phrases, kind: int
) -> tuple[Ints, Ints, Ints]:
    """Pairs of the table between references and candidates: some occurrence in either, and the place in the table."""
    data = lexicon.data
    occurrences = _Places(lexicon, phrases.number)
    number, other = np.unique(candidate_phrases.number, return_index=True)
    if kind == _FROM_CANDIDATE:
        owner, place = expand(data.first[number].astype(np.int64), data.count[number].astype(np.int64))
        partner = data.target[place]
    else:
        first = data.into_first[number].astype(np.int64)
        owner, entry = expand(first, data.into_first[number + 1] - first)
        place = data.into[entry].astype(np.int64)
        partner = data.source[place]
    known = np.flatnonzero(occurrences.has[partner])
    return occurrences.of(partner[known]), other[owner[known]], place[known]


def _phrase_matches(
    lexicon: Lexicon, phrases: _Phrases, candidate_phrases: _Phrases, candidate_of: Ints, pairs: Ints, kind: int
) -> Ints:
    """Rows of matches [7, matches]. A row of `pairs`: phrase of a reference, of a candidate, place in the table."""
    # Keep only phrases that are in some pair.
    pairs = pairs[np.argsort(pairs[:, 1], kind="stable")]
    numbers, of_pair = np.unique(pairs[:, 0], return_inverse=True)
    candidate_numbers, first, count = np.unique(pairs[:, 1], return_index=True, return_counts=True)
    places, candidate_places = _Places(lexicon, numbers), _Places(lexicon, candidate_numbers)
    phrases = phrases[np.flatnonzero(places.has[phrases.number])]
    candidate_phrases = candidate_phrases[np.flatnonzero(candidate_places.has[candidate_phrases.number])]

    # A paraphrase must be in a reference of the same image. A hashed flag rules out most.
    key = candidate_of[phrases.caption] * len(numbers) + places.of(phrases.number)
    flags = np.zeros(_FLAGS, dtype=bool)
    flags[key % _FLAGS] = True
    place = candidate_places.of(candidate_phrases.number)
    owner, pair = expand(first[place], count[place])
    wanted = candidate_phrases.caption[owner] * len(numbers) + of_pair[pair]
    hit = np.flatnonzero(flags[wanted % _FLAGS])
    one, other = _join(wanted[hit], key)
    owner, pair = owner[hit[one]], pair[hit[one]]
    in_reference = (phrases.caption[other], phrases.start[other], phrases.length[other])
    in_candidate = (candidate_phrases.start[owner], candidate_phrases.length[owner])
    return np.stack([*in_reference, *in_candidate, np.full(len(one), kind), pairs[pair, 2]])


def _word_matches(
    table: NDArray[np.uint8],
    word_pairs: Ints,
    places: Ints,
    references: CaptionArrays,
    words: Ints,
    candidates: CaptionArrays,
    candidate_words: Ints,
    candidate_of: Ints,
) -> Ints:
    """Rows of matches [7, matches] of single words, by the table of related words.

    For paraphrases, `word_pairs` and `places` give the position of a pair of words in the paraphrase table.
    """
    order = np.argsort(word_pairs)
    word_pairs, places = word_pairs[order], places[order]
    pair = references.caption_of_words()
    candidate = candidate_of[pair]
    count = candidates.length[candidate]
    # Every word of a reference with every word of its candidate: many, so some after the other, in the cache.
    found = []
    for begin in range(0, max(1, len(words)), _WORDS_AT_ONCE):
        some = slice(begin, begin + _WORDS_AT_ONCE)
        word, other = expand(candidates.first.take(candidate[some]), count[some])
        columns = (words[some] * table.shape[1]).take(word) + candidate_words.take(other)
        kinds = table.ravel().take(columns)
        hit = np.flatnonzero(kinds)
        found.append((word.take(hit) + begin, other.take(hit), columns.take(hit), kinds.take(hit)))
    word, other, columns, kinds = map(np.concatenate, zip(*found, strict=True))
    start = word - references.first[pair[word]]
    candidate_start = other - candidates.first[candidate[word]]
    rows = []
    for kind in range(_FROM_CANDIDATE + 1):
        chosen = np.flatnonzero(kinds >> kind & 1)
        place = np.zeros(len(chosen), dtype=np.int64)
        if kind >= _FROM_REFERENCE:
            place = places[np.searchsorted(word_pairs, columns[chosen] * 8 + kind)]
        one = np.ones(len(chosen), dtype=np.int64)
        row = (pair[word[chosen]], start[chosen], one, candidate_start[chosen], one, np.full(len(chosen), kind), place)
        rows.append(np.stack(row))
    return np.concatenate(rows, axis=1)


def _equal(references: CaptionArrays, candidates: CaptionArrays, candidate_of: Ints) -> NDArray[np.bool_]:
    """Whether each reference equals its candidate."""
    same_length: NDArray[np.bool_] = references.length == candidates.length[candidate_of]
    checked = np.flatnonzero(same_length)
    owner, place = expand(references.first[checked], references.length[checked])
    other = expand(candidates.first[candidate_of[checked]], references.length[checked])[1]
    differs = np.bincount(owner, references.words[place] != candidates.words[other], minlength=len(checked))
    same_length[checked] = differs == 0
    return same_length
