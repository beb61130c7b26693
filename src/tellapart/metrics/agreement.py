"""Statistics of people's judgements: Fleiss' kappa, the sign test, and rates with intervals over items and raters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tellapart.metrics.bootstrap import CorpusStatistic, Interval, resampled_interval

Counts = NDArray[np.integer]


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact p value of the sign test: are wins and losses equally likely? Ties are left out before.

    p = min(1, 2 · P(X ≤ min(wins, losses))), X from the binomial distribution of wins + losses trials with chance 1/2.

    >>> sign_test(9, 1)
    0.021484375
    >>> sign_test(0, 0)
    1.0
    """
    trials, rarer = wins + losses, min(wins, losses)
    # Whole numbers: exact for any number of trials.
    term = below = 1
    for place in range(rarer):
        term = term * (trials - place) // (place + 1)
        below += term
    return min(1.0, 2 * below / (1 << trials))


def fleiss_kappa(counts: Counts) -> CorpusStatistic | None:
    """Fleiss' kappa (Psychological Bulletin, 1971): agreement of several raters, corrected for chance.

    With n_ij raters who gave item i the answer j, and n_i = Σ_j n_ij,

        P_i = Σ_j n_ij (n_ij - 1) / (n_i (n_i - 1)),    p_j = Σ_i n_ij / Σ_i n_i
        κ = (mean_i P_i - Σ_j p_j²) / (1 - Σ_j p_j²)

    1 is full agreement, 0 is what chance would give. Items with fewer than two raters say nothing about agreement and
    are left out; Fleiss' n_i are all equal, here they need not be.

    Args:
        counts: [items, answers], the n_ij.

    Returns:
        The statistic; `figure` is κ. `None` if no item has two raters, or all answers are the same one: κ is then 0/0.

    Example:
        >>> fleiss_kappa(np.array([[3, 0, 0], [0, 3, 0], [0, 0, 3]])).figure
        1.0
        >>> fleiss_kappa(np.array([[2, 0], [2, 0]])) is None
        True
    """
    raters = counts.sum(axis=1)
    counts, raters = counts[raters >= 2], raters[raters >= 2]
    if (counts.sum(axis=0) > 0).sum() < 2:
        return None
    agreement = (counts * (counts - 1)).sum(axis=1) / (raters * (raters - 1))
    return CorpusStatistic(np.column_stack([agreement, np.ones(len(counts)), counts]), _kappa)


def _kappa(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """κ of sums of P_i, 1 and n_ij; NaN if all answers are the same one."""
    observed = sums[..., 0] / sums[..., 1]
    shares = sums[..., 2:] / sums[..., 2:].sum(axis=-1, keepdims=True)
    chance = (shares**2).sum(axis=-1)
    several = (sums[..., 2:] > 0).sum(axis=-1) > 1
    return np.where(several, (observed - chance) / np.where(several, 1 - chance, 1.0), np.nan)


@dataclass(frozen=True)
class Rates:
    """How often each answer was given, with 95 % intervals, and how much the raters agree.

    Attributes:
        rates: one interval for each answer; they add up to 1. Its ends are the figure itself if there is one item.
        kappa: Fleiss' κ with its interval over items; `None` where it is not defined.
        agreement: share of pairs of raters that gave the same answer, over items; `None` without two raters of an item.
    """

    rates: tuple[Interval, ...]
    kappa: Interval | None
    agreement: float | None


def answer_rates(answers: Counts, kinds: int, known: Counts | None = None, samples: int = 10_000) -> Rates:
    """Rates of answers by several raters, with intervals over other items and other raters.

    A sample draws items with replacement, and adds what other raters would change:

        f* = f(items drawn) + v · t,    v² = R / (R - 1) · Σ_r e_r² / n²

    with t from Student's t with R - 1 degrees of freedom. e_r = Σ_i (x_ri - f) is how much more often than all together
    rater r gave the answer, and n the number of answers. If all judged all items, v is the standard error of the mean
    of the R raters' rates. Drawing 3 raters with replacement instead gives intervals that are too narrow when raters
    differ (see `paired_bootstraps_over_seeds`). With one rater only items are drawn.

    Args:
        answers: [raters, items], the number of the answer, or -1 for none.
        kinds: number of possible answers.
        known: answers of further items that all raters would give alike, which were not asked (identical captions).
        samples: samples to draw.
    """
    known = np.zeros(0, dtype=np.int64) if known is None else known
    per_rater = np.stack([answers == kind for kind in range(kinds)], axis=2)  # [raters, items, kinds]
    counts = per_rater.sum(axis=0)
    asked = np.repeat([1.0, 0.0], [answers.shape[1], len(known)])
    given = np.concatenate([counts.sum(axis=1), np.zeros(len(known))])
    share_asked = asked.mean()
    total = counts.sum()
    rates = []
    for kind in range(kinds):
        of_kind = np.concatenate([counts[:, kind], np.zeros(len(known))])
        same = np.concatenate([np.zeros(answers.shape[1]), known == kind])
        columns = np.column_stack([of_kind, given, asked, same, np.ones(len(asked))])
        pooled = counts[:, kind].sum() / total if total else 0.0
        excess = per_rater[:, :, kind].sum(axis=1) - pooled * (answers >= 0).sum(axis=1)
        heard = int((answers >= 0).any(axis=1).sum())
        spread = share_asked * np.sqrt(heard / (heard - 1) * (excess**2).sum()) / total if heard > 1 else 0.0
        found = resampled_interval(CorpusStatistic(columns, _rate), float(spread), heard, samples, seed=kind)
        rates.append(Interval(found.mean, max(0.0, found.low), min(1.0, found.high)))
    statistic = fleiss_kappa(counts)
    agree = None if statistic is None else resampled_interval(statistic, 0.0, 1, samples)
    pairs = counts.sum(axis=1)
    pairs = pairs * (pairs - 1)
    several = pairs > 0
    shares = (counts * (counts - 1)).sum(axis=1)[several] / pairs[several]
    return Rates(tuple(rates), agree, float(shares.mean()) if several.any() else None)


def _rate(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of an answer: that of the asked items by the answers that were given, of the others as it is known."""
    of_kind, given, asked, same, items = np.moveaxis(sums, -1, 0)
    heard = np.where(given > 0, of_kind / np.where(given > 0, given, 1.0), np.where(asked > 0, np.nan, 0.0))
    return np.asarray((heard * asked + same) / items)
