"""CIDEr between any two captions of a collection, as matrices.

The tf-idf vectors of all captions are computed once; a block of the matrix then costs one small product. For a caption
a with a caption b as its reference, and w = count · idf of an n-gram (idf as in cider.py):

    plain    sim_n(a, b) = Σ w_a w_b / (‖w_a‖ ‖w_b‖)
    CIDEr-D  sim_n(a, b) = Σ min(w_a, w_b) w_b / (‖w_a‖ ‖w_b‖) · exp(-(l_a - l_b)² / (2·6²))

and the value is 10 · mean over n = 1…4. Plain CIDEr is symmetric; CIDEr-D is not if an n-gram repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tellapart.metrics.cider import SIGMA, DocumentFrequencies
from tellapart.metrics.ngrams import ORDERS, ranges

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class NgramVectors:
    """The n-grams of one n: those of caption i are the entries `start[i]` … `start[i + 1]` of `gram` and `count`.

    They are sorted within a caption. idf: of each n-gram; norm: of the tf-idf vector of each caption.
    """

    start: Rows
    gram: Rows
    count: NDArray[np.float64]
    idf: NDArray[np.float64]
    norm: NDArray[np.float64]

    def entries(self, rows: Rows) -> tuple[Rows, Rows]:
        """All entries of these captions: index into `rows`, and the entry."""
        sizes = self.start[rows + 1] - self.start[rows]
        return np.repeat(np.arange(len(rows)), sizes), ranges(self.start[rows], sizes)


class CaptionPairs:
    """CIDEr and CIDEr-D of pairs of captions, by their positions in `captions`.

    Args:
        captions: tokens joined by white space.
        frequencies: document frequencies of the n-grams.

    Example:
        >>> frequencies = DocumentFrequencies.count([["a dog runs"], ["a cat sits"]])
        >>> pairs = CaptionPairs(["a dog runs", "a dog", "a cat sits"], frequencies)
        >>> pairs.cider(np.array([0, 1, 2]), np.array([0, 1])).round(3).tolist()
        [[7.5, 3.536], [3.536, 5.0], [0.0, 0.0]]
    """

    def __init__(self, captions: Sequence[str], frequencies: DocumentFrequencies) -> None:
        words, lengths, _ = frequencies.vocabulary().number(captions)
        self._length = lengths.astype(np.float64)
        # Word numbers start at 1, those of the table at 0.
        self._orders = ngram_vectors(words - 1, lengths, frequencies)

    def cider(self, rows: Rows, columns: Rows) -> NDArray[np.float64]:
        """Plain CIDEr of the captions `rows` with the captions `columns`: `[rows, columns]`."""
        return self._matrix(rows, columns, clipped=False)

    def cider_d(self, rows: Rows, columns: Rows) -> NDArray[np.float64]:
        """CIDEr-D of the captions `rows`, each with one of `columns` as its reference: `[rows, columns]`."""
        gap = self._length[rows][:, np.newaxis] - self._length[columns]
        return np.asarray(self._matrix(rows, columns, clipped=True) * np.exp(-(gap**2) / (2 * SIGMA**2)))

    def _matrix(self, rows: Rows, columns: Rows, clipped: bool) -> NDArray[np.float64]:
        total = np.zeros((len(rows), len(columns)))
        for order in self._orders:
            product = _products(order, rows, columns, clipped)
            scale = order.norm[rows][:, np.newaxis] * order.norm[columns]
            np.divide(product, scale, out=product, where=scale > 0)
            total += product
        return 10.0 / ORDERS * total


def _products(order: NgramVectors, rows: Rows, columns: Rows, clipped: bool) -> NDArray[np.float64]:
    """Σ w_a w_b, or Σ min(w_a, w_b) w_b, of each row a and column b."""
    # Only n-grams of the rows matter: use small dense matrices over those.
    which, entry = order.entries(rows)
    grams, place = np.unique(order.gram[entry], return_inverse=True)
    if len(grams) == 0:
        return np.zeros((len(rows), len(columns)))
    left = np.zeros((len(rows), len(grams)))
    left[which, place] = order.count[entry]
    which, entry = order.entries(columns)
    place = np.minimum(np.searchsorted(grams, order.gram[entry]), len(grams) - 1)
    known = grams[place] == order.gram[entry]
    right = np.zeros((len(columns), len(grams)))
    right[which[known], place[known]] = order.count[entry[known]]

    weighted = right * order.idf[grams] ** 2
    if not clipped:
        return np.asarray(left @ weighted.T)
    # min(a, b) = Σ_t [a ≥ t] [b ≥ t] for counts: one product per t, nearly always one or two.
    total = np.zeros((len(rows), len(columns)))
    for t in range(1, int(min(left.max(), right.max(initial=0.0))) + 1):
        total += (left >= t) @ (weighted * (right >= t)).T
    return total


def ngram_vectors(words: Rows, lengths: Rows, frequencies: DocumentFrequencies) -> list[NgramVectors]:
    """Count, weigh and number the n-grams of all captions, for each n.

    The words are numbered as in `frequencies`; larger numbers are words that are not in it.

    An (n+1)-gram is an n-gram and the word after it. Each order is numbered again, so that numbers stay small.
    """
    captions = len(lengths)
    caption_of = np.repeat(np.arange(captions), lengths)
    vocabulary = int(words.max(initial=0)) + 1
    at, key = np.arange(len(words)), words
    in_table = np.where(words < len(frequencies.words), words, -1)
    orders = []
    for n in range(1, ORDERS + 1):
        distinct, first, gram = np.unique(key, return_index=True, return_inverse=True)
        frequency = frequencies.images_with(in_table[first], n)
        idf = np.log(max(1, frequencies.images)) - np.log(np.maximum(1, frequency))
        size = max(1, len(distinct))
        rows, count = np.unique(caption_of[at] * size + gram, return_counts=True)
        caption, entry = np.divmod(rows, size)
        norm = np.sqrt(np.bincount(caption, (count * idf[entry]) ** 2, minlength=captions))
        start = np.searchsorted(caption, np.arange(captions + 1))
        orders.append(NgramVectors(start, entry, count.astype(np.float64), idf, norm))
        if n < ORDERS:
            longer = np.flatnonzero(at + n < len(words))
            longer = longer[caption_of[at[longer]] == caption_of[at[longer] + n]]
            at = at[longer]
            last = words[at + n]
            key = gram[longer] * vocabulary + last
            in_table = frequencies.find(in_table[longer], last, n + 1)
    return orders
