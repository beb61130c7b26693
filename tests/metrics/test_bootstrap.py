"""Bootstrap: finds what is there, not what is not; families of items widen the interval."""

from __future__ import annotations

import numpy as np
import pytest

from tellapart.errors import DataError
from tellapart.metrics import bootstrap, confidence_interval, paired_bootstrap

ITEMS = 200


def figures(seed: int, size: int = ITEMS) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).normal(size=size)


def test_a_real_difference_is_found() -> None:
    a = figures(1)
    result = paired_bootstrap(a, a + 0.5 + 0.5 * figures(2), samples=2000)
    assert result.difference == pytest.approx(result.mean_b - result.mean_a)
    assert 0 < result.low < result.difference < result.high < 1
    assert result.p_value < 0.01


def test_the_difference_is_b_minus_a() -> None:
    a = figures(1)
    result = paired_bootstrap(a, a - 0.5 + 0.5 * figures(2), samples=500)
    assert result.high < 0
    assert result.p_value < 0.01
    assert result.mean_a == pytest.approx(a.mean())


def test_noise_is_not_a_difference() -> None:
    noise = figures(2)
    a = figures(1)
    result = paired_bootstrap(a, a + noise - noise.mean(), samples=2000)
    assert result.low < 0 < result.high
    assert result.p_value > 0.5


def test_false_alarms_are_as_rare_as_promised() -> None:
    # 95 % intervals of 200 means that are 0 in truth: some 10 should miss it.
    misses = 0
    for seed in range(200):
        interval = confidence_interval(figures(seed, 60), samples=300)
        misses += not interval.low <= 0 <= interval.high
    assert 2 <= misses <= 24


def test_equal_systems_have_p_one() -> None:
    a = figures(1)
    result = paired_bootstrap(a, a.copy(), samples=100)
    assert (result.difference, result.low, result.high, result.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_interval_agrees_with_the_standard_error() -> None:
    values = figures(3, 1000)
    interval = confidence_interval(values, samples=4000)
    assert interval.mean == pytest.approx(values.mean())
    expected = 2 * 1.96 * values.std() / np.sqrt(len(values))
    assert interval.high - interval.low == pytest.approx(expected, rel=0.08)


def test_same_seed_same_result_other_seed_other_result() -> None:
    a, b = figures(1), figures(2)
    assert paired_bootstrap(a, b, samples=300, seed=7) == paired_bootstrap(a, b, samples=300, seed=7)
    assert paired_bootstrap(a, b, samples=300, seed=7) != paired_bootstrap(a, b, samples=300, seed=8)


def test_duplicated_items_drawn_as_families_widen_the_interval() -> None:
    values = np.repeat(figures(1, 50), 4)
    families = np.repeat([f"family {i}" for i in range(50)], 4)
    by_item = confidence_interval(values, samples=2000)
    by_family = confidence_interval(values, samples=2000, groups=families)
    # Four copies pretend to four times the evidence: half the width.
    assert by_family.high - by_family.low == pytest.approx(2 * (by_item.high - by_item.low), rel=0.15)
    paired = paired_bootstrap(np.zeros(200), values, samples=2000, groups=families)
    assert (paired.low, paired.high) == (by_family.low, by_family.high)


def test_families_of_one_are_items() -> None:
    values = figures(1)
    alone = confidence_interval(values, samples=300)
    grouped = confidence_interval(values, samples=300, groups=np.arange(ITEMS))
    assert (grouped.low, grouped.high) == pytest.approx((alone.low, alone.high))


def test_families_weigh_by_their_size() -> None:
    # One family of 99 ones and one of a single 0: draws give 1, 0, or .99.
    values = np.array([1.0] * 99 + [0.0])
    interval = confidence_interval(values, samples=400, groups=np.array([0] * 99 + [1]))
    assert (interval.mean, interval.low, interval.high) == (0.99, 0.0, 1.0)


def test_chunks_cover_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    # Chunks of 5 samples, the last one shorter: no sample may be left unset.
    values = figures(1) + 100
    whole = confidence_interval(values, samples=303)
    monkeypatch.setattr(bootstrap, "_CHUNK", 5 * ITEMS)
    assert confidence_interval(values, samples=303) == whole


def test_hits_and_ranks_are_figures() -> None:
    hits = np.arange(ITEMS) % 2 == 0
    result = paired_bootstrap(hits, np.ones(ITEMS, dtype=np.bool_), samples=200)
    assert (result.mean_a, result.mean_b, result.difference) == (0.5, 1.0, 0.5)
    assert confidence_interval(np.arange(1, 4), samples=50).mean == 2.0


def test_one_item_or_family_is_refused() -> None:
    with pytest.raises(DataError, match="1 items"):
        confidence_interval(np.array([0.5]))
    with pytest.raises(DataError, match="1 groups"):
        paired_bootstrap(figures(1), figures(2), groups=np.zeros(ITEMS))


def test_unusable_figures_are_refused() -> None:
    with pytest.raises(ValueError, match="same shape"):
        paired_bootstrap(figures(1), figures(2, 10))
    with pytest.raises(ValueError, match="finite"):
        confidence_interval(np.array([1.0, np.nan]))
    with pytest.raises(ValueError, match="one entry per item"):
        confidence_interval(figures(1), groups=np.zeros(3))
