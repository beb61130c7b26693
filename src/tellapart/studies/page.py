"""Write a study as `table.md` and `study.html`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tellapart.engine.journal import read_journal
from tellapart.files import GENERATOR, check_output, write_text
from tellapart.metrics.bootstrap import LEVEL
from tellapart.pages.base import curves, render, shown
from tellapart.studies.columns import Column
from tellapart.studies.forest import forest, usual_control
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
    measure = measure_of(result.study)
    headlines, others = _columns(result)
    lines = [
        f"# {result.study.name}: {result.study.title}",
        "",
        f"{result.data}, split {result.study.split}, budget {result.budget}: {measure.introduction(result)}",
        "",
        *_markdown(["", *(column.heading for column in headlines)], [_cells(row, headlines) for row in result.table]),
    ]
    if others:
        lines += ["", "Further figures:", ""]
        lines += _markdown(["", *(column.heading for column in others)], [_cells(row, others) for row in result.table])
    headings, quoted = _quoted_table(result)
    if quoted:
        lines += ["", f"Quoted, not measured here: {result.study.source}.", ""]
        lines += _markdown(["", *headings], quoted)
    for column, rows in difference_tables(result):
        unit = ", in percentage points" if column.scale != 1 else ""
        lines += ["", f"{column.heading}: differences from the control{unit}", ""]
        lines += _markdown(["", *DIFFERENCE_HEADINGS], rows)
    if any(result.differences.values()):
        lines += ["", explanation(result)]
    concluded = measure.conclusion(result)
    if concluded:
        lines += ["", *concluded]
    headings, rows = chosen_table(result)
    if rows:
        lines += ["", chosen_sentence(result), "", *_markdown(["", *headings], rows)]
    if result.treatments:
        lines += ["", "How each arm differs from its control:", ""]
        lines += [f"- {label}: {'; '.join(differences)}" for label, differences in treatment_rows(result)]
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
    measure = measure_of(result.study, diversity_images=result.images.get("with_many_captions"))
    headlines, others = _columns(result)
    prepared = result.rows[0].seeds[0].run.data
    quoted_headings, quoted = _quoted_table(result)
    return render(
        measure.template,
        result=result,
        seeds=len(result.rows[0].seeds),
        headings=[column.heading for column in headlines],
        rows=[_cells(row, headlines) for row in result.table],
        other_headings=[column.heading for column in others],
        other_rows=[_cells(row, others) for row in result.table],
        quoted_headings=quoted_headings,
        quoted=quoted,
        forest=forest(result, measure.compared),
        difference_headings=DIFFERENCE_HEADINGS,
        differences=difference_tables(result),
        explanation=explanation(result) if any(result.differences.values()) else "",
        treatments=treatment_rows(result),
        chosen=chosen_sentence(result),
        chosen_table=chosen_table(result),
        curves=curves({row.arm.label: read_journal(row.seeds[0].run.folder) for row in result.rows}),
        **measure.page(result, prepared),
    )


def chosen_sentence(result: Result) -> str:
    """Which arm was chosen, where, and by what; empty if the study chooses none."""
    chosen = result.more.get("chosen")
    if chosen is None:
        return ""
    headings = {column.figure: column.heading for column in measure_of(result.study).compared}
    keeps = " and ".join(f"{share:.0%} of {headings[name]}" for name, share in chosen["keeps"].items())
    return (
        f"Chosen on the split {chosen['split']}: {result.row(chosen['key']).arm.label}, the best by "
        f"{headings[chosen['by']]} of the arms that keep {keeps} of their control's."
    )


def chosen_table(result: Result) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of the figures that the choice rests on: one row for each arm that is trained further."""
    chosen = result.more.get("chosen")
    if chosen is None:
        return [], []
    measured = chosen["means"][chosen["key"]]
    columns = [column for column in measure_of(result.study).compared if column.figure in measured]
    rows = []
    for key, means in chosen["means"].items():
        verdict = "chosen" if key == chosen["key"] else "keeps too little" if key in chosen["left_out"] else ""
        cells = [shown(means.get(column.figure), column.kind) for column in columns]
        rows.append([result.row(key).arm.label, *cells, verdict])
    return [*(column.heading for column in columns), ""], rows


