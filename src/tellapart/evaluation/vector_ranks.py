"""Ranks both ways from one vector per item, about as fast as the matrix product of the vectors.

The ranks are those of inner products in float64, ties included (`metrics.ranks` says what a rank is), though nearly all
are computed in float32: of a product of n numbers float32 is wrong by less than

    8 √n u |a| |b|,   u = 2⁻²⁴

but for one in 10¹³ (rounding errors are of either sign: Higham and Mary, 2019). A score that is further than this from
the one it is compared with is on the same side of it in float64; the few others are computed again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from tellapart.errors import DataError
from tellapart.metrics.ranks import RetrievalRanks

# A block of scores is so high and so wide, and counted by so many rows. Counts of so few rows, and of so few groups of
# eight columns, fit one byte each, which adds up fast; a higher block makes the product faster.
HEIGHT = 1008
ROWS = 252
COLUMNS = 2032
CERTAIN = 8.0
# Pairs that are computed in float64 at a time; more would not stay in the cache.
PAIRS = 256

Vectors = NDArray[np.float32]


def vector_ranks(
    images: Vectors,
    captions: Vectors,
    image_of_caption: NDArray[np.integer],
    *,
    rounding: float = 0.0,
    on_progress: Callable[[int, int], None] | None = None,
) -> RetrievalRanks:
    """Ranks in both directions by the inner product, as `retrieval_ranks` gives them in float64.

    The memory is that of one block of 1008 × 2032 scores, whatever the number of pairs.

    Args:
        images: `[images, width]`, float32.
        captions: `[captions, width]`.
        image_of_caption: `[captions]`, the position of each caption's image; every image has one or more.
        rounding: scores that are lower than the right one's by no more than this are ties too.
        on_progress: called with images done and images in all.

    Example:
        >>> images, captions = np.eye(2, dtype=np.float32), np.array([[1, 0], [0.3, 0.4], [0, 1]], dtype=np.float32)
        >>> ranks = vector_ranks(images, captions, np.array([0, 0, 1]))
        >>> ranks.image_to_text.tolist(), ranks.text_to_image.tolist()
        ([1, 1], [1, 2, 1])
    """
    if images.ndim != 2 or captions.ndim != 2 or images.shape[1] != captions.shape[1]:
        raise ValueError(f"vectors of different widths: {images.shape} and {captions.shape}")
    owner, count = np.asarray(image_of_caption, dtype=np.int64), len(images)
    if not np.bincount(owner, minlength=count).all():
        raise DataError(f"image {int(np.argmin(np.bincount(owner, minlength=count)))} has no caption; each needs one")
    images, captions = (np.ascontiguousarray(vectors, dtype=np.float32) for vectors in (images, captions))
    lengths = [float(np.sqrt(np.einsum("ij,ij->i", v, v).max(initial=0.0))) for v in (images, captions)]
    if not np.isfinite(lengths).all():
        raise DataError("a vector holds what is not a number (NaN); the model that gave it has diverged: train it anew")
    own = _products(images, captions, owner, np.arange(len(captions)))
    best = np.full(count, -np.inf)
    np.maximum.at(best, owner, own)
    counting = _Counting(images, captions, best - rounding, own - rounding, lengths[0] * lengths[1])
    before_caption = np.zeros(count, dtype=np.int64)
    before_image = np.zeros(len(captions), dtype=np.int64)
    for top in range(0, count, HEIGHT):
        bottom = min(top + HEIGHT, count)
        here = np.flatnonzero((owner >= top) & (owner < bottom))
        for left in range(0, len(captions), COLUMNS):
            right = min(left + COLUMNS, len(captions))
            true = here[(here >= left) & (here < right)]
            counting.score(top, bottom, left, right, owner[true] - top, true - left)
            for start in range(top, bottom, ROWS):
                of_rows, of_columns = counting.count(start, min(start + ROWS, bottom))
                before_caption[start : start + len(of_rows)] += of_rows
                before_image[left:right] += of_columns
        if on_progress is not None:
            on_progress(bottom, count)
    return RetrievalRanks(before_caption + 1, before_image + 1, np.bincount(owner, minlength=count))


class _Counting:
    """Counts scores that are as high as what they are compared with, block by block, in buffers that are used again."""

    def __init__(
        self,
        images: Vectors,
        captions: Vectors,
        of_image: NDArray[np.float64],
        of_caption: NDArray[np.float64],
        largest: float,
    ) -> None:
        self.images, self.captions = images, captions
        self.of_image, self.of_caption = of_image, of_caption
        # The second term: what is compared with, and the difference, are rounded to float32 as well.
        self.band = np.float32((CERTAIN * images.shape[1] ** 0.5 + 8) * 2.0**-24 * largest)
        self.columns = min(COLUMNS, -(-len(captions) // 8) * 8)
        self.scores = np.empty((min(HEIGHT, len(images)), self.columns), np.float32)
        self.apart = np.empty((ROWS, self.columns), np.float32)
        self.low, self.high = np.empty((2, ROWS, self.columns), np.bool_)
        self.top = self.left = self.width = 0

    def score(
        self,
        top: int,
        bottom: int,
        left: int,
        right: int,
        true_rows: NDArray[np.int64],
        true_columns: NDArray[np.int64],
    ) -> None:
        """Compute a block; its true pairs will not count."""
        self.top, self.left, self.width = top, left, right - left
        scores = self.scores[: bottom - top]
        np.matmul(self.images[top:bottom], self.captions[left:right].T, out=scores[:, : self.width])
        scores[:, self.width :] = -np.inf
        scores[true_rows, true_columns] = -np.inf

    def count(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For some rows and for the columns of the block, how many scores are as high."""
        scores = self.scores[start - self.top : stop - self.top]
        of_rows, rows, columns = self._as_high(scores, self.of_image[start:stop, None], _row_counts)
        if len(rows):
            exact = self._exact(rows + start, columns) >= self.of_image[rows + start]
            of_rows += np.bincount(rows, exact, minlength=len(of_rows)).astype(np.int64)
        limits = np.full((1, self.columns), np.inf)
        limits[0, : self.width] = self.of_caption[self.left : self.left + self.width]
        of_columns, rows, columns = self._as_high(scores, limits, _column_counts)
        if len(rows):
            exact = self._exact(rows + start, columns) >= self.of_caption[columns + self.left]
            of_columns += np.bincount(columns, exact, minlength=self.columns).astype(np.int64)
        return of_rows, of_columns[: self.width]

    def _as_high(
        self,
        scores: Vectors,
        limits: NDArray[np.float64],
        counts: Callable[[NDArray[np.bool_]], NDArray[np.int64]],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Counts of scores that are surely as high as the limits, and the rows and columns of those one cannot tell."""
        apart, low, high = self.apart[: len(scores)], self.low[: len(scores)], self.high[: len(scores)]
        # torch is twice as fast at this as NumPy, which is several times as fast at what follows.
        torch.sub(torch.from_numpy(scores), torch.from_numpy(limits.astype(np.float32)), out=torch.from_numpy(apart))
        np.greater_equal(apart, -self.band, out=low)
        np.greater_equal(apart, self.band, out=high)
        sure, possible = counts(high), counts(low)
        unsure = np.flatnonzero(sure != possible)
        if counts is _row_counts:
            places, columns = np.nonzero(low[unsure] & ~high[unsure])
            return sure, unsure[places], columns
        rows, places = np.nonzero(low[:, unsure] & ~high[:, unsure])
        return sure, rows, unsure[places]

    def _exact(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.float64]:
        return _products(self.images, self.captions, rows, columns + self.left)


def _products(
    images: Vectors, captions: Vectors, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Inner products of some pairs in float64."""
    found = np.empty(len(rows))
    for start in range(0, len(rows), PAIRS):
        part = slice(start, start + PAIRS)
        found[part] = np.einsum("ij,ij->i", images[rows[part]], captions[columns[part]], dtype=np.float64)
    return found


def _row_counts(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many are set in each row: eight at a time as the bytes of one number, none of which comes to 256."""
    eight = np.add.reduce(mask.view(np.uint64), axis=1)
    return np.asarray(eight.view(np.uint8).reshape(len(mask), 8).sum(axis=1), dtype=np.int64)


def _column_counts(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many are set in each column, of fewer than 256 rows."""
    eight = np.add.reduce(mask.view(np.uint64), axis=0)
    return np.asarray(eight.view(np.uint8), dtype=np.int64)
