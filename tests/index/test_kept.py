"""Vectors in memory: the same results as from the files, and never old ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tellapart.encoders.base import EncoderIdentity
from tellapart.index import kept
from tellapart.index.base import ALL, File, Made, Photo, Where
from tellapart.index.lance import LanceStore

WIDTH = 8
IDENTITY = EncoderIdentity("made-up", "0", "none", 1, WIDTH)


def some(names: range, seed: int) -> list[Photo]:
    vectors = np.random.default_rng(seed).normal(size=(len(names), WIDTH)).astype(np.float32)
    return [
        Photo(File(f"/photos/{name:03d}.jpg", 1, 1, "0" * 64, f"caption {name}"), name, vector)
        for name, vector in zip(names, vectors, strict=True)
    ]


@pytest.fixture
def store(tmp_path: Path) -> LanceStore:
    made = Made(retriever="0", name="made-up", folder="/", encoder=IDENTITY, width=WIDTH)
    return LanceStore.create(tmp_path / "photos.lance", made)


def naive(photos: list[Photo], query: np.ndarray, count: int) -> list[str]:
    return [one.file.path for one in sorted(photos, key=lambda one: -float(one.vector @ query))[:count]]


def test_asked_again_the_result_is_the_same_and_from_memory(store: LanceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = some(range(300), 0)
    store.put(photos)
    query = np.random.default_rng(1).normal(size=WIDTH).astype(np.float32)
    first, second = (store.nearest(query, 7, ALL, False) for _ in range(2))
    monkeypatch.setattr(store, "_found", None)  # the files are not searched any more
    third = store.nearest(query, 7, ALL, False)
    for found in (first, second, third):
        assert [hit.path for hit in found] == naive(photos, query, 7)
        assert [hit.score for hit in found] == pytest.approx([hit.score for hit in first], rel=1e-5)
        assert [(hit.caption, hit.taken) for hit in found] == [(hit.caption, hit.taken) for hit in first]
    assert len(store.nearest(query, 1000, ALL, False)) == 300


def test_changes_are_seen_at_once(store: LanceStore) -> None:
    photos = some(range(50), 0)
    store.put(photos)
    query = photos[0].vector
    for _ in range(3):
        store.nearest(query, 5, ALL, False)
    added = some(range(50, 60), 2)
    store.put(added)  # as another process would
    for _ in range(3):
        assert [hit.path for hit in store.nearest(query, 60, ALL, False)] == naive(photos + added, query, 60)
    store.remove([one.file.path for one in photos])
    for _ in range(3):
        assert [hit.path for hit in store.nearest(query, 60, ALL, False)] == naive(added, query, 60)


def test_filters_and_large_indexes_are_searched_in_the_files(
    store: LanceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = some(range(50), 0)
    store.put(photos)
    query = photos[0].vector
    for _ in range(3):
        found = store.nearest(query, 5, Where(after=40), False)
        assert [hit.path for hit in found] == naive(photos[40:], query, 5)
    monkeypatch.setattr(kept, "MOST", 100)
    monkeypatch.setattr(kept.Kept, "_read", None)
    for _ in range(3):
        assert [hit.path for hit in store.nearest(query, 5, ALL, False)] == naive(photos, query, 5)
