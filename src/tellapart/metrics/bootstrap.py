"""Bootstrap confidence intervals, and tests of the difference between two systems.

Test sets as large as the real one are drawn from it with replacement; the interval shows how the figure varies.
Near-duplicate images form families with correlated scores; given `groups`, whole families are drawn instead of
single items (cluster bootstrap). A figure is any function of sums over the items,

    f = combine(Σ_i x_i),   f* = combine(Σ_g Σ_{i in family g} x_i) over the G families drawn

A mean has x_i = (value, 1) and divides; corpus BLEU has counts and lengths. The interval is the middle 95 % of the f*.
It is too narrow with few items or families (below about 30).

Systems that were trained several times differ from training to training too. `paired_bootstraps_over_seeds` draws both
the images and the seeds; `holm` corrects the p values of many comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from tellapart.errors import DataError

# Scores, ranks, or hits.
Figures = NDArray[np.bool_ | np.integer | np.floating]

Key = TypeVar("Key", bound=Hashable)

# A difference is significant if its p value, corrected for all that are tested, is below this.
LEVEL = 0.05

# Draws in memory at once: about 30 MB, for any number of items and samples.
_CHUNK = 1 << 20
_PERCENTILES = (2.5, 97.5)
_ROUNDING = 1e-12


@dataclass(frozen=True)
class CorpusStatistic:
    """A corpus figure as a function of sums over items.

    columns: [items, columns], the summands
    combine: sums [..., columns] → figures [...]
    """

    columns: NDArray[np.float64]
    combine: Callable[[NDArray[np.float64]], NDArray[np.float64]]

    @property
    def figure(self) -> float:
        """The figure of the given items."""
        return float(self.combine(self.columns.sum(axis=0)))


def mean_statistic(values: Figures) -> CorpusStatistic:
    """The mean of per-item figures.

    >>> mean_statistic(np.array([1, 2, 6])).figure
    3.0
    """
    if values.ndim != 1:
        raise ValueError("values must be a vector of one entry per item")
    return CorpusStatistic(np.stack([values.astype(np.float64), np.ones(len(values))], axis=1), _mean)


def _mean(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(sums[..., 0] / sums[..., 1])


@dataclass(frozen=True)
class Interval:
    """A figure (`mean`, since it usually is one) and its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedDifference:
    """Figures of two systems on the same items; `difference` is b - a, with its 95 % interval and p value.

    Attributes:
        mean_a: figure of the first system; of several trainings, the mean.
        mean_b: figure of the second system.
        difference: b - a.
        low, high: 95 % interval of the difference.
        p_value: two-sided, not corrected for other comparisons.
        resampled: what the interval covers. `images`: other images, but the same trained models. `seeds and images`:
            other trainings too.
    """

    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    p_value: float
    resampled: Literal["images", "seeds and images"] = "images"


def confidence_interval(
    values: Figures | CorpusStatistic,
    samples: int = 10_000,
    seed: int = 0,
    groups: NDArray[np.generic] | None = None,
) -> Interval:
    """The mean of per-item figures, or any corpus figure, with its 95 % percentile interval.

    >>> interval = confidence_interval(np.arange(100))
    >>> interval.mean, round(interval.low), round(interval.high)
    (49.5, 44, 55)
    """
    return confidence_intervals({"": values}, samples, seed, groups)[""]


def confidence_intervals(
    values: Mapping[str, Figures | CorpusStatistic],
    samples: int = 10_000,
    seed: int = 0,
    groups: NDArray[np.generic] | None = None,
) -> dict[str, Interval]:
    """Intervals of several figures of the same items: name → interval."""
    statistics = [_statistic(value) for value in values.values()]
    intervals = {}
    for name, statistic, drawn in zip(values, statistics, _resample(statistics, samples, seed, groups), strict=True):
        low, high = np.percentile(drawn, _PERCENTILES)
        intervals[name] = Interval(mean=statistic.figure, low=float(low), high=float(high))
    return intervals


