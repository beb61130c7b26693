"""Bootstrap confidence intervals, and tests of the difference between two systems.

Test sets as large as the real one are drawn from it with replacement; the interval shows how the figure varies.
Near-duplicate images form families with correlated scores; given `groups`, whole families are drawn instead of
single items (cluster bootstrap). A figure is any function of sums over the items,

    f = combine(Σ_i x_i),   f* = combine(Σ_g Σ_{i in family g} x_i) over the G families drawn

A mean has x_i = (value, 1) and divides; corpus BLEU has counts and lengths. The interval is the middle 95 % of the f*.
It is too narrow with few items or families (below about 30).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tellapart.errors import DataError

# Scores, ranks, or hits.
Figures = NDArray[np.bool_ | np.integer | np.floating]

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
    """Figures of two systems on the same items; `difference` is b - a, with its 95 % interval and p value."""

    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    p_value: float


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
    names = [name for name in a if name in b]
    first, second = [_statistic(a[name]) for name in names], [_statistic(b[name]) for name in names]
    for one, other in zip(first, second, strict=True):
        if len(one.columns) != len(other.columns):
            items = f"{len(one.columns)} and {len(other.columns)} items"
            raise ValueError(f"paired figures must have the same shape, got {items}")
    if not names:
        return {}
    drawn = _resample([*first, *second], samples, seed, groups)
    pairs = zip(names, first, second, drawn[: len(names)], drawn[len(names) :], strict=True)
    return {name: _difference(one, other, drawn_a, drawn_b) for name, one, other, drawn_a, drawn_b in pairs}


def _difference(
    a: CorpusStatistic, b: CorpusStatistic, drawn_a: NDArray[np.float64], drawn_b: NDArray[np.float64]
) -> PairedDifference:
    differences = drawn_b - drawn_a
    # Equal on all drawn items: the difference is exactly 0, not a rounding error.
    differences[np.abs(differences) <= _ROUNDING * np.maximum(np.abs(drawn_a), np.abs(drawn_b))] = 0.0
    low, high = np.percentile(differences, _PERCENTILES)
    rarer = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    return PairedDifference(
        mean_a=a.figure,
        mean_b=b.figure,
        difference=b.figure - a.figure,
        low=float(low),
        high=float(high),
        p_value=min(1.0, 2 * (rarer + 1) / (len(differences) + 1)),
    )


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
