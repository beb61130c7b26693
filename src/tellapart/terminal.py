"""Tables on the standard output: drawn by rich on a terminal, aligned plain text in pipes and files."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence

Cell = str | int | float | None

# How a figure, an interval or a missing value begins.
_FIGURE = re.compile(r"$|–|[-+−±<>\[]*\.?\d")


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Cell]], title: str | None = None) -> None:
    """Print a table; columns of numbers are right-aligned.

    Args:
        headings: one for each column.
        rows: their cells. A float is shown with four decimals (give a string for others), `None` as –.
        title: a line above the table.
    """
    lines = [list(headings), *([_text(cell) for cell in row] for row in rows)]
    if not sys.stdout.isatty() or not _print_rich(lines, title):
        print(plain_table(headings, lines[1:]) if title is None else f"{title}\n{plain_table(headings, lines[1:])}")


def plain_table(headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A table as aligned plain text; see `print_table`.

    >>> print(plain_table(["", "CIDEr", "p"], [["MLE", 0.91234, None], ["CL", 1.0, "0.020"]]))
          CIDEr      p
    MLE  0.9123      –
    CL   1.0000  0.020
    """
    cells = [[_text(cell) for cell in row] for row in rows]
    columns = []
    for column in zip(headings, *cells, strict=True):
        width, align = max(map(len, column)), str.rjust if _is_numeric(column) else str.ljust
        columns.append([align(cell, width) for cell in column])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _print_rich(lines: list[list[str]], title: str | None) -> bool:
    """Print a table drawn by rich; false, and nothing printed, if its figures do not fit the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(title=title and Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in zip(*lines, strict=True):
        if _is_numeric(column):
            table.add_column(Text(column[0]), justify="right", no_wrap=True, min_width=max(map(len, column)))
        else:
            table.add_column(Text(column[0]))
    for line in lines[1:]:
        table.add_row(*map(Text, line))
    if console.measure(table, options=console.options.update(max_width=10_000)).minimum > console.width:
        return False
    console.print(table)
    return True


def _text(cell: Cell) -> str:
    if cell is None:
        return "–"
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def _is_numeric(column: Sequence[str]) -> bool:
    """Whether every cell below the heading is a figure, an interval or missing."""
    return all(map(_FIGURE.match, column[1:]))
