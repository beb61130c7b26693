"""Ranks of a retriever that compares pair by pair: coarse vectors find the first items, which are then compared.

At COCO's 5,000 images and 25,000 captions, all pairs are 125 million; the first 100 of each query are 3 million.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tellapart.evaluation.vector_ranks import vector_ranks
from tellapart.metrics.ranks import RetrievalRanks

Compare = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]
# Queries whose coarse scores are computed at a time.
QUERIES = 256


def reranked_ranks(
    images: NDArray[np.float32],
    captions: NDArray[np.float32],
    image_of_caption: NDArray[np.int64],
    compare: Compare,
    first: int = 100,
    rounding: float = 0.0,
    on_progress: Callable[[int, int], None] | None = None,
) -> RetrievalRanks:
    """Ranks in both directions of a search in two stages.

    The `first` items by the inner product of coarse vectors are ordered by `compare`; the others follow in their coarse
    order. So an item that is among the first has its rank among them, and any other its coarse rank, or `first` + 1 if
    that is higher. Ties count against the right item.

    Args:
        images: coarse vectors, `[images, width]`.
        captions: coarse vectors, `[captions, width]`.
        image_of_caption: `[captions]`, the position of each caption's image, in rising order.
        compare: the scores of some images (rows) and captions (columns), by their positions.
        first: number of items that are compared.
        rounding: scores lower than the right item's by no more than this count as ties.
        on_progress: called with the images done and the number of images.

    Example:
        >>> eye = np.eye(3, dtype=np.float32)
        >>> ranks = reranked_ranks(eye, eye, np.arange(3), lambda rows, columns: -eye[rows][:, columns], first=2)
        >>> ranks.image_to_text.tolist()   # the coarse first is the last of two after comparing
        [2, 2, 2]
    """
    coarse = vector_ranks(images, captions, image_of_caption)
    owner = np.asarray(image_of_caption, dtype=np.int64)
    starts = np.searchsorted(owner, np.arange(len(images) + 1))
    to_text = np.maximum(coarse.image_to_text, first + 1)
    to_image = np.maximum(coarse.text_to_image, first + 1)
    for image, found in _first(images, captions, first):
        scores = compare(np.array([image]), found)[0]
        right = owner[found] == image
        if right.any():
            best = scores[right].max()
            to_text[image] = 1 + np.count_nonzero(scores[~right] >= best - rounding)
        if on_progress is not None:
            on_progress((image + 1) // 2, len(images))
    for caption, found in _first(captions, images, first):
        right = found == owner[caption]
        if right.any():
            scores = compare(found, np.array([caption]))[:, 0]
            to_image[caption] = 1 + np.count_nonzero(scores[~right] >= scores[right][0] - rounding)
        if on_progress is not None:
            on_progress((len(images) + owner[caption] + 1) // 2, len(images))
    return RetrievalRanks(to_text, to_image, np.diff(starts))


def _first(queries: NDArray[np.float32], items: NDArray[np.float32], count: int) -> list[tuple[int, NDArray[np.int64]]]:
    """Each query with the items of the highest inner products, in rising order of their positions."""
    count = min(count, len(items))
    found: list[tuple[int, NDArray[np.int64]]] = []
    for start in range(0, len(queries), QUERIES):
        scores = queries[start : start + QUERIES] @ items.T
        best = np.sort(np.argpartition(-scores, count - 1, axis=1)[:, :count], axis=1)
        found += [(start + row, places.astype(np.int64)) for row, places in enumerate(best)]
    return found
