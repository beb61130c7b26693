"""Is a difference between two systems more than the luck of the test set?

Idea: draw test sets as large as the real one from it, with replacement, and look at how the mean varies.
Near-duplicate images come in families that rise and fall together; given `groups`, whole families are drawn
instead of single items (cluster bootstrap):

    m* = Σ_g sum of family g's values / Σ_g size of family g,   over the G families drawn

The interval is the middle 95 % of the m*. Everything here is about means of per-item figures: corpus BLEU is
no such mean. With few items or families (below some 30) the interval is too narrow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tellapart.errors import DataError

# Hits and ranks are figures too, not only scores.
Figures = NDArray[np.bool_ | np.integer | np.floating]

# Draws held in memory at once: some 30 MB, whatever the number of items and samples.
_CHUNK = 1 << 20
_PERCENTILES = (2.5, 97.5)


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedDifference:
    """Means of two systems on the same items; `difference` is b - a, with its 95 % interval and p value."""

    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    p_value: float


def confidence_interval(
    values: Figures,
    samples: int = 10_000,
    seed: int = 0,
    groups: NDArray[np.generic] | None = None,
) -> Interval:
    """The mean of per-item figures with its 95 % percentile interval."""
    means = _resampled_means(values, samples, seed, groups)
    low, high = np.percentile(means, _PERCENTILES)
    return Interval(mean=float(np.mean(values)), low=float(low), high=float(high))


def paired_bootstrap(
    a: Figures,
    b: Figures,
    samples: int = 10_000,
    seed: int = 0,
    groups: NDArray[np.generic] | None = None,
) -> PairedDifference:
    """Compare two systems by their figures on the same items, in the same order.

    p = min(1, 2 · (min(#{d* ≤ 0}, #{d* ≥ 0}) + 1) / (samples + 1)), d* being the resampled differences. It is
    two-sided and never 0, and below .05 about where the interval leaves 0 out.
    """
    if a.shape != b.shape:
        raise ValueError(f"paired figures must have the same shape, got {a.shape} and {b.shape}")
    differences = b.astype(np.float64) - a
    means = _resampled_means(differences, samples, seed, groups)
    low, high = np.percentile(means, _PERCENTILES)
    rarer = min(int((means <= 0).sum()), int((means >= 0).sum()))
    return PairedDifference(
        mean_a=float(np.mean(a)),
        mean_b=float(np.mean(b)),
        difference=float(np.mean(differences)),
        low=float(low),
        high=float(high),
        p_value=min(1.0, 2 * (rarer + 1) / (samples + 1)),
    )


def _resampled_means(
    values: Figures, samples: int, seed: int, groups: NDArray[np.generic] | None
) -> NDArray[np.float64]:
    """Means of `samples` test sets drawn from `values`, by item or by group: [samples]."""
    if values.ndim != 1 or (groups is not None and groups.shape != values.shape):
        raise ValueError("values, and groups if given, must be vectors of one entry per item")
    if not np.isfinite(values).all():
        raise ValueError("values must be finite numbers")
    # Without groups every item is a family of its own.
    member = np.arange(len(values)) if groups is None else np.unique(groups, return_inverse=True)[1]
    sums, sizes = np.bincount(member, values), np.bincount(member)
    units = len(sums)
    if units < 2:
        # One unit always draws itself: an interval of width 0 would claim certainty where there is none.
        what = "items" if groups is None else "groups"
        raise DataError(f"a bootstrap over {units} {what} says nothing; give at least two, better 30 or more")
    generator = np.random.default_rng(seed)
    means = np.empty(samples)
    step = max(1, _CHUNK // units)
    for first in range(0, samples, step):
        drawn = generator.integers(units, size=(min(step, samples - first), units))
        means[first : first + len(drawn)] = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    return means
