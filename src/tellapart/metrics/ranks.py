"""Retrieval figures: at which rank does a scorer put the item that belongs to the query?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class RankSummary:
    """Retrieval figures; shares are fractions 0…1.

    recalls: k → share of queries whose true item is among the first k
    chance:  k → the same share for a scorer that knows nothing, k / items
    median, mean: of the ranks;  count: number of queries
    """

    recalls: dict[int, float]
    chance: dict[int, float]
    median: float
    mean: float
    count: int


def rank_of_true(scores: NDArray[np.floating], true: NDArray[np.integer]) -> NDArray[np.int64]:
    """Rank, from 1, of item `true[q]` under `scores[q]` (higher is better): items - #{j : s_j < s_true}.

    A tie counts against the scorer, so one that cannot tell items apart gets the last rank, not the first.
    So does a score that is not a number.
    """
    if scores.ndim != 2 or true.shape != scores.shape[:1]:
        raise ValueError(f"need scores [queries, items] and true [queries], got {scores.shape} and {true.shape}")
    queries, items = scores.shape
    if queries and not (true.min() >= 0 and true.max() < items):
        raise ValueError(f"true items must lie in 0…{items - 1}, got {true.min()}…{true.max()}")
    own = scores[np.arange(queries), true]
    return np.asarray(items - (scores < own[:, np.newaxis]).sum(axis=1), dtype=np.int64)


def recall_at(ranks: NDArray[np.integer], k: int) -> float:
    """Share of ranks that are at most k."""
    return float(np.mean(ranks <= k))


def summarize_ranks(ranks: NDArray[np.integer], items: int, ks: Sequence[int] = (1, 5, 10)) -> RankSummary:
    """Recall at each k, beside its chance level among `items` items; median and mean rank."""
    if len(ranks) == 0:
        raise ValueError("no ranks to summarize")
    return RankSummary(
        recalls={k: recall_at(ranks, k) for k in ks},
        chance={k: min(1.0, k / items) for k in ks},
        median=float(np.median(ranks)),
        mean=float(np.mean(ranks)),
        count=len(ranks),
    )
