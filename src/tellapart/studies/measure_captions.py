"""Studies of captioners: caption scores, and captions that find their image, by several who read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tellapart.data.prepare import Prepared
from tellapart.data.records import Dataset
from tellapart.engine.journal import read_journal
from tellapart.evaluation.caption_scorer import CaptionScorer
from tellapart.evaluation.compare import ComparedRun
from tellapart.evaluation.evaluate import Evaluation, evaluate, evaluate_people, measured_again
from tellapart.metrics import PairedDifference, correlation_interval, paired_bootstraps_over_seeds
from tellapart.objectives.reference import EDGES
from tellapart.pages.base import Pictures, as_svg, plotting, shown
from tellapart.pages.report import cards
from tellapart.run import Run
from tellapart.studies.base import Arm, Study
from tellapart.studies.columns import CAPTION_HEADLINES, Column
from tellapart.studies.forest import short_labels
from tellapart.studies.measure import Measure, measure_of
from tellapart.studies.result import ArmResult, Result, SeedResult

ACCURACY = "CIDEr"
# The headline figures that accuracy is set against.
DISTINCT = tuple(column for column in CAPTION_HEADLINES if "R@1" in column.figure)
PEOPLE = "people"
# Kinds of pairs in the journal of a contrastive training -> what the histograms call them.
PAIRS = {"positive": "true pairs", "negative": "other captions", "image_negative": "other images"}


class CaptionMeasure(Measure):
    """Each caption ranks the images several times, by who reads it.

    - The own model, by p(c|I). Training may teach it to understand only itself.
    - The frozen start: the MLE model that training started from, so the training under study cannot influence it.
    - The independent retriever, if one is given: it shares no weights with any arm.
    - The true listener, if the data are scenes: it knows what is in them.

    People's captions are measured in the same way, except by an own model, which they do not have.
    """

    trains = "captioner"
    compared: ClassVar[tuple[Column, ...]] = CAPTION_HEADLINES
    template = "study-captioning.html"
    shown_by: ClassVar[str] = "rank"  # whose rank decides which captions the page shows
    shows_losses: ClassVar[bool] = False  # it also shows captions whose rank got worse

    def __init__(self, study: Study, **options: Any) -> None:
        super().__init__(study, **options)
        self._scorers: dict[str, CaptionScorer] = {}

    def measure(self, arm: Arm, arms: Sequence[Arm], runs: Mapping[str, Run]) -> SeedResult:
        run, judge = runs[arm.key], runs[root_arm(arm, arms)]
        return self._measured_under(run, judge)

    def _measured_under(self, run: Run, judge: Run) -> SeedResult:
        evaluation = evaluate(run, split=self.study.split, under=[judge], **self._options())
        return self._result(run, evaluation)

    def _options(self) -> dict[str, Any]:
        """Options of every evaluation, only those that are given."""
        options = {"retrieval_images": self.retrieval_images, "listener": self.listener}
        return {name: value for name, value in options.items() if value is not None}

    def _result(self, run: Run, evaluation: Evaluation) -> SeedResult:
        measured = measured_again(evaluation, self._scorer(run.data.dataset))
        names = [column.figure for column in self.compared]
        statistics = {name: measured.statistics[name] for name in names if name in measured.statistics}
        return SeedResult(run, evaluation, dict(evaluation.corpus), statistics)

    def _scorer(self, dataset: Dataset) -> CaptionScorer:
        """One scorer for all arms, because it tokenises people's captions."""
        if dataset.digest not in self._scorers:
            self._scorers[dataset.digest] = CaptionScorer(dataset, self.study.split)
        return self._scorers[dataset.digest]

    def differences(self, control: ArmResult, row: ArmResult, prepared: Prepared) -> dict[str, PairedDifference]:
        families = self._scorer(prepared.dataset).families
        if families.max() == 0:  # a bootstrap needs two families
            return {}
        a, b = ([one.statistics for one in of.seeds] for of in (control, row))
        return paired_bootstraps_over_seeds(a, b, groups=families)

    def people(self, rows: Sequence[ArmResult]) -> ArmResult | None:
        """The k-th caption of every image in place of the k-th seed, scored against the other captions of its image.

        Compared with the control of the last row, and read by the same frozen start. `None` if an image has only one
        caption, or if no row has a control.
        """
        control = next((row.arm.control for row in reversed(rows) if row.arm.control is not None), None)
        records = rows[0].seeds[0].run.data.dataset.split(self.study.split)
        fewest = min(len(record.captions) for record in records)
        if control is None or fewest < 2:
            return None
        arms = {row.arm.key: row for row in rows}
        start = arms[root_arm(arms[control].arm, [row.arm for row in rows])]
        seeds = []
        for seed, one in enumerate(start.seeds):
            choice = seed % fewest
            judge = self._judge_of_people(one.run)
            found = evaluate_people(one.run, split=self.study.split, choice=choice, under=[judge], **self._options())
            seeds.append(self._result(one.run, found))
        return ArmResult(Arm(PEOPLE, "people's captions", "", control=control), seeds)

    def _judge_of_people(self, start: Run) -> Run:
        """Who reads people's captions as the judge."""
        return start

    def images(self, rows: Sequence[ArmResult], prepared: Prepared) -> dict[str, int]:
        ranked = len(rows[0].seeds[0].evaluation.ranked_rows)
        return {"captioned": len(prepared.dataset.split(self.study.split)), "ranked": ranked}

    def finish(self, rows: Sequence[ArmResult], folder: Path) -> dict[str, Any]:
        return {"correlations": correlations(rows)}

    def introduction(self, result: Result) -> str:
        ranked = result.images["ranked"]
        return (
            f"{result.images['captioned']} images captioned, each caption ranks {ranked} images; {result.seeds}. "
            f"R@1 by chance: {shown(1 / ranked, 'percent')}."
        )

    def conclusion(self, result: Result) -> list[str]:
        lines = [f"- {heading}: {found}" for heading, found in _correlation_lines(result)]
        heading = f"Correlation with {ACCURACY} over all arms and seeds, with a 95 % interval over arms:"
        return [heading, "", *lines] if lines else []

    def page(self, result: Result, prepared: Prepared) -> dict[str, Any]:
        pictures = Pictures(prepared.dataset)
        records = prepared.dataset.split(result.study.split)
        arms = [row.arm for row in result.rows]
        pairs = []
        for row in self._shown_with_captions(result):
            root = result.row(root_arm(row.arm, arms))
            before, after = (ComparedRun(of.arm.label, of.seeds[0].run, of.seeds[0].evaluation) for of in (root, row))
            gained, lost = (
                cards((before, after), records, pictures, better, self.shown_by) for better in (True, False)
            )
            pairs.append((before.label, after.label, gained, lost if self.shows_losses else []))
        return {
            "chance": 1 / result.images["ranked"],
            "readers": [column.figure for column in _drawn(result)],
            "accuracy": ACCURACY,
            "correlations": _correlation_lines(result),
            "plane": _plane(result),
            "histograms": _histograms(result),
            "pairs": [pair for pair in pairs if pair[2] or pair[3]],
        }

    def _shown_with_captions(self, result: Result) -> list[ArmResult]:
        """Rows whose captions the page shows beside those of the MLE model: those trained by the whole CL loss."""

        def whole(row: ArmResult) -> bool:
            return not any(change.startswith("objective.") for change in row.arm.changes)

        return [row for row in result.rows if "reference" in row.arm.roles and whole(row)]


