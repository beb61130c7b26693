"""A contact sheet: the photographs that a search found, on one page that needs no other file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tellapart.data.images import load_image
from tellapart.errors import DataError
from tellapart.files import write_text
from tellapart.pages.base import data_address, render

# Pixels of the longer side of a picture in the page.
SIDE = 480


def write_contact_sheet(
    path: Path,
    query: str | Path,
    found: Sequence[Mapping[str, Any]],
    index: str,
    photos: int,
    limits: Sequence[str] = (),
    note: str | None = None,
) -> None:
    """Write the page; check before with `check_output` that it may be written.

    Args:
        path: of the page.
        query: a sentence, or a picture file.
        found: rows with `path`, `similarity`, `by`, `taken` and `caption`, best first.
        index: name of the index, and `photos` the number of photographs in it.
        limits: the filters, in words.
        note: one more sentence, such as how good an approximate search is.
    """
    folders = [os.path.dirname(row["path"]) for row in found]
    shared = os.path.commonpath(folders) if folders else ""
    cards = [
        {
            **row,
            "name": Path(row["path"]).name,
            "folder": os.path.relpath(folder, shared) if folder != shared else "",
            "link": Path(row["path"]).as_uri(),
            "captions": [line for line in row["caption"].split("\n") if line],
            "picture": _picture(Path(row["path"])),
        }
        for row, folder in zip(found, folders, strict=True)
    ]
    text = render(
        "contact-sheet.html",
        query=query if isinstance(query, str) else query.name,
        asked=_picture(query) if isinstance(query, Path) else None,
        cards=cards,
        folder=shared,
        index=index,
        photos=photos,
        limits=limits,
        note=note,
    )
    write_text(path, text)


def _picture(path: Path) -> str | None:
    try:
        return data_address(load_image(path), SIDE)
    except DataError:  # removed or changed since it was indexed
        return None
