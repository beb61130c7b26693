"""CIDErBtw and CLIPScore against loops."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tellapart.data.neighbours import nearest_images
from tellapart.errors import DataError
from tellapart.metrics import DocumentFrequencies, cider_scores
from tellapart.metrics.distinctiveness import cider_between, clip_scores, reference_clip_scores

Corpus = tuple[list[list[str]], list[str]]

# --- CIDErBtw ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_cider_between_equals_loops(random_corpus: Callable[[int], Corpus], seed: int) -> None:
    references, candidates = random_corpus(seed)
    images = len(candidates)
    generator = np.random.default_rng(seed)
    similar = [
        generator.permutation([j for j in range(images) if j != i])[: generator.integers(1, images)].tolist()
        for i in range(images)
    ]
    table = DocumentFrequencies.count(references)
    found = cider_between(references, candidates, similar)
    for i, others in enumerate(similar):
        values = [cider_scores([references[j]], [candidates[i]], frequencies=table).corpus for j in others]
        assert found.per_image[i] == pytest.approx(np.mean(values), abs=1e-9)
    assert found.corpus == pytest.approx(found.per_image.mean())
    given = cider_between(references, candidates, similar, table)
    assert given.per_image.tolist() == found.per_image.tolist()


def test_a_caption_that_fits_others_scores_higher() -> None:
    references = [["a dog on the grass"], ["a dog on the sand"], ["two men play chess"], ["a red bus on a street"]]
    features = np.array([[1.0, 0.1], [1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
    similar = nearest_images(features, 1)
    generic = cider_between(references, ["a dog", "a dog", "two men", "a bus"], similar).per_image
    apart = cider_between(references, ["green grass", "sand", "chess", "a street"], similar).per_image
    assert generic[0] > apart[0]
    assert cider_between(references, ["", "x", "y", "z"], similar).per_image.tolist() == [0.0] * 4


def test_invalid_similar_images() -> None:
    references, candidates = [["a"], ["b"]], ["a", "b"]
    with pytest.raises(DataError, match="image 1 is in its own list"):
        cider_between(references, candidates, [[1], [1]])
    with pytest.raises(DataError, match="image 0 has no similar images"):
        cider_between(references, candidates, [[], [0]])
    with pytest.raises(DataError, match=r"image 1: positions are 0 … 1"):
        cider_between(references, candidates, [[1], [2]])
    with pytest.raises(DataError, match="1 lists of similar images for 2 captions"):
        cider_between(references, candidates, [[1]])
    with pytest.raises(DataError, match="at least one reference"):
        cider_between([["a"], []], candidates, [[1], [0]])


# --- CLIPScore --------------------------------------------------------------------------------------------------------


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    lengths = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / lengths if lengths else 0.0


def test_clip_scores_equal_loops() -> None:
    generator = np.random.default_rng(0)
    images, captions = generator.normal(size=(9, 4)), generator.normal(size=(9, 4))
    captions[3] = 0.0
    owner = np.concatenate([np.arange(9), generator.integers(9, size=20)])
    references = generator.normal(size=(29, 4))
    scores = clip_scores(images, captions)
    with_references = reference_clip_scores(images, captions, references, owner)
    for i in range(9):
        expected = 2.5 * max(cosine(images[i], captions[i]), 0)
        assert scores[i] == pytest.approx(expected, abs=1e-9)
        closest = max(0.0, *(cosine(captions[i], references[r]) for r in range(29) if owner[r] == i))
        harmonic = 2 * expected * closest / (expected + closest) if expected + closest else 0.0
        assert with_references[i] == pytest.approx(harmonic, abs=1e-9)
    assert scores[3] == with_references[3] == 0.0
    assert min(scores) == 0.0 < max(scores)


def test_length_and_precision_of_embeddings_make_no_difference() -> None:
    images, captions = np.eye(3, dtype=np.float32), 1e-12 * np.ones((3, 3), dtype=np.float32)
    np.testing.assert_allclose(clip_scores(images, captions), 2.5 / math.sqrt(3), rtol=1e-6)
    np.testing.assert_allclose(clip_scores(images, captions, weight=1.0), 1 / math.sqrt(3), rtol=1e-6)


def test_invalid_embeddings() -> None:
    two = np.ones((2, 3))
    with pytest.raises(ValueError, match="must have the same shape"):
        clip_scores(two, np.ones((3, 3)))
    with pytest.raises(ValueError, match="finite"):
        clip_scores(two, np.full((2, 3), np.nan))
    with pytest.raises(ValueError, match="at least one reference"):
        reference_clip_scores(two, two, two, np.array([0, 0]))
    with pytest.raises(ValueError, match="an existing caption"):
        reference_clip_scores(two, two, np.ones((3, 3)), np.array([0, 1, 2]))
    with pytest.raises(ValueError, match="every reference needs a caption"):
        reference_clip_scores(two, two, two, np.array([0]))
