"""Word vectors from captions: counts, PPMI and decomposition against naive loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from support.close import assert_close
from tellapart.retrievers import caption_vectors as module
from tellapart.retrievers.caption_vectors import caption_vectors, cooccurrences

WORDS = 9


def draw(captions: int = 60, seed: int = 0) -> list[list[int]]:
    """Captions of unequal lengths, some empty, with words that have no vector (−1)."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-1, WORDS, size=rng.integers(0, 8)).tolist() for _ in range(captions)]


def naive_counts(captions: list[list[int]], contexts: int, window: int) -> list[list[int]]:
    spoken = [word for caption in captions for word in caption if word >= 0]
    frequent = sorted(range(WORDS), key=lambda word: (-spoken.count(word), word))[:contexts]
    counts = [[0] * len(frequent) for _ in range(WORDS)]
    for caption in captions:
        for one, word in enumerate(caption):
            for other, context in enumerate(caption):
                if one != other and abs(one - other) <= window and word >= 0 and context in frequent:
                    counts[word][frequent.index(context)] += 1
    return counts


@pytest.mark.parametrize(("contexts", "window"), [(4, 1), (WORDS, 3), (WORDS + 5, 50)])
@pytest.mark.parametrize("at_once", [7, 1000])
def test_counts_equal_the_naive_loop(contexts: int, window: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    assert cooccurrences(draw(), WORDS, contexts, window).tolist() == naive_counts(draw(), contexts, window)


def naive_information(captions: list[list[int]]) -> torch.Tensor:
    counts = naive_counts(captions, WORDS, module.WINDOW)
    total = sum(map(sum, counts))
    matrix = torch.zeros(WORDS, WORDS, dtype=torch.float64)
    for word in range(WORDS):
        for context in range(WORDS):
            of_context = sum(row[context] for row in counts)
            if counts[word][context]:
                ratio = counts[word][context] * total / (sum(counts[word]) * of_context)
                matrix[word, context] = max(0.0, math.log(ratio))
    return matrix


@pytest.mark.numerical
@pytest.mark.parametrize("width", [3, WORDS, WORDS + 4])
def test_products_of_vectors_are_those_of_the_decomposition(width: int) -> None:
    """U Σ Uᵀ is the same for any sign of the columns; the common scale is left out."""
    vectors = caption_vectors(draw(), WORDS, width)
    left, values, _ = torch.linalg.svd(naive_information(draw()))
    kept = min(width, WORDS)
    expected = (left[:, :kept] * values[:kept]) @ left[:, :kept].T
    found = (vectors @ vectors.T).double()
    assert vectors.shape == (WORDS, width)
    assert_close(found / found.diagonal().sum(), expected / expected.diagonal().sum())


def test_signs_and_values_are_the_same_in_each_call() -> None:
    one, other = caption_vectors(draw(), WORDS, 4), caption_vectors(iter(draw()), WORDS, 4)
    assert torch.equal(one, other)
    largest = one.gather(0, one.abs().argmax(dim=0, keepdim=True))
    assert (largest > 0).all()


def test_without_company_vectors_are_zero() -> None:
    assert torch.equal(caption_vectors([[0], [1], []], 3, 2), torch.zeros(3, 2))
    assert torch.equal(caption_vectors([], 3, 2), torch.zeros(3, 2))
    some = caption_vectors([[0, 1], [0, 1], [2]], 3, 2)
    assert torch.equal(some[2], torch.zeros(2))
    assert some[0].abs().sum() > 0
