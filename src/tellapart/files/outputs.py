"""Check, before long work, that a result can be written and that no file of the user's is overwritten."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tellapart.errors import DataError
from tellapart.files.cache import cache_hint
from tellapart.files.temporary import temporary_path

# In every page that tellapart writes.
GENERATOR = '<meta name="generator" content="tellapart">'
# Larger JSON files are not results of tellapart.
_LARGEST_RESULT = 1 << 28


def check_output(path: Path, *marks: str, inputs: Iterable[str | Path] = (), reuse: bool = False) -> None:
    """Raise unless a result can be written to this file. Call it before long work.

    A file can be written if it is new, or if it exists and `is_result`. A file that is read is never written.

    Args:
        path: the file.
        marks: what the file contains if tellapart wrote it; see `is_result`.
        inputs: files that are read.
        reuse: the file may be used as it is: if it exists, its folder need not be writable.
    """
    real = Path(os.path.realpath(path))
    if real in [Path(os.path.realpath(one)) for one in inputs]:
        raise DataError(f"{path}: is an input and is not overwritten; choose another --out")
    try:
        if real.is_dir():
            raise DataError(f"{path}: this is a folder, and a file is needed; choose another --out")
        if real.exists() and not is_result(real, *marks):
            raise DataError(f"{path}: exists and was not written by tellapart; choose another --out")
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}); choose another --out") from None
    if not (reuse and real.exists()):
        check_folder(path.parent)


def check_ending(path: Path, *endings: str) -> None:
    """Raise unless the name of an output has one of these endings, which tell what is written."""
    if not path.name.lower().endswith(endings):
        known = f"use {endings[0]}" if len(endings) == 1 else f"use one of {', '.join(endings)}"
        raise DataError(f"{path}: the ending tells what is written; {known}")


def check_folder(folder: Path) -> None:
    """Raise unless files can be written into this folder, which may not exist yet; nothing is left behind."""
    place = Path(os.path.realpath(folder))
    try:
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise DataError(f"{place}: this is a file, and a folder is needed; choose another one{cache_hint(folder)}")
        probe = temporary_path(place / "probe")
        try:
            with open(probe, "xb") as handle:
                handle.write(bytes(4096))  # an empty file can be made on a full disk too
                handle.flush()
                os.fsync(handle.fileno())
        finally:
            with suppress(OSError):
                probe.unlink()
    except OSError as error:
        raise DataError(
            f"{folder}: files cannot be written here ({error.strerror or error}); make room or choose another folder"
            + cache_hint(folder)
        ) from None


def is_result(path: Path, *marks: str) -> bool:
    """Whether tellapart may have written this file, judged by its content; an empty file counts too.

    A page (`.html`, `.md`) or an `.xmp` file contains all marks. The first line of a `.csv` file names all marks as
    columns. Other files are JSON or JSONL: the object, or the first row, has all marks as keys. `a|b` stands for one of
    two keys.
    """
    if not path.is_file():
        return False
    if path.stat().st_size == 0:
        return True
    try:
        with open(path, encoding="utf-8") as handle:
            if path.suffix.lower() in (".html", ".md", ".xmp"):
                text = handle.read(_LARGEST_RESULT)
                return all(mark in text for mark in marks)
            line = handle.readline(_LARGEST_RESULT)
            if path.suffix.lower() == ".csv":
                return set(marks) <= set(line.strip().split(","))
            value = json.loads(line if _is_json(line) else line + handle.read(_LARGEST_RESULT))
    except (ValueError, RecursionError):  # not UTF-8, not JSON, or nested too deep
        return False
    if isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, dict) and all(any(key in value for key in mark.split("|")) for mark in marks)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True
