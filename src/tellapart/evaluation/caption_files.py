"""Read files of captions, whoever wrote them, and match their ids to a data set's images.

    {"391895": "a man on a bike", ...}                        a JSON object; a list of captions instead of one is fine
    {"id": "391895", "caption": "a man on a bike"}            JSONL rows, one a line, as `tellapart caption` writes them
    [{"image_id": 391895, "caption": "a man on a bike"}, …]   COCO's result format
    image_id,caption                                          a table (.csv or .tsv) with the names of its columns

A row may name its image by `cocoid`, `imgid`, `image`, `file_name` or `filename` instead of `id` or `image_id`.
Rows of the same image are several captions of it, the first the best.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from tellapart.data.coco_ids import coco_id, coco_id_in_name
from tellapart.data.images import SUFFIXES
from tellapart.data.records import Record
from tellapart.errors import DataError, shorten
from tellapart.files import is_utf8, read_json, read_jsonl, read_text

# Keys of a row that name its image; the first that it has counts. Some also tell what its numbers are.
_KEYS = ("image_id", "id", "cocoid", "imgid", "image", "file_name", "filename")
_TABLES = {".csv": ",", ".tsv": "\t"}
_WHOLE_NUMBER = re.compile(r"0|[1-9]\d{0,11}", re.ASCII)


def captions_of_images(path: Path, records: Sequence[Record], split: str, only_these: bool = True) -> list[list[str]]:
    """The captions that a file has for these images, in their order.

    Captions of other images are left out if none of these images lacks one, with a message: so a file for all 5,000
    images of COCO's test split can be scored on those at hand.

    Args:
        path: the file.
        records: the images; each must have captions.
        split: which split they are, for messages.
        only_these: tell of captions of other images, and raise for them if one of these images has no caption.
    """
    captions, key = _read_captions(path)
    try:
        image_of = match_ids(captions, records, key)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    unknown = [id for id in captions if id not in image_of]
    found = {image_of[id]: texts for id, texts in captions.items() if id in image_of}
    missing = [record.id for record in records if record.id not in found]
    if unknown and missing and only_these:
        more = f" ({len(unknown)} such ids)" if len(unknown) > 1 else ""
        ways = ", ".join(["id", "COCO id"] + ["imgid"] * any(record.imgid is not None for record in records))
        raise DataError(
            f"{path}: '{unknown[0]}'{more} is not in split '{split}'; {len(image_of)} of {len(captions)} ids are: "
            f"check --split, or name the images by {ways} or file name"
        )
    if missing:
        # Scoring only the captioned images would make the test set easier.
        which = f"'{missing[0]}' has" if len(missing) == 1 else f"{len(missing)} images ('{missing[0]}', …) have"
        raise DataError(
            f"{path}: {which} no caption; every image of split '{split}' needs one, and "
            f"{len(records) - len(missing)} of {len(records)} have one"
        )
    if unknown and only_these:
        print(
            f"{path}: left out the captions of {_counted(len(unknown), 'image')} not in split '{split}' "
            f"('{shorten(unknown[0])}'{', …' if len(unknown) > 1 else ''})",
            file=sys.stderr,
        )
    return [found[record.id] for record in records]


def read_captions(path: Path, ragged: bool = False) -> dict[str, list[str]]:
    """Captions by id, as the file writes it: a JSON object, JSONL rows, COCO's result format, or a table.

    Unless they may be `ragged`, every image has the same number of captions, or it is a `DataError`.
    """
    return _read_captions(path, ragged)[0]


def read_sentences(path: Path) -> list[str]:
    """The captions of a file, whatever images they are of: also of a text file (.txt) with one on each line."""
    if path.suffix.lower() != ".txt":
        return [caption for captions in read_captions(path, ragged=True).values() for caption in captions]
    lines = [line.strip() for line in read_text(path, "caption file").splitlines()]
    if not any(lines):
        raise DataError(f"{path}: no caption is in this file; write one on each line")
    return [line for line in lines if line]


def _read_captions(path: Path, ragged: bool = False) -> tuple[dict[str, list[str]], str | None]:
    """Captions by id, and the key that named the images, if it is the same in all rows."""
    rows = _read_rows(path)
    if isinstance(rows, dict):
        rows = [{"id": id, "caption": caption} for id, caption in rows.items()]
    if not isinstance(rows, list):
        raise DataError(f"{path}: not a list of captions; docs/metrics.md shows the forms")
    captions: dict[str, list[str]] = {}
    keys: set[str | None] = set()
    for number, row in enumerate(rows, start=1):
        key, id, texts = _row(row)
        keys.add(key)
        if id is None or not texts:
            raise DataError(f"{path}: row {number} needs 'id' (or 'image_id') and 'caption'; docs/metrics.md has forms")
        if not all(map(is_utf8, (id, *texts))):
            raise DataError(f"{path}: row {number} has signs that no UTF-8 file can hold; write it anew")
        captions.setdefault(id, []).extend(texts)
    if not captions:
        raise DataError(f"{path}: no caption is in this file")
    # The number that most images have; of equally frequent ones that of the first image.
    usual = Counter(map(len, captions.values())).most_common(1)[0][0]
    example = next(id for id, texts in captions.items() if len(texts) == usual)
    for id, texts in captions.items():
        if len(texts) != usual and not ragged:
            raise DataError(
                f"{path}: '{id}' has {_counted(len(texts), 'caption')} where '{example}' has {usual}; "
                "give every image the same number"
            )
    return captions, keys.pop() if len(keys) == 1 else None


def _read_rows(path: Path) -> Any:
    """Content of a table, a JSON or a JSONL file; `tellapart caption --out captions.json` writes JSONL too."""
    if path.suffix.lower() in _TABLES:
        return _read_table(path, _TABLES[path.suffix.lower()])
    if path.suffix != ".json":
        return read_jsonl(path, "caption file")
    try:
        return read_json(path, "caption file")
    except DataError:
        with suppress(DataError):
            return read_jsonl(path, "caption file")
        raise


def _read_table(path: Path, separator: str) -> list[dict[str, str]]:
    """Rows of a table whose first line names the columns."""
    lines = csv.reader(io.StringIO(read_text(path, "caption file"), newline=""), delimiter=separator)
    try:
        columns, *rows = [row for row in lines if row] or [[]]
    except csv.Error as error:
        raise DataError(f"{path}: line {lines.line_num} is not a row of a table ({error}); fix or remove it") from None
    columns = [column.strip() for column in columns]
    if "caption" not in columns or not any(key in columns for key in _KEYS):
        raise DataError(
            f"{path}: the first line names the columns, 'caption' and one of {', '.join(_KEYS)}; here they are "
            f"{shorten(', '.join(columns)) or 'missing'}"
        )
    for number, row in enumerate(rows, start=2):
        if len(row) != len(columns):
            raise DataError(
                f"{path}: row {number} has {len(row)} columns and the first has {len(columns)}; put captions with "
                "commas into quotation marks"
            )
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _row(row: Any) -> tuple[str | None, str | None, list[str]]:
    """Key, id and captions of one row; None or nothing where they are missing or of another kind."""
    if not isinstance(row, dict):
        return None, None, []
    key = next((key for key in _KEYS if key in row), None)
    id = None if key is None else row[key]
    texts = row.get("caption", row.get("captions"))
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return None, None, []
    return key, (str(id) if isinstance(id, str | int) and not isinstance(id, bool) else None), texts


def match_ids(ids: Iterable[str], records: Sequence[Record], key: str | None = None) -> dict[str, str]:
    """Which record each id of a caption file means; ids that mean none are left out.

    An id means the record of that id or file name; else the one whose id or file name it ends with, after a slash, with
    or without the picture's ending (`tellapart caption holiday/` writes `holiday/beach.jpg`); else the one of the same
    COCO number (391895 is COCO_val2014_000000391895.jpg).

    A bare number may be an id, a COCO id (Karpathy's `cocoid`) or Karpathy's `imgid`. All numbers of a file are read in
    the same way: as the key says, if it is `cocoid` or `imgid`, else the one by which most of them are known. It is a
    `DataError` if COCO ids and `imgid` know equally many
    and mean different images, or if two ids mean one record.

    >>> records = [Record("beach.jpg", "beach.jpg", "test", ()), Record("a/beach.jpg", "a/beach.jpg", "test", ())]
    >>> match_ids(["holiday/beach.jpg", "holiday/a/beach.jpg", "sea.jpg"], records)
    {'holiday/beach.jpg': 'beach.jpg', 'holiday/a/beach.jpg': 'a/beach.jpg'}
    >>> match_ids(["1", "0"], [Record("x", "x.jpg", "test", (), imgid=0), Record("y", "y.jpg", "test", (), imgid=1)])
    {'1': 'y', '0': 'x'}
    """
    ids = list(ids)
    named, of_coco = _by_names(records), _by_coco_ids(records)
    numbered = _read_numbers([id for id in ids if _WHOLE_NUMBER.fullmatch(id)], records, named, of_coco, key)
    meant: dict[str, str] = {}
    by: dict[str, str] = {}
    for id in ids:
        if _WHOLE_NUMBER.fullmatch(id):
            found = numbered.get(id)
        else:
            number = coco_id_in_name(id)
            found = _by_ending(id, named) or (None if number is None else of_coco.get(str(number)))
        if found is None:
            continue
        if found in by:
            raise DataError(f"'{by[found]}' and '{id}' both mean the image '{found}'; give each image one id")
        meant[id] = found
        by[found] = id
    return meant


def _by_names(records: Sequence[Record]) -> dict[str, str]:
    """Ids and, where they are something else, paths and file names with and without ending -> id of the record."""
    names: list[tuple[str, str]] = []
    for record in records:
        if record.id != record.image:  # else a bare file name could be that of a picture in another folder
            image = PurePosixPath(record.image)
            names += [(name, record.id) for name in {record.image, image.name, image.stem}]
    return _only_one(names) | {record.id: record.id for record in records}


def _by_coco_ids(records: Sequence[Record]) -> dict[str, str]:
    """COCO ids -> id of the record; an id that is a bare number counts as one where the data set gives no other."""
    numbers: list[tuple[str, str]] = []
    for record in records:
        number = coco_id(record)
        if number is not None:
            numbers.append((str(number), record.id))
        elif _WHOLE_NUMBER.fullmatch(record.id):
            numbers.append((record.id, record.id))
    return _only_one(numbers)


def _only_one(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Name -> record, without the names of several records."""
    records_of: dict[str, set[str]] = {}
    for name, record in pairs:
        records_of.setdefault(name, set()).add(record)
    return {name: next(iter(found)) for name, found in records_of.items() if len(found) == 1}


def _read_numbers(
    numbers: Sequence[str],
    records: Sequence[Record],
    named: Mapping[str, str],
    of_coco: Mapping[str, str],
    key: str | None,
) -> dict[str, str]:
    """Which record each number means: all as ids or file names, all as COCO ids, or all as Karpathy's `imgid`."""
    of_karpathy = _only_one([(str(record.imgid), record.id) for record in records if record.imgid is not None])
    own, coco, karpathy = (
        {number: known[number] for number in numbers if number in known} for known in (named, of_coco, of_karpathy)
    )
    if key in ("cocoid", "imgid"):
        return coco if key == "cocoid" else karpathy
    most = max(len(own), len(coco), len(karpathy))
    if len(own) == most:  # the names that this program writes
        return own
    if len(coco) == len(karpathy) and coco != karpathy:
        number = next(number for number in numbers if coco.get(number) != karpathy.get(number))
        raise DataError(
            f"the numbers of this file are both COCO ids and Karpathy's imgid, of different images ('{number}' is "
            f"'{coco.get(number)}' or '{karpathy.get(number)}', and {most} of {len(numbers)} are known either way); "
            "name the images by their file names, or call the key 'cocoid' or 'imgid'"
        )
    return coco if len(coco) == most else karpathy


def _by_ending(id: str, named: Mapping[str, str]) -> str | None:
    """The record with the longest known name that this path ends with."""
    parts = PurePosixPath(id).parts
    for start in range(len(parts)):
        ending = PurePosixPath(*parts[start:])
        for form in (ending, ending.with_suffix("") if ending.suffix.lower() in SUFFIXES else ending):
            if str(form) in named:
                return named[str(form)]
    return None


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
