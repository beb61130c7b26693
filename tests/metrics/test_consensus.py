"""Consensus re-ranking against loops."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tellapart.errors import DataError
from tellapart.metrics import DocumentFrequencies, cider_scores, consensus
from tellapart.metrics.consensus import best_candidates, consensus_scores, nearest_features


@pytest.mark.parametrize("seed", range(4))
def test_nearest_equals_loops(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consensus, "_BLOCK", 7)
    generator = np.random.default_rng(seed)
    # Whole numbers, so that distances are exact and often equal.
    queries = generator.integers(3, size=(10, 2)).astype(np.float32)
    features = generator.integers(3, size=(17, 2)).astype(np.float32)
    expected = []
    for query in queries:
        distances = [(float(np.sum((query - feature) ** 2)), place) for place, feature in enumerate(features)]
        expected.append([place for _, place in sorted(distances)[:5]])
    for chunk in (1, 4, 256):
        assert nearest_features(queries, features, 5, chunk).tolist() == expected
    assert nearest_features(queries, features, 17).shape == (10, 17)


@pytest.mark.parametrize("highest", [1, 3, 125])
def test_scores_equal_loops(highest: int) -> None:
    generator = random.Random(highest)

    def texts(count: int) -> list[str]:
        words = ["a", "dog", "cat", "on", "the", "grass", "runs"]
        return [" ".join(generator.choices(words, k=generator.randint(1, 8))) for _ in range(count)]

    captions = [texts(generator.randint(1, 4)) for _ in range(9)]
    candidates = [texts(generator.randint(1, 5)) for _ in range(4)]
    candidates[1][0] = ""
    nearest = np.array([generator.sample(range(9), 3) for _ in range(4)])
    table = DocumentFrequencies.count(captions)
    seen: list[tuple[int, int]] = []
    scores = consensus_scores(
        candidates, captions, nearest, highest=highest, on_progress=lambda done, of: seen.append((done, of))
    )
    for image, said in enumerate(candidates):
        for place, candidate in enumerate(said):
            values = [
                cider_scores([[text]], [candidate], frequencies=table).corpus
                for neighbour in nearest[image]
                for text in captions[neighbour]
            ]
            assert scores[image][place] == pytest.approx(sum(sorted(values, reverse=True)[:highest]), abs=1e-9)
    assert seen[-1] == (4, 4)
    given = consensus_scores(candidates, captions, nearest, highest=highest, frequencies=table)
    assert [values.tolist() for values in given] == [values.tolist() for values in scores]


def test_the_consensus_wins() -> None:
    captions = [["a dog runs on the grass", "a brown dog runs"], ["a dog on green grass"], ["a red bus"], ["two men"]]
    candidates = [["a red bus", "a dog on the grass", "", "a dog", "two men"]]
    scores = consensus_scores(candidates, captions, np.array([[0, 1]]))
    best = best_candidates(candidates, scores, 2)
    assert best == [["a dog on the grass", "a dog"]]


def test_equal_scores_keep_their_order() -> None:
    assert best_candidates([["a", "b", "c"]], [np.array([1.0, 2.0, 1.0])], 3) == [["b", "a", "c"]]


def test_what_cannot_be() -> None:
    features = np.zeros((3, 2))
    with pytest.raises(DataError, match="60 neighbours cannot be found among 3"):
        nearest_features(features, features)
    with pytest.raises(DataError, match="finite"):
        nearest_features(np.full((1, 2), np.nan), features, 1)
    with pytest.raises(DataError, match="1 images have candidates and 2 neighbours"):
        consensus_scores([["a"]], [["a"]], np.array([[0], [0]]))
    with pytest.raises(DataError, match="positions among the 1 training images"):
        consensus_scores([["a"]], [["a"]], np.array([[1]]))
    with pytest.raises(DataError, match="at least one similarity"):
        consensus_scores([["a"]], [["a"]], np.array([[0]]), highest=0)
    with pytest.raises(DataError, match="2 candidates; the best 5"):
        best_candidates([["a", "b"]], [np.zeros(2)])
    with pytest.raises(ValueError, match="2 candidates of an image have 1 scores"):
        best_candidates([["a", "b"]], [np.zeros(1)])
