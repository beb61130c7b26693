"""Studies of captioners: caption scores, and self-retrieval by the model itself and under a judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tellapart.data.prepare import Prepared
from tellapart.engine.journal import read_journal
from tellapart.evaluation.compare import ComparedRun
from tellapart.evaluation.evaluate import evaluate
from tellapart.metrics import PairedDifference, paired_bootstrap
from tellapart.objectives.reference import EDGES
from tellapart.pages.base import Pictures, as_svg, plotting, shown
from tellapart.pages.report import cards
from tellapart.run import Run
from tellapart.studies.base import Arm
from tellapart.studies.measure import Measure
from tellapart.studies.result import ArmResult, Result, SeedResult


class CaptionMeasure(Measure):
    """Each caption is ranked twice: by its own model's p(c|I), and by the judge.

    The judge is the MLE model that training started from, so the training under study cannot influence it.
    """

    trains = "captioner"
    compared: ClassVar[Mapping[str, str]] = {
        "self_retrieval_R@1": "R@1",
        "under_judge_R@1": "R@1 under MLE",
        "CIDEr": "CIDEr",
    }
    template = "study-captioning.html"

    def measure(self, arm: Arm, arms: Sequence[Arm], runs: Mapping[str, Run]) -> SeedResult:
        run, judge = runs[arm.key], runs[_root(arm, arms)]
        evaluation = evaluate(run, split=self.study.split, under=[judge], retrieval_images=self.retrieval_images)
        per_image = {
            "self_retrieval_R@1": (evaluation.values("rank") == 1).astype(np.float64),
            "under_judge_R@1": (evaluation.values("rank_under_judge") == 1).astype(np.float64),
            "CIDEr": evaluation.values("CIDEr"),
        }
        return SeedResult(run, evaluation, dict(evaluation.corpus), per_image)

    def differences(self, control: ArmResult, row: ArmResult, prepared: Prepared) -> dict[str, PairedDifference]:
        records = prepared.dataset.split(self.study.split)
        families = np.unique([record.family or record.id for record in records], return_inverse=True)[1]
        found = {}
        for figure in self.compared:
            a, b = (np.mean([one.per_image[figure] for one in of.seeds], axis=0) for of in (control, row))
            found[figure] = paired_bootstrap(a, b, groups=families[: len(a)])
        return found

    def images(self, rows: Sequence[ArmResult], prepared: Prepared) -> dict[str, int]:
        ranked = len(rows[0].seeds[0].per_image["self_retrieval_R@1"])
        return {"captioned": len(prepared.dataset.split(self.study.split)), "ranked": ranked}

    def finish(self, rows: Sequence[ArmResult], folder: Path) -> dict[str, Any]:
        return {"correlation": _correlation(rows)}

    def introduction(self, result: Result) -> str:
        ranked = result.images["ranked"]
        return (
            f"{result.images['captioned']} images captioned, each caption ranks {ranked} images; {result.seeds}. "
            f"R@1 by chance: {shown(1 / ranked, 'percent')}."
        )

    def conclusion(self, result: Result) -> list[str]:
        found = result.more["correlation"]
        return [] if found is None else [f"Correlation of R@1 with CIDEr over all arms and seeds: {found:+.2f}."]

    def page(self, result: Result, prepared: Prepared) -> dict[str, Any]:
        pictures = Pictures(prepared.dataset)
        records = prepared.dataset.split(result.study.split)
        arms = [row.arm for row in result.rows]
        pairs = []
        for row in _fully_contrastive(result):
            root = result.row(_root(row.arm, arms))
            before, after = (ComparedRun(of.arm.label, of.seeds[0].run, of.seeds[0].evaluation) for of in (root, row))
            pairs.append((before.label, after.label, cards((before, after), records, pictures, gained=True)))
        return {
            "chance": 1 / result.images["ranked"],
            "correlation": result.more["correlation"],
            "plane": _plane(result),
            "histograms": _histograms(result),
            "pairs": [pair for pair in pairs if pair[2]],
        }


def _root(arm: Arm, arms: Sequence[Arm]) -> str:
    """Key of the MLE model that an arm goes back to: the judge of its captions."""
    by_key = {other.key: other for other in arms}
    while arm.start is not None:
        arm = by_key[arm.start]
    return arm.key


def _correlation(rows: Sequence[ArmResult]) -> float | None:
    """Pearson correlation of self-retrieval R@1 with CIDEr over all arms and seeds; `None` if undefined."""
    recalls, ciders = ([v for row in rows for v in row.values(name)] for name in ("self_retrieval_R@1", "CIDEr"))
    if len(recalls) < 3 or np.std(recalls) == 0 or np.std(ciders) == 0:
        return None
    return float(np.corrcoef(recalls, ciders)[0, 1])


def _fully_contrastive(result: Result) -> list[ArmResult]:
    """Rows trained by the whole CL loss; the page shows their captions beside those of the MLE model."""

    def whole(row: ArmResult) -> bool:
        return not any(change.startswith("objective.") for change in row.arm.changes)

    return [row for row in result.rows if "reference" in row.arm.roles and whole(row)]


def _plane(result: Result) -> str:
    """Accuracy against distinctiveness, one point per arm and seed."""
    with plotting() as pyplot:
        figure, axis = pyplot.subplots(figsize=(9.5, 4.4))
        for row in result.rows:
            recalls, ciders = row.values("self_retrieval_R@1"), row.values("CIDEr")
            marker = "o" if row.arm.start is None else "s" if "reference" not in row.arm.roles else "^"
            axis.scatter([100 * r for r in recalls], ciders, marker=marker, s=42, label=row.arm.label)
        axis.set_xlabel("distinctiveness: captions that find their image, %")
        axis.set_ylabel("accuracy: CIDEr")
        axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
        return as_svg(figure)


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
            for kind, name, offset in (("positive", "true pairs", -0.2), ("negative", "mismatched", 0.2)):
                shares = [100 * last[f"G_{kind}_bin_{edge}"] for edge in names]
                axis.bar(places + offset, shares, width=0.4, label=name)
            axis.set_xticks(places, ["less", *(f"≥ {edge}" for edge in EDGES)], rotation=60, fontsize=7)
            axis.set_ylabel("% of pairs")
            axis.set_title(label)
            axis.legend(frameon=False, fontsize=8)
        for axis in axes.ravel()[len(found) :]:
            axis.set_visible(False)
        return as_svg(figure)
