"""BLEU-1…4 with the numbers of the COCO caption tool.

Idea: the share of a candidate's n-grams that its references contain, each n-gram credited at most as often as
the one reference that has it most often; short candidates pay a brevity penalty.

    p_n    = (correct_n + 1e-15) / (guessed_n + 1e-9)
    BLEU_N = (p_1 · … · p_N)^(1/N) · min(1, exp(1 - r / c))

c is the candidate's length and r that of the reference closest to it (the shorter one of two equally close).
The corpus figure adds up the counts and lengths of all images first: it is no mean of the images' figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ORDERS = 4

# The COCO tool's two constants. The numerator's is so much smaller that a candidate without any n-gram of an
# order still gets about 0 for it rather than 0 / 0.
_TINY = 1e-15
_SMALL = 1e-9


@dataclass(frozen=True)
class BleuScores:
    """BLEU-1…4 in columns 0…3: `corpus` has shape [4], `per_image` [images, 4]."""

    corpus: NDArray[np.float64]
    per_image: NDArray[np.float64]


def bleu_scores(references: Sequence[Sequence[str]], candidates: Sequence[str]) -> BleuScores:
    """BLEU of one candidate per image against that image's references (at least one).

    Both come as tokens joined by white space, and `references[i]` belongs to `candidates[i]`.
    """
    shape = (len(candidates), ORDERS)
    correct, guessed = np.zeros(shape), np.zeros(shape)
    length, reference_length = np.zeros(len(candidates)), np.zeros(len(candidates))
    for i, (texts, candidate) in enumerate(zip(references, candidates, strict=True)):
        words = candidate.split()
        reference_words = [text.split() for text in texts]
        correct[i] = _correct(words, reference_words)
        guessed[i] = [max(0, len(words) - n) for n in range(ORDERS)]
        length[i] = len(words)
        reference_length[i] = _closest_length(len(words), reference_words)
    return BleuScores(
        corpus=_combine(correct.sum(axis=0), guessed.sum(axis=0), length.sum(), reference_length.sum()),
        per_image=_combine(correct, guessed, length, reference_length),
    )


def _ngrams(words: Sequence[str]) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for n in range(1, ORDERS + 1) for i in range(len(words) - n + 1))


def _correct(words: Sequence[str], references: Sequence[Sequence[str]]) -> list[int]:
    """Per order, the candidate's n-grams found in the references: Σ_g min(count_g, max_r count_g in r)."""
    allowed: Counter[tuple[str, ...]] = Counter()
    for reference in references:
        allowed |= _ngrams(reference)
    correct = [0] * ORDERS
    for gram, count in _ngrams(words).items():
        correct[len(gram) - 1] += min(count, allowed[gram])
    return correct


def _closest_length(length: int, references: Sequence[Sequence[str]]) -> int:
    """The reference length nearest to `length`; of two equally near ones the shorter."""
    return min((abs(len(reference) - length), len(reference)) for reference in references)[1]


def _combine(
    correct: NDArray[np.float64],
    guessed: NDArray[np.float64],
    length: NDArray[np.float64] | np.float64,
    reference_length: NDArray[np.float64] | np.float64,
) -> NDArray[np.float64]:
    """Geometric mean of the precisions times the brevity penalty, over the last axis (the orders)."""
    precision = (correct + _TINY) / (guessed + _SMALL)
    geometric = np.cumprod(precision, axis=-1) ** (1.0 / np.arange(1, ORDERS + 1))
    ratio = (length + _TINY) / (reference_length + _SMALL)
    penalty = np.exp(np.minimum(0.0, 1.0 - 1.0 / ratio))
    return np.asarray(geometric * penalty[..., np.newaxis], dtype=np.float64)
