"""Negatives are drawn uniformly from the captions of other images."""

from __future__ import annotations

import numpy as np
import pytest

from tellapart.data.negatives import CaptionPool, HardNegatives, from_ranked_captions, from_similar_images
from tellapart.data.neighbours import nearest_images
from tellapart.data.settings import NegativeSettings
from tellapart.errors import DataError

COUNTS = (3, 1, 5, 2, 1)
CAPTIONS = [[f"{image}.{n}" for n in range(count)] for image, count in enumerate(COUNTS)]


@pytest.fixture
def pool() -> CaptionPool:
    return CaptionPool(CAPTIONS)


def test_captions_image_by_image(pool: CaptionPool) -> None:
    assert pool.captions == [caption for captions in CAPTIONS for caption in captions]
    for image, captions in enumerate(CAPTIONS):
        assert [pool.captions[i] for i in pool.of_image(image)] == captions


def test_never_of_the_same_image_and_uniform_over_the_others(pool: CaptionPool) -> None:
    draws = 20_000
    images = np.arange(len(COUNTS))
    drawn = pool.negatives(images, draws, np.random.default_rng(0))
    assert drawn.shape == (len(COUNTS), draws)
    for image in images:
        counts = np.bincount(drawn[image], minlength=len(pool.captions))
        own = pool.of_image(int(image))
        assert counts[own].sum() == 0
        others = np.delete(counts, own)
        expected = draws / len(others)
        # Chi-square with at most 10 degrees of freedom: over 35 once in ten thousand.
        assert ((others - expected) ** 2 / expected).sum() < 35


def test_images_may_repeat_and_come_in_any_order(pool: CaptionPool) -> None:
    images = np.array([4, 0, 0, 2])
    drawn = pool.negatives(images, 200, np.random.default_rng(1))
    for image, row in zip(images, drawn, strict=True):
        assert not any(pool.captions[i].startswith(f"{image}.") for i in row)
    assert not np.array_equal(drawn[1], drawn[2]), "each row is drawn for itself"


def test_the_draw_is_a_function_of_the_generator(pool: CaptionPool) -> None:
    images = np.array([0, 1, 2])
    first = pool.negatives(images, 4, np.random.default_rng(7))
    assert np.array_equal(first, pool.negatives(images, 4, np.random.default_rng(7)))
    assert not np.array_equal(first, pool.negatives(images, 4, np.random.default_rng(8)))


def test_one_image_has_no_negatives() -> None:
    with pytest.raises(DataError, match="captions of at least two images"):
        CaptionPool([["a", "b"]]).negatives(np.array([0]), 1, np.random.default_rng(0))


# --- hard negatives -------------------------------------------------------------------------------------------------


def clusters() -> tuple[CaptionPool, np.ndarray]:
    """Twenty images in five clusters of four that look alike; image i has 1 + i % 3 captions."""
    pooled = np.repeat(np.eye(5), 4, axis=0) + 0.01 * np.random.default_rng(0).normal(size=(20, 5))
    return CaptionPool([tuple(f"{i} says {n}" for n in range(1 + i % 3)) for i in range(20)]), pooled


def owner(pool: CaptionPool, index: int) -> int:
    return int(pool.captions[index].split()[0])


def test_hard_negatives_come_from_similar_images_and_never_from_the_image() -> None:
    pool, pooled = clusters()
    hard = HardNegatives(pool, from_similar_images(pool, pooled, 0.15), NegativeSettings(hard=1.0, ramp_epochs=0))
    drawn = hard.draw(np.arange(20), 200, np.random.default_rng(1), epochs=0.0)
    for image in range(20):
        owners = {owner(pool, index) for index in drawn[image]}
        assert owners == {other for other in range(20) if other // 4 == image // 4 and other != image}


def test_the_share_of_hard_ones_follows_the_curriculum() -> None:
    pool, pooled = clusters()
    hard = HardNegatives(pool, from_similar_images(pool, pooled, 0.15), NegativeSettings(hard=0.8, ramp_epochs=2))
    assert [hard.share(epochs) for epochs in (0, 0.5, 1, 2, 5)] == pytest.approx([0, 0.2, 0.4, 0.8, 0.8])
    images = np.arange(20)
    for epochs, share in ((0.0, 0.0), (1.0, 0.4), (3.0, 0.8)):
        drawn = hard.draw(images, 400, np.random.default_rng(2), epochs)
        alike = np.array([[owner(pool, index) // 4 == image // 4 for index in drawn[image]] for image in images])
        # A uniform draw meets the image's own cluster by chance, too.
        chance = np.mean(
            [
                (pool.counts[4 * (i // 4) : 4 * (i // 4) + 4].sum() - pool.counts[i])
                / (pool.counts.sum() - pool.counts[i])
                for i in images
            ]
        )
        assert alike.mean() == pytest.approx(share + (1 - share) * chance, abs=0.02)


def test_every_caption_of_a_near_image_can_be_drawn() -> None:
    pool, pooled = clusters()
    hard = HardNegatives(pool, from_similar_images(pool, pooled, 0.05), NegativeSettings(hard=1.0, ramp_epochs=0))
    drawn = set(hard.draw(np.arange(20), 300, np.random.default_rng(3), 1.0).ravel().tolist())
    near = set(nearest_images(pooled, 1).ravel().tolist())
    assert drawn == {index for image in near for index in pool.of_image(image).tolist()}


def test_hard_captions_from_a_retriever() -> None:
    pool = CaptionPool([("a", "b"), ("c",), ("d", "e", "f")])
    likely = np.array([[2, 4], [0, 3], [1, 2]])
    hard = HardNegatives(pool, from_ranked_captions(likely), NegativeSettings(hard=1.0, ramp_epochs=0))
    drawn = hard.draw(np.array([0, 1, 2, 0]), 50, np.random.default_rng(0), epochs=0.0)
    for image, row in zip((0, 1, 2, 0), drawn, strict=True):
        assert set(row.tolist()) == set(likely[image].tolist())
