"""n captions per image, written in several ways: how good the best is, and how different they are, at equal quality.

Every model is diverse at a high temperature, so diversity alone says nothing. Each captioner writes n captions for
every image by beam search, by diverse beam search, and by sampling at several temperatures. Measured of each way:

- of all n captions the oracle (the best caption, by each metric on its own), the mean, and the figures among them;
- of the best few by consensus re-ranking (`best_5_…`) the same, as papers print them.

The temperatures of a captioner are points on a curve of quality (the mean CIDEr of its captions) and diversity. Two
captioners are compared where their curves have the same quality: by the mean difference in diversity over the range of
quality that both reach.

Captions and figures are kept in the folder of the run and found again; an interrupted call continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tellapart.data.records import Dataset, Record
from tellapart.decoding.settings import LIMITS, DecodingSettings
from tellapart.errors import DataError, RunError
from tellapart.evaluation.run_captions import run_captions
from tellapart.evaluation.similar_images import Consensus
from tellapart.files import Stored
from tellapart.metrics import PairedDifference, paired_bootstraps_over_seeds, tokenize
from tellapart.metrics.bootstrap import CorpusStatistic, mean_statistic
from tellapart.metrics.cider import DocumentFrequencies
from tellapart.metrics.diversity import candidate_scores
from tellapart.progress import ProgressLine
from tellapart.run import Run

CAPTIONS = 20
BEST = 5
TEMPERATURES = (0.4, 0.6, 0.8, 1.0, 1.2)
METRICS = ("bleu", "rouge", "cider", "meteor")
FOLDER = "many-captions"
# Figures among an image's captions, and those of which less is more diverse.
DIVERSITY = ("Div_1", "Div_2", "SelfCIDEr_Luo", "SelfCIDEr_Wang", "mBLEU_4_sentence", "distinct_within")
LOWER = frozenset({"mBLEU_4_sentence", "mBLEU_4_corpus"})
QUALITY = "mean_CIDEr"
# Qualities at which two curves are compared.
LEVELS = 33
# Version of the files.
FORMAT = 1

Values = NDArray[np.float64]


class WayFile(Stored):
    """`SPLIT-WAY.json`: the figures of one way to write captions."""

    figures: dict[str, int | float]
    per_image: dict[str, list[float]]


@dataclass(frozen=True)
class WayFigures:
    """One way to write n captions, measured.

    Attributes:
        figures: over the split, by name: of all n captions, and with `best_5_` of the re-ranked best.
        per_image: the figures of curves, one value per image.
    """

    figures: dict[str, float]
    per_image: dict[str, Values]


@dataclass(frozen=True)
class ManyCaptions:
    """n captions per image of one run, in several ways.

    Attributes:
        run: the captioner.
        ids: of the captioned images.
        families: `[images]`, a number for each family of near-duplicates.
        best: how many captions the re-ranking keeps.
        ways: `beam`, `diverse`, and `sample-T` for each temperature T, in rising order.
    """

    run: Run
    ids: list[str]
    families: NDArray[np.int64]
    best: int
    ways: dict[str, WayFigures]

    @property
    def samples(self) -> dict[float, WayFigures]:
        """The ways of sampling, by temperature."""
        return {float(way.removeprefix("sample-")): of for way, of in self.ways.items() if way.startswith("sample-")}

    def curve(self, diversity: str, quality: str = QUALITY, of_best: bool = True) -> list[tuple[float, float, float]]:
        """Temperature, quality and diversity of each way of sampling.

        Args:
            diversity: a name of `DIVERSITY`.
            quality: a name such as `mean_CIDEr`.
            of_best: of the re-ranked best captions; else of all n.
        """
        names = [self._name(name, of_best) for name in (quality, diversity)]
        return [(heat, of.figures[names[0]], of.figures[names[1]]) for heat, of in self.samples.items()]

    def _name(self, figure: str, of_best: bool) -> str:
        return f"best_{self.best}_{figure}" if of_best else figure

    def _columns(self, diversity: str, of_best: bool) -> tuple[Values, Values]:
        """Quality and diversity of each image at each temperature, `[images, temperatures]`."""
        names = [self._name(name, of_best) for name in (QUALITY, diversity)]
        quality, diverse = (np.stack([of.per_image[name] for of in self.samples.values()], axis=1) for name in names)
        return quality, diverse


def decoding_ways(
    own: DecodingSettings, captions: int = CAPTIONS, temperatures: Sequence[float] = TEMPERATURES
) -> dict[str, DecodingSettings]:
    """The ways to write n captions: name -> settings. Limits on words are those of the run's recipe.

    >>> list(decoding_ways(DecodingSettings(), 5, [1.0, 0.5]))
    ['beam', 'diverse', 'sample-0.5', 'sample-1']
    """
    if captions < 2:
        raise DataError(f"figures among several captions need at least two for each image, and not {captions}")
    if not temperatures:
        raise DataError("give at least one temperature")
    limits = {name: getattr(own, name) for name in (*LIMITS, "guidance", "remove_repeats")}
    beams = {**limits, "beam": captions, "samples": captions}
    ways = {
        "beam": DecodingSettings.parse({**beams, "method": "beam", "length_penalty": own.length_penalty}),
        "diverse": DecodingSettings.parse({**beams, "method": "diverse", "length_penalty": own.length_penalty}),
    }
    for heat in sorted(set(map(float, temperatures))):
        ways[f"sample-{heat:g}"] = DecodingSettings.parse(
            {**limits, "method": "sample", "samples": captions, "temperature": heat}
        )
    return ways


def captions_file(split: str, images: int | None, captions: int, way: str) -> str:
    """Name, without an ending, of the files of n captions of the first images of a split."""
    return f"{split}{'' if images is None else f'-first-{images}'}-{captions}-{way}"


class ManyCaptionsScorer:
    """Measures captioners by n captions per image; what they share is prepared once.

    Args:
        split: the images.
        images: only the first so many; by default all.
        captions: n.
        best: how many the consensus re-ranking keeps, from 2 to n.
        temperatures: of the samples.
        metrics: of the oracle: bleu, rouge, cider, meteor; cider is needed for the curves.

    Example:
        >>> scorer = ManyCaptionsScorer(captions=20)                                        # doctest: +SKIP
        >>> mle, unkt = (scorer.measure(open_run(folder)) for folder in ("mle", "unkt"))    # doctest: +SKIP
        >>> mle.ways["beam"].figures["oracle_CIDEr"]                                        # doctest: +SKIP
        >>> matched_differences([mle], [unkt])["SelfCIDEr_Luo"].difference                  # doctest: +SKIP
    """

    def __init__(
        self,
        split: str = "test",
        images: int | None = None,
        captions: int = CAPTIONS,
        best: int = BEST,
        temperatures: Sequence[float] = TEMPERATURES,
        metrics: Sequence[str] = METRICS,
    ) -> None:
        if not 2 <= best <= captions:
            raise DataError(f"the best {best} of {captions} captions cannot be measured; keep from 2 to {captions}")
        if "cider" not in metrics:
            raise DataError("metrics: quality is measured by CIDEr; add 'cider'")
        self.split, self.images, self.captions, self.best = split, images, captions, best
        self.temperatures, self.metrics = temperatures, sorted(metrics)
        self._shared: dict[str, _Shared] = {}

    def measure(self, run: Run) -> ManyCaptions:
        """Measure a run of a captioner, or find what an earlier call measured."""
        if run.recipe.trains != "captioner":
            raise RunError(f"{run.folder}: a retriever writes no captions; give the run of a captioner")
        shared = self._of_data(run)
        records = shared.records
        ways = decoding_ways(run.recipe.decoding, self.captions, self.temperatures)
        families = np.unique([record.family or record.id for record in records], return_inverse=True)[1]
        measured = {way: self._way(run, shared, way, settings) for way, settings in ways.items()}
        return ManyCaptions(run, [record.id for record in records], families, self.best, measured)

    def _of_data(self, run: Run) -> _Shared:
        """What runs with the same data and features share."""
        prepared = run.data
        key = f"{prepared.dataset.digest} {prepared.store.encoder.name}"
        if key not in self._shared:
            records = prepared.dataset.split(self.split)[: self.images]
            self._shared[key] = _Shared(prepared.dataset, records, Consensus(prepared, self.split, self.images))
        return self._shared[key]

    def _way(self, run: Run, shared: _Shared, way: str, decoding: DecodingSettings) -> WayFigures:
        name = f"{FOLDER}/{captions_file(self.split, self.images and len(shared.records), self.captions, way)}"

        def make() -> dict[str, Any]:
            rows = run_captions(run, self.split, self.images, decoding, run.folder / f"{name}.jsonl")
            return self._figures(shared, [row["captions"] for row in rows], way)

        made_from = [FORMAT, [record.id for record in shared.records], decoding.model_dump(mode="json")]
        made_from += [self.best, self.metrics]
        found = run.derived(f"{name}.json", made_from, make, WayFile)
        if any(len(values) != len(shared.records) for values in found.per_image.values()):
            raise DataError(f"{run.folder / name}.json: is damaged (it is of other images); remove it")
        return WayFigures(found.figures, {key: np.array(values) for key, values in found.per_image.items()})

    def _figures(self, shared: _Shared, captions: list[list[str]], way: str) -> dict[str, Any]:
        groups = {"": captions, f"best_{self.best}_": shared.consensus.best(captions, self.best)}
        figures: dict[str, float] = {}
        per_image: dict[str, list[float]] = {}
        for prefix, texts in groups.items():
            line = ProgressLine(f"measuring {prefix.replace('_', ' ') or 'all '}captions, {way}", " captions")
            scores = candidate_scores(
                [tokenize(list(group)) for group in texts],
                shared.references,
                frequencies=shared.frequencies,
                oracle=self.metrics,
                means=True,
                on_progress=line.update,
            )
            figures |= {prefix + name: value for name, value in scores.corpus.items()}
            for name in (QUALITY, *DIVERSITY):
                per_image[prefix + name] = [round(value, 6) for value in scores.per_image[name].tolist()]
        return {"figures": figures, "per_image": per_image}


@dataclass(frozen=True)
class _Shared:
    dataset: Dataset
    records: list[Record]
    consensus: Consensus

    @cached_property
    def references(self) -> list[list[str]]:
        without = [record.id for record in self.records if not record.captions]
        if without:
            raise DataError(f"{self.dataset.name}: '{without[0]}' has no reference caption; write one or remove it")
        return [tokenize(list(record.captions)) for record in self.records]

    @cached_property
    def frequencies(self) -> DocumentFrequencies:
        return DocumentFrequencies.count(self.references)


# --- curves -----------------------------------------------------------------------------------------------------------


def diversity_at(levels: Values, quality: Values, diversity: Values, lower: bool = False) -> Values:
    """The diversity of curves at some qualities, by lines between their points.

    A curve may have a quality several times, since it need not fall evenly with the temperature: the most diverse of
    these places counts. Beyond the ends of a curve its end counts.

    Args:
        levels: `[..., levels]`, qualities.
        quality: `[..., points]`, of the points in the order of their temperatures.
        diversity: `[..., points]`.
        lower: less is more diverse, as for mBLEU.

    Example:
        >>> diversity_at(np.array([0.9, 0.7, 0.1]), np.array([1.0, 0.8, 0.6]), np.array([0.2, 0.4, 0.5]))
        array([0.3 , 0.45, 0.5 ])
    """
    sign = -1.0 if lower else 1.0
    levels = np.clip(levels, quality.min(axis=-1, keepdims=True), quality.max(axis=-1, keepdims=True))
    found = np.full(np.broadcast_shapes(levels.shape, (*quality.shape[:-1], 1)), -np.inf)
    if quality.shape[-1] == 1:
        return np.broadcast_to(diversity, found.shape).copy()
    for point in range(quality.shape[-1] - 1):
        one, other = quality[..., point, None], quality[..., point + 1, None]
        at_one, at_other = (sign * diversity[..., place, None] for place in (point, point + 1))
        within = (levels >= np.minimum(one, other)) & (levels <= np.maximum(one, other))
        width = np.where(one == other, 1.0, other - one)
        here = at_one + (levels - one) / width * (at_other - at_one)
        here = np.where(one == other, np.maximum(at_one, at_other), here)
        found = np.where(within, np.maximum(found, here), found)
    return sign * found


def shared_quality(control: ManyCaptions, arm: ManyCaptions, of_best: bool = True) -> tuple[float, float] | None:
    """The range of quality that the samples of both reach; `None` if there is none."""
    ends = [[point[1] for point in one.curve(DIVERSITY[0], of_best=of_best)] for one in (control, arm)]
    low, high = max(map(min, ends)), min(map(max, ends))
    return (low, high) if low <= high else None


def matched_differences(
    controls: Sequence[ManyCaptions],
    arms: Sequence[ManyCaptions],
    of_best: bool = True,
    figures: Sequence[str] = DIVERSITY,
) -> dict[str, PairedDifference]:
    """Differences in diversity (arm − control) at equal quality, with 95 % intervals and p values.

    A difference is the mean over the range of quality that both curves reach (`diversity_at`). Images are resampled,
    families whole, and with several trainings the seeds too. Seeds whose curves do not meet are an error; see
    `shared_quality`.

    Args:
        controls: by seed.
        arms: by seed, in the same order, on the same images.
        of_best: compare the re-ranked best captions; else all n.
        figures: names of `DIVERSITY`.
    """
    for control, arm in zip(controls, arms, strict=True):
        if arm.ids != controls[0].ids or control.ids != controls[0].ids:
            raise RunError(f"{arm.run.folder}: was measured on other images than {controls[0].run.folder}")
        if shared_quality(control, arm, of_best) is None:
            raise DataError(
                f"{arm.run.folder}: its samples reach no quality that those of {control.run.folder} have; "
                "add temperatures"
            )
    nothing = {name: mean_statistic(np.zeros(len(controls[0].ids))) for name in figures}
    compared = [
        {name: _matched(control, arm, name, of_best) for name in figures}
        for control, arm in zip(controls, arms, strict=True)
    ]
    return paired_bootstraps_over_seeds([nothing] * len(controls), compared, groups=controls[0].families)


def _matched(control: ManyCaptions, arm: ManyCaptions, diversity: str, of_best: bool) -> CorpusStatistic:
    """The mean difference at equal quality as a function of sums over images."""
    parts = [*control._columns(diversity, of_best), *arm._columns(diversity, of_best)]
    widths = np.cumsum([part.shape[1] for part in parts])
    columns = np.concatenate([*parts, np.ones((len(parts[0]), 1))], axis=1)

    def combine(sums: Values) -> Values:
        means = sums[..., :-1] / sums[..., -1:]
        of_control, control_diversity, of_arm, arm_diversity = np.split(means, widths[:-1], axis=-1)
        low = np.maximum(of_control.min(axis=-1), of_arm.min(axis=-1))[..., None]
        high = np.minimum(of_control.max(axis=-1), of_arm.max(axis=-1))[..., None]
        levels = low + (high - low) * np.linspace(0, 1, LEVELS)
        lower = diversity in LOWER
        found = diversity_at(levels, of_arm, arm_diversity, lower)
        return np.asarray((found - diversity_at(levels, of_control, control_diversity, lower)).mean(axis=-1))

    return CorpusStatistic(columns, combine)


def many_captions(runs: Mapping[str, Run], scorer: ManyCaptionsScorer | None = None) -> dict[str, ManyCaptions]:
    """Measure several captioners on the same images: label -> what was measured."""
    scorer = scorer or ManyCaptionsScorer()
    found = {label: scorer.measure(run) for label, run in runs.items()}
    first = next(iter(found.values()))
    for label, one in found.items():
        if one.ids != first.ids or one.run.data.dataset.digest != first.run.data.dataset.digest:
            raise RunError(
                f"{label} ({one.run.folder}) has other data than {first.run.folder}; compare the same images"
            )
    return found
