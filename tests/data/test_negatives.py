"""Negatives are drawn uniformly from the captions of other images."""

from __future__ import annotations

import numpy as np
import pytest

from tellapart.data.negatives import (
    CaptionPool,
    Choose,
    HardNegatives,
    from_ranked_captions,
    from_similar_images,
    number_of_similar,
    wording,
)
from tellapart.data.neighbours import nearest_images
from tellapart.data.settings import NegativeSettings
from tellapart.errors import DataError

COUNTS = (3, 1, 5, 2, 1)
CAPTIONS = [[f"{image}.{n}" for n in range(count)] for image, count in enumerate(COUNTS)]


def similar(pool: CaptionPool, pooled: np.ndarray, top: float) -> Choose:
    """Captions of images from the nearest `top` share."""
    return from_similar_images(pool, nearest_images(pooled, number_of_similar(len(pooled), top)))


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


# --- captions that are word for word the same -----------------------------------------------------------------------

# A man riding a wave is in four images, twice in one of them; image 3 has nothing of its own.
SAME = [
    ("a man riding a wave", "a surfer"),
    ("the sea", "A man riding a wave.", "a beach"),
    ("a dog", "a man riding a wave ", "a Man riding a  wave"),
    ("a man riding a wave", "the sea"),
    ("a cat", "a surfer"),
]


def allowed_captions(captions: list[tuple[str, ...]], image: int) -> set[int]:
    """By a plain loop: the captions of the list that do not read like one of the image's own."""
    own = {wording(caption) for caption in captions[image]}
    every = [caption for of_image in captions for caption in of_image]
    return {index for index, caption in enumerate(every) if wording(caption) not in own}


def test_the_wording_of_a_caption() -> None:
    assert wording(" A man  riding a Wave . ") == "a man riding a wave"
    assert wording("no. 7") == "no. 7"
    assert len({wording("a red house"), wording("a red house!"), wording("red house")}) == 3


def test_no_negative_is_word_for_word_the_images_own_and_all_others_are_equally_likely() -> None:
    pool, draws = CaptionPool(SAME), 20_000
    images = np.array([2, 0, 3, 1, 4])
    drawn = pool.negatives(images, draws, np.random.default_rng(3))
    for image, row in zip(images.tolist(), drawn, strict=True):
        counts = np.bincount(row, minlength=len(pool.captions))
        allowed = sorted(allowed_captions(SAME, image))
        assert len(allowed) == pool.allowed()[image]
        assert counts.sum() == counts[allowed].sum() == draws
        expected = draws / len(allowed)
        assert ((counts[allowed] - expected) ** 2 / expected).sum() < 35  # as above


def test_which_captions_are_an_images_own() -> None:
    """Also of many images with few wordings, by a plain loop."""
    rng = np.random.default_rng(0)
    many = [tuple(f"caption {n}" for n in rng.integers(0, 30, size=rng.integers(1, 6))) for _ in range(40)]
    for captions in (SAME, many):
        pool = CaptionPool(captions)
        images = rng.permutation(len(captions))
        own = pool.is_own(images[:, None], np.arange(len(pool.captions)))
        listed = np.zeros_like(own)
        listed[pool.own_captions(images)] = True
        for row, image in enumerate(images.tolist()):
            expected = set(range(len(pool.captions))) - allowed_captions(captions, image)
            assert set(np.flatnonzero(own[row]).tolist()) == set(np.flatnonzero(listed[row]).tolist()) == expected
        drawn = pool.negatives(images, 5000, np.random.default_rng(1))
        for row, image in enumerate(images.tolist()):
            assert set(drawn[row].tolist()) == allowed_captions(captions, image)


def test_an_image_whose_captions_are_all_there_are_has_no_negatives() -> None:
    with pytest.raises(DataError, match="word for word"):
        CaptionPool([("a cat", "a dog"), ("A dog.",)]).negatives(np.array([1, 0]), 1, np.random.default_rng(0))


@pytest.mark.parametrize("by", ["images", "retriever"])
def test_hard_negatives_are_not_word_for_word_the_images_own_either(by: str) -> None:
    """Images 0 to 3 look alike; what image 0 may not have is drawn again, and all else that nearly fits comes."""
    pool = CaptionPool(SAME)
    near = np.array([[1.0, 0.0]] * 4 + [[0.0, 1.0]]) + 0.01 * np.random.default_rng(0).normal(size=(5, 2))
    likely = np.array([[3, 2, 5], [0, 5, 9], [0, 2, 3], [0, 3, 5], [0, 1, 5]])
    choose = similar(pool, near, 0.6) if by == "images" else from_ranked_captions(likely)
    hard = HardNegatives(pool, choose, NegativeSettings(hard=1.0, ramp_epochs=0))
    drawn = hard.draw(np.arange(5), 400, np.random.default_rng(1), epochs=0.0)
    for image in range(5):
        assert set(drawn[image].tolist()) <= allowed_captions(SAME, image)
    near_ones = set(range(2, 10)) if by == "images" else set(likely[0].tolist())
    # Rarely eight draws in a row are the image's own; then the negative is a uniform one.
    expected = near_ones & allowed_captions(SAME, 0)
    assert np.isin(drawn[0], sorted(expected)).mean() > 0.9
    assert expected <= set(drawn[0].tolist())


def test_without_any_hard_one_left_the_negatives_are_uniform() -> None:
    pool = CaptionPool([("a cat",), ("a cat", "A cat."), ("a dog",), ("a fish",)])
    hard = HardNegatives(pool, from_ranked_captions(np.full((4, 1), 1)), NegativeSettings(hard=1.0, ramp_epochs=0))
    drawn = hard.draw(np.array([0, 2]), 100, np.random.default_rng(0), epochs=0.0)
    assert set(drawn[0].tolist()) == {3, 4}
    assert set(drawn[1].tolist()) == {1}


