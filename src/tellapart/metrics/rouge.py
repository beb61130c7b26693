"""ROUGE-L with the numbers of the COCO caption tool.

Based on the longest common subsequence (LCS) of candidate and reference: words in the same order, gaps allowed.

    precision = max over references of LCS / words of the candidate
    recall    = max over references of LCS / words of that reference
    ROUGE_L   = (1 + β²) · precision · recall / (recall + β² · precision),   β = 1.2; the corpus score is the mean

The two maxima may come from different references. Words are separated by single spaces: two spaces in a row have an
empty word between them, an empty caption is one empty word, and other white space is part of a word.

The LCS of many pairs is computed at once with bits (Hyyrö 2004): a reference of w words is w bits, all 1 at first; each
candidate word costs one addition, and each 0 at the end is one word of the LCS.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tellapart.metrics.equal import Numbers
from tellapart.metrics.image_scores import ImageScores
from tellapart.metrics.ngrams import Captions, number_captions

_BETA = 1.2
# References are padded to one of these lengths; longer ones are handled one by one.
_WIDTHS = (8, 16, 32, 64)
# Pairs handled at once, so that their words stay in the processor's cache.
_BLOCK = 8192
# Of each byte, the number of its bits that are 0.
_ZEROS = np.array([8 - byte.bit_count() for byte in range(256)])


def rouge_scores(references: Sequence[Sequence[str]], candidates: Sequence[str]) -> ImageScores:
    """ROUGE-L of one candidate per image against that image's references (at least one).

    Captions are tokens joined by single spaces; `references[i]` belongs to `candidates[i]`.

    >>> rouge_scores([["a dog runs", "the big dog"]], ["the dog runs"]).per_image.round(4).tolist()
    [0.6667]
    """
    return rouge_of(number_captions(references, candidates, single_blanks=True))


def rouge_of(captions: Captions) -> ImageScores:
    """ROUGE-L of captions that were split at single spaces."""
    reference = np.flatnonzero(~captions.is_candidate)
    candidate = captions.candidate[captions.image_of[reference]]
    common = _common_subsequence(captions, candidate, reference)
    start = captions.candidate - np.arange(captions.images)
    precision = np.maximum.reduceat(common / captions.lengths[candidate], start)
    recall = np.maximum.reduceat(common / captions.lengths[reference], start)
    denominator = recall + _BETA**2 * precision
    product = (1 + _BETA**2) * precision * recall
    return ImageScores(np.divide(product, denominator, out=np.zeros(captions.images), where=denominator > 0))


def _common_subsequence(captions: Captions, candidate: Numbers, reference: Numbers) -> Numbers:
    """LCS length of each pair of captions."""
    start = np.cumsum(captions.lengths) - captions.lengths
    length = captions.lengths[reference]
    # Small types compare faster; 0, the number of no word, is the padding.
    small = np.uint16 if len(captions.vocabulary) <= 1 << 16 else np.int32
    words = np.append(captions.words.astype(small), np.zeros(_WIDTHS[-1], dtype=small))
    common = np.zeros(len(reference), dtype=np.int64)
    shorter = 0
    for width in _WIDTHS:
        pairs = np.flatnonzero((length > shorter) & (length <= width))
        # Pairs sorted by candidate length, so that short ones do not wait for longer ones.
        pairs = pairs[np.argsort(captions.lengths[candidate[pairs]], kind="stable")]
        for first in range(0, len(pairs), _BLOCK):
            block = pairs[first : first + _BLOCK]
            common[block] = _common_by_bits(words, start, captions.lengths, candidate[block], reference[block], width)
        shorter = width
    for pair in np.flatnonzero(length > shorter).tolist():
        one, other = candidate[pair], reference[pair]
        common[pair] = _common_of_one(
            captions.words[start[one] : start[one] + captions.lengths[one]],
            captions.words[start[other] : start[other] + captions.lengths[other]],
        )
    return common


def _common_by_bits(
    words: NDArray[np.integer], start: Numbers, lengths: Numbers, candidate: Numbers, reference: Numbers, width: int
) -> Numbers:
    """LCS length of pairs whose references have at most `width` words: one unsigned integer of that width each."""
    unsigned = np.dtype(f"u{width // 8}")
    # Rows: the first, second, … words of all references.
    rows = np.arange(int(lengths[reference].max(initial=0)))[:, np.newaxis]
    other = words.take(start[reference] + rows)
    other *= rows < lengths[reference]
    bits = np.left_shift(unsigned.type(1), rows.astype(unsigned))
    length, begin = lengths[candidate], start[candidate]
    zeros = np.full(len(candidate), np.iinfo(unsigned).max, dtype=unsigned)
    places = np.arange(int(length.max(initial=0)))
    # Candidates are sorted by length: the last ones still have a word at a place.
    for place, live in enumerate(np.searchsorted(length, places, side="right").tolist()):
        word = words.take(begin[live:] + place)
        # Different bits: their sum is all of them.
        equal = np.add.reduce((other[:, live:] == word) * bits, axis=0, dtype=unsigned)
        state = zeros[live:]
        matched = state & equal
        zeros[live:] = (state + matched) | (state - matched)
    common = np.zeros(len(zeros), dtype=np.int64)
    for byte in zeros.view(np.uint8).reshape(len(zeros), -1).T:
        common += _ZEROS.take(byte)
    return common


def _common_of_one(candidate: Numbers, reference: Numbers) -> int:
    """LCS length of one pair of any length, with one long integer."""
    places: dict[int, int] = {}
    for place, word in enumerate(reference.tolist()):
        places[word] = places.get(word, 0) | 1 << place
    full = (1 << len(reference)) - 1
    zeros = full
    for word in candidate.tolist():
        matched = zeros & places.get(word, 0)
        zeros = ((zeros + matched) | (zeros - matched)) & full
    return len(reference) - zeros.bit_count()