def treatment_rows(result: Result) -> list[tuple[str, list[str]]]:
    """Label of each arm that was checked, and how it differs from its control."""
    return [(result.row(key).arm.label, differences) for key, differences in result.treatments.items()]


def quoted_rows(result: Result) -> list[tuple[str, dict[str, float]]]:
    """Label and figures of the rows quoted from the paper."""
    own = [(row.arm.label, dict(row.arm.quoted)) for row in result.rows if row.arm.quoted]
    return [*own, *((label, dict(figures)) for label, figures in result.study.more_quoted.items())]


def _quoted_table(result: Result) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of the quoted rows, without empty columns."""
    quoted = quoted_rows(result)
    filled = [column for column in result.study.columns if any(column.figure in figures for _, figures in quoted)]
    cells = [[label, *(shown(figures.get(c.figure), c.kind) for c in filled)] for label, figures in quoted]
    return [column.heading for column in filled], cells


DIFFERENCE_HEADINGS = ["against", "difference", "95 % interval", "p, corrected"]


def difference_tables(result: Result) -> list[tuple[Column, list[list[str]]]]:
    """For every compared figure, the rows that have it: label, control, difference, interval and corrected p value.

    A star marks the significant ones.
    """
    tables = []
    for column in measure_of(result.study).compared:
        rows = [
            _difference_cells(result, key, column)
            for key, found in result.differences.items()
            if column.figure in found
        ]
        if rows:
            tables.append((column, rows))
    return tables


def _difference_cells(result: Result, key: str, column: Column) -> list[str]:
    arm, found = result.row(key).arm, result.differences[key][column.figure]
    assert arm.control is not None
    digits = 1 if column.scale != 1 else 3
    # Adding 0 turns -0 into 0.
    difference, low, high = (
        f"{round(column.scale * value, digits) + 0.0:+.{digits}f}"
        for value in (found.difference, found.low, found.high)
    )
    corrected = result.corrected[key, column.figure]
    p_value = "< 0.001" if corrected < 0.001 else f"{corrected:.3f}"
    star = " *" if result.significant(key, column.figure) else ""
    return [arm.label, result.row(arm.control).arm.label, difference, f"[{low}, {high}]", p_value + star]


def explanation(result: Result) -> str:
    """How the differences were tested."""
    covered = {found.resampled for figures in result.differences.values() for found in figures.values()}
    if covered == {"images"}:
        means = (
            "Intervals cover images only: there is one seed, so they say how the figures of these trained models vary "
            "with the images, not what another training would give."
        )
    else:
        count = len(result.rows[0].seeds)
        means = f"Intervals cover seeds and images: other trainings (from {count} seeds, paired) and other images."
    return (
        f"Rows are compared with {usual_control(result).label}, unless another row is named. "
        f"{means} Near-duplicate images are drawn together. P values are corrected by Holm's method for all "
        f"{len(result.corrected)} comparisons of this study; a star marks those below {LEVEL:g}."
    )


def _columns(result: Result) -> tuple[list[Column], list[Column]]:
    """The headline figures, and the other columns of the study, each with at least one value.

    METEOR needs its data, R@500 needs 500 images, the true listener needs scenes.
    """
    headlines = list(measure_of(result.study).compared)
    names = {column.figure for column in headlines}
    others = [column for column in result.study.columns if column.figure not in names]
    return _measured(result, headlines), _measured(result, others)


def _measured(result: Result, columns: Sequence[Column]) -> list[Column]:
    return [column for column in columns if any(row.values(column.figure) for row in result.table)]


def _cells(row: ArmResult, columns: list[Column]) -> list[str]:
    cells = [row.arm.label]
    for column in columns:
        mean, deviation = row.mean(column.figure), row.deviation(column.figure)
        if mean is None or deviation is None:
            cells.append(shown(mean, column.kind))
        elif column.kind == "percent":
            cells.append(f"{shown(mean, 'points')} ± {shown(deviation, 'points')} %")
        else:
            cells.append(f"{shown(mean, column.kind)} ± {shown(deviation, column.kind)}")
    return cells


def _markdown(headings: list[str], rows: list[list[str]]) -> list[str]:
    return [
        "| " + " | ".join(headings) + " |",
        "|" + "---|" * len(headings),
        *("| " + " | ".join(cells) + " |" for cells in rows),
    ]
