"""BLEU-1…4 with the numbers of the COCO caption tool.

The share of a candidate's n-grams that its references contain. Each n-gram counts at most as often as in the reference
that has it most often. Short candidates get a brevity penalty.

    p_n    = (correct_n + 1e-15) / (guessed_n + 1e-9)
    BLEU_N = (p_1 · … · p_N)^(1/N) · min(1, exp(1 - r / c))

c is the candidate's length and r that of the reference closest to it (the shorter one of two equally close).
The corpus score sums the counts and lengths of all images first; it is not the mean of the images' scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tellapart.metrics.ngrams import ORDERS, Captions, Ngrams, count_ngrams, number_captions

__all__ = ["ORDERS", "Bleu", "BleuScores", "bleu_scores"]

# The COCO tool's constants. The numerator's is much smaller, so that a candidate without n-grams of an order scores
# about 0 rather than 0 / 0.
_TINY = 1e-15
_SMALL = 1e-9


@dataclass(frozen=True)
class BleuScores:
    """BLEU-1…4 in columns 0…3: `corpus` has shape [4], `per_image` [images, 4]."""

    corpus: NDArray[np.float64]
    per_image: NDArray[np.float64]


def bleu_scores(references: Sequence[Sequence[str]], candidates: Sequence[str]) -> BleuScores:
    """BLEU of one candidate per image against that image's references (at least one).

    Captions are tokens joined by white space; `references[i]` belongs to `candidates[i]`.

    >>> bleu_scores([["a dog runs", "the dog is running"]], ["a dog runs fast"]).corpus.round(2).tolist()
    [0.75, 0.71, 0.63, 0.0]
    """
    captions = number_captions(references, candidates)
    bleu = Bleu(captions)
    for ngrams in count_ngrams(captions):
        bleu.add(ngrams)
    return bleu.scores()


class Bleu:
    """BLEU of numbered captions, order by order: `add` the n-grams of each n = 1…4, then call `scores`."""

    def __init__(self, captions: Captions) -> None:
        self._captions = captions
        self._correct = np.zeros((captions.images, ORDERS))

    def add(self, ngrams: Ngrams) -> None:
        """Σ over the candidate's n-grams g of min(count of g, most g in one reference)."""
        captions = self._captions
        matched = np.zeros(len(captions.words), dtype=np.bool_)
        matched[ngrams.candidate] = True
        row = np.flatnonzero(matched)
        # Few n-grams are more than once in a candidate and in a reference.
        credited = np.ones(len(row))
        several = np.flatnonzero((ngrams.count > 1).take(ngrams.candidate))
        candidate, reference = ngrams.candidate.take(several), ngrams.reference.take(several)
        both = np.minimum(ngrams.count.take(candidate), ngrams.count.take(reference))
        np.maximum.at(credited, np.searchsorted(row, candidate), both)
        # The rows of an image follow each other, between the start and the end of its candidate.
        before = np.append(0.0, np.cumsum(credited))
        begin, end = (np.searchsorted(row, captions.start[captions.candidate + side]) for side in (0, 1))
        self._correct[:, ngrams.order - 1] = before[end] - before[begin]

    def scores(self) -> BleuScores:
        captions = self._captions
        length = captions.lengths[captions.candidate]
        guessed = np.maximum(0, length[:, np.newaxis] - np.arange(ORDERS))
        closest = _closest_length(captions)
        return BleuScores(
            corpus=_combine(self._correct.sum(axis=0), guessed.sum(axis=0), length.sum(), closest.sum()),
            per_image=_combine(self._correct, guessed, length, closest),
        )


def _closest_length(captions: Captions) -> NDArray[np.int64]:
    """Per image, the reference length nearest to the candidate's; the shorter of two equally near ones."""
    if not captions.images:
        return np.zeros(0, dtype=np.int64)
    length = captions.lengths[captions.candidate]
    gap = captions.lengths - length[captions.image_of]
    # Minimise 2·|gap|, minus one for a shorter reference, so that ties go to the shorter.
    rank = 2 * np.abs(gap) - (gap < 0)
    rank[captions.candidate] = np.iinfo(np.int64).max
    best = np.minimum.reduceat(rank, captions.candidate)
    shorter = best % 2 == 1
    distance = (best + 1) // 2
    return np.asarray(np.where(shorter, length - distance, length + distance))


def _combine(
    correct: NDArray[np.float64],
    guessed: NDArray[np.int64],
    length: NDArray[np.int64] | np.int64,
    reference_length: NDArray[np.int64] | np.int64,
) -> NDArray[np.float64]:
    """Geometric mean of the precisions times the brevity penalty, over the last axis (the orders)."""
    precision = (correct + _TINY) / (guessed + _SMALL)
    geometric = np.cumprod(precision, axis=-1) ** (1.0 / np.arange(1, ORDERS + 1))
    ratio = (length + _TINY) / (reference_length + _SMALL)
    penalty = np.exp(np.minimum(0.0, 1.0 - 1.0 / ratio))
    return np.asarray(geometric * penalty[..., np.newaxis], dtype=np.float64)
