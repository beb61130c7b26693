"""CIDEr of caption pairs against dictionaries and loops."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from tellapart.metrics import DocumentFrequencies, cider_scores
from tellapart.metrics.pairwise import CaptionPairs


def grams(caption: str, n: int) -> Counter[tuple[str, ...]]:
    words = caption.split()
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def naive(candidate: str, reference: str, references: Sequence[Sequence[str]], clipped: bool) -> float:
    total = 0.0
    for n in range(1, 5):

        def idf(gram: tuple[str, ...], n: int = n) -> float:
            frequency = sum(any(gram in grams(text, n) for text in texts) for texts in references)
            return math.log(len(references)) - math.log(max(1, frequency))

        c = {gram: count * idf(gram) for gram, count in grams(candidate, n).items()}
        r = {gram: count * idf(gram) for gram, count in grams(reference, n).items()}
        scale = math.sqrt(sum(w**2 for w in c.values())) * math.sqrt(sum(w**2 for w in r.values()))
        dot = sum((min(w, r[gram]) if clipped else w) * r[gram] for gram, w in c.items() if gram in r)
        total += dot / scale if scale else 0.0
    if clipped:
        total *= math.exp(-((len(candidate.split()) - len(reference.split())) ** 2) / 72)
    return 10 * total / 4


@pytest.mark.parametrize("seed", range(8))
def test_equals_loops(seed: int) -> None:
    generator = random.Random(seed)
    # Few words, so that n-grams repeat within a caption; some are in no reference, some captions are empty.
    words = ["a", "dog", "cat", "on", "grass"][: generator.randint(2, 5)]

    def caption(shortest: int, extra: list[str]) -> str:
        return " ".join(generator.choices(words + extra, k=generator.randint(shortest, 9)))

    references = [[caption(1, []) for _ in range(generator.randint(1, 3))] for _ in range(5)]
    captions = [caption(0, ["zebra"]) for _ in range(7)]
    captions[2] = captions[1]
    pairs = CaptionPairs(captions, DocumentFrequencies.count(references))
    rows, columns = np.array([0, 3, 1, 2, 6]), np.array([5, 1, 4, 2])
    for found, clipped in ((pairs.cider(rows, columns), False), (pairs.cider_d(rows, columns), True)):
        expected = [[naive(captions[i], captions[j], references, clipped) for j in columns] for i in rows]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("clipped", [False, True])
def test_equals_cider_of_one_reference(clipped: bool) -> None:
    references = [["a dog runs over grass"], ["a dog dog dog"], ["two men play chess at a table"], ["a red bus"]]
    candidates = ["a dog runs", "dog dog on the grass", "men play chess", "a green car"]
    table = DocumentFrequencies.count(references)
    scores = cider_scores(references, candidates, variant="cider-d" if clipped else "cider", frequencies=table)
    pairs = CaptionPairs([*candidates, *(texts[0] for texts in references)], table)
    matrix = (pairs.cider_d if clipped else pairs.cider)(np.arange(4), np.arange(4, 8))
    np.testing.assert_allclose(np.diag(matrix), scores.per_image, rtol=0, atol=1e-9)


def test_nothing_said() -> None:
    pairs = CaptionPairs(["", " ", "a dog"], DocumentFrequencies.count([["a dog"], ["a cat"]]))
    every = np.arange(3)
    for matrix in (pairs.cider(every, every), pairs.cider_d(every, every)):
        assert matrix[:2].tolist() == [[0.0] * 3] * 2
        assert matrix[2, :2].tolist() == [0.0, 0.0]
    assert pairs.cider(every[:0], every).shape == (0, 3)
    assert pairs.cider_d(every, every[:0]).shape == (3, 0)
    assert CaptionPairs([], DocumentFrequencies.count([["a"]])).cider(every[:0], every[:0]).shape == (0, 0)
