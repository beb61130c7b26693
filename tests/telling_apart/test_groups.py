"""Groups of similar pictures, on made-up vectors."""

from __future__ import annotations

import numpy as np
import pytest

from tellapart.telling_apart.groups import group_alike, others_nearest_first, unit_vectors

ANGLES = np.radians([0, 90, 5, 95, 200, 12])
VECTORS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)


@pytest.mark.parametrize(
    ("threshold", "size", "expected"),
    [
        (0.9, None, [[0, 2, 5], [1, 3], [4]]),
        (0.9, 2, [[0, 2], [1, 3], [4], [5]]),
        (0.999, None, [[0], [1], [2], [3], [4], [5]]),
        (-1.0, None, [[0, 1, 2, 3, 4, 5]]),
        (-1.0, 3, [[0, 2, 5], [1, 3, 4]]),
    ],
)
def test_threshold_and_size(threshold: float, size: int | None, expected: list[list[int]]) -> None:
    assert group_alike(VECTORS, threshold, size) == expected
    assert group_alike(7 * VECTORS, threshold, size) == expected, "lengths do not matter"


def test_a_chain_is_not_a_group() -> None:
    """Each is near the next, but the ends are far apart: the mean cosine decides, not the nearest pair."""
    angles = np.radians(np.arange(0, 180, 15))
    groups = group_alike(np.stack([np.cos(angles), np.sin(angles)], axis=1), threshold=0.9)
    assert len(groups) > 1
    assert sorted(place for group in groups for place in group) == list(range(len(angles)))


@pytest.mark.parametrize("count", [0, 1])
def test_few_pictures(count: int) -> None:
    assert group_alike(np.ones((count, 3)), 0.5) == [[0]][:count]


def test_a_black_picture_has_no_direction() -> None:
    assert group_alike(np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), 0.5) == [[0], [1, 2]]


def test_others_nearest_first() -> None:
    unit = unit_vectors(VECTORS)
    assert others_nearest_first(unit, [0, 2, 3, 5], 0) == [2, 5, 3]
    assert others_nearest_first(unit, [4], 4) == []
