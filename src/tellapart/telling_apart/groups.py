"""Groups of similar pictures, by the cosine of their pooled features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tellapart.data.neighbours import nearest_images

# Neighbours of a picture that may be in its group besides those that come by way of others.
NEIGHBOURS = 64

Vectors = NDArray[np.float32]


def unit_vectors(pooled: NDArray[np.floating]) -> Vectors:
    """Rows of length 1."""
    pooled = np.asarray(pooled, dtype=np.float32)
    unit: Vectors = pooled / np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), np.float32(1e-12))
    return unit


def group_alike(pooled: NDArray[np.floating], threshold: float, size: int | None = None) -> list[list[int]]:
    """Groups of similar pictures: positions in rising order; a picture like no other is a group of one.

    Pairs of pictures are taken from the most similar one on. Their groups are joined if the mean cosine between a
    picture of one and a picture of the other is at least the threshold, and if the whole is not too large.

    Args:
        pooled: features `[pictures, width]`.
        threshold: least mean cosine.
        size: most pictures in a group; any number by default.

    Example:
        >>> group_alike(np.array([[1, 0], [0, 1], [0.9, 0.1], [0.1, 0.9], [-1, -1]]), threshold=0.8)
        [[0, 2], [1, 3], [4]]
    """
    unit = unit_vectors(pooled)
    if len(unit) < 2:
        return [[place] for place in range(len(unit))]
    nearest = nearest_images(unit, min(NEIGHBOURS, len(unit) - 1))
    first = np.repeat(np.arange(len(unit)), nearest.shape[1])
    pairs = np.unique(np.sort(np.stack([first, nearest.ravel()], axis=1), axis=1), axis=0)
    similarity = np.einsum("ij,ij->i", unit[pairs[:, 0]], unit[pairs[:, 1]])
    members = {place: [place] for place in range(len(unit))}
    group_of, sums = list(range(len(unit))), unit.astype(np.float64)
    for a, b in pairs[np.argsort(-similarity, kind="stable")].tolist():
        a, b = sorted((group_of[a], group_of[b]))
        together = len(members[a]) + len(members[b])
        if a == b or (size is not None and together > size):
            continue
        # The sum of all cosines between two groups is the inner product of their sums.
        if sums[a] @ sums[b] < threshold * len(members[a]) * len(members[b]):
            continue
        for place in members[b]:
            group_of[place] = a
        members[a] += members.pop(b)
        sums[a] += sums[b]
    return [sorted(group) for group in members.values()]


def others_nearest_first(unit: Vectors, group: Sequence[int], picture: int) -> list[int]:
    """The other pictures of a group, the most similar one first."""
    others = [place for place in group if place != picture]
    order = np.argsort(-(unit[others] @ unit[picture]), kind="stable").tolist()
    return [others[place] for place in order]
