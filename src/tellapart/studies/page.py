"""A study for people: `table.md` to quote from and `study.html` to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tellapart.data.prepare import prepare
from tellapart.evaluation.compare import Comparison
from tellapart.evaluation.compare import Row as ComparisonRow
from tellapart.files import read_jsonl, write_text
from tellapart.objectives.reference import EDGES
from tellapart.report import Pictures, as_svg, cards, curves, plotting, render, shown
from tellapart.studies.base import Column
from tellapart.studies.run import COMPARED, Result, Row


def write_study(result: Result, folder: Path) -> None:
    """Write `table.md` and `study.html`."""
    write_text(folder / "table.md", study_table(result))
    write_text(folder / "study.html", study_page(result))


def study_table(result: Result) -> str:
    """The study in Markdown: our figures, the paper's, the differences from the controls, the searched rates."""
    columns = _columns(result)
    seeds = len(result.rows[0].seeds)
    of_seeds = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    lines = [
        f"# {result.study.name}: {result.study.title}",
        "",
        f"{result.data}, split {result.study.split}: {result.images[0]} images captioned, each caption ranks "
        f"{result.images[1]}; budget {result.budget}, {of_seeds}. "
        f"Chance of R@1: {shown(1 / result.images[1], 'percent')}.",
        "",
        *_markdown(["", *(column.heading for column in columns)], [_cells(row, columns) for row in result.rows]),
    ]
    quoted = quoted_rows(result)
    if quoted:
        lines += ["", f"Quoted, not measured here: {result.study.source}.", ""]
        headings = [column for column in columns if any(column.figure in figures for _, figures in quoted)]
        cells = [[label, *(shown(figures.get(c.figure), c.kind) for c in headings)] for label, figures in quoted]
        lines += _markdown(["", *(column.heading for column in headings)], cells)
    if result.differences:
        lines += ["", "Differences from the control, paired bootstrap over images, 95 % interval:", ""]
        lines += _markdown(["", "against", *COMPARED.values()], difference_rows(result))
    if result.correlation is not None:
        lines += ["", f"Correlation of R@1 with CIDEr over all models and seeds: {result.correlation:+.2f}."]
    if result.searches:
        lines += ["", "Learning rates searched (validation loss after a quarter of the updates):", ""]
        for key, search in result.searches.items():
            tried = ", ".join(f"{rate:g}: {loss:.4f}" for rate, loss in sorted(search.losses.items()))
            lines.append(f"- {result.row(key).model.label}: **{search.best:g}** ({tried})")
    if result.study.remark:
        lines += ["", result.study.remark]
    return "\n".join(lines) + "\n"


def study_page(result: Result) -> str:
    """The study as one self-contained page."""
    columns = _columns(result)
    first = result.rows[0].seeds[0].run
    prepared = prepare(first.recipe.data)
    pictures = Pictures(prepared.dataset)
    records = prepared.dataset.split(result.study.split)
    quoted = quoted_rows(result)
    pairs = []
    for row in _contrasted(result):
        root = _root_row(result, row)
        said = [
            ComparisonRow(of.model.label, of.seeds[0].run, of.seeds[0].evaluation, np.empty(0)) for of in (root, row)
        ]
        comparison = Comparison(said, root.model.label, {}, records, prepared)
        pairs.append((root.model.label, row.model.label, cards(comparison, pictures, gained=True)))
    return render(
        "study.html",
        result=result,
        seeds=len(result.rows[0].seeds),
        chance=1 / result.images[1],
        headings=[column.heading for column in columns],
        rows=[_cells(row, columns) for row in result.rows],
        quoted_headings=[c.heading for c in columns if any(c.figure in figures for _, figures in quoted)],
        quoted=[
            [label, *(shown(f.get(c.figure), c.kind) for c in columns if any(c.figure in g for _, g in quoted))]
            for label, f in quoted
        ],
        compared=list(COMPARED.values()),
        differences=difference_rows(result),
        plane=_plane(result),
        histograms=_histograms(result),
        curves=curves({row.model.label: read_jsonl(row.seeds[0].run.folder / "metrics.jsonl") for row in result.rows}),
        pairs=[pair for pair in pairs if pair[2]],
    )


def quoted_rows(result: Result) -> list[tuple[str, dict[str, float]]]:
    """The paper's own rows: label -> figures."""
    own = [(row.model.label, dict(row.model.quoted)) for row in result.rows if row.model.quoted]
    return [*own, *((label, dict(figures)) for label, figures in result.study.more_quoted.items())]


def difference_rows(result: Result) -> list[list[str]]:
    """Label, control, and each compared figure's difference with its interval; what is significant has a star."""
    rows = []
    for key, figures in result.differences.items():
        model = result.row(key).model
        assert model.control is not None
        cells = [model.label, result.row(model.control).model.label]
        for figure in COMPARED:
            found = figures[figure]
            scale, digits = (100, 1) if "R@" in figure else (1, 3)
            star = "" if found.low <= 0 <= found.high else " *"
            low, high = scale * found.low, scale * found.high
            cells.append(f"{scale * found.difference:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]{star}")
        rows.append(cells)
    return rows


def _columns(result: Result) -> list[Column]:
    """Figures that some model has: METEOR needs its data, R@500 needs 500 images."""
    return [column for column in result.study.columns if any(row.values(column.figure) for row in result.rows)]


def _cells(row: Row, columns: list[Column]) -> list[str]:
    cells = [row.model.label]
    for column in columns:
        mean, deviation = row.mean(column.figure), row.deviation(column.figure)
        cells.append(shown(mean, column.kind) + ("" if deviation is None else f" ± {shown(deviation, column.kind)}"))
    return cells


def _markdown(headings: list[str], rows: list[list[str]]) -> list[str]:
    return [
        "| " + " | ".join(headings) + " |",
        "|" + "---|" * len(headings),
        *("| " + " | ".join(cells) + " |" for cells in rows),
    ]


def _contrasted(result: Result) -> list[Row]:
    """The models that CL trained in full, whose captions are shown beside those they started from."""

    def whole(row: Row) -> bool:
        return not any(change.startswith("objective.") for change in row.model.changes)

    return [row for row in result.rows if row.model.reference is not None and whole(row)]


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
            marker = "o" if row.model.start is None else "s" if row.model.reference is None else "^"
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
