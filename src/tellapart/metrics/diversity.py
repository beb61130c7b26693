"""Diversity of captions: over a test set, and among several captions of one image.

Over a test set (`caption_diversity`): the shares of distinct and of novel captions, the vocabulary, the mean length.

Among the n captions c_1 … c_n of each image (`candidate_scores`), averaged over the images unless stated otherwise:

    Div_k             different k-grams of the n captions / (their words + 1e-6)
    mBLEU_4_corpus    corpus BLEU-4 of the captions c_i of all images, the other n - 1 as references; mean over i
    mBLEU_4_sentence  the same, but the mean of the sentences' BLEU-4
    SelfCIDEr_Luo     log_n(Σ √λ / √λ_max), λ the eigenvalues (at least 0) of K_ij = CIDEr(c_i, c_j)
    SelfCIDEr_Wang    the same for K_ij = K_ji = CIDEr-D(c_i, c_j), i ≤ j, c_j the reference; λ its singular values
    distinct_within   different captions / n;  novel_within: captions that equal no training caption / n
    oracle_METRIC     the largest METRIC among the n captions, separately for each metric; mean_METRIC: their mean

Low mBLEU means diverse; for the others, high does. Papers rarely say which variant of mBLEU and SelfCIDEr they use: the
first of each is that of COS-CVAE and Luo's code, the second that of the paper that proposed them (Wang and Chan 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tellapart.errors import DataError, LimitError, did_you_mean
from tellapart.metrics.bleu import bleu_scores
from tellapart.metrics.cider import DocumentFrequencies, cider_scores
from tellapart.metrics.ngrams import ORDERS
from tellapart.metrics.pairwise import CaptionPairs
from tellapart.metrics.rouge import rouge_scores

Texts = Sequence[Sequence[str]]
Figures = NDArray[np.float64]
# Quality of one candidate per image: metric → [images].
Quality = Callable[[Texts, Sequence[str]], dict[str, Figures]]

# As in the published code; avoids division by zero for empty captions.
_SMALL = 1e-6
# Eigenvalues below this share of the largest are rounding errors; their roots would not be small.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Diversity:
    """Figures over all captions of a test set.

    distinct:    different captions / captions
    novel:       captions that equal no training caption / captions; None without training captions
    vocabulary:  number of different words used
    mean_length: words / captions
    """

    distinct: float
    novel: float | None
    vocabulary: int
    mean_length: float


def caption_diversity(captions: Sequence[str], training_captions: Iterable[str] | None = None) -> Diversity:
    """Diversity of at least one caption; captions are tokens joined by white space.

    The training captions must be tokenised in the same way, or all captions look novel. An empty caption counts as
    neither distinct nor novel, so that it cannot raise a score.

    >>> caption_diversity(["a dog", "a dog", "a red car"], training_captions=["a dog"])
    Diversity(distinct=0.6666666666666666, novel=0.3333333333333333, vocabulary=4, mean_length=2.3333333333333335)
    """
    if not captions:
        raise ValueError("diversity needs at least one caption")
    words = [tuple(caption.split()) for caption in captions]
    spoken = [caption for caption in words if caption]
    novel = None
    if training_captions is not None:
        known = {tuple(caption.split()) for caption in training_captions}
        novel = sum(caption not in known for caption in spoken) / len(words)
    return Diversity(
        distinct=len(set(spoken)) / len(words),
        novel=novel,
        vocabulary=len({word for caption in words for word in caption}),
        mean_length=sum(map(len, words)) / len(words),
    )


@dataclass(frozen=True)
class CandidateScores:
    """Figures of n captions per image.

    corpus:    name → figure over all images
    per_image: name → [images], for the figures that are means over the images: all but mBLEU_4_corpus
    """

    corpus: dict[str, float]
    per_image: dict[str, Figures]


def candidate_scores(
    candidates: Texts,
    references: Texts,
    *,
    frequencies: DocumentFrequencies | None = None,
    training_captions: Iterable[str] | None = None,
    oracle: Sequence[str] = ("bleu", "rouge", "cider"),
    means: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> CandidateScores:
    """All figures of this module's table for n ≥ 2 captions per image; captions are tokens joined by spaces.

    Args:
        candidates: the same number of captions for every image.
        references: references of the same images, in the same order.
        frequencies: document frequencies for SelfCIDEr; by default those of the references. (The oracle always uses
            those of the references, as for a single caption.)
        training_captions: for novel_within, which is omitted without them; tokenised like the candidates.
        oracle: metrics for the best caption: "bleu", "rouge", "cider", "meteor" (slow).
        means: also give the mean of these metrics over an image's captions.
        on_progress: called with the steps done and the number of steps.

    Example:
        >>> scores = candidate_scores([["a dog", "a dog"], ["a cat", "a bus"]], [["a dog runs"], ["a cat sits"]])
        >>> scores.per_image["distinct_within"].tolist()
        [0.5, 1.0]
    """
    slots = _slots(candidates, references)
    unknown = [name for name in oracle if name not in ORACLE]
    if unknown:
        raise DataError(f"no oracle by '{unknown[0]}'{did_you_mean(unknown[0].lower(), ORACLE)}")
    best: dict[str, Figures] = {}
    mean: dict[str, Figures] = {}
    mutual: list[float] = []
    sentences = np.zeros(len(candidates))
    for i, slot in enumerate(slots):
        others = [[text for j, text in enumerate(texts) if j != i] for texts in candidates]
        bleu = bleu_scores(others, slot)
        mutual.append(float(bleu.corpus[ORDERS - 1]))
        sentences += bleu.per_image[:, ORDERS - 1] / len(slots)
        for name in oracle:
            for metric, figures in ORACLE[name](references, slot).items():
                best[metric] = np.maximum(best.get(metric, figures), figures)
                mean[metric] = mean.get(metric, 0.0) + figures / len(slots)
        if on_progress is not None:
            on_progress(i + 1, len(slots))

    luo, wang = self_cider(candidates, DocumentFrequencies.count(references) if frequencies is None else frequencies)
    per_image = {
        "Div_1": distinct_ngrams(candidates, 1),
        "Div_2": distinct_ngrams(candidates, 2),
        "mBLEU_4_sentence": sentences,
        "SelfCIDEr_Luo": luo,
        "SelfCIDEr_Wang": wang,
        "distinct_within": _distinct_within(candidates),
    }
    if training_captions is not None:
        per_image["novel_within"] = _novel_within(candidates, training_captions)
    # A metric that cannot be computed for one caption has no best caption.
    per_image |= {f"oracle_{metric}": figures for metric, figures in best.items() if np.isfinite(figures).all()}
    if means:
        per_image |= {f"mean_{metric}": figures for metric, figures in mean.items() if np.isfinite(figures).all()}
    corpus = {"mBLEU_4_corpus": float(np.mean(mutual))}
    return CandidateScores(corpus | {name: float(figures.mean()) for name, figures in per_image.items()}, per_image)


def distinct_ngrams(candidates: Texts, n: int) -> Figures:
    """Div-n: an image's different n-grams / its words (not its n-grams), per image.

    >>> distinct_ngrams([["a dog runs", "a dog sits"]], 2).round(3).tolist()
    [0.5]
    """
    shares = np.empty(len(candidates))
    for image, texts in enumerate(candidates):
        captions = [text.split() for text in texts]
        grams = {tuple(words[i : i + n]) for words in captions for i in range(len(words) - n + 1)}
        shares[image] = len(grams) / (sum(map(len, captions)) + _SMALL)
    return shares


def self_cider(candidates: Texts, frequencies: DocumentFrequencies) -> tuple[Figures, Figures]:
    """SelfCIDEr per image, by Luo's and by Wang's definition: 0 if all captions are equal, 1 if they share nothing.

    Every image needs the same number of captions, at least two. Empty captions give 0.
    """
    captions = len(candidates[0])
    pairs = CaptionPairs([text for texts in candidates for text in texts], frequencies)
    plain = np.empty((len(candidates), captions, captions))
    clipped = np.empty_like(plain)
    for image in range(len(candidates)):
        rows = np.arange(image * captions, (image + 1) * captions)
        plain[image] = pairs.cider(rows, rows)
        clipped[image] = pairs.cider_d(rows, rows)
    mirrored = np.triu(clipped) + np.triu(clipped, 1).swapaxes(1, 2)
    # The singular values of a symmetric matrix are the absolute eigenvalues.
    return _spread(np.linalg.eigvalsh(plain)), _spread(np.abs(np.linalg.eigvalsh(mirrored)))


def _spread(values: NDArray[np.floating]) -> Figures:
    """log_m(Σ √λ / √λ_max) over the last axis."""
    largest = values.max(axis=1, keepdims=True)
    roots = np.sqrt(np.where(values > _ROUNDING * largest, values, 0.0))
    largest = roots.max(axis=1)
    ratio = np.divide(roots.sum(axis=1), largest, out=np.ones(len(values)), where=largest > 0)
    return np.asarray(np.log(ratio) / np.log(values.shape[1]))


def _distinct_within(candidates: Texts) -> Figures:
    """Different captions / captions, per image; empty ones do not count."""
    return np.array([len({tuple(t.split()) for t in texts} - {()}) / len(texts) for texts in candidates])


def _novel_within(candidates: Texts, training_captions: Iterable[str]) -> Figures:
    """Captions that equal no training caption / captions, per image; an empty one is not novel."""
    known = {tuple(caption.split()) for caption in training_captions} | {()}
    return np.array([sum(tuple(t.split()) not in known for t in texts) / len(texts) for texts in candidates])


def _slots(candidates: Texts, references: Texts) -> list[list[str]]:
    """The first captions of all images, the second ones, and so on."""
    if len(candidates) != len(references):
        raise DataError(f"{len(candidates)} images have captions and {len(references)} references; give both for each")
    counts = sorted({len(texts) for texts in candidates})
    if len(counts) > 1:
        raise DataError(
            f"images have between {counts[0]} and {counts[-1]} captions; give the same number for every image"
        )
    if not counts or counts[0] < 2:
        raise DataError("figures among several captions per image need at least two of them")
    return [[texts[i] for texts in candidates] for i in range(counts[0])]


def _bleu(references: Texts, captions: Sequence[str]) -> dict[str, Figures]:
    per_image = bleu_scores(references, captions).per_image
    return {f"Bleu_{n + 1}": per_image[:, n] for n in range(ORDERS)}


def _meteor(references: Texts, captions: Sequence[str]) -> dict[str, Figures]:
    # Imported here: its tables are large.
    from tellapart.metrics.meteor import meteor_scores

    try:
        return {"METEOR": meteor_scores(references, captions).per_image}
    except LimitError:
        return {"METEOR": np.full(len(captions), np.nan)}


ORACLE: dict[str, Quality] = {
    "bleu": _bleu,
    "rouge": lambda references, captions: {"ROUGE_L": rouge_scores(references, captions).per_image},
    "cider": lambda references, captions: {"CIDEr": cider_scores(references, captions).per_image},
    "meteor": _meteor,
}


def oracle_scores(
    candidates: Texts,
    references: Texts,
    counts: Sequence[int],
    metrics: Sequence[str] = ("bleu", "rouge", "cider"),
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[int, dict[str, Figures]]:
    """The best of each image's first n captions, separately for each metric: n → metric → [images].

    Args:
        candidates: the same number of captions for every image; captions are tokens joined by spaces.
        references: references of the same images, in the same order.
        counts: the numbers n, up to that of the captions.
        metrics: as for `candidate_scores`.
        on_progress: called with the captions done and their number.

    Example:
        >>> found = oracle_scores([["a bus", "a dog runs"]], [["a dog runs"]], [1, 2])
        >>> [round(float(found[n]["ROUGE_L"][0]), 3) for n in (1, 2)]
        [0.386, 1.0]
    """
    best: dict[str, Figures] = {}
    found: dict[int, dict[str, Figures]] = {}
    for done, slot in enumerate(_slots(candidates, references)[: max(counts)], start=1):
        for name in metrics:
            for metric, figures in ORACLE[name](references, slot).items():
                best[metric] = np.maximum(best.get(metric, figures), figures)
        if done in counts:
            found[done] = {metric: figures for metric, figures in best.items() if np.isfinite(figures).all()}
        if on_progress is not None:
            on_progress(done, max(counts))
    return found
