"""Write told-apart pictures as a page, JSONL or a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tellapart.data.images import load_image
from tellapart.errors import DataError
from tellapart.files import GENERATOR, check_output, write_jsonl, write_text
from tellapart.pages.base import data_address, render
from tellapart.telling_apart.tell import ToldApart, ToldPicture
from tellapart.text import plain_words

COLUMNS = tuple(ToldPicture.__dataclass_fields__)
# What a formula begins with, in the usual spreadsheets.
FORMULA = tuple("=+-@\t\r\n")
ENDINGS = (".html", ".jsonl", ".csv")


def check_told_apart(path: Path, inputs: Iterable[str | Path] = ()) -> None:
    """Raise unless the result can be written to this file. Call it before the work."""
    if path.suffix not in ENDINGS:
        raise DataError(f"{path}: the ending tells what is written; use one of {', '.join(ENDINGS)}")
    check_output(path, *([GENERATOR] if path.suffix == ".html" else COLUMNS), inputs=inputs)


def write_told_apart(told: ToldApart, path: Path) -> None:
    """Write a page, JSONL or CSV, by the ending of the file."""
    check_told_apart(path)
    if path.suffix == ".html":
        write_text(path, page(told))
    elif path.suffix == ".csv":
        write_text(path, table(told))
    else:
        write_jsonl(path, [one.row() for one in told.pictures])


def table(told: ToldApart) -> str:
    """CSV with the names of the columns; `words` are joined by blanks. A spreadsheet reads no cell as a formula."""
    buffer = io.StringIO()
    rows = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    rows.writeheader()
    for one in told.pictures:
        cells = {**one.row(), "words": " ".join(one.words)}
        rows.writerow({name: no_formula(cell) if isinstance(cell, str) else cell for name, cell in cells.items()})
    return buffer.getvalue()


def no_formula(text: str) -> str:
    """Text that a spreadsheet would run as a formula, with a quote before it; other text as it is.

    >>> no_formula("=1+1.jpg"), no_formula("a dog")
    ("'=1+1.jpg", 'a dog')
    """
    return f"'{text}" if text.lstrip(" ")[:1] in FORMULA else text


def page(told: ToldApart) -> str:
    """One self-contained page: groups with both captions of each picture. Pictures must be files."""
    return render("tell-apart.html", pictures=len(told.pictures), skipped=told.skipped, **page_values(told))


def page_values(told: ToldApart) -> dict[str, Any]:
    """What a page says about groups and their pictures."""
    alike = [[_shown(one) for one in group] for group in told.groups if len(group) > 1]
    alone = [_shown(one) for group in told.groups if len(group) == 1 for one in group]
    grouped = [one for group in told.groups if len(group) > 1 for one in group]
    return {
        "groups": alike,
        "alone": alone,
        "ranked_by": told.ranked_by,
        "grouped": len(grouped),
        "first_plain": sum(one.plain_rank == 1 for one in grouped),
        "first": sum(one.rank == 1 for one in grouped),
    }


def _shown(one: ToldPicture) -> dict[str, Any]:
    return {
        "name": Path(one.id).name,
        "picture": data_address(load_image(Path(one.id), at_least=352)),
        "plain": one.plain,
        "caption": one.caption,
        "parts": marked_parts(one.caption, one.words),
        "plain_rank": one.plain_rank,
        "rank": one.rank,
        "of": one.of,
    }


def marked_parts(caption: str, words: Iterable[str]) -> list[tuple[str, bool]]:
    """The caption in parts, each with whether it is marked.

    >>> marked_parts("A red car, parked", ["red", "car"])
    [('A', False), ('red', True), ('car,', True), ('parked', False)]
    """
    wanted = set(words)
    return [(part, bool(wanted.intersection([part, *plain_words(part)]))) for part in caption.split()]
