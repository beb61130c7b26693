"""Draw the differences of a study's rows from their controls, with intervals: a forest plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import fill

from tellapart.pages.base import as_svg, plotting
from tellapart.studies.base import Arm
from tellapart.studies.columns import Column
from tellapart.studies.result import Result

# Panels side by side, and letters in a line of a row's name.
PANELS = 4
NAME = 34
BETTER, WORSE, UNKNOWN = "#2a6f4e", "#b3423a", "#8a8f98"


def forest(result: Result, columns: Sequence[Column]) -> str:
    """One panel per figure and one line per row: the difference from the control and its 95 % interval.

    Differences that are significant after the correction are filled and coloured, the others are hollow and grey.
    """
    columns = [column for column in columns if any(column.figure in found for found in result.differences.values())]
    keys = list(result.differences)
    if not columns:
        return ""
    names = [fill(name, NAME) for name in compared_names(result)]
    across = min(PANELS, len(columns))
    down = -(-len(columns) // across)
    lines = sum(name.count("\n") + 1 for name in names)
    with plotting() as pyplot:
        figure, axes = pyplot.subplots(
            down, across, figsize=(11.8, down * (0.9 + 0.14 * len(keys) + 0.15 * lines)), sharey=True, squeeze=False
        )
        for axis, column in zip(axes.ravel(), columns, strict=False):
            axis.axvline(0, color="#b8bcc4", linewidth=1)
            for place, key in enumerate(keys):
                found = result.differences[key].get(column.figure)
                if found is None:
                    continue
                significant = result.significant(key, column.figure)
                colour = colour_of(column, found.difference) if significant else UNKNOWN
                low, middle, high = (column.scale * one for one in (found.low, found.difference, found.high))
                axis.plot([low, high], [place, place], color=colour, linewidth=1.6, solid_capstyle="butt")
                face = colour if significant else "white"
                axis.plot(middle, place, "o", markersize=5, color=colour, markerfacecolor=face)
            axis.set_title(column.heading, loc="left", fontweight="bold")
            if column.scale != 1:
                axis.set_xlabel("percentage points", fontsize=8)
            axis.margins(x=0.08)
            axis.spines["left"].set_visible(False)
            axis.tick_params(left=False)
            axis.grid(axis="y", color="#eceef1", linewidth=0.8)
            axis.set_axisbelow(True)
            axis.locator_params(axis="x", nbins=4)
        axes[0, 0].set_yticks(range(len(keys)), names)
        axes[0, 0].set_ylim(len(keys) - 0.5, -0.5)
        for axis in axes.ravel()[len(columns) :]:
            axis.set_visible(False)
        return as_svg(figure)


def colour_of(column: Column, difference: float) -> str:
    """Whether a difference from the control is for the better or for the worse."""
    return BETTER if (difference < 0) == column.lower_is_better else WORSE


def usual_control(result: Result) -> Arm:
    """The row that most rows are compared with."""
    controls = Counter(result.row(key).arm.control for key in result.differences)
    key = controls.most_common(1)[0][0]
    assert key is not None
    return result.row(key).arm


def compared_names(result: Result) -> list[str]:
    """The compared rows; those that are not compared with the usual control name their own."""
    rows = [result.row(key).arm for key in result.differences]
    controls = [result.row(arm.control).arm for arm in rows if arm.control is not None]
    labels = short_labels([arm.label for arm in (*rows, *controls)])
    usual = usual_control(result)
    return [
        own if control == usual else f"{own}, against {other}"
        for own, other, control in zip(labels[: len(rows)], labels[len(rows) :], controls, strict=True)
    ]


def short_labels(labels: Sequence[str]) -> list[str]:
    """Labels without the words before a comma that all trained rows have in common.

    >>> short_labels(["Adaptive, MLE", "Adaptive, CL", "people's captions"])
    ['MLE', 'CL', "people's captions"]
    >>> short_labels(["Adaptive, MLE", "Other, MLE"])
    ['Adaptive, MLE', 'Other, MLE']
    """
    starts = {start for start, comma, _ in (label.partition(", ") for label in labels) if comma}
    if len(starts) != 1:
        return list(labels)
    return [label.removeprefix(f"{next(iter(starts))}, ") for label in labels]
