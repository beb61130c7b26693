"""Ranks from vectors equal ranks from the whole float64 matrix, also where most scores are nearly tied."""

from __future__ import annotations

import numpy as np
import pytest

from tellapart.errors import DataError
from tellapart.evaluation import vector_ranks as module
from tellapart.evaluation.vector_ranks import vector_ranks
from tellapart.metrics.ranks import retrieval_ranks


def unit(rng: np.random.Generator, count: int, width: int, spread: float = 1.0) -> np.ndarray:
    vectors = 1 / width**0.5 + spread * rng.normal(size=(count, width)) / width**0.5
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-4])
@pytest.mark.parametrize("sizes", [(5, 1), (300, 2), (7, 400)])
def test_equal_to_float64_ranks(spread: float, sizes: tuple[int, int]) -> None:
    """With small spreads nearly all scores differ by less than float32 resolves; the ranks are exact anyway."""
    rng = np.random.default_rng(0)
    images, each = sizes
    owner = np.repeat(np.arange(images), each)
    vectors = unit(rng, images, 64, spread), unit(rng, len(owner), 64, spread)
    scores = vectors[0].astype(np.float64) @ vectors[1].astype(np.float64).T
    seen: list[tuple[int, int]] = []
    for rounding in (1e-6, 1e-9):
        found = vector_ranks(*vectors, owner, rounding=rounding, on_progress=lambda *done: seen.append(done))
        expected = retrieval_ranks(scores, owner, rounding=rounding)
        assert found.image_to_text.tolist() == expected.image_to_text.tolist()
        assert found.text_to_image.tolist() == expected.text_to_image.tolist()
        assert found.captions_of.tolist() == expected.captions_of.tolist()
        assert seen[-1] == (images, images)


def test_any_order_of_owners_and_any_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    owner = rng.permutation(np.repeat(np.arange(23), 3))
    images, captions = unit(rng, 23, 8), unit(rng, 69, 8)
    expected = retrieval_ranks(images.astype(np.float64) @ captions.astype(np.float64).T, owner, rounding=1e-6)
    for height, rows, columns in ((1, 1, 1), (10, 5, 16), (7, 5, 64), (500, 125, 5000)):
        monkeypatch.setattr(module, "HEIGHT", height)
        monkeypatch.setattr(module, "ROWS", rows)
        monkeypatch.setattr(module, "COLUMNS", columns)
        found = vector_ranks(images, captions, owner, rounding=1e-6)
        assert found.image_to_text.tolist() == expected.image_to_text.tolist()
        assert found.text_to_image.tolist() == expected.text_to_image.tolist()


def test_counts_do_not_overflow() -> None:
    """All scores tie: every count is the largest possible one, and every rank the last."""
    images, captions = np.ones((500, 3), np.float32), np.ones((4500, 3), np.float32)
    owner = np.repeat(np.arange(500), 9)
    found = vector_ranks(images, captions, owner, rounding=1e-6)
    assert set(found.image_to_text.tolist()) == {4500 - 9 + 1}
    assert set(found.text_to_image.tolist()) == {500}
    assert module.ROWS < 256


def test_zero_vectors_tie_with_everything() -> None:
    found = vector_ranks(np.zeros((3, 2), np.float32), np.zeros((3, 2), np.float32), np.arange(3))
    assert found.text_to_image.tolist() == [3, 3, 3]


def test_errors() -> None:
    images, captions = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    with pytest.raises(DataError, match="not a number"):
        vector_ranks(np.full_like(images, np.nan), captions, np.arange(2))
    with pytest.raises(DataError, match="image 1 has no caption; each needs one"):
        vector_ranks(images, captions, np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="different widths"):
        vector_ranks(images, captions[:, :2], np.arange(2))
