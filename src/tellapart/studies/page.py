"""Write a study as `table.md` and `study.html`."""

from __future__ import annotations

from pathlib import Path

from tellapart.engine.journal import read_journal
from tellapart.files import GENERATOR, check_output, write_text
from tellapart.pages.base import curves, render, shown
from tellapart.studies.columns import Column
from tellapart.studies.measure import measure_of
from tellapart.studies.result import ArmResult, Result


def check_study_folder(folder: Path, study: str) -> None:
    """Raise unless the results of a study can be written into the folder."""
    check_output(folder / "study.json", "study", "budget", "rows", "differences")
    check_output(folder / "table.md", f"# {study}: ")
    check_output(folder / "study.html", GENERATOR)
    for path in (folder / "server").glob("captions_*_results.json"):
        check_output(path, "image_id", "caption")


def write_study(result: Result, folder: Path) -> None:
    """Write `table.md` and `study.html`."""
    write_text(folder / "table.md", study_table(result))
    write_text(folder / "study.html", study_page(result))


def study_table(result: Result) -> str:
    """The study in Markdown: measured and quoted figures, differences from the controls, searched learning rates."""
    columns = _columns(result)
    measure = measure_of(result.study)
    lines = [
        f"# {result.study.name}: {result.study.title}",
        "",
        f"{result.data}, split {result.study.split}, budget {result.budget}: {measure.introduction(result)}",
        "",
        *_markdown(["", *(column.heading for column in columns)], [_cells(row, columns) for row in result.rows]),
    ]
    headings, quoted = _quoted_table(result, columns)
    if quoted:
        lines += ["", f"Quoted, not measured here: {result.study.source}.", ""]
        lines += _markdown(["", *headings], quoted)
    if result.differences:
        lines += ["", "Differences from the control, paired bootstrap over images, 95 % interval:", ""]
        lines += _markdown(["", "against", *measure.compared.values()], difference_rows(result))
    concluded = measure.conclusion(result)
    if concluded:
        lines += ["", *concluded]
    if result.searches:
        figure = next(iter(result.searches.values())).figure
        lines += ["", f"Learning rates searched (validation {figure} after a quarter of the updates):", ""]
        for key, search in result.searches.items():
            tried = ", ".join(f"{rate:g}: {found:.4f}" for rate, found in sorted(search.tried.items()))
            lines.append(f"- {result.row(key).arm.label}: **{search.best:g}** ({tried})")
    if result.study.remark:
        lines += ["", result.study.remark]
    lines += [f"\nLeft out: {line}" for line in result.more.get("left_out", [])]
    return "\n".join(lines) + "\n"


def study_page(result: Result) -> str:
    """The study as one self-contained page."""
    columns = _columns(result)
    measure = measure_of(result.study)
    prepared = result.rows[0].seeds[0].run.data
    quoted_headings, quoted = _quoted_table(result, columns)
    return render(
        measure.template,
        result=result,
        seeds=len(result.rows[0].seeds),
        headings=[column.heading for column in columns],
        rows=[_cells(row, columns) for row in result.rows],
        quoted_headings=quoted_headings,
        quoted=quoted,
        compared=list(measure.compared.values()),
        differences=difference_rows(result),
        curves=curves({row.arm.label: read_journal(row.seeds[0].run.folder) for row in result.rows}),
        **measure.page(result, prepared),
    )


def quoted_rows(result: Result) -> list[tuple[str, dict[str, float]]]:
    """Label and figures of the rows quoted from the paper."""
    own = [(row.arm.label, dict(row.arm.quoted)) for row in result.rows if row.arm.quoted]
    return [*own, *((label, dict(figures)) for label, figures in result.study.more_quoted.items())]


def _quoted_table(result: Result, columns: list[Column]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of the quoted rows, without empty columns."""
    quoted = quoted_rows(result)
    filled = [column for column in columns if any(column.figure in figures for _, figures in quoted)]
    cells = [[label, *(shown(figures.get(c.figure), c.kind) for c in filled)] for label, figures in quoted]
    return [column.heading for column in filled], cells


def difference_rows(result: Result) -> list[list[str]]:
    """Label, control, and the difference of each compared figure with its interval; a star marks significance."""
    rows = []
    for key, figures in result.differences.items():
        arm = result.row(key).arm
        assert arm.control is not None
        cells = [arm.label, result.row(arm.control).arm.label]
        for figure in measure_of(result.study).compared:
            found = figures[figure]
            scale, digits = (100, 1) if "R@" in figure else (1, 3)
            star = "" if found.low <= 0 <= found.high else " *"
            low, high = scale * found.low, scale * found.high
            cells.append(f"{scale * found.difference:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]{star}")
        rows.append(cells)
    return rows


def _columns(result: Result) -> list[Column]:
    """Columns with at least one value: METEOR needs its data, R@500 needs 500 images."""
    return [column for column in result.study.columns if any(row.values(column.figure) for row in result.rows)]


def _cells(row: ArmResult, columns: list[Column]) -> list[str]:
    cells = [row.arm.label]
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
