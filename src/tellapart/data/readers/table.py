"""Tables: CSV, TSV, JSONL or Parquet with an image column and a caption column."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tellapart.data.readers.checks import SPLIT_NAMES, ImageRoot, caption_of, text_of
from tellapart.data.records import Dataset, Record
from tellapart.errors import DataError, MissingExtraError, quote, some
from tellapart.files import read_jsonl, read_text

# Accepted column names; the first that the table has is used.
COLUMNS = {
    "image": ("image", "file", "filename", "path", "file_name"),
    "caption": ("caption", "text", "sentence", "captions"),
    "split": ("split",),
    "id": ("id",),
}

Rows = Iterator[tuple[str, dict[str, Any]]]


@dataclass
class _Image:
    image: str
    id: str
    split: str
    captions: list[str] = field(default_factory=list)


def matches(source: Path) -> bool:
    return source.suffix in TABLES and source.is_file()


def read(source: Path) -> Dataset:
    """Read one caption per row, or a list of them in `captions`. Rows of the same image are its captions.

    Images are paths relative to the table's folder; a name without a folder is looked for in `images/` if it exists.
    The id is the image as written unless there is a column `id`. Without a column `split` all rows are `test`.
    """
    root = ImageRoot(source.parent)
    fallback = "images" if (source.parent / "images").is_dir() else ""
    images: dict[str, _Image] = {}
    for where, row in TABLES[source.suffix](source):
        name = text_of(row["image"], where, "has no image name (pictures inside a table are not read)").strip()
        id = _id(row["id"], where) if "id" in row else name
        split = _split(row["split"], where) if "split" in row else "test"
        seen = images.get(name)
        if seen is None:
            image = root.image("" if "/" in name else fallback, name, where)
            seen = images[name] = _Image(image, id, split)
        elif (seen.id, seen.split) != (id, split):
            raise DataError(
                f"{where}: '{name}' is '{id}' in {split} here and '{seen.id}' in {seen.split} above; "
                "an image has one id and one split"
            )
        seen.captions += _captions(row["caption"], where)
    if not images:
        raise DataError(f"{source}: the table has no rows; give it rows with an image and a caption")
    records = [Record(one.id, one.image, one.split, tuple(one.captions)) for one in images.values()]
    return Dataset(source.stem, source.parent, tuple(records))


def _id(value: Any, where: str) -> str:
    return str(value) if type(value) is int else text_of(value, where, "has no id; write one or drop the column")


def _split(value: Any, where: str) -> str:
    split = SPLIT_NAMES.get(value) if isinstance(value, str) else None
    if split is None:
        raise DataError(f"{where}: split is {quote(value)}; it must be one of {', '.join(SPLIT_NAMES)}")
    return split


def _captions(value: Any, where: str) -> list[str]:
    if isinstance(value, list) and value:
        return [caption_of(one, where) for one in value]
    return [caption_of(value, where)]


def _columns(names: list[str], where: str) -> dict[str, str]:
    """The names of the image and caption columns, and of split and id if present."""
    known = {name.strip().lower(): name for name in reversed(names)}
    found = {what: next((known[name] for name in choices if name in known), None) for what, choices in COLUMNS.items()}
    for what in ("image", "caption"):
        if found[what] is None:
            wanted, there = ", ".join(COLUMNS[what]), some(names, 20) or "nothing"
            raise DataError(f"{where}: no column for the {what} (one of {wanted}); its columns are: {there}")
    return {what: name for what, name in found.items() if name is not None}


def _separated(delimiter: str) -> Callable[[Path], Rows]:
    def read(path: Path) -> Rows:
        lines = csv.reader(io.StringIO(read_text(path, "table")), delimiter=delimiter, strict=True)
        try:
            header = next(lines, [])
            places = {what: header.index(name) for what, name in _columns(header, str(path)).items()}
            for cells in lines:
                if not cells:
                    continue
                where = f"{path}: line {lines.line_num}"
                if len(cells) != len(header):
                    raise DataError(
                        f"{where} has {len(cells)} cells, the first line has {len(header)}; "
                        "put quotes around a caption that contains the separator"
                    )
                yield where, {what: cells[place] for what, place in places.items()}
        except csv.Error as error:
            raise DataError(f"{path}: line {lines.line_num} cannot be read ({error}); fix its quotes") from None

    return read


def _json_lines(path: Path) -> Rows:
    rows = read_jsonl(path, "table")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise DataError(f"{path}: row {number} is not an object")
    # Columns of all rows: if some rows have a split, a row without one is an error, not a test row.
    columns = _columns(list(dict.fromkeys(name for row in rows for name in row)), str(path))
    for number, row in enumerate(rows, start=1):
        yield f"{path}: row {number}", {what: row.get(name) for what, name in columns.items()}


def _parquet(path: Path) -> Rows:
    try:
        import pyarrow as arrow  # type: ignore[import-untyped]
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError("pyarrow", "tables") from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            columns = _columns(file.schema_arrow.names, str(path))
            for batch in file.iter_batches(columns=list(columns.values())):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", {what: row[name] for what, name in columns.items()}
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text near row {number + 1} ({error.reason}); write it again") from None
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error}); replace it") from None


TABLES: dict[str, Callable[[Path], Rows]] = {
    ".csv": _separated(","),
    ".tsv": _separated("\t"),
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}
