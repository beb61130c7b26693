"""Bootstrap: finds what is there, not what is not; families of items widen the interval."""

from __future__ import annotations

import numpy as np
import pytest

from tellapart.errors import DataError
from tellapart.metrics import bootstrap, confidence_interval, paired_bootstrap
from tellapart.metrics.bootstrap import CorpusStatistic, confidence_intervals, mean_statistic, paired_bootstraps

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
    parts = confidence_interval(values, samples=303)
    assert (parts.mean, parts.low, parts.high) == pytest.approx((whole.mean, whole.low, whole.high), rel=1e-12)


def test_hits_and_ranks_are_figures() -> None:
    hits = np.arange(ITEMS) % 2 == 0
    result = paired_bootstrap(hits, np.ones(ITEMS, dtype=np.bool_), samples=200)
    assert (result.mean_a, result.mean_b, result.difference) == (0.5, 1.0, 0.5)
    assert confidence_interval(np.arange(1, 4), samples=50).mean == 2.0


def ratio(size: int = ITEMS, seed: int = 1) -> CorpusStatistic:
    """Hits over tries, which is no mean of the items' ratios."""
    generator = np.random.default_rng(seed)
    tries = generator.integers(1, 9, size=size)
    columns = np.stack([generator.integers(tries + 1), tries], axis=1).astype(np.float64)
    return CorpusStatistic(columns, lambda sums: np.asarray(sums[..., 0] / sums[..., 1]))


@pytest.mark.parametrize("grouped", [False, True])
def test_a_corpus_figure_equals_loops(grouped: bool) -> None:
    statistic, other = ratio(), ratio(seed=2)
    families = np.arange(ITEMS) // 3 if grouped else np.arange(ITEMS)
    units = int(families.max()) + 1
    generator = np.random.default_rng(5)
    figures, differences = [], []
    for _ in range(40):
        drawn = [item for unit in generator.integers(units, size=units) for item in np.flatnonzero(families == unit)]
        sums, others = (sum(one.columns[item] for item in drawn) for one in (statistic, other))
        figures.append(sums[0] / sums[1])
        differences.append(others[0] / others[1] - figures[-1])
    groups = families if grouped else None
    interval = confidence_interval(statistic, samples=40, seed=5, groups=groups)
    assert interval.mean == pytest.approx(statistic.columns[:, 0].sum() / statistic.columns[:, 1].sum(), abs=1e-12)
    assert (interval.low, interval.high) == pytest.approx(np.percentile(figures, [2.5, 97.5]), abs=1e-9)
    paired = paired_bootstrap(statistic, other, samples=40, seed=5, groups=groups)
    assert (paired.low, paired.high) == pytest.approx(np.percentile(differences, [2.5, 97.5]), abs=1e-9)
    rarer = min(sum(d <= 0 for d in differences), sum(d >= 0 for d in differences))
    assert paired.p_value == min(1.0, 2 * (rarer + 1) / 41)
    assert paired.difference == pytest.approx(other.figure - statistic.figure)


def test_several_figures_at_once_are_those_one_by_one() -> None:
    first = {"a": figures(1), "b": ratio(), "only here": figures(3)}
    second = {"b": ratio(seed=2), "a": figures(2)}
    found = confidence_intervals(first, samples=100)
    assert list(found) == ["a", "b", "only here"]
    for name, interval in found.items():
        alone = confidence_interval(first[name], samples=100)
        assert (interval.low, interval.high) == pytest.approx((alone.low, alone.high), rel=1e-12)
    differences = paired_bootstraps(first, second, samples=100)
    assert list(differences) == ["a", "b"]
    for name, difference in differences.items():
        assert difference.p_value == paired_bootstrap(first[name], second[name], samples=100).p_value
    assert paired_bootstraps({"a": figures(1)}, {"b": figures(1)}) == {}


def test_rounding_takes_no_sides() -> None:
    # Systems that differ on one item agree wherever it is not drawn, which is 37 % of the time.
    a = figures(1) * 1e3
    b = a.copy()
    b[17] += 1.0
    result = paired_bootstrap(a, b, samples=2000)
    assert result.low == 0.0
    assert result.p_value == pytest.approx(2 * np.exp(-1), abs=0.06)
    # The same figure by other sums differs in its last digits.
    thirds = CorpusStatistic(mean_statistic(a).columns / 3, lambda sums: np.asarray(sums[..., 0] / sums[..., 1]))
    result = paired_bootstrap(a, thirds, samples=200)
    assert (result.low, result.high, result.p_value) == (0.0, 0.0, 1.0)


def test_mean_is_a_statistic() -> None:
    assert mean_statistic(np.array([True, False])).figure == 0.5
    with pytest.raises(ValueError, match="one entry per item"):
        mean_statistic(np.zeros((2, 2)))


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
