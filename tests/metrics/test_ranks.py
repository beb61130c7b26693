"""Ranks, ties, chance level; both directions of retrieval against full matrices and loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tellapart.errors import DataError
from tellapart.metrics import rank_of_true, recall_at, summarize_ranks
from tellapart.metrics.ranks import RetrievalRanks, fold_ranks, inner_products, retrieval_ranks, summarize_retrieval

# --- one right item ---------------------------------------------------------------------------------------------------


def test_by_hand() -> None:
    scores = np.array([[0.1, 0.9, 0.5], [0.1, 0.9, 0.5], [0.1, 0.9, 0.5]])
    assert rank_of_true(scores, np.array([0, 1, 2])).tolist() == [3, 1, 2]


def test_equals_sorting_when_no_scores_tie() -> None:
    generator = np.random.default_rng(1)
    scores = generator.normal(size=(40, 17))
    true = generator.integers(17, size=40)
    order = np.argsort(-scores, axis=1)
    expected = [list(order[q]).index(true[q]) + 1 for q in range(40)]
    assert rank_of_true(scores, true).tolist() == expected


def test_a_tie_counts_against() -> None:
    scores = np.array([[1.0, 2.0, 2.0, 0.0]])
    assert rank_of_true(scores, np.array([1])).tolist() == [2]
    assert rank_of_true(np.zeros((3, 5)), np.arange(3)).tolist() == [5, 5, 5]


def test_not_a_number_is_an_error() -> None:
    scores = np.array([[0.0, 1.0], [np.nan, 1.0]])
    with pytest.raises(DataError, match="not a number"):
        rank_of_true(scores, np.array([0, 1]))
    with pytest.raises(DataError, match="not a number"):
        retrieval_ranks(scores, np.array([0, 1]))
    # An impossible caption is one: the logarithm of 0 is a score like any other.
    assert rank_of_true(np.array([[-np.inf, 1.0]]), np.array([0])).tolist() == [2]


def test_scorer_blind_to_the_query_is_at_chance() -> None:
    # The same preference among items whatever the query: every rank occurs once.
    items = 40
    preference = np.random.default_rng(2).permutation(items).astype(np.float64)
    ranks = rank_of_true(np.tile(preference, (items, 1)), np.arange(items))
    summary = summarize_ranks(ranks, items)
    assert summary.recalls == pytest.approx(summary.chance)
    assert summary.mean == pytest.approx((items + 1) / 2)


def test_summary_by_hand() -> None:
    summary = summarize_ranks(np.array([1, 2, 6, 20]), items=8, ks=(1, 5, 10))
    assert summary.recalls == {1: 0.25, 5: 0.5, 10: 0.75}
    assert summary.chance == pytest.approx({1: 1 / 8, 5: 5 / 8, 10: 1.0})
    assert (summary.median, summary.mean, summary.count) == (4.0, 7.25, 4)


def test_recall_includes_rank_k() -> None:
    assert recall_at(np.array([4, 5, 6]), 5) == pytest.approx(2 / 3)


@pytest.mark.parametrize("true", [[-1, 0], [0, 3], [0], [[0, 1]]])
def test_impossible_true_items_are_refused(true: list[int]) -> None:
    with pytest.raises(ValueError, match="true"):
        rank_of_true(np.zeros((2, 3)), np.array(true))


def test_no_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="no ranks"):
        summarize_ranks(np.array([], dtype=np.int64), 10)
    with pytest.raises(ValueError, match="no ranks"):
        summarize_retrieval([])


# --- both directions --------------------------------------------------------------------------------------------------


def naive(scores: np.ndarray, owner: list[int]) -> tuple[list[int], list[int]]:
    """By the definitions, item after item."""
    images, captions = scores.shape
    image_to_text = []
    for i in range(images):
        ranks = []
        for c in range(captions):
            if owner[c] == i:
                before = sum(1 for d in range(captions) if owner[d] != i and scores[i, d] >= scores[i, c])
                # Of its own captions only those that score higher stand before this one.
                ranks.append(
                    1 + before + sum(1 for d in range(captions) if owner[d] == i and scores[i, d] > scores[i, c])
                )
        image_to_text.append(min(ranks))
    text_to_image = [
        1 + sum(1 for j in range(images) if j != owner[c] and scores[j, c] >= scores[owner[c], c])
        for c in range(captions)
    ]
    return image_to_text, text_to_image


@pytest.mark.parametrize("seed", range(12))
def test_equals_loops(seed: int) -> None:
    generator = np.random.default_rng(seed)
    images = int(generator.integers(1, 12))
    # Every image has a caption, the others anywhere and in any order.
    owner = np.concatenate([np.arange(images), generator.integers(images, size=generator.integers(0, 30))])
    generator.shuffle(owner)
    # Few different scores, so that most are tied.
    scores = generator.integers(4, size=(images, len(owner))).astype(np.float32)
    image_to_text, text_to_image = naive(scores, owner.tolist())
    for chunk in (1, 3, 256):
        ranks = retrieval_ranks(scores, owner, chunk=chunk)
        assert ranks.image_to_text.tolist() == image_to_text
        assert ranks.text_to_image.tolist() == text_to_image
        assert ranks.captions_of.tolist() == np.bincount(owner).tolist()


def test_embeddings_in_chunks_equal_the_full_matrix() -> None:
    generator = np.random.default_rng(0)
    images, captions = generator.normal(size=(60, 8)), generator.normal(size=(300, 8))
    owner = np.repeat(np.arange(60), 5)
    asked: list[tuple[int, int]] = []
    block = inner_products(images, captions)

    def similarity(rows: slice, columns: np.ndarray) -> np.ndarray:
        scores = block(rows, columns)
        asked.append(scores.shape)
        return scores

    seen: list[tuple[int, int]] = []
    ranks = retrieval_ranks(similarity, owner, chunk=16, on_progress=lambda done, of: seen.append((done, of)))
    image_to_text, text_to_image = naive(images @ captions.T, owner.tolist())
    assert (ranks.image_to_text.tolist(), ranks.text_to_image.tolist()) == (image_to_text, text_to_image)
    # Never the full matrix: the true pairs first, then every block once.
    assert asked == [(16, 80), (16, 80), (16, 80), (12, 60), (16, 300), (16, 300), (16, 300), (12, 300)]
    assert seen[-1] == (60, 60)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_folds_are_separate_test_sets() -> None:
    generator = np.random.default_rng(3)
    scores = generator.normal(size=(20, 100))
    owner = np.repeat(np.arange(20), 5)
    folds = fold_ranks(scores, owner, 5, chunk=3)
    for fold, ranks in enumerate(folds):
        part = slice(4 * fold, 4 * fold + 4), slice(20 * fold, 20 * fold + 20)
        alone = retrieval_ranks(scores[part], np.repeat(np.arange(4), 5))
        assert ranks.image_to_text.tolist() == alone.image_to_text.tolist()
        assert ranks.text_to_image.tolist() == alone.text_to_image.tolist()
    summary = summarize_retrieval(folds)
    each = [summarize_retrieval(fold) for fold in folds]
    for k in (1, 5, 10):
        assert summary.text_to_image.recalls[k] == pytest.approx(np.mean([s.text_to_image.recalls[k] for s in each]))
        assert summary.image_to_text.chance[k] == pytest.approx(each[0].image_to_text.chance[k])
    assert summary.image_to_text.median == pytest.approx(np.mean([s.image_to_text.median for s in each]))
    assert summary.image_to_text.mean == pytest.approx(np.mean([s.image_to_text.mean for s in each]))
    assert (summary.image_to_text.count, summary.text_to_image.count) == (20, 100)
    assert summary.recall_sum == pytest.approx(np.mean([s.recall_sum for s in each]))


def test_a_perfect_scorer() -> None:
    owner = np.repeat(np.arange(4), 5)
    summary = summarize_retrieval(retrieval_ranks((np.arange(4)[:, np.newaxis] == owner).astype(float), owner))
    assert summary.recall_sum == 6.0
    assert (summary.image_to_text.mean, summary.text_to_image.median) == (1.0, 1.0)


def test_named_figures_with_chance_beside() -> None:
    ranks = RetrievalRanks(np.array([1, 7]), np.array([1, 2, 2, 1]), np.array([2, 2]))
    figures = summarize_retrieval(ranks).figures()
    assert figures["image_to_text_R@1"] == 0.5
    assert figures["image_to_text_R@5"] == 0.5
    assert figures["image_to_text_mean_rank"] == 4.0
    assert figures["text_to_image_R@1"] == 0.5
    assert figures["text_to_image_median_rank"] == 1.5
    assert figures["text_to_image_chance_R@1"] == 0.5
    assert figures["R@sum"] == pytest.approx(0.5 + 0.5 + 1.0 + 0.5 + 1.0 + 1.0)
    # Two of four captions are right: the first is wrong with 1/2, both of two with 1/2 · 1/3.
    assert figures["image_to_text_chance_R@1"] == pytest.approx(0.5)


def test_chance_with_several_right_items() -> None:
    for items, right, k in ((100, 5, 10), (25, 5, 5), (7, 3, 5), (4, 4, 1)):
        chance = summarize_ranks(np.array([1]), items, (k,), right).chance[k]
        assert chance == pytest.approx(1 - math.comb(items - right, k) / math.comb(items, k))
    # Of two kinds of queries: their mean.
    both = summarize_ranks(np.array([1, 1]), 10, (1,), np.array([1, 5])).chance[1]
    assert both == pytest.approx(0.3)


@pytest.mark.parametrize("images", [20, 1003])
def test_a_constant_scorer_is_no_better_than_chance(images: int) -> None:
    owner = np.repeat(np.arange(images), 5)
    flat = np.ones((images, 3), dtype=np.float32)
    ranks = retrieval_ranks(inner_products(flat, np.repeat(flat, 5, axis=0)), owner)
    summary = summarize_retrieval(ranks)
    assert set(ranks.text_to_image.tolist()) == {images}
    assert set(ranks.image_to_text.tolist()) == {5 * images - 4}
    for direction in (summary.image_to_text, summary.text_to_image):
        for k, recall in direction.recalls.items():
            assert recall == 0 < direction.chance[k] < 1


def test_a_scorer_that_ignores_the_query_is_at_chance() -> None:
    # One preference among images for all captions, one among captions for all images.
    images = 30
    generator = np.random.default_rng(4)
    owner = np.repeat(np.arange(images), 5)
    by_image = np.repeat(generator.permutation(images)[:, np.newaxis], 5 * images, axis=1).astype(float)
    summary = summarize_retrieval(retrieval_ranks(by_image, owner))
    assert summary.text_to_image.recalls == pytest.approx(summary.text_to_image.chance)
    # Image → text is at chance on average over the preferences.
    recalls = []
    for _ in range(300):
        by_caption = np.tile(generator.permutation(5 * images), (images, 1)).astype(float)
        recalls.append(recall_at(retrieval_ranks(by_caption, owner).image_to_text, 10))
    assert np.mean(recalls) == pytest.approx(summary.image_to_text.chance[10], abs=0.005)


def test_what_does_not_fit() -> None:
    scores = np.zeros((2, 3))
    with pytest.raises(DataError, match="image 1 has no caption"):
        retrieval_ranks(np.zeros((3, 2)), np.array([0, 2]))
    with pytest.raises(DataError, match="image 2 has no caption"):
        retrieval_ranks(scores, np.array([0, 1, 1]), images=3)
    with pytest.raises(DataError, match="belongs to image 2, but there are 2"):
        retrieval_ranks(scores, np.array([0, 1, 2]), images=2)
    with pytest.raises(DataError, match="every caption"):
        retrieval_ranks(scores, np.array([], dtype=np.int64))
    with pytest.raises(DataError, match="2 images cannot be cut into 5"):
        fold_ranks(scores, np.array([0, 1, 1]), 5)
    with pytest.raises(ValueError, match="2 images, 3 captions"):
        retrieval_ranks(scores.T, np.array([0, 1, 1]))
    with pytest.raises(ValueError, match="scores of 2 images and 3 captions are"):
        retrieval_ranks(lambda rows, columns: scores.T, np.array([0, 1, 1]))
    with pytest.raises(ValueError, match="different widths"):
        inner_products(np.zeros((2, 3)), np.zeros((2, 4)))


def test_scores_within_rounding_are_ties() -> None:
    """Of three images the third scores a little less than the first; whether that is a tie is for the caller to say."""
    scores = np.array([[0.5, 0.1], [0.2, 0.5], [0.5 - 1e-7, 0.5 - 1e-7]])
    owner = np.array([0, 1, 2])
    scores = np.concatenate([scores, np.array([[0.0], [0.0], [0.5]])], axis=1)
    for chunk in (1, 3):
        exact = retrieval_ranks(scores, owner, chunk=chunk)
        assert (exact.image_to_text.tolist(), exact.text_to_image.tolist()) == ([1, 1, 1], [1, 1, 1])
        rounded = retrieval_ranks(scores, owner, chunk=chunk, rounding=1e-6)
        assert (rounded.image_to_text.tolist(), rounded.text_to_image.tolist()) == ([1, 1, 3], [2, 2, 1])
        (fold,) = fold_ranks(scores, owner, 1, chunk=chunk, rounding=1e-6)
        assert fold.image_to_text.tolist() == [1, 1, 3]
