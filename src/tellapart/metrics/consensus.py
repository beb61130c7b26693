"""Consensus re-ranking (Devlin et al. 2015): prefer candidates that agree with the captions of similar training images.

R are the captions of the k training images nearest to an image, by Euclidean distance of their features. A candidate's
score is the sum of its m highest similarities with them,

    score(c) = Σ of the m highest CIDEr-D(c, r), r ∈ R        (k = 60, m = 125)

No reference of the image itself is used, so the best five candidates ("best-5") can be evaluated afterwards.

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
# Features converted to float64 at a time.
_BLOCK = 8192


def nearest_features(
    queries: NDArray[np.floating], features: NDArray[np.floating], count: int = NEIGHBOURS, chunk: int = 256
) -> NDArray[np.int64]:
    """The `count` rows of `features` nearest to each query by Euclidean distance, nearest first, exactly.

    Equal distances are ordered by position. Time is queries × features, memory is `chunk × features`.

    Args:
        queries: `[queries, width]`, e.g. of the test images.
        features: `[items, width]`, e.g. of the training images.
        count: number of neighbours, at most the number of features.
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
    """‖q - f‖² - ‖q‖² = ‖f‖² - 2 q·f, which has the same order.

    In float64, since it subtracts numbers of nearly equal size; in blocks, since a float64 copy of all features may not
    fit in memory.
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
        candidates: any number per image; tokens joined by white space.
        captions: the captions of each training image.
        nearest: `[images, k]`, positions of the nearest training images.
        highest: m, the number of best similarities to add up.
        frequencies: document frequencies; by default those of all training captions.
        on_progress: called with the images done and the number of images.
    """
    if len(candidates) != len(nearest):
        raise DataError(f"{len(candidates)} images have candidates and {len(nearest)} neighbours; give both for each")
    if highest < 1:
        raise DataError("consensus needs at least one similarity to add up (highest)")
    if frequencies is None:
        frequencies = DocumentFrequencies.count(captions)
    # Only captions of images that are a neighbour, each once.
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