def root_arm(arm: Arm, arms: Sequence[Arm]) -> str:
    """Key of the MLE model that an arm goes back to: the judge of its captions."""
    by_key = {other.key: other for other in arms}
    while arm.start is not None:
        arm = by_key[arm.start]
    return arm.key


def correlations(rows: Sequence[ArmResult]) -> dict[str, dict[str, float]]:
    """Pearson correlation of every distinctiveness figure with CIDEr over all arms and seeds, where it is defined.

    An arm's seeds are no independent points: the interval draws whole arms.
    """
    found = {}
    for column in DISTINCT:
        points = [
            (one.figures[column.figure], one.figures[ACCURACY], place)
            for place, row in enumerate(rows)
            for one in row.seeds
            if column.figure in one.figures and ACCURACY in one.figures
        ]
        if points and (interval := correlation_interval(*np.array(points).T)) is not None:
            found[column.figure] = {"correlation": interval.mean, "low": interval.low, "high": interval.high}
    return found


def _correlation_lines(result: Result) -> list[tuple[str, str]]:
    """Heading and correlation with its interval, as text."""
    headings = {column.figure: column.heading for column in _readers(result)}
    return [
        (headings[figure], f"{one['correlation']:+.2f} [{one['low']:+.2f}, {one['high']:+.2f}]")
        for figure, one in result.more["correlations"].items()
    ]


