"""Ranks of a search in two stages against a naive loop over queries."""

from __future__ import annotations

import numpy as np
import pytest

from tellapart.evaluation.rerank import reranked_ranks

CAPTIONS_OF = [2, 1, 3, 2, 1, 4, 2, 1]


def draw(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Coarse vectors of images and captions, owners, and exact scores."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(CAPTIONS_OF)), CAPTIONS_OF)
    images = rng.normal(size=(len(CAPTIONS_OF), 5)).astype(np.float32)
    captions = (images[owner] + 1.5 * rng.normal(size=(len(owner), 5))).astype(np.float32)
    # Few distinct scores: there are ties.
    exact = np.round(images @ captions.T + rng.normal(size=(len(images), len(owner)))).astype(np.float64)
    return images, captions, owner, exact


def naive_rank(coarse: list[float], exact: list[float], right: set[int], first: int) -> int:
    """Order by coarse scores, the first ones by exact scores; a wrong item comes before a right one of equal score."""
    order = sorted(range(len(coarse)), key=lambda item: -coarse[item])
    front, back = order[:first], order[first:]
    front.sort(key=lambda item: (-exact[item], item in right))
    return next(rank for rank, item in enumerate([*front, *back], start=1) if item in right)


@pytest.mark.parametrize("first", [1, 3, 6, 100])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ranks_equal_the_naive_loop(first: int, seed: int) -> None:
    images, captions, owner, exact = draw(seed)
    compared = []

    def compare(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        compared.append(len(rows) * len(columns))
        return exact[np.ix_(rows, columns)]

    found = reranked_ranks(images, captions, owner, compare, first)
    coarse = images @ captions.T
    for image in range(len(images)):
        right = set(np.flatnonzero(owner == image).tolist())
        expected = naive_rank(coarse[image].tolist(), exact[image].tolist(), right, first)
        assert found.image_to_text[image] == expected
    for caption in range(len(captions)):
        expected = naive_rank(coarse[:, caption].tolist(), exact[:, caption].tolist(), {int(owner[caption])}, first)
        assert found.text_to_image[caption] == expected
    assert found.captions_of.tolist() == CAPTIONS_OF
    assert max(compared) <= first
