"""Ranks, ties, chance level."""

from __future__ import annotations

import numpy as np
import pytest

from tellapart.metrics import rank_of_true, recall_at, summarize_ranks


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


def test_not_a_number_counts_against() -> None:
    scores = np.array([[np.nan, 1.0, 0.0], [np.nan, 1.0, 0.0]])
    assert rank_of_true(scores, np.array([0, 1])).tolist() == [3, 2]


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
    assert summary.chance == {1: 1 / 8, 5: 5 / 8, 10: 1.0}
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
