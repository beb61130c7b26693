"""Read files of captions, whoever wrote them, and match their ids to a data set's images.

    {"391895": "a man on a bike", ...}                        a JSON object; a list of captions instead of one is fine
    {"id": "391895", "caption": "a man on a bike"}            JSONL rows, one a line, as `tellapart caption` writes them
    [{"image_id": 391895, "caption": "a man on a bike"}, …]   COCO's result format

Rows of the same image are several captions of it, the first the best.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from tellapart.data.images import SUFFIXES
from tellapart.data.records import Record
from tellapart.errors import DataError
from tellapart.files import is_utf8, read_json, read_jsonl

# COCO's file names: the year's first form, and that of 2017.
_COCO_NAME = re.compile(r"(?:COCO_(?:train|val|test)\d{4}_)?(\d{12})", re.ASCII)
_WHOLE_NUMBER = re.compile(r"0|[1-9]\d{0,11}", re.ASCII)


def captions_of_images(path: Path, records: Sequence[Record], split: str, only_these: bool = True) -> list[list[str]]:
    """The captions that a file has for these images, in their order.

    Args:
        path: the file.
        records: the images; each must have captions.
        split: which split they are, for messages.
        only_these: captions of other images are an error; otherwise they are ignored.
    """
    captions = read_captions(path)
    try:
        image_of = match_ids(captions, records)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    unknown = [id for id in captions if id not in image_of]
    if unknown and only_these:
        more = f" ({len(unknown)} such ids)" if len(unknown) > 1 else ""
        raise DataError(f"{path}: '{unknown[0]}'{more} is not in split '{split}'; check --split")
    found = {image_of[id]: texts for id, texts in captions.items() if id in image_of}
    missing = [record.id for record in records if record.id not in found]
    if missing:
        # Scoring only the captioned images would make the test set easier.
        which = f"'{missing[0]}' has" if len(missing) == 1 else f"{len(missing)} images ('{missing[0]}', …) have"
        raise DataError(f"{path}: {which} no caption; every image of split '{split}' needs one")
    return [found[record.id] for record in records]


def read_captions(path: Path) -> dict[str, list[str]]:
    """Captions by id, as the file writes it: a JSON object, JSONL rows, or COCO's result format.

    Every image has the same number of captions, or it is a `DataError`.
    """
    rows: Any = read_json(path, "caption file") if path.suffix == ".json" else read_jsonl(path, "caption file")
    if isinstance(rows, dict):
        rows = [{"id": id, "caption": caption} for id, caption in rows.items()]
    if not isinstance(rows, list):
        raise DataError(f"{path}: not a list of captions; docs/metrics.md shows the forms")
    captions: dict[str, list[str]] = {}
    for number, row in enumerate(rows, start=1):
        id, texts = _row(row)
        if id is None or not texts:
            raise DataError(f"{path}: row {number} needs 'id' (or 'image_id') and 'caption'; docs/metrics.md has forms")
        if not all(map(is_utf8, (id, *texts))):
            raise DataError(f"{path}: row {number} has signs that no UTF-8 file can hold; write it anew")
        captions.setdefault(id, []).extend(texts)
    if not captions:
        raise DataError(f"{path}: no caption is in this file")
    first = next(iter(captions))
    for id, texts in captions.items():
        if len(texts) != len(captions[first]):
            raise DataError(
                f"{path}: '{id}' has {_counted(len(texts), 'caption')} where '{first}' has {len(captions[first])}; "
                "give every image the same number"
            )
    return captions


def _row(row: Any) -> tuple[str | None, list[str]]:
    """Id and captions of one row; None or nothing where they are missing or of another kind."""
    if not isinstance(row, dict):
        return None, []
    id = row.get("image_id", row.get("id"))
    texts = row.get("caption", row.get("captions"))
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return None, []
    return (str(id) if isinstance(id, str | int) and not isinstance(id, bool) else None), texts


def match_ids(ids: Iterable[str], records: Sequence[Record]) -> dict[str, str]:
    """Which record each id of a caption file means; ids that mean none are left out.

    An id means the record of that id; else the one whose id it ends with, after a slash, with or without the picture's
    ending (`tellapart caption holiday/` writes `holiday/beach.jpg`); else the one of the same COCO number (391895 is
    COCO_val2014_000000391895.jpg). Two ids that mean one record are a `DataError`.

    >>> records = [Record("beach.jpg", "beach.jpg", "test", ()), Record("a/beach.jpg", "a/beach.jpg", "test", ())]
    >>> match_ids(["holiday/beach.jpg", "holiday/a/beach.jpg", "sea.jpg"], records)
    {'holiday/beach.jpg': 'beach.jpg', 'holiday/a/beach.jpg': 'a/beach.jpg'}
    """
    known = {record.id for record in records}
    numbered: dict[str, set[str]] = {}
    for record in records:
        if (number := _coco_number(record.id)) is not None:
            numbered.setdefault(number, set()).add(record.id)
    meant: dict[str, str] = {}
    by: dict[str, str] = {}
    for id in ids:
        found = id if id in known else _by_ending(id, known) or _by_number(id, numbered)
        if found is None:
            continue
        if found in by:
            raise DataError(f"'{by[found]}' and '{id}' both mean the image '{found}'; give each image one id")
        meant[id] = found
        by[found] = id
    return meant


def _by_ending(id: str, known: set[str]) -> str | None:
    """The longest known id that this path ends with."""
    parts = PurePosixPath(id).parts
    for start in range(len(parts)):
        ending = PurePosixPath(*parts[start:])
        for form in (ending, ending.with_suffix("") if ending.suffix.lower() in SUFFIXES else ending):
            if str(form) in known:
                return str(form)
    return None


def _by_number(id: str, numbered: Mapping[str, set[str]]) -> str | None:
    found = numbered.get(_coco_number(id) or "", set())
    return next(iter(found)) if len(found) == 1 else None


def _coco_number(id: str) -> str | None:
    """391895 for "391895", "000000391895.jpg" and "val2014/COCO_val2014_000000391895.jpg"; None for other names."""
    name = PurePosixPath(id).name
    stem = PurePosixPath(name).stem if PurePosixPath(name).suffix.lower() in SUFFIXES else name
    if match := _COCO_NAME.fullmatch(stem):
        return str(int(match[1]))
    return id if _WHOLE_NUMBER.fullmatch(id) else None


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
