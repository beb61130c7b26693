"""A study for people: `table.md` to quote from and `study.html` to look at."""

from __future__ import annotations

from pathlib import Path

from tellapart.files import read_jsonl, write_text
from tellapart.pages.base import curves, render, shown
from tellapart.studies.base import Column
from tellapart.studies.result import Result, Row, measuring_of


def write_study(result: Result, folder: Path) -> None:
    """Write `table.md` and `study.html`."""
    write_text(folder / "table.md", study_table(result))
    write_text(folder / "study.html", study_page(result))


def study_table(result: Result) -> str:
    """The study in Markdown: our figures, the paper's, the differences from the controls, the searched rates."""
    columns = _columns(result)
    measuring = measuring_of(result.study)
    lines = [
        f"# {result.study.name}: {result.study.title}",
        "",
        f"{result.data}, split {result.study.split}, budget {result.budget}: {measuring.introduction(result)}",
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
        lines += _markdown(["", "against", *measuring.compared.values()], difference_rows(result))
    concluded = measuring.conclusion(result)
    if concluded:
        lines += ["", *concluded]
    if result.searches:
        figure = next(iter(result.searches.values())).figure
        lines += ["", f"Learning rates searched (validation {figure} after a quarter of the updates):", ""]
        for key, search in result.searches.items():
            tried = ", ".join(f"{rate:g}: {found:.4f}" for rate, found in sorted(search.tried.items()))
            lines.append(f"- {result.row(key).model.label}: **{search.best:g}** ({tried})")
    if result.study.remark:
        lines += ["", result.study.remark]
    lines += [f"\nLeft out: {line}" for line in result.more.get("left_out", [])]
    return "\n".join(lines) + "\n"


def study_page(result: Result) -> str:
    """The study as one self-contained page."""
    columns = _columns(result)
    measuring = measuring_of(result.study)
    prepared = result.rows[0].seeds[0].run.data
    quoted = quoted_rows(result)
    return render(
        measuring.template,
        result=result,
        seeds=len(result.rows[0].seeds),
        headings=[column.heading for column in columns],
        rows=[_cells(row, columns) for row in result.rows],
        quoted_headings=[c.heading for c in columns if any(c.figure in figures for _, figures in quoted)],
        quoted=[
            [label, *(shown(f.get(c.figure), c.kind) for c in columns if any(c.figure in g for _, g in quoted))]
            for label, f in quoted
        ],
        compared=list(measuring.compared.values()),
        differences=difference_rows(result),
        curves=curves({row.model.label: read_jsonl(row.seeds[0].run.folder / "metrics.jsonl") for row in result.rows}),
        **measuring.page(result, prepared),
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
        for figure in measuring_of(result.study).compared:
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
