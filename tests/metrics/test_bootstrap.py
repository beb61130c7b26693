"""Bootstrap: finds what is there, not what is not; families of items widen the interval."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from tellapart.errors import DataError
from tellapart.metrics import bootstrap, confidence_interval, correlation_interval, holm, paired_bootstrap
from tellapart.metrics.bootstrap import (
    CorpusStatistic,
    confidence_intervals,
    mean_statistic,
    paired_bootstraps,
    paired_bootstraps_over_seeds,
)

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


# --- several trainings ------------------------------------------------------------------------------------------------


def trainings(
    seeds: int, images: int, of_seed: float, of_image: float, noise: float, generator: np.random.Generator
) -> NDArray[np.float64]:
    """[seeds, images]: seed effect + image effect + noise, all around 0."""
    effects = of_seed * generator.normal(size=(seeds, 1)) + of_image * generator.normal(size=(1, images))
    return np.asarray(effects + noise * generator.normal(size=(seeds, images)))


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize(("of_seed", "of_image", "noise"), [(1.0, 1.0, 1.0), (0.1, 1.0, 0.3), (0.0, 1.0, 0.3)])
def test_intervals_over_seeds_hold_the_truth_as_often_as_promised(
    seeds: int, of_seed: float, of_image: float, noise: float
) -> None:
    """The true difference is 0. Of 300 intervals of 95 %, 15 may miss it; with few seeds rather fewer than more."""
    generator = np.random.default_rng(11)
    trials, missed, missed_by_images = 300, 0, 0
    for trial in range(trials):
        control = trainings(seeds, 60, 0.5, 1.0, 0.0, generator)
        change = trainings(seeds, 60, of_seed, of_image, noise, generator)
        a, b = ([{"": row} for row in of] for of in (control, control + change))
        found = paired_bootstraps_over_seeds(a, b, samples=400, seed=trial)[""]
        missed += not found.low <= 0 <= found.high
        alone = paired_bootstrap(control.mean(axis=0), (control + change).mean(axis=0), samples=400, seed=trial)
        missed_by_images += not alone.low <= 0 <= alone.high
    assert missed <= 0.09 * trials
    if of_seed == 1.0:
        # Resampling images alone takes the luck of a few trainings for a difference.
        assert missed_by_images > 0.4 * trials
        assert missed >= 0.02 * trials


def test_an_interval_over_seeds_equals_the_equation() -> None:
    generator = np.random.default_rng(3)
    a, b = ([ratio(size=40, seed=10 * side + seed) for seed in range(3)] for side in (1, 2))
    found = paired_bootstraps_over_seeds([{"x": one} for one in a], [{"x": one} for one in b], samples=30, seed=5)["x"]
    generator = np.random.default_rng(5)
    deviates = np.random.default_rng([5, 1]).standard_t(2, size=30)
    of_seeds = [other.figure - one.figure for one, other in zip(a, b, strict=True)]
    spread = (sum((one - np.mean(of_seeds)) ** 2 for one in of_seeds) / 2) ** 0.5
    samples = []
    for sample in range(30):
        drawn = generator.integers(40, size=40)
        figures = [[float(one.combine(one.columns[drawn].sum(axis=0))) for one in side] for side in (a, b)]
        samples.append(np.mean(figures[1]) - np.mean(figures[0]) + spread / 3**0.5 * deviates[sample])
    assert found.difference == pytest.approx(np.mean(of_seeds), rel=1e-9)
    assert (found.mean_a, found.mean_b) == pytest.approx([np.mean([one.figure for one in side]) for side in (a, b)])
    assert (found.low, found.high) == pytest.approx(np.percentile(samples, [2.5, 97.5]), rel=1e-9)
    rarer = min(sum(one <= 0 for one in samples), sum(one >= 0 for one in samples))
    assert found.p_value == min(1.0, 2 * (rarer + 1) / 31)
    assert found.resampled == "seeds and images"


def test_one_seed_is_the_bootstrap_over_images() -> None:
    a, b = {"x": figures(1), "y": ratio()}, {"x": figures(2), "y": ratio(seed=2)}
    groups = np.arange(ITEMS) // 4
    one = paired_bootstraps_over_seeds([a], [b], samples=200, groups=groups)
    assert one == paired_bootstraps(a, b, samples=200, groups=groups)
    assert {found.resampled for found in one.values()} == {"images"}
    # Trainings that agree add nothing.
    three = paired_bootstraps_over_seeds([a] * 3, [b] * 3, samples=200, groups=groups)
    for name, found in three.items():
        assert (found.low, found.high) == pytest.approx((one[name].low, one[name].high), rel=1e-9)


def test_trainings_are_paired_by_seed() -> None:
    """An effect of the seed that both systems share is no evidence against a difference."""
    of_seed = [0.0, 3.0, -2.0]
    a = [{"x": figures(1) + effect} for effect in of_seed]
    b = [{"x": figures(1) + effect + 0.1 + 0.1 * figures(2)} for effect in of_seed]
    paired = paired_bootstraps_over_seeds(a, b, samples=500)["x"]
    assert paired.low > 0
    crossed = paired_bootstraps_over_seeds(a, [*b[1:], b[0]], samples=500)["x"]
    assert crossed.low < -1 < 1 < crossed.high
    assert crossed.difference == pytest.approx(paired.difference)


def test_equal_trainings_have_p_one() -> None:
    seeds = [{"x": 1e3 * figures(seed)} for seed in range(3)]
    thirds = [
        {"x": CorpusStatistic(mean_statistic(one["x"]).columns / 3, mean_statistic(one["x"]).combine)} for one in seeds
    ]
    found = paired_bootstraps_over_seeds(seeds, thirds, samples=100)["x"]
    assert (found.low, found.high, found.p_value) == (0.0, 0.0, 1.0)


def test_only_figures_of_all_trainings_are_compared() -> None:
    a = [{"x": figures(1), "y": figures(2)}, {"x": figures(3), "y": figures(4)}]
    b = [{"x": figures(5), "y": figures(6)}, {"x": figures(7)}]
    assert list(paired_bootstraps_over_seeds(a, b, samples=20)) == ["x"]
    with pytest.raises(ValueError, match="paired by seed: give as many of both, got 2 and 1"):
        paired_bootstraps_over_seeds(a, b[:1])


# --- many comparisons -------------------------------------------------------------------------------------------------


def test_holm_equals_the_published_example() -> None:
    """The usual example of four hypotheses: at .05 the fourth and the first are rejected, the others are not."""
    found = holm({1: 0.01, 2: 0.04, 3: 0.03, 4: 0.005})
    assert found == pytest.approx({1: 0.03, 2: 0.06, 3: 0.06, 4: 0.02})
    assert list(found) == [1, 2, 3, 4]


def test_holm_is_bonferroni_over_all_subsets() -> None:
    """Closed testing: a comparison's value is the largest of the Bonferroni tests of all sets that it is in."""
    generator = np.random.default_rng(0)
    for size in (1, 2, 5, 7):
        values = dict(enumerate((generator.random(size) ** 3).tolist()))
        values[size] = values[0]  # equal values
        sets = list(chain.from_iterable(combinations(values, count) for count in range(1, len(values) + 1)))
        expected = {
            key: max(min(1.0, len(one) * min(values[k] for k in one)) for one in sets if key in one) for key in values
        }
        assert holm(values) == pytest.approx(expected, rel=1e-12)
    assert holm({}) == {}