def resampled_interval(
    statistic: CorpusStatistic, spread: float, of: int, samples: int = 10_000, seed: int = 0
) -> Interval:
    """A figure with its 95 % interval over items and over something else that varies, such as raters.

    Each sample draws items, and adds spread · t with t from Student's t with `of` - 1 degrees of freedom.

    Args:
        statistic: the figure. Samples in which it is NaN are left out.
        spread: standard error of the figure over the `of` raters; with one rater nothing is added.
        of: number of raters.
        samples: samples to draw.
        seed: seed of the draws.

    Returns:
        The figure and its interval; with one item, which always draws itself, both ends are the figure.
    """
    if len(statistic.columns) < 2:
        return Interval(statistic.figure, statistic.figure, statistic.figure)
    drawn = _resample([statistic], samples, seed, None)[0]
    if of > 1:
        drawn = drawn + spread * np.random.default_rng([seed, 1]).standard_t(of - 1, size=samples)
    low, high = np.percentile(drawn[np.isfinite(drawn)], _PERCENTILES)
    return Interval(mean=statistic.figure, low=float(low), high=float(high))


def paired_bootstrap(
    a: Figures | CorpusStatistic,
    b: Figures | CorpusStatistic,
    samples: int = 10_000,
    seed: int = 0,
    groups: NDArray[np.generic] | None = None,
) -> PairedDifference:
    """Compare two systems on the same items, in the same order; both are resampled together.

    p = min(1, 2 · (min(#{d* ≤ 0}, #{d* ≥ 0}) + 1) / (samples + 1)), d* being the resampled differences. It is
    two-sided, never 0, and below .05 about where the interval excludes 0.
    """
    return paired_bootstraps({"": a}, {"": b}, samples, seed, groups)[""]


def paired_bootstraps(
    a: Mapping[str, Figures | CorpusStatistic],
    b: Mapping[str, Figures | CorpusStatistic],
    samples: int = 10_000,
    seed: int = 0,
    groups: NDArray[np.generic] | None = None,
) -> dict[str, PairedDifference]:
    """Compare the figures that both systems have, all resampled together: name → difference."""
    return paired_bootstraps_over_seeds([a], [b], samples, seed, groups)


def paired_bootstraps_over_seeds(
    a: Sequence[Mapping[str, Figures | CorpusStatistic]],
    b: Sequence[Mapping[str, Figures | CorpusStatistic]],
    samples: int = 10_000,
    seed: int = 0,
    groups: NDArray[np.generic] | None = None,
) -> dict[str, PairedDifference]:
    """Compare two systems that were trained several times, over images and over trainings: name → difference.

    Training k of both systems has the same seed, so the S differences d_k = f(b_k) - f(a_k) are paired. A sample is

        d* = mean_k d_k(images drawn) + s / √S · t,        t from Student's t with S - 1 degrees of freedom

    with s the standard deviation of the d_k on all images. The first term draws images (families) with replacement, the
    same for all trainings and both systems. The second is how the mean of S trainings varies when s is estimated from
    only those S. Drawing 3 or 5 seeds with replacement instead gives intervals that are much too narrow: the variance
    is (S - 1) / S of what it should be, and even with that corrected the 95 % interval of 3 seeds holds the truth in
    81 % of all cases. If seeds matter far more than images, this is the paired t test over seeds; if the trainings
    agree, it is the bootstrap over images. Noise that depends on both seed and image is counted twice, so the interval
    is rather too wide than too narrow.

    Args:
        a: the control, one mapping per training: name → figures per item, or a corpus statistic.
        b: the other system, in the same order of seeds. Only figures that all mappings have are compared.
        samples: samples to draw.
        seed: seed of the draws.
        groups: family of each item.

    Returns:
        name → difference. With one training, only images are drawn.

    Example:
        >>> images = np.arange(100.0)
        >>> control = [{"score": images}, {"score": images + 1}, {"score": images}]
        >>> treated = [{"score": images + 5}, {"score": images + 8}, {"score": images + 6}]
        >>> found = paired_bootstraps_over_seeds(control, treated)["score"]
        >>> found.difference, found.p_value < 0.05, found.resampled
        (6.0, True, 'seeds and images')
    """
    if len(a) != len(b) or not a:
        raise ValueError(f"systems are paired by seed: give as many of both, got {len(a)} and {len(b)}")
    names = [name for name in a[0] if all(name in one for one in (*a, *b))]
    if not names:
        return {}
    # Trainings of a, then those of b: [2 S] statistics of each figure.
    statistics = [[_statistic(one[name]) for one in (*a, *b)] for name in names]
    sizes = sorted({len(statistic.columns) for several in statistics for statistic in several})
    if len(sizes) > 1:
        items = " and ".join(map(str, sizes))
        raise ValueError(f"paired figures must have the same shape, got {items} items")
    drawn = _resample([statistic for several in statistics for statistic in several], samples, seed, groups)
    # Its own generator: the images drawn are the same with and without seeds.
    deviates = np.random.default_rng([seed, 1]).standard_t(len(a) - 1, size=samples) if len(a) > 1 else None
    return {
        name: _difference(several, np.stack(drawn[place * 2 * len(a) : (place + 1) * 2 * len(a)]), deviates)
        for place, (name, several) in enumerate(zip(names, statistics, strict=True))
    }


