"""Write told-apart pictures as a page, JSONL or a table."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tellapart.data.images import load_image
from tellapart.errors import DataError
from tellapart.files import GENERATOR, check_ending, check_output, write_jsonl, write_text
from tellapart.pages.base import data_address, render
from tellapart.telling_apart.tell import ToldApart, ToldPicture
from tellapart.text import plain_words

COLUMNS = tuple(ToldPicture.__dataclass_fields__)
# What a formula begins with, in the usual spreadsheets.
FORMULA = tuple("=+-@\t\r\n")
ENDINGS = (".html", ".jsonl", ".csv")


def check_told_apart(path: Path, inputs: Iterable[str | Path] = ()) -> None:
    """Raise unless the result can be written to this file. Call it before the work."""
    check_ending(path, *ENDINGS)
    check_output(path, *([GENERATOR] if path.suffix.lower() == ".html" else COLUMNS), inputs=inputs)


def write_told_apart(told: ToldApart, path: Path) -> None:
    """Write a page, JSONL or CSV, by the ending of the file."""
    check_told_apart(path)
    if path.suffix.lower() == ".html":
        write_text(path, page(told))
    elif path.suffix.lower() == ".csv":
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
    for one in told.pictures:
        if re.fullmatch(r"picture \d+", one.id) and not Path(one.id).exists():
            raise DataError(f"{one.id}: is not a file, and a page needs files; give paths, or write .jsonl or .csv")
    return render("tell-apart.html", skipped=told.skipped, **page_values(told))


def page_values(told: ToldApart) -> dict[str, Any]:
    """What a page says about groups and their pictures."""
    named = Counter(Path(one.id).name for one in told.pictures)
    copies: dict[str, list[str]] = {}
    for one in told.pictures:
        if one.same_as is not None:
            copies.setdefault(one.same_as, []).append(_name(one.id, named))
    groups = [[one for one in group if one.same_as is None] for group in told.groups]
    shown = [
        [{**_shown(one), "name": _name(one.id, named), "copies": copies.get(one.id, [])} for one in group]
        for group in groups
    ]
    alike = [group for group in shown if len(group) > 1]
    alone = [group[0] for group in shown if len(group) == 1]
    grouped = [one for group in groups if len(group) > 1 for one in group]
    return {
        "pictures": sum(map(len, groups)),
        "groups": alike,
        "alone": alone,
        "ranked_by": told.ranked_by,
        "grouped": len(grouped),
        "first_plain": sum(one.plain_rank == 1 for one in grouped),
        "first": sum(one.rank == 1 for one in grouped),
    }


def _name(id: str, named: Mapping[str, int]) -> str:
    """The name of a picture's file; its path if another one has this name."""
    return id if named[Path(id).name] > 1 else Path(id).name


def _shown(one: ToldPicture) -> dict[str, Any]:
    return {
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