def test_correlation_has_an_interval() -> None:
    x = figures(1)
    y = 0.6 * x + 0.8 * figures(2)
    found = correlation_interval(x, y, samples=2000)
    assert found is not None
    assert found.mean == pytest.approx(np.corrcoef(x, y)[0, 1], rel=1e-9)
    # Fisher's interval of 200 points.
    expected = np.tanh(np.arctanh(found.mean) + np.array([-1, 1]) * 1.96 / np.sqrt(ITEMS - 3))
    assert (found.low, found.high) == pytest.approx(expected, abs=0.03)
    moved = correlation_interval(1e-3 * x + 7, -5 * y, samples=2000)
    assert moved is not None
    assert (moved.mean, moved.low, moved.high) == pytest.approx((-found.mean, -found.high, -found.low), abs=0.01)


def test_seeds_of_an_arm_are_no_new_points_of_a_correlation() -> None:
    arms = 8
    x, y = figures(1, arms), figures(1, arms) + figures(2, arms)
    alone = correlation_interval(x, y, samples=1000)
    seeds = correlation_interval(np.repeat(x, 5), np.repeat(y, 5), np.repeat(np.arange(arms), 5), samples=1000)
    ungrouped = correlation_interval(np.repeat(x, 5), np.repeat(y, 5), samples=1000)
    assert alone is not None
    assert seeds is not None
    assert ungrouped is not None
    assert (seeds.mean, seeds.low, seeds.high) == pytest.approx((alone.mean, alone.low, alone.high), rel=1e-6)
    assert ungrouped.high - ungrouped.low < 0.7 * (seeds.high - seeds.low)


def test_a_correlation_may_be_undefined() -> None:
    assert correlation_interval(np.array([1.0, 2.0]), np.array([1.0, 2.0])) is None
    assert correlation_interval(np.array([0.1, 0.1, 0.1]), np.array([1.0, 2.0, 3.0])) is None
    assert correlation_interval(figures(1, 6), figures(2, 6), np.array([0, 0, 0, 1, 1, 1])) is None
    three = correlation_interval(np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 2.0]), samples=200)
    assert three is not None
    assert -1 <= three.low <= three.mean <= three.high <= 1