def _difference(
    statistics: list[CorpusStatistic], drawn: NDArray[np.float64], deviates: NDArray[np.float64] | None
) -> PairedDifference:
    """The difference of one figure.

    Args:
        statistics: the figure of all trainings of a, then of b.
        drawn: [2 seeds, samples], the figures of the drawn images.
        deviates: [samples], Student's t for the seeds; `None` with one seed.
    """
    seeds = len(drawn) // 2
    of_seeds = np.array([statistic.figure for statistic in statistics])
    figures_a, figures_b = of_seeds[:seeds], of_seeds[seeds:]
    differences = _without_rounding(drawn[:seeds].mean(axis=0), drawn[seeds:].mean(axis=0))
    if deviates is not None:
        spread = _without_rounding(figures_a, figures_b).std(ddof=1)
        largest = np.abs(of_seeds).max()
        differences = differences + (0.0 if spread <= _ROUNDING * largest else spread) / np.sqrt(seeds) * deviates
    low, high = np.percentile(differences, _PERCENTILES)
    rarer = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    mean_a, mean_b = float(figures_a.mean()), float(figures_b.mean())
    return PairedDifference(
        mean_a=mean_a,
        mean_b=mean_b,
        difference=mean_b - mean_a,
        low=float(low),
        high=float(high),
        p_value=min(1.0, 2 * (rarer + 1) / (len(differences) + 1)),
        resampled="images" if deviates is None else "seeds and images",
    )


