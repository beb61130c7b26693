"""ROUGE-L against the formula written as loops, and by hand; test_pycocoevalcap.py has the reference tool."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tellapart.metrics import rouge_scores

Corpus = tuple[list[list[str]], list[str]]


def naive_lcs(a: Sequence[str], b: Sequence[str]) -> int:
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, one in enumerate(a):
        for j, other in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if one == other else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def naive_rouge(references: Sequence[str], candidate: str) -> float:
    said = candidate.split(" ")
    precision = max(naive_lcs(said, r.split(" ")) / len(said) for r in references)
    recall = max(naive_lcs(said, r.split(" ")) / len(r.split(" ")) for r in references)
    return 2.44 * precision * recall / (recall + 1.44 * precision) if precision else 0.0


@pytest.mark.parametrize("seed", range(25))
def test_equals_the_formula(random_corpus: Callable[[int], Corpus], seed: int) -> None:
    references, candidates = random_corpus(seed)
    expected = [naive_rouge(r, c) for r, c in zip(references, candidates, strict=True)]
    scores = rouge_scores(references, candidates)
    np.testing.assert_allclose(scores.per_image, expected, rtol=0, atol=1e-9)
    assert scores.corpus == pytest.approx(np.mean(expected), abs=1e-9)


@pytest.mark.parametrize("longest", [9, 20, 40, 70, 130])
def test_long_captions(longest: int) -> None:
    # Each width of the bits, their borders, and references too long for any.
    generator = random.Random(longest)

    def caption() -> str:
        return " ".join(generator.choices("abcdef", k=generator.randint(longest - 8, longest)))

    references = [[caption() for _ in range(3)] for _ in range(20)]
    references[0] = ["a", caption()]
    candidates = [caption() for _ in range(20)]
    expected = [naive_rouge(r, c) for r, c in zip(references, candidates, strict=True)]
    np.testing.assert_allclose(rouge_scores(references, candidates).per_image, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("length", [8, 16, 32, 64, 65, 1000])
def test_identical_captions_score_one(length: int) -> None:
    caption = " ".join(f"w{i}" for i in range(length))
    assert rouge_scores([[caption]], [caption]).corpus == pytest.approx(1.0, abs=1e-12)


def test_the_best_precision_and_recall_may_be_of_different_references() -> None:
    # Precision 2/2 by the first, recall 1/1 by the second.
    assert rouge_scores([["a b c d e", "b"]], ["a b"]).corpus == pytest.approx(1.0, abs=1e-12)


def test_words_are_separated_by_single_spaces() -> None:
    # A U+00A0 is part of a word, and two blanks have an empty word between them.
    assert rouge_scores([["1\u00a01/2 cups"]], ["1 1/2"]).corpus == 0.0
    for reference, candidate in [("a  b", "a b"), (" a", "a"), ("", "a"), ("", ""), ("a\tb", "a b"), ("a", " ")]:
        expected = naive_rouge([reference], candidate)
        assert rouge_scores([[reference]], [candidate]).corpus == pytest.approx(expected, abs=1e-12)


def test_more_words_than_sixteen_bits_count() -> None:
    references = [[" ".join(f"x{i * 50 + j}" for j in range(50))] for i in range(1400)]
    assert rouge_scores(references, [group[0] for group in references]).corpus == pytest.approx(1.0, abs=1e-12)


def test_image_without_references_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one reference"):
        rouge_scores([["a"], []], ["a", "b"])
