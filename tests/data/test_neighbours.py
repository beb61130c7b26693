"""Nearest neighbours against a loop over all pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tellapart.data import blocks, neighbours
from tellapart.data.features import FeatureStore
from tellapart.data.neighbours import nearest_images, nearest_in_store
from tellapart.data.pictures import PICTURE
from tellapart.encoders.base import EncoderIdentity
from tellapart.errors import StoreError


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


# --- kept in a store --------------------------------------------------------------------------------------------------

ROWS = [*range(5, 40), 2]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeatureStore:
    """A store of 40 images in a folder, whose neighbours are kept, found 8 images at a time."""
    monkeypatch.setattr(neighbours, "KEPT_FROM", 20)
    monkeypatch.setattr(neighbours, "CHUNK", 8)
    return made(tmp_path)


def made(folder: Path | None, content: int = 1) -> FeatureStore:
    features = np.random.default_rng(0).normal(size=(40, 3, 6)).astype(np.float16)
    pictures = np.zeros(40, PICTURE)
    pictures["content"] = content
    identity = EncoderIdentity("made", "0", "none", regions=2, width=6)
    return FeatureStore(features, identity, "records", pictures=pictures, folder=folder)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first image of each block that is found."""
    starts: list[int] = []
    real = neighbours._nearest

    def counted(unit: np.ndarray, images: slice, count: int) -> np.ndarray:
        starts.append(images.start)
        return real(unit, images, count)

    monkeypatch.setattr(neighbours, "_nearest", counted)
    return starts


def test_neighbours_of_many_images_are_kept(store: FeatureStore, found: list[int]) -> None:
    assert store.folder is not None
    expected = nearest_images(store.pooled(ROWS), 3, 8).tolist()
    found.clear()
    assert nearest_in_store(store, ROWS, 3).tolist() == expected
    assert found == [0, 8, 16, 24, 32]
    assert nearest_in_store(store, ROWS, 3).tolist() == expected
    assert len(found) == 5, "found, not computed"
    for other, rows, count in ((store, ROWS, 2), (store, ROWS[:-1], 3), (made(store.folder, content=2), ROWS, 3)):
        found.clear()
        assert nearest_in_store(other, rows, count).tolist() == nearest_images(other.pooled(rows), count, 8).tolist()
        assert len(found) == 10, "other neighbours are not taken for these"


def test_an_interrupted_search_continues(store: FeatureStore, found: list[int]) -> None:
    expected = nearest_images(store.pooled(ROWS), 3, 8).tolist()
    real = neighbours._nearest

    def killed(unit: np.ndarray, images: slice, count: int) -> np.ndarray:
        if images.start == 16:
            raise KeyboardInterrupt
        return real(unit, images, count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "_nearest", killed)
        with pytest.raises(KeyboardInterrupt):
            nearest_in_store(store, ROWS, 3)
    found.clear()
    assert nearest_in_store(store, ROWS, 3).tolist() == expected
    assert found == [16, 24, 32], "the two whole blocks are not found again"


def test_few_images_and_stores_in_memory_keep_nothing(store: FeatureStore) -> None:
    assert store.folder is not None
    for one, rows in ((store, ROWS[:10]), (made(None), ROWS)):
        assert nearest_in_store(one, rows, 3).tolist() == nearest_images(one.pooled(rows), 3, 8).tolist()
    assert list(store.folder.iterdir()) == []


def test_a_full_disk_is_a_clear_error(store: FeatureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = neighbours._nearest

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    def then_full(unit: np.ndarray, images: slice, count: int) -> np.ndarray:
        monkeypatch.setattr(blocks.os, "fsync", full)
        return real(unit, images, count)

    monkeypatch.setattr(neighbours, "_nearest", then_full)
    with pytest.raises(StoreError, match=r"No space left on device.*make room and run the same command again"):
        nearest_in_store(store, ROWS, 3)
