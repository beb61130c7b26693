"""Measure captions of one split: figures, per-image figures, and what intervals and differences are resampled from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from tellapart.data.records import Dataset
from tellapart.errors import DataError
from tellapart.metrics import Interval, PairedDifference, evaluate, tokenize
from tellapart.metrics.bootstrap import CorpusStatistic, confidence_intervals, mean_statistic, paired_bootstraps
from tellapart.metrics.diversity import ORACLE, candidate_scores
from tellapart.metrics.endings import ends_badly
from tellapart.metrics.ngrams import ORDERS
from tellapart.progress import ProgressLine

SAMPLES = 10_000
SEED = 0
# Captions tokenised between two updates of the progress line.
_BLOCK = 20_000

PerImage = dict[str, NDArray[np.float64]]


@dataclass
class Measured:
    """Figures of one set of captions.

    Attributes:
        corpus: figure over the split, by name.
        per_image: figure -> one value per image, NaN for images it was not measured on.
        not_reported: metric -> why it could not be computed here.
        statistics: figure -> what its intervals and differences are resampled from.
    """

    corpus: dict[str, float]
    per_image: PerImage
    not_reported: dict[str, str] = field(default_factory=dict)
    statistics: dict[str, CorpusStatistic] = field(default_factory=dict)

    def add(self, name: str, values: NDArray[np.float64]) -> None:
        """Add a figure that is the mean of these values, one per image; NaN: not measured on this image."""
        self.per_image[name] = values
        self.statistics[name] = mean_of_measured(values)
        self.corpus[name] = self.statistics[name].figure


class CaptionScorer:
    """Measures captions of one split; people's captions and the training captions are tokenised once for all.

    Args:
        dataset: has people's captions.
        split: the images.
        metrics: families of figures, as in `tellapart.metrics.evaluate`; by default all that can be computed here.
    """

    def __init__(self, dataset: Dataset, split: str, metrics: Sequence[str] | None = None) -> None:
        self.records = dataset.split(split)
        self._split, self._metrics = split, metrics
        for record in self.records:
            if not record.captions:
                raise DataError(
                    f"{dataset.name}: '{record.id}' has no reference caption; write one or remove the image"
                )
        self._training_captions = [text for record in dataset if record.split == "train" for text in record.captions]
        families = np.array([record.family or record.id for record in self.records])
        self.families: NDArray[np.int64] = np.unique(families, return_inverse=True)[1]

    # Tokenised when first needed: mistakes in files of captions are reported before.
    @cached_property
    def _references(self) -> list[list[str]]:
        return _tokenize_groups([record.captions for record in self.records], "references")

    @cached_property
    def _training(self) -> list[str] | None:
        """Tokenised training captions, for novelty; None if there are none or if they are the split measured."""
        if not self._training_captions or self._split == "train":
            return None
        return _tokenize(self._training_captions, "training captions")

    def measure(self, captions: Sequence[Sequence[str]]) -> Measured:
        """Figures of the first caption of each image and, with several captions per image, those among them."""
        tokens = _tokenize_groups(captions, "captions")
        first = [texts[0] for texts in tokens]
        ids = [record.id for record in self.records]
        scores = evaluate(
            dict(zip(ids, self._references, strict=True)),
            dict(zip(ids, first, strict=True)),
            tokenized=True,
            training_captions=self._training,
            metrics=self._metrics,
        )
        per_image = {name: np.array([values[id] for id in ids]) for name, values in scores.per_image.items()}
        measured = Measured(dict(scores.corpus), per_image, scores.not_reported)
        if len(tokens[0]) > 1 and "distinct" in measured.corpus:
            several = candidate_scores(
                tokens,
                self._references,
                training_captions=self._training,
                oracle=[name for name in ORACLE if any(metric.lower().startswith(name) for metric in measured.corpus)],
                on_progress=ProgressLine("measuring several captions per image", " captions").update,
            )
            measured.corpus |= several.corpus
            measured.per_image |= several.per_image
        measured.statistics |= self.statistics(captions, measured.corpus, measured.per_image)
        return measured

    def statistics(
        self, captions: Sequence[Sequence[str]], corpus: Mapping[str, float], per_image: PerImage
    ) -> dict[str, CorpusStatistic]:
        """What the figures of a measurement are resampled from; also of one that was read from its files."""
        first = _tokenize([texts[0] for texts in captions], "captions")
        statistics = {name: _around(corpus[name], values) for name, values in per_image.items()}
        statistics |= _bleu_statistics(self._references, first) if "Bleu_4" in corpus else {}
        # Of the diversity figures, those that are means; `distinct` and `vocabulary` are no sums over images.
        words = [tuple(caption.split()) for caption in first]
        values = {
            "mean_length": np.array([len(caption) for caption in words]),
            "bad_endings": np.array([ends_badly(caption) for caption in first]),
        }
        if self._training is not None:
            known = {tuple(caption.split()) for caption in self._training} | {()}
            values["novel"] = np.array([caption not in known for caption in words])
        return statistics | {name: mean_statistic(value) for name, value in values.items() if name in corpus}

    def intervals(self, measured: Measured) -> dict[str, Interval]:
        """95 % bootstrap intervals; near-duplicates are drawn together. None for a single family of images."""
        if self.families.max() == 0:
            return {}
        return confidence_intervals(measured.statistics, SAMPLES, SEED, self.families)

    def differences(self, measured: Measured, control: Measured) -> dict[str, PairedDifference]:
        """Differences (measured - control) of all figures that both have, on the same drawn images."""
        if self.families.max() == 0:
            return {}
        return paired_bootstraps(control.statistics, measured.statistics, SAMPLES, SEED, self.families)


def mean_of_measured(values: NDArray[np.float64]) -> CorpusStatistic:
    """The mean of the values that are not NaN; that of all values where none of a drawn set was measured."""
    there = np.isfinite(values)
    columns = mean_statistic(np.where(there, values, 0.0)).columns * there[:, None]
    mean = values[there].mean()

    def combine(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        total, count = sums[..., 0], sums[..., 1]
        return np.asarray(np.divide(total, count, out=np.full(np.shape(total), mean), where=count > 0))

    return CorpusStatistic(columns, combine)


def _around(figure: float, values: NDArray[np.float64]) -> CorpusStatistic:
    """A corpus figure that varies as the mean of the images' figures does."""
    mean = mean_of_measured(values)
    shift = figure - mean.figure
    return CorpusStatistic(mean.columns, lambda sums: mean.combine(sums) + shift)


