"""CIDEr-D against the formula written as loops, the reference tool, its stored scores, and sums by hand."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tellapart.metrics import cider_scores

Corpus = tuple[list[list[str]], list[str]]
Gram = tuple[str, ...]


def naive_grams(caption: str, n: int) -> list[Gram]:
    words = caption.split()
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def naive_cider(references: Sequence[Sequence[str]], candidates: Sequence[str]) -> list[float]:
    images = len(candidates)

    def vector(caption: str, n: int) -> dict[Gram, float]:
        grams = naive_grams(caption, n)
        result = {}
        for gram in set(grams):
            frequency = sum(any(gram in naive_grams(r, n) for r in group) for group in references)
            result[gram] = grams.count(gram) * (math.log(images) - math.log(max(1, frequency)))
        return result

    scores = []
    for group, candidate in zip(references, candidates, strict=True):
        total = 0.0
        for reference in group:
            gap = len(naive_grams(candidate, 2)) - len(naive_grams(reference, 2))
            for n in range(1, 5):
                c, r = vector(candidate, n), vector(reference, n)
                dot = sum(min(c[g], r[g]) * r[g] for g in c if g in r)
                norms = math.sqrt(sum(v * v for v in c.values())) * math.sqrt(sum(v * v for v in r.values()))
                total += (dot / norms if norms else 0.0) * math.exp(-gap * gap / 72)
        scores.append(10 * total / 4 / len(group))
    return scores


@pytest.mark.parametrize("seed", range(25))
def test_equals_the_formula(random_corpus: Callable[[int], Corpus], seed: int) -> None:
    references, candidates = random_corpus(seed)
    scores = cider_scores(references, candidates)
    expected = naive_cider(references, candidates)
    np.testing.assert_allclose(scores.per_image, expected, rtol=0, atol=1e-9)
    assert scores.corpus == pytest.approx(sum(expected) / len(expected), abs=1e-9)


@pytest.mark.parametrize("seed", range(25, 50))
def test_equals_the_reference_tool(random_corpus: Callable[[int], Corpus], seed: int) -> None:
    tool = pytest.importorskip("pycocoevalcap.cider.cider")
    references, candidates = random_corpus(seed)
    corpus, per_image = tool.Cider().compute_score(
        dict(enumerate(references)), {i: [c] for i, c in enumerate(candidates)}
    )
    scores = cider_scores(references, candidates)
    np.testing.assert_allclose(scores.per_image, per_image, rtol=0, atol=1e-9)
    assert scores.corpus == pytest.approx(corpus, abs=1e-9)


def test_equals_stored_scores(parity: dict[str, Any]) -> None:
    images = parity["images"]
    scores = cider_scores([i["refs_tok"] for i in images], [i["hyp_tok"] for i in images])
    np.testing.assert_allclose(scores.per_image, [i["cider"] for i in images], rtol=0, atol=1e-9)
    assert scores.corpus == pytest.approx(parity["corpus"]["CIDEr"], abs=1e-9)


def test_by_hand() -> None:
    # Two images, "a" in both (idf 0), all else in one (idf log 2 =: w). Unigrams of image 1: candidate
    # (dog w, sits w), reference (dog w, runs w): cosine 1/2. Bigrams: candidate (a dog, dog sits), reference
    # (a dog, dog runs): 1/2. Trigrams: none shared. 4-grams: none exist. Equal lengths: no penalty.
    scores = cider_scores([["a dog runs"], ["a cat sleeps"]], ["a dog sits", "a cat sleeps"])
    assert scores.per_image[0] == pytest.approx(10 * (1 / 2 + 1 / 2) / 4, abs=1e-12)
    # Image 2 is a literal copy, but has no 4-grams: 3 of the 4 orders give 1.
    assert scores.per_image[1] == pytest.approx(10 * 3 / 4, abs=1e-12)
    assert scores.corpus == pytest.approx((2.5 + 7.5) / 2, abs=1e-12)


def test_length_penalty() -> None:
    # "x" against "x y z": two words too short. Only unigrams match: w·w / (w · √3·w).
    scores = cider_scores([["x y z"], ["q"]], ["x", "q"])
    assert scores.per_image[0] == pytest.approx(10 / 4 / math.sqrt(3) * math.exp(-4 / 72), abs=1e-12)


def test_repeating_a_good_word_does_not_pay() -> None:
    references = [["a brown dog", "the dog"], ["a red bus", "the bus"]]
    once = cider_scores(references, ["a dog", "a bus"]).per_image[0]
    often = cider_scores(references, ["a dog dog dog dog dog dog", "a bus"]).per_image[0]
    assert often < once


def test_one_image_scores_zero() -> None:
    assert cider_scores([["a dog runs fast"]], ["a dog runs fast"]).corpus == 0.0


@pytest.mark.parametrize(
    ("references", "candidates"),
    [
        ([["a dog"], ["a cat"]], ["", "a cat"]),
        ([["a dog"], ["a cat"]], ["", ""]),
        ([["", "a dog"], ["a cat"]], ["", "a cat"]),
        ([[""], [""]], ["", ""]),
    ],
)
def test_empty_caption_scores_zero(references: list[list[str]], candidates: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = cider_scores(references, candidates)
    assert scores.per_image[0] == 0.0
    assert (scores.per_image[1] > 0) == (candidates[1] != "")


def test_image_without_references_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one reference"):
        cider_scores([["a"], []], ["a", "b"])
    with pytest.raises(ValueError, match="at least one reference"):
        cider_scores([["a"]], ["a", "b"])