def _readers(result: Result) -> list[Column]:
    """Who reads the captions, as the study's measure calls them."""
    names = {column.figure for column in DISTINCT}
    return [column for column in measure_of(result.study).compared if column.figure in names]


def _drawn(result: Result) -> list[Column]:
    """Distinctiveness figures that were measured."""
    return [column for column in _readers(result) if any(row.values(column.figure) for row in result.table)]


def _plane(result: Result) -> str:
    """Accuracy against distinctiveness: one point per arm and seed, one panel per reader."""
    drawn = _drawn(result)
    labels = short_labels([row.arm.label for row in result.table])
    with plotting() as pyplot:
        figure, axes = pyplot.subplots(1, len(drawn), figsize=(2.4 * len(drawn) + 2.4, 3.2), sharey=True, squeeze=False)
        for axis, column in zip(axes[0], drawn, strict=True):
            for place, (row, label) in enumerate(zip(result.table, labels, strict=True)):
                seeds = [one.figures for one in row.seeds if column.figure in one.figures]
                recalls, accuracies = [100 * one[column.figure] for one in seeds], [one[ACCURACY] for one in seeds]
                colour = "black" if row is result.people else f"C{place % 10}"
                axis.scatter(recalls, accuracies, marker=_marker(row), color=colour, s=36, label=label)
            axis.set_xlabel(f"{column.heading}, %")
        axes[0, 0].set_ylabel(f"accuracy: {ACCURACY}")
        axes[0, -1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
        return as_svg(figure)


def _marker(row: ArmResult) -> str:
    """MLE a circle, other methods a square, CL a triangle, people a star."""
    if row.arm.key == PEOPLE:
        return "*"
    if row.arm.start is None:
        return "o"
    return "^" if "reference" in row.arm.roles else "s"


def _histograms(result: Result) -> str:
    """Histograms of G of true and mismatched validation pairs at the end of each contrastive training."""
    found: list[tuple[str, dict[str, Any]]] = []
    for row in result.rows:
        journal = read_journal(row.seeds[0].run.folder)
        last: dict[str, Any] = next((line for line in reversed(journal) if line["split"] == "val"), {})
        if "G_positive_bin_0" in last:
            found.append((row.arm.label, last))
    if not found:
        return ""
    names = ["-inf", *map(str, EDGES)]
    places = np.arange(len(names))
    with plotting() as pyplot:
        columns = min(3, len(found))
        lines = -(-len(found) // columns)
        figure, axes = pyplot.subplots(lines, columns, figsize=(3.8 * columns, 2.5 * lines), squeeze=False)
        for axis, (label, last) in zip(axes.ravel(), found, strict=False):
            kinds = {kind: name for kind, name in PAIRS.items() if f"G_{kind}_bin_0" in last}
            width = 0.8 / len(kinds)
            for number, (kind, name) in enumerate(kinds.items()):
                shares = [100 * last[f"G_{kind}_bin_{edge}"] for edge in names]
                axis.bar(places + width * (number - (len(kinds) - 1) / 2), shares, width=width, label=name)
            axis.set_xticks(places, ["less", *(f"≥ {edge}" for edge in EDGES)], rotation=60, fontsize=7)
            axis.set_ylabel("% of pairs")
            axis.set_title(label)
            axis.legend(frameon=False, fontsize=8)
        for axis in axes.ravel()[len(found) :]:
            axis.set_visible(False)
        return as_svg(figure)
