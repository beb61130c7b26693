"""BLEU against the formula written as loops and sums by hand; test_pycocoevalcap.py has the reference tool."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tellapart.metrics import bleu_scores

Corpus = tuple[list[list[str]], list[str]]


def naive_counts(references: Sequence[str], candidate: str) -> tuple[list[int], list[int], int, int]:
    """correct and guessed n-grams for n = 1…4, candidate length, closest reference length."""
    words = candidate.split()
    correct, guessed = [], []
    for n in range(1, 5):
        grams = [words[i : i + n] for i in range(len(words) - n + 1)]
        hits = 0
        for gram in {tuple(g) for g in grams}:
            most = 0
            for reference in references:
                r = reference.split()
                most = max(most, sum(tuple(r[i : i + n]) == gram for i in range(len(r) - n + 1)))
            hits += min(most, sum(tuple(g) == gram for g in grams))
        correct.append(hits)
        guessed.append(len(grams))
    closest = None
    for length in sorted(len(reference.split()) for reference in references):
        if closest is None or abs(length - len(words)) < abs(closest - len(words)):
            closest = length
    assert closest is not None
    return correct, guessed, len(words), closest


def naive_bleu(correct: Sequence[int], guessed: Sequence[int], length: int, closest: int) -> list[float]:
    scores = []
    for order in range(1, 5):
        product = 1.0
        for n in range(order):
            product *= (correct[n] + 1e-15) / (guessed[n] + 1e-9)
        ratio = (length + 1e-15) / (closest + 1e-9)
        scores.append(product ** (1 / order) * (math.exp(1 - 1 / ratio) if ratio < 1 else 1.0))
    return scores


@pytest.mark.parametrize("seed", range(25))
def test_equals_the_formula(random_corpus: Callable[[int], Corpus], seed: int) -> None:
    references, candidates = random_corpus(seed)
    scores = bleu_scores(references, candidates)
    parts = [naive_counts(r, c) for r, c in zip(references, candidates, strict=True)]
    expected = [naive_bleu(*part) for part in parts]
    np.testing.assert_allclose(scores.per_image, expected, rtol=0, atol=1e-9)
    total = naive_bleu(
        [sum(p[0][n] for p in parts) for n in range(4)],
        [sum(p[1][n] for p in parts) for n in range(4)],
        sum(p[2] for p in parts),
        sum(p[3] for p in parts),
    )
    np.testing.assert_allclose(scores.corpus, total, rtol=0, atol=1e-9)


def test_by_hand() -> None:
    # "a dog runs fast" against "a dog runs": 3/4, 2/3, 1/2 and 0/1 n-grams correct, no brevity penalty.
    scores = bleu_scores([["a dog runs"]], ["a dog runs fast"])
    assert scores.per_image[0, 0] == pytest.approx(3 / 4, abs=1e-8)
    assert scores.per_image[0, 1] == pytest.approx(math.sqrt(3 / 4 * 2 / 3), abs=1e-8)
    assert scores.per_image[0, 2] == pytest.approx((3 / 4 * 2 / 3 * 1 / 2) ** (1 / 3), abs=1e-8)
    assert scores.per_image[0, 3] < 1e-3


def test_repetition_is_clipped_at_the_best_single_reference() -> None:
    # "the" occurs at most twice in one reference, so 2 of 4 count, not 3 of 4 over both references.
    scores = bleu_scores([["the cat sees the dog", "the mouse sits here"]], ["the the the the"])
    assert scores.per_image[0, 0] == pytest.approx(2 / 4, abs=1e-8)


def test_brevity_takes_the_shorter_of_two_equally_close_references() -> None:
    # Lengths 2 and 4 are equally close to 3. With 2 there is no penalty; with 4 it would be exp(1 - 4/3).
    scores = bleu_scores([["a b c d", "a b"]], ["a b c"])
    assert scores.per_image[0, 0] == pytest.approx(1.0, abs=1e-8)
    # One reference of four words: the penalty applies.
    assert bleu_scores([["a b c d"]], ["a b c"]).per_image[0, 0] == pytest.approx(math.exp(-1 / 3), abs=1e-8)


def test_corpus_is_no_mean_of_images() -> None:
    # 2 of 2 and 1 of 4 words correct: 3/6 over the corpus, where the mean of the images would be 5/8.
    scores = bleu_scores([["a b"], ["a x y z"]], ["a b", "a b c d"])
    assert scores.corpus[0] == pytest.approx(3 / 6, abs=1e-8)
    assert scores.per_image[:, 0].mean() == pytest.approx(5 / 8, abs=1e-8)


@pytest.mark.parametrize("reference", ["a dog", ""])
def test_empty_caption_scores_zero(reference: str) -> None:
    scores = bleu_scores([[reference]], [""])
    assert scores.corpus.tolist() == [0.0] * 4
    assert scores.per_image.tolist() == [[0.0] * 4]


def test_lists_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="every candidate"):
        bleu_scores([["a"], ["b"]], ["a"])
    with pytest.raises(ValueError, match="at least one reference"):
        bleu_scores([["a"], []], ["a", "b"])


def test_any_white_space_separates_words() -> None:
    assert bleu_scores([["a\u00a0dog\nruns"]], ["a  dog\truns "]).corpus[2] == pytest.approx(1.0, abs=1e-8)


def test_no_images() -> None:
    assert bleu_scores([], []).per_image.shape == (0, 4)


def test_threads_share_the_cache() -> None:
    # Each thread brings words that no other has seen: were two of them to get one number, captions would match.
    def score(thread: int) -> float:
        words = [f"t{thread}w{i}" for i in range(400)]
        references = [[" ".join(words[i : i + 10])] for i in range(0, 400, 10)]
        shifted = [references[-1][0], *(group[0] for group in references[:-1])]
        return float(bleu_scores(references, shifted).corpus[0])

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(score, range(64))) < 1e-9