def _without_rounding(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """b - a, exactly 0 where they differ by a rounding error: systems that agree on all drawn items are equal."""
    differences = b - a
    differences[np.abs(differences) <= _ROUNDING * np.maximum(np.abs(a), np.abs(b))] = 0.0
    return differences


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Holm's correction of the p values of several comparisons (Scandinavian Journal of Statistics, 1979).

    With the m values in rising order, p'_(i) = max_{j ≤ i} min(1, (m - j + 1) · p_(j)). If all comparisons whose
    p' is below .05 are called differences, the chance that any of them is false is below .05, however the comparisons
    depend on each other.

    >>> holm({"R@1": 0.01, "CIDEr": 0.04, "BLEU": 0.03, "truth": 0.005})
    {'R@1': 0.03, 'CIDEr': 0.06, 'BLEU': 0.06, 'truth': 0.02}
    """
    keys = sorted(p_values, key=lambda key: p_values[key])
    values = np.array([p_values[key] for key in keys])
    left = np.arange(len(keys), 0, -1)
    corrected = dict(zip(keys, np.minimum(1.0, np.maximum.accumulate(left * values)).tolist(), strict=True))
    return {key: corrected[key] for key in p_values}


def correlation_interval(
    x: Figures,
    y: Figures,
    groups: NDArray[np.generic] | None = None,
    samples: int = 10_000,
    seed: int = 0,
) -> Interval | None:
    """Pearson correlation of points with its 95 % bootstrap interval.

    Args:
        x, y: one entry per point.
        groups: group of each point; whole groups are drawn. The trainings of one method with several seeds are a group.
        samples: samples to draw. Those whose points all have the same x or y have no correlation and are left out.
        seed: seed of the draws.

    Returns:
        The correlation and its interval; `None` with fewer than three points or groups, or if all x or y are equal.

    Example:
        >>> correlation_interval(np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 4.0, 6.0, 8.0]))
        Interval(mean=1.0, low=1.0, high=1.0)
    """
    points = len(x) if groups is None else len(np.unique(groups))
    if points < 3:
        return None
    columns = np.stack([x, y]).astype(np.float64)
    columns -= columns.mean(axis=1, keepdims=True)
    sizes = np.abs(columns).max(axis=1, keepdims=True)
    if (sizes[:, 0] <= _ROUNDING * np.abs([x, y]).max(axis=1)).any():
        return None
    x, y = columns / sizes
    statistic = CorpusStatistic(np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], axis=1), _correlation)
    drawn = _resample([statistic], samples, seed, groups)[0]
    low, high = np.percentile(drawn[np.isfinite(drawn)], _PERCENTILES)
    return Interval(mean=statistic.figure, low=float(low), high=float(high))


def _correlation(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pearson correlation of sums of 1, x, y, x², y², xy, with |x| and |y| ≤ 1; NaN without variance."""
    count, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    variances = (xx / count - (x / count) ** 2) * (yy / count - (y / count) ** 2)
    there = variances > _ROUNDING
    covariance = xy / count - x / count * (y / count)
    return np.where(there, np.clip(covariance / np.sqrt(np.where(there, variances, 1.0)), -1.0, 1.0), np.nan)


def _statistic(values: Figures | CorpusStatistic) -> CorpusStatistic:
    return values if isinstance(values, CorpusStatistic) else mean_statistic(values)


def _resample(
    statistics: list[CorpusStatistic], samples: int, seed: int, groups: NDArray[np.generic] | None
) -> list[NDArray[np.float64]]:
    """Figures of `samples` test sets drawn by item or group, the same sets for all statistics: [samples] each."""
    columns = np.concatenate([statistic.columns for statistic in statistics], axis=1)
    if groups is not None and groups.shape != columns.shape[:1]:
        raise ValueError("values, and groups if given, must be vectors of one entry per item")
    if not np.isfinite(columns).all():
        raise ValueError("values must be finite numbers")
    # Without groups every item is its own family.
    if groups is not None:
        member = np.unique(groups, return_inverse=True)[1]
        columns = np.stack([np.bincount(member, column) for column in columns.T], axis=1)
    units = len(columns)
    if units < 2:
        # One unit always draws itself: the interval would have width 0.
        what = "items" if groups is None else "groups"
        raise DataError(f"a bootstrap over {units} {what} is meaningless; give at least two, better 30 or more")
    generator = np.random.default_rng(seed)
    sums = np.empty((samples, columns.shape[1]))
    step = max(1, _CHUNK // units)
    for first in range(0, samples, step):
        drawn = generator.integers(units, size=(min(step, samples - first), units))
        # Count how often each unit was drawn, then sum all columns in one product.
        rows = np.arange(len(drawn))[:, np.newaxis]
        times = np.bincount((rows * units + drawn).ravel(), minlength=drawn.size).reshape(drawn.shape)
        sums[first : first + len(drawn)] = times @ columns
    ends = np.cumsum([statistic.columns.shape[1] for statistic in statistics])
    return [
        np.asarray(statistic.combine(part))
        for statistic, part in zip(statistics, np.split(sums, ends[:-1], axis=1), strict=True)
    ]
