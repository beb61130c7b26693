"""Retrieval metrics: ranks of the true items, recall at k, median and mean rank.

Ranks count from 1. Ties count against the scorer: a wrong item with the same score is ranked before the true one.

    text → image   rank of the caption's image   = 1 + #{other images that score at least as high}
    image → text   best rank of its captions     = 1 + #{captions of other images that score at least as high
                                                          as the best of its own}

So a scorer that gives equal scores gets the last rank and a recall of 0, below chance. One that ranks items in the same
order for every query has every rank once and is exactly at chance, text → image.

    chance(k) = 1 - C(items - r, k) / C(items, k),   r = true items of a query;  k / items when r = 1

Recalls are fractions 0 … 1. Papers give them in percent, and R@sum as the sum of six percentages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tellapart.errors import DataError

ScoreMatrix = NDArray[np.floating]
# (images, captions) → scores `[images, captions]` of a block of images with some of the captions.
Similarity = Callable[[slice, NDArray[np.int64]], ScoreMatrix]

KS = (1, 5, 10)
# Images whose true captions are scored at a time, in a first pass.
OWN = 16


@dataclass(frozen=True)
class RankSummary:
    """Retrieval figures; recalls are fractions 0…1.

    recalls: k → share of queries whose true item is among the first k
    chance:  k → the same share for random scores
    median, mean: of the ranks;  count: number of queries
    """

    recalls: dict[int, float]
    chance: dict[int, float]
    median: float
    mean: float
    count: int


@dataclass(frozen=True)
class RetrievalRanks:
    """Ranks from 1 in both directions among the same images and captions.

    image_to_text: `[images]`, the best rank of an image's captions
    text_to_image: `[captions]`, the rank of a caption's image
    captions_of:   `[images]`, number of captions of each image
    """

    image_to_text: NDArray[np.int64]
    text_to_image: NDArray[np.int64]
    captions_of: NDArray[np.int64]


@dataclass(frozen=True)
class RetrievalSummary:
    """Retrieval in both directions; means over the folds if there are several.

    recall_sum: the sum of all recalls of both directions (R@sum; 6 at most for k = 1, 5, 10)
    chance_sum: the same for random scores
    """

    image_to_text: RankSummary
    text_to_image: RankSummary

    @property
    def recall_sum(self) -> float:
        return sum(self.image_to_text.recalls.values()) + sum(self.text_to_image.recalls.values())

    @property
    def chance_sum(self) -> float:
        return sum(self.image_to_text.chance.values()) + sum(self.text_to_image.chance.values())

    def figures(self) -> dict[str, float]:
        """All figures and chance levels by name."""
        named: dict[str, float] = {}
        for direction, summary in (("image_to_text", self.image_to_text), ("text_to_image", self.text_to_image)):
            for k, recall in summary.recalls.items():
                named[f"{direction}_R@{k}"] = recall
                named[f"{direction}_chance_R@{k}"] = summary.chance[k]
            named[f"{direction}_median_rank"] = summary.median
            named[f"{direction}_mean_rank"] = summary.mean
        return {**named, "R@sum": self.recall_sum, "chance_R@sum": self.chance_sum}


def rank_of_true(scores: ScoreMatrix, true: NDArray[np.integer]) -> NDArray[np.int64]:
    """Rank, from 1, of item `true[q]` under `scores[q]` (higher is better): items - #{j : s_j < s_true}.

    Ties count against the scorer; a NaN is a `DataError`.

    >>> rank_of_true(np.array([[0.1, 0.9, 0.9]]), np.array([1])).tolist()
    [2]
    """
    if scores.ndim != 2 or true.shape != scores.shape[:1]:
        raise ValueError(f"need scores [queries, items] and true [queries], got {scores.shape} and {true.shape}")
    queries, items = scores.shape
    if queries and not (true.min() >= 0 and true.max() < items):
        raise ValueError(f"true items must lie in 0…{items - 1}, got {true.min()}…{true.max()}")
    _check_numbers(scores)
    own = scores[np.arange(queries), true]
    return np.asarray(items - (scores < own[:, np.newaxis]).sum(axis=1), dtype=np.int64)


def inner_products(images: ScoreMatrix, captions: ScoreMatrix) -> Similarity:
    """The similarity of embeddings `[images, width]` and `[captions, width]`, a block at a time.

    Cosines are the inner products of embeddings of length 1.
    """
    if images.ndim != 2 or captions.ndim != 2 or images.shape[1] != captions.shape[1]:
        raise ValueError(f"embeddings of different widths: {images.shape} and {captions.shape}")
    return lambda rows, columns: np.asarray(images[rows] @ captions[columns].T)


def retrieval_ranks(
    similarity: Similarity | ScoreMatrix,
    image_of_caption: NDArray[np.integer],
    images: int | None = None,
    *,
    chunk: int = 256,
    rounding: float = 0.0,
    on_progress: Callable[[int, int], None] | None = None,
) -> RetrievalRanks:
    """Exact ranks in both directions, with `chunk × captions` scores in memory.

    Args:
        similarity: scores `[images, captions]`, or a function that returns blocks of them, such as `inner_products`.
            It is called for the true pairs first, in small blocks, and then for every block once.
        image_of_caption: `[captions]`, the position of each caption's image; every image has one or more.
        images: number of images; by default those that have captions.
        chunk: images scored at a time.
        rounding: scores lower than the true pair's by no more than this count as ties, so that ranks are independent
            of batch composition. For computed blocks, choose a little more than the precision of their numbers.
        on_progress: called with the images done and the number of images.

    Example:
        >>> scores = np.array([[0.9, 0.2, 0.8], [0.3, 0.7, 0.1]])
        >>> ranks = retrieval_ranks(scores, np.array([0, 0, 1]))
        >>> ranks.image_to_text.tolist(), ranks.text_to_image.tolist()
        ([1, 3], [1, 2, 2])
    """
    owner = np.asarray(image_of_caption, dtype=np.int64)
    images = _count_images(owner, images)
    return _ranks(_blocks(similarity, images, len(owner)), owner, 0, images, chunk, rounding, on_progress)


def fold_ranks(
    similarity: Similarity | ScoreMatrix,
    image_of_caption: NDArray[np.integer],
    folds: int = 5,
    images: int | None = None,
    *,
    chunk: int = 256,
    rounding: float = 0.0,
) -> list[RetrievalRanks]:
    """Ranks within each of `folds` equal runs of consecutive images and their captions.

    COCO's "1K" figures are the means over 5 folds of its 5,000 test images, "5K" is `retrieval_ranks`.
    """
    owner = np.asarray(image_of_caption, dtype=np.int64)
    images = _count_images(owner, images)
    if folds < 1 or images % folds:
        raise DataError(f"{images} images cannot be cut into {folds} equal folds; drop some, or take another number")
    block = _blocks(similarity, images, len(owner))
    size = images // folds
    return [_ranks(block, owner, first, first + size, chunk, rounding, None) for first in range(0, images, size)]


def recall_at(ranks: NDArray[np.integer], k: int) -> float:
    """Share of ranks that are at most k."""
    return float(np.mean(ranks <= k))


def summarize_ranks(
    ranks: NDArray[np.integer],
    items: int,
    ks: Sequence[int] = KS,
    right: NDArray[np.integer] | int = 1,
) -> RankSummary:
    """Recall at each k, its chance level among `items` items of which `right` are true, median and mean rank.

    >>> summarize_ranks(np.array([1, 2, 6, 20]), items=20).recalls
    {1: 0.25, 5: 0.5, 10: 0.75}
    """
    if len(ranks) == 0:
        raise ValueError("no ranks to summarize")
    return RankSummary(
        recalls={k: recall_at(ranks, k) for k in ks},
        chance={k: _chance(k, items, np.atleast_1d(right)) for k in ks},
        median=float(np.median(ranks)),
        mean=float(np.mean(ranks)),
        count=len(ranks),
    )


def summarize_retrieval(folds: RetrievalRanks | Sequence[RetrievalRanks], ks: Sequence[int] = KS) -> RetrievalSummary:
    """Figures of both directions; those of several folds are averaged (the median rank is the mean of medians)."""
    each = [folds] if isinstance(folds, RetrievalRanks) else folds
    return RetrievalSummary(
        image_to_text=_mean_summary(
            [summarize_ranks(one.image_to_text, len(one.text_to_image), ks, one.captions_of) for one in each]
        ),
        text_to_image=_mean_summary([summarize_ranks(one.text_to_image, len(one.image_to_text), ks) for one in each]),
    )


def _mean_summary(folds: Sequence[RankSummary]) -> RankSummary:
    if not folds:
        raise ValueError("no ranks to summarize")
    return RankSummary(
        recalls={k: float(np.mean([fold.recalls[k] for fold in folds])) for k in folds[0].recalls},
        chance={k: float(np.mean([fold.chance[k] for fold in folds])) for k in folds[0].chance},
        median=float(np.mean([fold.median for fold in folds])),
        mean=float(np.mean([fold.mean for fold in folds])),
        count=sum(fold.count for fold in folds),
    )


def _chance(k: int, items: int, right: NDArray[np.integer]) -> float:
    """Probability of a true item among the first k, averaged over queries that have `right` of them among `items`.

    All of the first k are wrong with probability Π_{i<k} (items - right - i) / (items - i).
    """
    drawn = np.arange(min(k, items))[:, np.newaxis]
    wrong = np.maximum(items - right - drawn, 0) / (items - drawn)
    return float(np.mean(1.0 - np.prod(wrong, axis=0)))


def _ranks(
    block: Similarity,
    owner: NDArray[np.int64],
    first: int,
    last: int,
    chunk: int,
    rounding: float,
    on_progress: Callable[[int, int], None] | None,
) -> RetrievalRanks:
    """Ranks among the images first … last - 1 and their captions."""
    columns = np.flatnonzero((owner >= first) & (owner < last))
    owner = owner[columns] - first
    images = last - first
    image_to_text = np.empty(images, dtype=np.int64)
    own = np.empty(len(columns))
    above = np.zeros(len(columns), dtype=np.int64)
    # First pass: the scores of the true pairs.
    for start in range(0, images, OWN):
        stop = min(start + OWN, images)
        here = np.flatnonzero((owner >= start) & (owner < stop))
        own[here] = _scores(block, first + start, first + stop, columns[here])[
            owner[here] - start, np.arange(len(here))
        ]
    best = np.full(images, -np.inf)
    np.maximum.at(best, owner, own)
    for start in range(0, images, chunk):
        stop = min(start + chunk, images)
        scores = _scores(block, first + start, first + stop, columns)
        here = np.flatnonzero((owner >= start) & (owner < stop))
        rows = owner[here] - start
        true = scores[rows, here]
        for_rows, for_columns = ((of - rounding).astype(scores.dtype) for of in (best[start:stop], own))
        # True items do not count.
        as_high = (scores >= for_rows[:, np.newaxis]).sum(axis=1)
        its_own = np.bincount(rows, true >= for_rows[rows], minlength=stop - start)
        image_to_text[start:stop] = 1 + as_high - its_own.astype(np.int64)
        above += (scores >= for_columns).sum(axis=0)
        above[here] -= true >= for_columns[here]
        if on_progress is not None:
            on_progress(stop, images)
    return RetrievalRanks(image_to_text, above + 1, np.bincount(owner, minlength=images))


def _scores(block: Similarity, start: int, stop: int, columns: NDArray[np.int64]) -> ScoreMatrix:
    """A block of scores, checked."""
    scores = np.asarray(block(slice(start, stop), columns))
    if scores.shape != (stop - start, len(columns)):
        raise ValueError(f"scores of {stop - start} images and {len(columns)} captions are {scores.shape}")
    _check_numbers(scores)
    return scores


def _blocks(similarity: Similarity | ScoreMatrix, images: int, captions: int) -> Similarity:
    if callable(similarity):
        return similarity
    if similarity.shape != (images, captions):
        raise ValueError(f"scores must be [{images} images, {captions} captions], got {similarity.shape}")
    scores = similarity
    return lambda rows, columns: scores[rows][:, columns]


def _count_images(owner: NDArray[np.int64], images: int | None) -> int:
    if owner.ndim != 1 or len(owner) == 0 or owner.min() < 0:
        raise DataError("every caption needs the position of its image, from 0; give at least one caption")
    count = np.bincount(owner, minlength=images or 0)
    if images is not None and len(count) > images:
        raise DataError(f"a caption belongs to image {len(count) - 1}, but there are {images} images")
    if not count.all():
        raise DataError(f"image {int(np.argmin(count))} has no caption; every image needs one")
    return len(count)


def _check_numbers(scores: ScoreMatrix) -> None:
    if np.isnan(scores).any():
        raise DataError("a score is not a number (NaN); the model has diverged: train it again")
