"""Studies of captioners: captions scored against people's, and ranked by the model itself and by its judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tellapart.data.prepare import Prepared
from tellapart.evaluation.compare import ComparedRun
from tellapart.evaluation.evaluate import evaluate
from tellapart.files import read_jsonl
from tellapart.metrics import PairedDifference, paired_bootstrap
from tellapart.objectives.reference import EDGES
from tellapart.pages.base import Pictures, as_svg, plotting, shown
from tellapart.pages.report import cards
from tellapart.run import Run
from tellapart.studies.base import Model, Study
from tellapart.studies.result import Measured, Measuring, Result, Row


class Captioning(Measuring):
    """Each caption is ranked twice: by its own model's p(c|I), and by the likelihood model that its model goes back to.

    The latter knows nothing of the training that followed.
    """

    trains = "captioner"
    compared = {  # noqa: RUF012  # typed in the base
        "self_retrieval_R@1": "R@1",
        "under_judge_R@1": "R@1 under MLE",
        "CIDEr": "CIDEr",
    }
    template = "study-captioning.html"

    def measure(
        self,
        model: Model,
        models: Sequence[Model],
        trained: Mapping[str, Run],
        split: str,
        retrieval_images: int | None,
    ) -> Measured:
        run, judge = trained[model.key], trained[_root(model, models)]
        evaluation = evaluate(run, split=split, under=[judge], retrieval_images=retrieval_images)
        per_image = {
            "self_retrieval_R@1": (evaluation.values("rank") == 1).astype(np.float64),
            "under_judge_R@1": (evaluation.values("rank_under_judge") == 1).astype(np.float64),
            "CIDEr": evaluation.values("CIDEr"),
        }
        return Measured(run, evaluation, dict(evaluation.corpus), per_image)

    def differences(self, control: Row, row: Row, prepared: Prepared, split: str) -> dict[str, PairedDifference]:
        records = prepared.dataset.split(split)
        families = np.unique([record.family or record.id for record in records], return_inverse=True)[1]
        found = {}
        for figure in self.compared:
            a, b = (np.mean([one.per_image[figure] for one in of.seeds], axis=0) for of in (control, row))
            found[figure] = paired_bootstrap(a, b, groups=families[: len(a)])
        return found

    def images(self, rows: Sequence[Row], prepared: Prepared, split: str) -> dict[str, int]:
        ranked = len(rows[0].seeds[0].per_image["self_retrieval_R@1"])
        return {"captioned": len(prepared.dataset.split(split)), "ranked": ranked}

    def finish(self, study: Study, rows: Sequence[Row], folder: Path) -> dict[str, Any]:
        if study.name == "cl-table2":
            from tellapart.studies.server import add_server_figures

            add_server_figures(rows, study.split, folder)
        return {"correlation": _correlation(rows)}

    def introduction(self, result: Result) -> str:
        ranked = result.images["ranked"]
        return (
            f"{result.images['captioned']} images captioned, each caption ranks {ranked}; {result.seeds}. "
            f"Chance of R@1: {shown(1 / ranked, 'percent')}."
        )

    def conclusion(self, result: Result) -> list[str]:
        found = result.more["correlation"]
        return [] if found is None else [f"Correlation of R@1 with CIDEr over all models and seeds: {found:+.2f}."]

    def page(self, result: Result, prepared: Prepared) -> dict[str, Any]:
        pictures = Pictures(prepared.dataset)
        records = prepared.dataset.split(result.study.split)
        pairs = []
        for row in _contrasted(result):
            root = _root_row(result, row)
            before, after = (ComparedRun(of.model.label, of.seeds[0].run, of.seeds[0].evaluation) for of in (root, row))
            pairs.append((before.label, after.label, cards((before, after), records, pictures, gained=True)))
        return {
            "chance": 1 / result.images["ranked"],
            "correlation": result.more["correlation"],
            "plane": _plane(result),
            "histograms": _histograms(result),
            "pairs": [pair for pair in pairs if pair[2]],
        }


def _root(model: Model, models: Sequence[Model]) -> str:
    """Key of the likelihood model that a model goes back to: the judge of its captions."""
    by_key = {other.key: other for other in models}
    while model.start is not None:
        model = by_key[model.start]
    return model.key


def _correlation(rows: Sequence[Row]) -> float | None:
    """Pearson's of self-retrieval R@1 with CIDEr over all models and seeds; `None` if it has no meaning."""
    recalls, ciders = ([v for row in rows for v in row.values(name)] for name in ("self_retrieval_R@1", "CIDEr"))
    if len(recalls) < 3 or np.std(recalls) == 0 or np.std(ciders) == 0:
        return None
    return float(np.corrcoef(recalls, ciders)[0, 1])


def _contrasted(result: Result) -> list[Row]:
    """The models that CL trained in full, whose captions are shown beside those they started from."""

    def whole(row: Row) -> bool:
        return not any(change.startswith("objective.") for change in row.model.changes)

    return [row for row in result.rows if "reference" in row.model.roles and whole(row)]


def _root_row(result: Result, row: Row) -> Row:
    while row.model.start is not None:
        row = result.row(row.model.start)
    return row


def _plane(result: Result) -> str:
    """Accuracy against distinctiveness: every model and seed a point."""
    with plotting() as pyplot:
        figure, axis = pyplot.subplots(figsize=(9.5, 4.4))
        for row in result.rows:
            recalls, ciders = row.values("self_retrieval_R@1"), row.values("CIDEr")
            marker = "o" if row.model.start is None else "s" if "reference" not in row.model.roles else "^"
            axis.scatter([100 * r for r in recalls], ciders, marker=marker, s=42, label=row.model.label)
        axis.set_xlabel("distinctiveness: captions that find their image, %")
        axis.set_ylabel("accuracy: CIDEr")
        axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
        return as_svg(figure)


def _histograms(result: Result) -> str:
    """G of true and of mismatched validation pairs at the end of each contrastive training."""
    found: list[tuple[str, dict[str, Any]]] = []
    for row in result.rows:
        journal = read_jsonl(row.seeds[0].run.folder / "metrics.jsonl")
        last: dict[str, Any] = next((line for line in reversed(journal) if line["split"] == "val"), {})
        if "G_positive_bin_0" in last:
            found.append((row.model.label, last))
    if not found:
        return ""
    names = ["-inf", *map(str, EDGES)]
    places = np.arange(len(names))
    with plotting() as pyplot:
        columns = min(3, len(found))
        lines = -(-len(found) // columns)
        figure, axes = pyplot.subplots(lines, columns, figsize=(3.8 * columns, 2.5 * lines), squeeze=False)
        for axis, (label, last) in zip(axes.ravel(), found, strict=False):
            for kind, word, offset in (("positive", "true pairs", -0.2), ("negative", "mismatched", 0.2)):
                shares = [100 * last[f"G_{kind}_bin_{name}"] for name in names]
                axis.bar(places + offset, shares, width=0.4, label=word)
            axis.set_xticks(places, ["less", *(f"≥ {edge}" for edge in EDGES)], rotation=60, fontsize=7)
            axis.set_ylabel("% of pairs")
            axis.set_title(label)
            axis.legend(frameon=False, fontsize=8)
        for axis in axes.ravel()[len(found) :]:
            axis.set_visible(False)
        return as_svg(figure)
