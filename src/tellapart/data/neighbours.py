"""Exact nearest neighbours among images, by the cosine of their pooled features."""

from __future__ import annotations

import numpy as np


def nearest_images(pooled: np.ndarray, count: int, chunk: int = 1024) -> np.ndarray:
    """For each image the `count` most similar other images, nearest first: positions `[images, count]`.

    Equal similarities are ordered by position. The work is quadratic, the memory `chunk × images`.

    Args:
        pooled: features `[images, width]`.
        count: how many neighbours; fewer than there are images.
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
        # The `count` best in any order, then those in order; everything equal to the last of them competes too.
        threshold = np.partition(similarity, images - count, axis=1)[:, images - count]
        for row in rows:
            candidates = np.flatnonzero(similarity[row] >= threshold[row])
            order = np.argsort(-similarity[row, candidates], kind="stable")[:count]
            nearest[start + row] = candidates[order]
    return nearest
