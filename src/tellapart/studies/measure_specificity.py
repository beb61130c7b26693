"""Studies of specificity training: as other captioners, but the judge is the retriever that taught them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tellapart.data.prepare import Prepared
from tellapart.engine.journal import read_journal
from tellapart.errors import RecipeError
from tellapart.evaluation.compare import ComparedRun
from tellapart.evaluation.specificity_guard import ONLY_TEACHER, fluency, repeated_words
from tellapart.files import Stored
from tellapart.pages.base import Pictures
from tellapart.pages.report import card
from tellapart.run import Run, open_run
from tellapart.studies.base import Arm, Study
from tellapart.studies.columns import CAPTION_HEADLINES, Column
from tellapart.studies.measure_captions import CaptionMeasure, root_arm
from tellapart.studies.result import ArmResult, Result, SeedResult

TEACHER = "retriever"
FLUENCY = "fluency.json"
RANDOM = 20  # pictures drawn by chance, whose captions the page shows


class FluencyFile(Stored):
    """`fluency.json`: ln p per token of a run's captions under the frozen start."""

    fluency: float


class SpecificityMeasure(CaptionMeasure):
    """As `CaptionMeasure`, with the teaching retriever in place of the frozen start, as in the paper's Table 1.

    The page shows captions of every trained arm beside those of the MLE model: gains and failures (Figure 3), and those
    of pictures drawn by chance.
    """

    compared: ClassVar[tuple[Column, ...]] = (
        Column("under_judge_R@1", "R@1, teaching retriever", "percent"),
        Column("under_judge_mean_rank", "mean rank, teaching retriever", "number"),
        *(column for column in CAPTION_HEADLINES if column.figure != "under_judge_R@1"),
        Column("novel", "novelty", "percent"),
    )
    template = "study-specificity.html"
    shown_by = "rank_under_judge"
    shows_losses = True

    def __init__(self, study: Study, **options: Any) -> None:
        super().__init__(study, **options)
        self._teachers: dict[str, Run] = {}

    def measure(self, arm: Arm, arms: Sequence[Arm], runs: Mapping[str, Run]) -> SeedResult:
        teacher = self._teacher(runs)
        self._teachers |= {str(run.folder): teacher for run in runs.values()}
        measured = self._measured_under(runs[arm.key], teacher)
        measured.figures.update(self._guards(measured, runs[root_arm(arm, arms)]))
        measured.figures.update(_warned(measured.run))
        return measured

    def _guards(self, measured: SeedResult, start: Run) -> dict[str, float]:
        """Repeated words, and fluency under the frozen start, of the first captions."""
        first = {id: captions[0] for id, captions in measured.evaluation.captions.items()}
        rows = [start.data.dataset.row(id) for id in first]

        def make() -> dict[str, float]:
            return {"fluency": fluency(start.captioner, start.data.store, rows, list(first.values()))}

        found = measured.run.derived(FLUENCY, [start.model_digest, first], make, FluencyFile)
        return {"repeated": repeated_words(list(first.values())), "fluency": found.fluency}

    def _teacher(self, runs: Mapping[str, Run]) -> Run:
        """The retriever that the arms of one seed were trained with; the same for all of them."""
        for run in runs.values():
            upstream = open_run(run.folder).recipe.roles.get(TEACHER)
            if upstream is not None:
                return open_run(upstream.places[0])
        raise RecipeError(f"{self.study.name}: no arm was trained with a retriever; use runs of specificity training")

    def _judge_of_people(self, start: Run) -> Run:
        return self._teachers[str(start.folder)]

    def conclusion(self, result: Result) -> list[str]:
        warned = [(row, sum(one.figures.get(ONLY_TEACHER, 0) for one in row.seeds)) for row in result.rows]
        lines = [
            f"Warning: {row.arm.label}: in {count:.0f} of {len(row.seeds)} seeds the kept checkpoint improved the mean "
            "rank of validation captions under the teaching retriever and worsened it under the independent one: the "
            "captions may please only their teacher."
            for row, count in warned
            if count
        ]
        return [*super().conclusion(result), *(["", *lines] if lines else [])]

    def page(self, result: Result, prepared: Prepared) -> dict[str, Any]:
        warnings = [line for line in self.conclusion(result) if line.startswith("Warning: ")]
        return {**super().page(result, prepared), "random": self._random(result, prepared), "warnings": warnings}

    def _random(self, result: Result, prepared: Prepared) -> list[dict[str, Any]]:
        """Pictures drawn by chance, with the captions of all rows; none if an image has several captions."""
        if _several_captions(result):
            return []
        records, pictures = prepared.dataset.split(result.study.split), Pictures(prepared.dataset)
        rows = [ComparedRun(row.arm.label, row.seeds[0].run, row.seeds[0].evaluation) for row in result.rows]
        drawn = np.random.default_rng(0).permutation(result.images["ranked"])[:RANDOM]
        return [card(rows, records[i], i, pictures, self.shown_by) for i in sorted(map(int, drawn))]

    def _shown_with_captions(self, result: Result) -> list[ArmResult]:
        """Rows trained with the retriever's loss; none if an image has several captions."""
        trained = [row for row in result.rows if row.arm.start is not None and row.arm.control is not None]
        return [] if _several_captions(result) else trained


def _several_captions(result: Result) -> bool:
    """Whether an image has several captions."""
    return any("captions" in row for row in result.rows[0].seeds[0].evaluation.rows[:1])


def _warned(run: Run) -> dict[str, float]:
    """Whether the kept checkpoint pleases only the teacher; nothing if its training had no listener."""
    kept = run.captioner.history.get("steps")
    rows = [row for row in read_journal(run.folder) if row["split"] == "val" and row["step"] == kept]
    return {ONLY_TEACHER: rows[-1][ONLY_TEACHER]} if rows and ONLY_TEACHER in rows[-1] else {}
