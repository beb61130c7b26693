"""Studies of retrievers: recalls in both directions, spread of the negatives, and example queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from tellapart.data.prepare import Prepared
from tellapart.evaluation.evaluate_retrieval import compare_seeds, evaluate_retrieval
from tellapart.evaluation.spread import measure_spread
from tellapart.metrics import PairedDifference
from tellapart.pages.base import Pictures, as_svg, plotting, shown
from tellapart.pages.gallery import shown_queries
from tellapart.run import Run
from tellapart.studies.base import Arm, Axis
from tellapart.studies.columns import DIRECTIONS, RETRIEVAL_HEADLINES, Column
from tellapart.studies.measure import Measure
from tellapart.studies.result import ArmResult, Result, SeedResult


class RetrievalMeasure(Measure):
    """The figures of `evaluate-retrieval`, and the spread of the negatives (`evaluation.spread`).

    Differences are paired by seed and over images, each with all its captions; seeds and images are resampled.
    """

    trains = "retriever"
    compared: ClassVar[tuple[Column, ...]] = RETRIEVAL_HEADLINES
    template = "study-retrieval.html"

    def measure(self, arm: Arm, arms: Sequence[Arm], runs: Mapping[str, Run]) -> SeedResult:
        run = runs[arm.key]
        measured = evaluate_retrieval(run, self.study.split)
        spread = measure_spread(run, self.study.split)
        figures = {**measured.figures, **spread.figures()}
        per_anchor = {f"{name}_negative_SD": values for name, values in vars(spread).items()}
        return SeedResult(run, measured, figures, per_anchor=per_anchor)

    def differences(self, control: ArmResult, row: ArmResult, prepared: Prepared) -> dict[str, PairedDifference]:
        compared, against = ([one.evaluation for one in of.seeds] for of in (row, control))
        return compare_seeds(compared, against, prepared, [column.figure for column in self.compared])

    def images(self, rows: Sequence[ArmResult], prepared: Prepared) -> dict[str, int]:
        measured = rows[0].seeds[0].evaluation
        return {"images": len(measured.images), "captions": len(measured.captions)}

    def introduction(self, result: Result) -> str:
        chance = result.rows[0].seeds[0].figures["chance_R@sum"]
        cut = ((row.arm.label, row.seeds[0].evaluation.how_reranked) for row in result.rows)
        return (
            f"{result.images['images']} images and {result.images['captions']} captions, {result.seeds}. Recalls are "
            f"in percent; R@sum is their sum, by chance {shown(chance, 'points')}."
            + "".join(f" {label}: {how[0].lower()}{how[1:]}" for label, how in cut if how)
        )

    def page(self, result: Result, prepared: Prepared) -> dict[str, Any]:
        # The last row that needs no extra package.
        last = next((row for row in reversed(result.rows) if row.arm.needs is None), result.rows[-1])
        axis = result.study.axis
        return {
            "chance": last.seeds[0].figures["chance_R@sum"],
            "drawn": "" if axis is None else _against(result, axis),
            "drawn_heading": "" if axis is None else f"Against {axis.heading}",
            "histograms": _histograms(result),
            "shown_arm": last.arm.label,
            **shown_queries(last.seeds[0].evaluation, Pictures(prepared.dataset)),
        }


def _against(result: Result, axis: Axis) -> str:
    """Plot figures against a swept setting (one curve per line) or against another figure (one point per arm)."""
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


def _lines(rows: Sequence[ArmResult], swept: bool) -> dict[str, list[ArmResult]]:
    lines: dict[str, list[ArmResult]] = {}
    for row in rows:
        lines.setdefault(row.arm.line if swept else row.arm.label, []).append(row)
    return lines


def _place(row: ArmResult, key: str) -> float:
    """A row's position on the axis: one of its figures, or a setting of its recipe."""
    if "." not in key:
        return row.mean(key) or 0.0
    content: Any = row.seeds[0].run.recipe.resolved()
    return float(reduce(lambda place, part: place[part], key.split("."), content))


def _histograms(result: Result) -> str:
    """Histograms of the SD of each anchor's negatives in both directions, one outline per arm."""
    with plotting() as pyplot:
        figure, axes = pyplot.subplots(1, 2, figsize=(11.8, 3.4), squeeze=False)
        for axis, (direction, name) in zip(axes[0], DIRECTIONS.items(), strict=True):
            key = f"{direction}_negative_SD"
            by_label = {row.arm.label: row.seeds[0].per_anchor[key] for row in result.rows}
            together = np.concatenate(list(by_label.values()))
            edges = np.linspace(together.min(initial=1.0), together.max(initial=0.0) + 1e-6, 41)
            for label, values in by_label.items():
                shares = 100 * np.histogram(values, edges)[0] / max(1, len(values))
                axis.stairs(shares, edges, linewidth=1.4, label=f"{label} ({values.mean():.3f})")
            axis.set_xlabel(f"SD of an anchor's negatives, {name}")
            axis.set_ylabel("% of anchors")
            axis.legend(frameon=False, fontsize=7)
        return as_svg(figure)
