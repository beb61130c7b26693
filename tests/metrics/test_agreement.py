"""Statistics of people's judgements against naive definitions and published examples."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest

from tellapart.metrics.agreement import _rater_spread, answer_rates, fleiss_kappa, sign_test


def naive_kappa(answers: list[list[int]]) -> float:
    """From the words of the definition: pairs of raters who agree, against pairs of answers drawn by chance."""
    observed = []
    for item in answers:
        pairs = list(combinations(item, 2))
        observed.append(sum(one == other for one, other in pairs) / len(pairs))
    everything = [answer for item in answers for answer in item]
    chance = sum((everything.count(kind) / len(everything)) ** 2 for kind in set(everything))
    return (sum(observed) / len(observed) - chance) / (1 - chance)


@pytest.mark.parametrize("seed", range(5))
def test_kappa_is_the_naive_one(seed: int) -> None:
    chance = np.random.default_rng(seed)
    # Unequal numbers of raters too; an item with one rater says nothing.
    answers = [chance.integers(0, 3, size=chance.integers(2, 6)).tolist() for _ in range(20)]
    counts = np.array([[item.count(kind) for kind in range(3)] for item in [*answers, [1]]])
    found = fleiss_kappa(counts)
    assert found is not None
    assert found.figure == pytest.approx(naive_kappa(answers), rel=1e-12)


def test_kappa_of_a_published_example() -> None:
    """14 raters, 10 subjects, 5 categories: κ = 0.210 (Fleiss' formula as Wikipedia works it out)."""
    table = [
        [0, 0, 0, 0, 14],
        [0, 2, 6, 4, 2],
        [0, 0, 3, 5, 6],
        [0, 3, 9, 2, 0],
        [2, 2, 8, 1, 1],
        [7, 7, 0, 0, 0],
        [3, 2, 6, 3, 0],
        [2, 5, 3, 2, 2],
        [6, 5, 2, 1, 0],
        [0, 2, 2, 3, 7],
    ]
    found = fleiss_kappa(np.array(table))
    assert found is not None
    assert found.figure == pytest.approx(0.210, abs=5e-4)


def test_kappa_is_undefined_when_all_answers_are_one() -> None:
    assert fleiss_kappa(np.array([[3, 0, 0], [2, 0, 0]])) is None
    assert fleiss_kappa(np.array([[1, 0, 0], [0, 1, 0]])) is None  # no item has two raters


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (3, 3), (8, 2), (2, 8), (0, 12), (70, 41)])
def test_sign_test_is_the_sum_of_a_binomial_tail(wins: int, losses: int) -> None:
    trials = wins + losses
    tail = sum(comb(trials, k) * 0.5**trials for k in range(min(wins, losses) + 1))
    assert sign_test(wins, losses) == pytest.approx(min(1.0, 2 * tail), rel=1e-9)


def test_the_sign_test_of_many_items_is_a_number() -> None:
    assert 0 < sign_test(2600, 2400) < 0.01


def test_rates_add_up_and_known_ties_count_for_all_items() -> None:
    answers = np.array([[0, 0, 1, 2], [0, -1, -1, -1]])  # the second rater stopped after one item
    found = answer_rates(answers, 3, known=np.array([1, 1, 1, 1]))
    win, tie, lose = (one.mean for one in found.rates)
    # Half of the items are known ties; of the five answers to the others three are wins.
    assert (win, tie, lose) == pytest.approx((0.5 * 3 / 5, 0.5 + 0.5 / 5, 0.5 / 5))
    for one in found.rates:
        assert 0 <= one.low <= one.mean <= one.high <= 1
    assert found.agreement == 1.0  # one item has two answers, and they are the same


def test_raters_who_differ_widen_the_interval() -> None:
    chance = np.random.default_rng(0)
    alike = (chance.random((3, 200)) < 0.5).astype(int)
    apart = (chance.random((3, 200)) < np.array([[0.2], [0.5], [0.8]])).astype(int)
    narrow, wide = (answer_rates(answers, 2).rates[1] for answers in (alike, apart))
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


def test_the_spread_of_raters_is_that_of_a_two_way_analysis_of_variance() -> None:
    """(MS_raters - MS_rest) / (R N), by loops, and nothing where raters differ less than chance."""
    chance = np.random.default_rng(2)
    x = chance.random((4, 30)) < np.array([[0.2], [0.4], [0.6], [0.8]])
    mean = x.mean()
    of_raters = sum(30 * (row.mean() - mean) ** 2 for row in x) / 3
    rest = sum((x[r, i] - x[r].mean() - x[:, i].mean() + mean) ** 2 for r in range(4) for i in range(30)) / (3 * 29)
    everything = np.ones_like(x)
    assert _rater_spread(x, everything) == pytest.approx(np.sqrt((of_raters - rest) / (4 * 30)), rel=1e-12)
    same = np.repeat(x[:1], 4, axis=0)
    assert _rater_spread(same, everything) == 0.0


def test_the_interval_is_that_of_a_mean_with_one_rater() -> None:
    answers = (np.random.default_rng(1).random((1, 400)) < 0.3).astype(int)
    found = answer_rates(answers, 2).rates[1]
    half = 1.96 * np.sqrt(found.mean * (1 - found.mean) / 400)
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.1)


def test_one_item_has_no_width() -> None:
    found = answer_rates(np.array([[0], [0]]), 3)
    assert (found.rates[0].low, found.rates[0].high) == (1.0, 1.0)
    assert found.kappa is None