def _bleu_statistics(references: Sequence[Sequence[str]], captions: Sequence[str]) -> dict[str, CorpusStatistic]:
    """Corpus BLEU-1…4 as functions of what is summed over images: correct and all n-grams, both lengths (bleu.py)."""
    columns = np.empty((len(captions), 2 * ORDERS + 2))
    for image, (texts, caption) in enumerate(zip(references, captions, strict=True)):
        words, others = caption.split(), [text.split() for text in texts]
        for n in range(ORDERS):
            allowed: Counter[tuple[str, ...]] = Counter()
            for other in others:
                allowed |= Counter(zip(*(other[i:] for i in range(n + 1)), strict=False))
            said = Counter(zip(*(words[i:] for i in range(n + 1)), strict=False))
            columns[image, n] = (said & allowed).total()
            columns[image, ORDERS + n] = said.total()
        closest = min((abs(len(other) - len(words)), len(other)) for other in others)[1]
        columns[image, -2:] = len(words), closest
    return {f"Bleu_{n + 1}": CorpusStatistic(columns, partial(_bleu, n=n)) for n in range(ORDERS)}


def _bleu(sums: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """BLEU-(n + 1) of summed columns."""
    precision = (sums[..., : n + 1] + 1e-15) / (sums[..., ORDERS : ORDERS + n + 1] + 1e-9)
    ratio = (sums[..., -2] + 1e-15) / (sums[..., -1] + 1e-9)
    return np.asarray(np.prod(precision, axis=-1) ** (1 / (n + 1)) * np.exp(np.minimum(0.0, 1.0 - 1.0 / ratio)))


def _tokenize(captions: Sequence[str], what: str) -> list[str]:
    line = ProgressLine(f"tokenising {what}", " captions")
    tokens: list[str] = []
    for start in range(0, len(captions), _BLOCK):
        tokens += tokenize(captions[start : start + _BLOCK])
        if len(captions) > _BLOCK:
            line.update(len(tokens), len(captions))
    return tokens


def _tokenize_groups(groups: Sequence[Sequence[str]], what: str) -> list[list[str]]:
    """The same for the captions of each image."""
    tokens = iter(_tokenize([caption for group in groups for caption in group], what))
    return [[next(tokens) for _ in group] for group in groups]
