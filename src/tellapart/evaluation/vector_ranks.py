"""Ranks in both directions from one vector per item, about as fast as the matrix product of the vectors.

The ranks are those of inner products in float64, ties included (`metrics.ranks` defines a rank). Nearly all of them are
computed in float32. For vectors of n numbers a float32 product is wrong by less than

    8 √n u |a| |b|,   u = 2⁻²⁴

except with a probability of 10⁻¹³ (rounding errors have either sign: Higham and Mary, 2019). A score further than this
from the limit it is compared with is on the same side of it in float64. The few others are computed again in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tellapart.errors import DataError
from tellapart.metrics.ranks import RetrievalRanks

# Scores are computed in blocks of this height and width, and counted in strips that stay in the cache.
HEIGHT = 500
COLUMNS = 5000
ROWS = 125  # below 256: counts per column are summed in bytes
CERTAIN = 8.0
# Pairs computed in float64 at a time; more would not stay in the cache.
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

    Memory is needed for one block of 500 × 5000 scores, whatever the number of pairs.

    Args:
        images: `[images, width]`, float32.
        captions: `[captions, width]`.
        image_of_caption: `[captions]`, the position of each caption's image; every image has one or more.
        rounding: scores lower than the true pair's by no more than this count as ties.
        on_progress: called with the images done and the number of images.

    Example:
        >>> images, captions = np.eye(2, dtype=np.float32), np.array([[1, 0], [0.3, 0.4], [0, 1]], dtype=np.float32)
        >>> ranks = vector_ranks(images, captions, np.array([0, 0, 1]))
        >>> ranks.image_to_text.tolist(), ranks.text_to_image.tolist()
        ([1, 1], [1, 2, 1])
    """
    if images.ndim != 2 or captions.ndim != 2 or images.shape[1] != captions.shape[1]:
        raise ValueError(f"vectors of different widths: {images.shape} and {captions.shape}")
    owner, count = np.asarray(image_of_caption, dtype=np.int64), len(images)
    captions_of = np.bincount(owner, minlength=count)
    if not captions_of.all():
        raise DataError(f"image {int(np.argmin(captions_of))} has no caption; each needs one")
    images, captions = (np.ascontiguousarray(vectors, dtype=np.float32) for vectors in (images, captions))
    lengths = [float(np.sqrt(np.einsum("ij,ij->i", v, v).max(initial=0.0))) for v in (images, captions)]
    if not np.isfinite(lengths).all():
        raise DataError(
            "a vector holds NaN (not a number) or infinity; the model that gave it has diverged: train it again"
        )
    # The second term: the limits, and the sums of limit and band, are rounded to float32 too.
    band = np.float32((CERTAIN * images.shape[1] ** 0.5 + 8) * 2.0**-24 * lengths[0] * lengths[1])
    own = _products(images, captions, owner, np.arange(len(captions)))
    best = np.full(count, -np.inf)
    np.maximum.at(best, owner, own)
    before_caption, before_image = np.zeros(count, dtype=np.int64), np.zeros(len(captions), dtype=np.int64)
    memory = np.empty(min(HEIGHT, count) * min(COLUMNS, len(captions)), np.float32)
    for top in range(0, count, HEIGHT):
        bottom = min(top + HEIGHT, count)
        for left in range(0, len(captions), COLUMNS):
            right = min(left + COLUMNS, len(captions))
            block = memory[: (bottom - top) * (right - left)].reshape(bottom - top, right - left)
            np.matmul(images[top:bottom], captions[left:right].T, out=block)
            true = np.flatnonzero((owner[left:right] >= top) & (owner[left:right] < bottom))
            block[owner[left + true] - top, true] = -np.inf  # true pairs are not counted
            for start in range(top, bottom, ROWS):
                scores = block[start - top : start - top + ROWS]
                stop = start + len(scores)
                pair = images[start:stop], captions[left:right]
                by_image = _as_high(scores, best[start:stop, None] - rounding, band, *pair)
                by_caption = _as_high(scores, own[None, left:right] - rounding, band, *pair)
                # Row by row: twice as fast as count_nonzero along an axis, which adds up whole numbers.
                before_caption[start:stop] += [np.count_nonzero(row) for row in by_image]
                before_image[left:right] += by_caption.sum(axis=0, dtype=np.uint8)
        if on_progress is not None:
            on_progress(bottom, count)
    return RetrievalRanks(before_caption + 1, before_image + 1, captions_of)


def _as_high(
    scores: Vectors,
    limits: NDArray[np.float64],
    band: np.float32,
    images: Vectors,
    captions: Vectors,
) -> NDArray[np.bool_]:
    """Which scores of these images and captions reach the limits in float64."""
    rounded = limits.astype(np.float32)
    high = scores >= rounded + band
    unsure = scores >= rounded - band
    unsure ^= high
    rows, columns = np.divmod(np.flatnonzero(unsure), scores.shape[1])
    exact = _products(images, captions, rows, columns)
    high[rows, columns] = exact >= np.broadcast_to(limits, scores.shape)[rows, columns]
    return high


def _products(
    images: Vectors, captions: Vectors, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Inner products of some pairs in float64."""
    found = np.empty(len(rows))
    for start in range(0, len(rows), PAIRS):
        part = slice(start, start + PAIRS)
        found[part] = np.einsum("ij,ij->i", images[rows[part]], captions[columns[part]], dtype=np.float64)
    return found
