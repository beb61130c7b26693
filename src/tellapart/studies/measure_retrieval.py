"""Studies of retrievers: recalls both ways, how far the negatives are spread, and what the last model finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from tellapart.data.prepare import Prepared
from tellapart.evaluation.evaluate_retrieval import compare_seeds, evaluate_retrieval
from tellapart.evaluation.spread import measure_spread
from tellapart.metrics import PairedDifference
from tellapart.pages.base import Pictures, as_svg, plotting, shown
from tellapart.pages.gallery import shown_queries
from tellapart.run import Run
from tellapart.studies.base import Axis, Column, Model
from tellapart.studies.result import Measured, Measuring, Result, Row

DIRECTIONS = {"image_to_text": "image→text", "text_to_image": "text→image"}
RECALLS = tuple(
    Column(f"{direction}_R@{k}", f"{name} R@{k}", "points")
    for direction, name in DIRECTIONS.items()
    for k in (1, 5, 10)
)
RECALL_SUM = Column("R@sum", "R@sum", "points")
SPREAD = tuple(Column(f"{direction}_negative_SD", f"SD of negatives, {name}") for direction, name in DIRECTIONS.items())


class Retrieval(Measuring):
    """What `evaluate-retrieval` measures, and the spread of the negatives (`evaluation.spread`).

    Differences are paired over images, each with all its captions; hits of several seeds are averaged first.
    """

    trains = "retriever"
    compared = {  # noqa: RUF012  # typed in the base
        "image_to_text_R@1": "image→text R@1",
        "text_to_image_R@1": "text→image R@1",
        "R@sum": "R@sum",
    }
    template = "study-retrieval.html"

    def measure(
        self,
        model: Model,
        models: Sequence[Model],
        trained: Mapping[str, Run],
        split: str,
        retrieval_images: int | None,
    ) -> Measured:
        run = trained[model.key]
        measured = evaluate_retrieval(run, split)
        spread = measure_spread(run, split)
        figures = {**measured.figures, **spread.figures()}
        return Measured(
            run, measured, figures, {f"{name}_negative_SD": values for name, values in vars(spread).items()}
        )

    def differences(self, control: Row, row: Row, prepared: Prepared, split: str) -> dict[str, PairedDifference]:
        compared, against = ([one.evaluation for one in of.seeds] for of in (row, control))
        return compare_seeds(compared, against, prepared, self.compared)

    def images(self, rows: Sequence[Row], prepared: Prepared, split: str) -> dict[str, int]:
        measured = rows[0].seeds[0].evaluation
        return {"images": len(measured.images), "captions": len(measured.captions)}

    def introduction(self, result: Result) -> str:
        chance = result.rows[0].seeds[0].figures["chance_R@sum"]
        return (
            f"{result.images['images']} images and {result.images['captions']} captions, {result.seeds}. Recalls are "
            f"in percent; R@sum is the sum of the six, by chance {shown(chance, 'points')}."
        )

    def page(self, result: Result, prepared: Prepared) -> dict[str, Any]:
        # Rows that need an extra are beside the study, not what it leads to.
        last = next((row for row in reversed(result.rows) if row.model.needs is None), result.rows[-1])
        axis = result.study.axis
        return {
            "chance": last.seeds[0].figures["chance_R@sum"],
            "drawn": "" if axis is None else _against(result, axis),
            "drawn_heading": "" if axis is None else f"Against {axis.heading}",
            "histograms": _histograms(result),
            "shown_model": last.model.label,
            **shown_queries(last.seeds[0].evaluation, Pictures(prepared.dataset)),
        }


def _against(result: Result, axis: Axis) -> str:
    """Figures against a setting that is swept, a curve for each line; or against another figure, a point each."""
    swept = "." in axis.key
    names = {column.figure: column.heading for column in result.study.columns}
    with plotting() as pyplot:
        panels = len(axis.drawn)
        figure, axes = pyplot.subplots(1, panels, figsize=(4.8 * panels + 2.2, 3.4), squeeze=False)
        for panel, drawn in zip(axes[0], axis.drawn, strict=True):
            for label, rows in _lines(result.rows, swept).items():
                places = [_place(row, axis.key) for row in rows]
                means = [100 * (row.mean(drawn) or 0.0) for row in rows]
                order = np.argsort(places, kind="stable")
                errors = [100 * (row.deviation(drawn) or 0.0) for row in rows]
                panel.errorbar(
                    *(np.array(values)[order] for values in (places, means)),
                    yerr=np.array(errors)[order] if any(errors) else None,
                    marker="o",
                    linestyle="-" if swept else "none",
                    capsize=3,
                    label=label,
                )
            panel.set_xlabel(axis.heading)
            panel.set_ylabel(names[drawn])
            if axis.logarithmic:
                panel.set_xscale("log")
            if swept:
                ticks = sorted({_place(row, axis.key) for row in result.rows})
                panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
                panel.minorticks_off()
        axes[0, -1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
        return as_svg(figure)


def _lines(rows: Sequence[Row], swept: bool) -> dict[str, list[Row]]:
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(row.model.line if swept else row.model.label, []).append(row)
    return lines


def _place(row: Row, key: str) -> float:
    """Where a row stands on the axis: a figure of it, or a setting of its recipe."""
    if "." not in key:
        return row.mean(key) or 0.0
    content: Any = row.seeds[0].run.recipe.resolved()
    return float(reduce(lambda place, part: place[part], key.split("."), content))


def _histograms(result: Result) -> str:
    """The SD of each anchor's negatives, both ways, the models' outlines over one another."""
    with plotting() as pyplot:
        figure, axes = pyplot.subplots(1, 2, figsize=(11.8, 3.4), squeeze=False)
        for axis, (direction, name) in zip(axes[0], DIRECTIONS.items(), strict=True):
            key = f"{direction}_negative_SD"
            of_models = {row.model.label: row.seeds[0].per_image[key] for row in result.rows}
            everyones = np.concatenate(list(of_models.values()))
            edges = np.linspace(everyones.min(initial=1.0), everyones.max(initial=0.0) + 1e-6, 41)
            for label, values in of_models.items():
                shares = 100 * np.histogram(values, edges)[0] / max(1, len(values))
                axis.stairs(shares, edges, linewidth=1.4, label=f"{label} ({values.mean():.3f})")
            axis.set_xlabel(f"SD of an anchor's negatives, {name}")
            axis.set_ylabel("% of anchors")
            axis.legend(frameon=False, fontsize=7)
        return as_svg(figure)
