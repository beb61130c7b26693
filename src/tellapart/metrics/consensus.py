"""Consensus re-ranking: of an image's candidates, prefer what people said of the images that look like it.

Idea (Devlin et al. 2015): the k training images nearest to an image, by the Euclidean distance of their features, have
captions R; a candidate's score is the sum of its m highest similarities with them,

    score(c) = Σ of the m highest CIDEr-D(c, r), r ∈ R        (k = 60, m = 125)

No reference of the image itself is used, so that the best five candidates ("best-5") may be measured afterwards.

Example:
    >>> nearest = nearest_features(np.array([[0.0, 0.0]]), np.array([[9.0, 9.0], [1.0, 0.0]]), 1)
    >>> scores = consensus_scores([["a red bus", "a dog"]], [["a bus"], ["a dog runs"]], nearest)
    >>> best_candidates([["a red bus", "a dog"]], scores, 1)
    [['a dog']]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tellapart.errors import DataError
from tellapart.metrics.cider import DocumentFrequencies
from tellapart.metrics.pairwise import CaptionPairs

NEIGHBOURS = 60
HIGHEST = 125
# Features made double precision at a time.
_BLOCK = 8192


def nearest_features(
    queries: NDArray[np.floating], features: NDArray[np.floating], count: int = NEIGHBOURS, chunk: int = 256
) -> NDArray[np.int64]:
    """For each query the `count` rows of `features` at the smallest Euclidean distance, nearest first, exactly.

    Equal distances are ordered by position. The work is queries × features, the memory `chunk × features`.

    Args:
        queries: `[queries, width]`, e.g. of the test images.
        features: `[items, width]`, e.g. of the training images.
        count: how many; at most as many as there are features.
        chunk: queries compared at a time.
    """
    if not 0 < count <= len(features):
        raise DataError(f"{count} neighbours cannot be found among {len(features)} images; take fewer")
    if not (np.isfinite(queries).all() and np.isfinite(features).all()):
        raise DataError("features must be finite numbers; encode the images again")
    nearest = np.empty((len(queries), count), dtype=np.int64)
    for start in range(0, len(queries), chunk):
        distance = _distances(queries[start : start + chunk].astype(np.float64), features)
        limit = np.partition(distance, count - 1, axis=1)[:, count - 1]
        for row, (values, last) in enumerate(zip(distance, limit, strict=True)):
            within = np.flatnonzero(values <= last)
            nearest[start + row] = within[np.argsort(values[within], kind="stable")[:count]]
    return nearest


def _distances(queries: NDArray[np.float64], features: NDArray[np.floating]) -> NDArray[np.float64]:
    """‖q - f‖² less ‖q‖², which orders the same: ‖f‖² - 2 q·f.

    In double precision, for it subtracts numbers of nearly the same size; a block at a time, for all features of a
    large training set would not fit twice.
    """
    distance = np.empty((len(queries), len(features)))
    for start in range(0, len(features), _BLOCK):
        block = features[start : start + _BLOCK].astype(np.float64)
        distance[:, start : start + len(block)] = np.sum(block**2, axis=1) - 2 * queries @ block.T
    return distance


def consensus_scores(
    candidates: Sequence[Sequence[str]],
    captions: Sequence[Sequence[str]],
    nearest: NDArray[np.integer],
    *,
    highest: int = HIGHEST,
    frequencies: DocumentFrequencies | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[NDArray[np.float64]]:
    """The consensus score of every candidate: per image `[candidates]`.

    Args:
        candidates: of each image, any number; tokens joined by white space.
        captions: of each training image.
        nearest: `[images, k]`, positions of the nearest training images.
        highest: m, how many of the best similarities are added up; all of them where there are fewer.
        frequencies: document frequencies; those of all training captions by default.
        on_progress: called with images done and images in all.
    """
    if len(candidates) != len(nearest):
        raise DataError(f"{len(candidates)} images have candidates and {len(nearest)} neighbours; give both for each")
    if highest < 1:
        raise DataError("consensus needs at least one similarity to add up (highest)")
    if frequencies is None:
        frequencies = DocumentFrequencies.count(captions)
    # Training captions nobody is near to are left out, those of several images' neighbours are there once.
    used = np.unique(nearest)
    if len(used) and (used[0] < 0 or used[-1] >= len(captions)):
        raise DataError(f"neighbours must be positions among the {len(captions)} training images")
    texts = [text for image in used for text in captions[image]]
    sizes = np.array([len(captions[image]) for image in used], dtype=np.int64)
    first = np.cumsum(sizes) - sizes
    counts = np.array([len(group) for group in candidates], dtype=np.int64)
    pairs = CaptionPairs([*texts, *(text for group in candidates for text in group)], frequencies)
    start = len(texts) + np.cumsum(counts) - counts
    scores = []
    for image in range(len(candidates)):
        places = np.searchsorted(used, nearest[image])
        columns = np.concatenate([np.arange(first[place], first[place] + sizes[place]) for place in places])
        similarity = pairs.cider_d(np.arange(start[image], start[image] + counts[image]), columns)
        scores.append(np.sort(similarity, axis=1)[:, -highest:].sum(axis=1))
        if on_progress is not None:
            on_progress(image + 1, len(candidates))
    return scores


def best_candidates(
    candidates: Sequence[Sequence[str]], scores: Sequence[NDArray[np.floating]], count: int = 5
) -> list[list[str]]:
    """The `count` candidates of each image with the highest scores, best first; equal scores keep their order."""
    best = []
    for texts, values in zip(candidates, scores, strict=True):
        if len(texts) != len(values):
            raise ValueError(f"{len(texts)} candidates of an image have {len(values)} scores")
        if len(texts) < count:
            raise DataError(f"an image has {len(texts)} candidates; the best {count} cannot be taken")
        best.append([texts[place] for place in np.argsort(-values, kind="stable")[:count]])
    return best
