"""Exact nearest neighbours among images, by the cosine of their pooled features."""

from __future__ import annotations

import numpy as np


def nearest_images(pooled: np.ndarray, count: int, chunk: int = 1024) -> np.ndarray:
    """The `count` most similar other images of each image, nearest first: positions `[images, count]`.

    Equal similarities are ordered by position. Time is quadratic in the images, memory is `chunk × images`.

    Args:
        pooled: features `[images, width]`.
        count: number of neighbours, below the number of images.
        chunk: images compared at a time.

    Example:
        >>> nearest_images(np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), 1).ravel().tolist()
        [1, 0, 1]
    """
    images = len(pooled)
    if not 0 < count < images:
        raise ValueError(f"{count} neighbours cannot be found among {images} images")
    pooled = pooled.astype(np.float32)
    unit = pooled / np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)
    nearest = np.empty((images, count), dtype=np.int64)
    for start in range(0, images, chunk):
        similarity = unit[start : start + chunk] @ unit.T
        rows = np.arange(len(similarity))
        similarity[rows, start + rows] = -np.inf  # not itself
        # Partition for the `count` best, then sort these; ties with the last one are sorted too.
        threshold = np.partition(similarity, images - count, axis=1)[:, images - count]
        for row in rows:
            candidates = np.flatnonzero(similarity[row] >= threshold[row])
            order = np.argsort(-similarity[row, candidates], kind="stable")[:count]
            nearest[start + row] = candidates[order]
    return nearest
