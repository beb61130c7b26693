"""Nearest neighbours against a loop over all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from tellapart.data.neighbours import nearest_images


def naive(pooled: np.ndarray, count: int) -> list[list[int]]:
    unit = [row / np.linalg.norm(row) for row in pooled.astype(np.float32)]
    found = []
    for i, one in enumerate(unit):
        others = sorted((j for j in range(len(unit)) if j != i), key=lambda j: (-float(one @ unit[j]), j))
        found.append(others[:count])
    return found


@pytest.mark.parametrize("count", [1, 5, 22])
@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_equals_a_loop_over_pairs(count: int, chunk: int) -> None:
    pooled = np.random.default_rng(0).normal(size=(23, 6))
    assert nearest_images(pooled, count, chunk).tolist() == naive(pooled, count)


def test_equal_images_are_ordered_by_position_and_never_themselves() -> None:
    pooled = np.ones((6, 3))
    assert nearest_images(pooled, 3).tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2], [0, 1, 2], [0, 1, 2]]


def test_an_image_without_features_is_never_nearest() -> None:
    pooled = np.array([[1.0, 0.2], [0.0, 0.0], [1.0, 0.1]])
    assert nearest_images(pooled, 1).ravel().tolist() == [2, 0, 0]


@pytest.mark.parametrize("count", [0, 3, 4])
def test_more_neighbours_than_images_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} neighbours"):
        nearest_images(np.ones((3, 2)), count)
