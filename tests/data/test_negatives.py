"""Negatives are captions of other images, each as likely as the other."""

from __future__ import annotations

import numpy as np
import pytest

from tellapart.data.negatives import CaptionPool
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