# --- other images for a caption -------------------------------------------------------------------------------------


def test_other_images_do_not_have_the_caption_and_are_equally_likely() -> None:
    pool, rng = CaptionPool(SAME), np.random.default_rng(5)
    captions = np.array([1, 2, 5, 4, 9])
    candidates = np.array([4, 2, 0, 1])  # not image 3
    counts = np.zeros((len(captions), len(SAME)))
    draws = 4000
    for _ in range(draws):
        drawn = pool.other_images(captions, candidates, 2, rng)
        for row, (first, second) in enumerate(drawn.tolist()):
            assert first != second, "there are two others"
            counts[row, [first, second]] += 1
    for row, caption in enumerate(captions):
        own = [image for image in candidates if wording(pool.captions[caption]) in map(wording, SAME[image])]
        others = sorted(set(candidates.tolist()) - set(own))
        assert counts[row].sum() == counts[row, others].sum() == 2 * draws
        # Shares of 2 in 2 to 2 in 4 of the draws, with a standard deviation of at most 32.
        assert counts[row, others] == pytest.approx(2 * draws / len(others), abs=160)


def test_with_fewer_other_images_than_wanted_each_comes_again_after_all_others() -> None:
    pool = CaptionPool([(f"{image}",) for image in range(4)])
    drawn = pool.other_images(np.arange(4), np.array([3, 0, 1]), 7, np.random.default_rng(0))
    for image, row in enumerate(drawn.tolist()):
        others = {3, 0, 1} - {image}
        for first in range(0, 7, len(others)):
            assert set(row[first : first + len(others)]) <= others
            assert len(set(row[first : first + len(others)])) == len(row[first : first + len(others)])


def test_if_all_candidates_have_the_caption_the_image_is_from_the_split() -> None:
    pool = CaptionPool(SAME)
    drawn = pool.other_images(np.array([0, 1]), np.array([0, 1, 2, 3]), 40, np.random.default_rng(0))
    assert set(drawn[0].tolist()) == {4}, "the only image without a wave"
    assert set(drawn[1].tolist()) == {1, 2, 3}
    everywhere = CaptionPool([("a cat", "a dog"), ("A cat.",)])
    assert everywhere.of_all_images().tolist() == [0, 2]
    assert not pool.of_all_images().size
    with pytest.raises(DataError, match="every image has the caption 'a cat'"):
        everywhere.other_images(np.array([0]), np.array([0, 1]), 1, np.random.default_rng(0))


@pytest.mark.parametrize("by", ["images", "retriever"])
def test_hard_images_are_those_of_hard_captions_without_the_caption(by: str) -> None:
    captions = [("a wave", "a surfer"), ("a wave", "the sea"), ("a beach",), ("a cat",), ("a dog",)]
    pool = CaptionPool(captions)
    near = np.array([[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 2) + 0.01 * np.random.default_rng(0).normal(size=(5, 2))
    likely = np.array([[3, 4], [1, 4], [1, 3], [6, 0], [5, 2]])
    choose = similar(pool, near, 0.4) if by == "images" else from_ranked_captions(likely)
    hard = HardNegatives(pool, choose, NegativeSettings(hard=1.0, ramp_epochs=1))
    images, places, rng = np.array([0, 0, 2]), np.array([0, 1, 4]), np.random.default_rng(1)
    uniform = np.full((3, 200), 3)
    assert (hard.draw_images(images, places, uniform, rng, epochs=0.0) == 3).all(), "none yet"
    drawn = hard.draw_images(images, places, uniform, rng, epochs=1.0)
    # Image 1 has the first caption of image 0, too; in 200 · 9 draws of two it may come out nine times in a row.
    assert set(drawn[0].tolist()) <= {2, 3}
    assert (drawn[0] == 2).mean() > 0.9
    assert [set(row.tolist()) for row in drawn[1:]] == [{1, 2}, {0, 1}]


# --- hard negatives -------------------------------------------------------------------------------------------------


def clusters() -> tuple[CaptionPool, np.ndarray]:
    """Twenty images in five clusters of four that look alike; image i has 1 + i % 3 captions."""
    pooled = np.repeat(np.eye(5), 4, axis=0) + 0.01 * np.random.default_rng(0).normal(size=(20, 5))
    return CaptionPool([tuple(f"{i} says {n}" for n in range(1 + i % 3)) for i in range(20)]), pooled


def owner(pool: CaptionPool, index: int) -> int:
    return int(pool.captions[index].split()[0])


def test_hard_negatives_come_from_similar_images_and_never_from_the_image() -> None:
    pool, pooled = clusters()
    hard = HardNegatives(pool, similar(pool, pooled, 0.15), NegativeSettings(hard=1.0, ramp_epochs=0))
    drawn = hard.draw(np.arange(20), 200, np.random.default_rng(1), epochs=0.0)
    for image in range(20):
        owners = {owner(pool, index) for index in drawn[image]}
        assert owners == {other for other in range(20) if other // 4 == image // 4 and other != image}


def test_the_share_of_hard_ones_follows_the_curriculum() -> None:
    pool, pooled = clusters()
    hard = HardNegatives(pool, similar(pool, pooled, 0.15), NegativeSettings(hard=0.8, ramp_epochs=2))
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
    hard = HardNegatives(pool, similar(pool, pooled, 0.05), NegativeSettings(hard=1.0, ramp_epochs=0))
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
