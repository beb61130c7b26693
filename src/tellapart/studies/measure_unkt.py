"""Studies of UNKT: as other captioners, and n captions per image: the best of them, and how different they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tellapart.data.prepare import Prepared
from tellapart.evaluation.caption_scorer import mean_of_measured
from tellapart.evaluation.many_captions import (
    BEST,
    CAPTIONS,
    FOLDER,
    METRICS,
    ManyCaptions,
    ManyCaptionsScorer,
    captions_file,
    decoding_ways,
    matched_differences,
    shared_quality,
)
from tellapart.evaluation.run_captions import run_captions
from tellapart.files import Stored
from tellapart.metrics import PairedDifference, tokenize
from tellapart.metrics.bootstrap import CorpusStatistic
from tellapart.metrics.diversity import oracle_scores
from tellapart.pages.base import as_svg, plotting
from tellapart.pages.diversity import draw_curves
from tellapart.progress import ProgressLine
from tellapart.run import Run
from tellapart.studies.base import Arm, Study
from tellapart.studies.columns import CAPTION_HEADLINES, Column
from tellapart.studies.measure_captions import CaptionMeasure
from tellapart.studies.result import ArmResult, Result, SeedResult

# Captions are sampled at this temperature, as the paper does; the curves have others.
WAY = "sample-1"
_BEST = f"best_{BEST}_"
DIVERSITY = {"Div_1": "Div-1", "Div_2": "Div-2", "SelfCIDEr_Luo": "SelfCIDEr", "mBLEU_4_sentence": "mBLEU-4"}
ORACLE = f"oracle_{CAPTIONS}_CIDEr"
MATCHED = "at_equal_quality_"


class OracleFile(Stored):
    """`SPLIT-oracle.json`: the best of the first n samples of each image, n -> metric -> values."""

    best: dict[int, dict[str, list[float]]]


class UnktMeasure(CaptionMeasure):
    """As `CaptionMeasure`, and n captions per image, sampled at temperature 1: oracle, and diversity of the best five.

    Every model is diverse at a high temperature, so arms are also compared with their control at equal quality, over
    the curve of quality and diversity that the temperatures give (`evaluation.many_captions`).
    """

    compared: ClassVar[tuple[Column, ...]] = (
        *(Column(_BEST + name, f"{heading}, best {BEST}") for name, heading in DIVERSITY.items()),
        *(Column(MATCHED + name, f"{heading} at equal quality") for name, heading in DIVERSITY.items()),
        Column(ORACLE, f"CIDEr, best of {CAPTIONS}"),
        *CAPTION_HEADLINES,
    )
    template = "study-unkt.html"
    many_captions = True
    counts: ClassVar[tuple[int, ...]] = (CAPTIONS,)  # n of the oracles

    def __init__(self, study: Study, **options: Any) -> None:
        super().__init__(study, **options)
        self._many_scorer = ManyCaptionsScorer(study.split, self.diversity_images)
        self._measured: dict[str, ManyCaptions] = {}

    def measure(self, arm: Arm, arms: Sequence[Arm], runs: Mapping[str, Run]) -> SeedResult:
        measured, run = super().measure(arm, arms, runs), runs[arm.key]
        many = self._many(run)
        sampled, best = many.ways[WAY], self._oracles(run)
        figures = {
            **measured.figures,
            **{f"beam_{name}": value for name, value in many.ways["beam"].figures.items()},
            **{name: value for name, value in sampled.figures.items() if name.startswith(_BEST)},
            **{name: float(values.mean()) for name, values in best.items()},
        }
        per_image = {**{_BEST + name: sampled.per_image[_BEST + name] for name in DIVERSITY}, ORACLE: best[ORACLE]}
        images = len(run.data.dataset.split(self.study.split))
        more = {name: _among(images, values) for name, values in per_image.items()}
        return replace(measured, figures=figures, statistics={**measured.statistics, **more})

    def _many(self, run: Run) -> ManyCaptions:
        """n captions per image of a run; measured once, then found in its folder."""
        key = str(run.folder)
        if key not in self._measured:
            self._measured[key] = self._many_scorer.measure(run)
        return self._measured[key]

    def _oracles(self, run: Run) -> dict[str, np.ndarray]:
        """The best of the first n samples of each image by each metric: `oracle_N_METRIC` -> `[images]`."""
        most, split, limit = max(self.counts), self.study.split, self.diversity_images
        decoding = decoding_ways(run.recipe.decoding, most, [1.0])[WAY]
        records = run.data.dataset.split(split)[:limit]
        name = f"{FOLDER}/{captions_file(split, limit and len(records), most, WAY)}"

        def make() -> dict[str, Any]:
            rows = run_captions(run, split, limit, decoding, run.folder / f"{name}.jsonl")
            captions = [tokenize(row["captions"]) for row in rows]
            references = [tokenize(list(record.captions)) for record in records]
            line = ProgressLine("finding the best captions", " captions")
            found = oracle_scores(captions, references, self.counts, METRICS, line.update)
            return {"best": {n: {name: v.round(6).tolist() for name, v in of.items()} for n, of in found.items()}}

        made_from = [[record.id for record in records], decoding.model_dump(mode="json"), list(self.counts), METRICS]
        found = run.derived(f"{name}-oracle.json", made_from, make, OracleFile)
        return {f"oracle_{n}_{name}": np.array(v) for n, of in found.best.items() for name, v in of.items()}

    def differences(self, control: ArmResult, row: ArmResult, prepared: Prepared) -> dict[str, PairedDifference]:
        found = super().differences(control, row, prepared)
        if not found or ORACLE not in row.seeds[0].figures:  # people's captions are no samples
            return found
        controls, arms = ([self._many(one.run) for one in of.seeds] for of in (control, row))
        if any(shared_quality(*pair) is None for pair in zip(controls, arms, strict=True)):
            return found
        if controls[0].families.max() == 0:  # a bootstrap needs two families
            return found
        matched = matched_differences(controls, arms, figures=list(DIVERSITY))
        return {**found, **{MATCHED + name: difference for name, difference in matched.items()}}

    def images(self, rows: Sequence[ArmResult], prepared: Prepared) -> dict[str, int]:
        found = super().images(rows, prepared)
        if self.diversity_images is None:
            return found
        return {**found, "with_many_captions": min(self.diversity_images, found["captioned"])}

    def introduction(self, result: Result) -> str:
        limited = result.images.get("with_many_captions")
        return super().introduction(result) + ("" if limited is None else f" Several captions of {limited} images.")

    def finish(self, rows: Sequence[ArmResult], folder: Path) -> dict[str, Any]:
        """Also the curves: arm -> for each seed, figure -> points (temperature, quality, diversity)."""
        curves = {
            row.arm.key: [{name: self._many(one.run).curve(name) for name in DIVERSITY} for one in row.seeds]
            for row in rows
        }
        return {**super().finish(rows, folder), "curves": curves}

    def conclusion(self, result: Result) -> list[str]:
        apart = [
            f"{row.arm.label}: its samples and those of its control have no CIDEr in common at these temperatures, in "
            "at least one seed; so they are not compared at equal quality."
            for row in result.rows
            if (found := result.differences.get(row.arm.key)) and MATCHED + next(iter(DIVERSITY)) not in found
        ]
        return [*super().conclusion(result), *(["", *apart] if apart else [])]

    def page(self, result: Result, prepared: Prepared) -> dict[str, Any]:
        many = {row.arm.label: self._many(row.seeds[0].run) for row in result.rows}
        growth = _growth(result, self.counts) if len(self.counts) > 1 else ""
        return {**super().page(result, prepared), "temperatures": draw_curves(many), "growth": growth}

    def _shown_with_captions(self, result: Result) -> list[ArmResult]:
        """Rows trained with all terms of UNKT that their captioner has: the students with the fewest changes."""
        students = [row for row in result.rows if "negative_teacher" in row.arm.roles]
        fewest = min((len(row.arm.changes) for row in students), default=0)
        return [row for row in students if len(row.arm.changes) == fewest]


class ManySamplesMeasure(UnktMeasure):
    """As `UnktMeasure`, with oracles of up to 100 captions per image (Table 1 and Figure 2)."""

    counts = (1, 5, 10, 20, 50, 100)


def _among(images: int, values: np.ndarray) -> CorpusStatistic:
    """The mean over the first images, those with n captions, as a statistic of all."""
    return mean_of_measured(np.append(values, np.full(images - len(values), np.nan)))


def _growth(result: Result, counts: Sequence[int]) -> str:
    """CIDEr of the best of n captions against n (Figure 2), the mean over seeds."""
    with plotting() as pyplot:
        figure, axis = pyplot.subplots(figsize=(6.4, 3.4))
        for row in result.rows:
            best = [row.mean(f"oracle_{n}_CIDEr") for n in counts]
            axis.plot(counts, best, "o-", ms=3, label=row.arm.label)
        axis.set_xscale("log")
        axis.set_xticks(counts, [str(n) for n in counts])
        axis.set_xlabel("captions per image")
        axis.set_ylabel("CIDEr of the best")
        axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
        return as_svg(figure)
