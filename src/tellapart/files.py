"""Atomic writes, reads with clear errors, digests, and derived files that are made once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tellapart.errors import DataError


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Write to the temporary path given; then it is flushed and renamed. A reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _flush_file(temporary)
        os.replace(temporary, path)
        _flush_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_text(path: Path, what: str = "file") -> str:
    """Read a UTF-8 file, without a byte order mark; a missing or undecodable file is a `DataError`."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path}: this {what} does not exist; check the path") from None
    except IsADirectoryError:
        raise DataError(f"{path}: this is a folder, a {what} was expected") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None


def is_utf8(text: str) -> bool:
    """Whether a text can be written as UTF-8: lone surrogates (from JSON, or undecodable file names) cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def read_json(path: Path, what: str = "file") -> Any:
    """Parse a JSON file; a missing or broken one is a `DataError` that names it."""
    try:
        return json.loads(read_text(path, what))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not valid JSON (line {error.lineno}: {error.msg}); fix or replace it") from None


def read_jsonl(path: Path, what: str = "file") -> list[Any]:
    rows = []
    # Not splitlines(): it would cut a caption at characters such as U+2028, which JSON does not escape.
    for number, line in enumerate(read_text(path, what).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise DataError(f"{path}: line {number} is not valid JSON ({error.msg}); fix or remove it") from None
    return rows


def find_or_make(path: Path, made_from: Any, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Read a derived JSON file if it was made from the same inputs, else make and write it.

    A file made from other inputs is removed before `make` is called, so that an interrupted call never leaves it beside
    newer files that `make` has written.

    Args:
        path: the file.
        made_from: the inputs, as plain data; their digest is stored as `made_from`.
        make: returns the content.
    """
    digest = digest_of(made_from)
    if path.exists():
        found = read_json(path)
        if not isinstance(found, dict) or "made_from" not in found:
            raise DataError(f"{path}: was not written by tellapart and is not overwritten; write to another folder")
        if found["made_from"] == digest:
            return found
        path.unlink()
    content = {"made_from": digest, **make()}
    write_json(path, content)
    return content


def find_or_make_rows(path: Path, made_from: Any, make: Callable[[], list[Any]]) -> list[Any]:
    """As `find_or_make`, for a JSONL file; the digest is in a hidden file beside it."""
    mark, digest = path.with_name(f".{path.name}.made_from"), digest_of(made_from)
    if path.exists():
        if not mark.exists():
            raise DataError(f"{path}: was not written by tellapart and is not overwritten; move it away")
        if mark.read_text(encoding="utf-8") == digest:
            return read_jsonl(path)
        path.unlink()
    rows = make()
    write_text(mark, digest)
    write_jsonl(path, rows)
    return rows


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Fill a folder under a temporary name; rename it when the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _flush_file(file)
        _replace_folder(temporary, path)
        _flush_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _flush_file(path: Path) -> None:
    with open(path, "rb") as handle:
        os.fsync(handle.fileno())


def _flush_folder(folder: Path) -> None:
    """Flush the folder's entries: without it a power cut may undo a rename."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _replace_folder(new: Path, path: Path) -> None:
    """Rename a folder; a folder that had the name is deleted only after that has succeeded."""
    old = path.with_name(f"{path.name}.old")
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(path, old)
    try:
        os.replace(new, path)
    except OSError:
        if old.exists():
            os.replace(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def digest_of(value: Any) -> str:
    """sha256 of a value's canonical JSON: equal values have equal digests on every machine."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def digest_of_file(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def cache_folder() -> Path:
    """The folder for derived files: `$TELLAPART_CACHE`, else the user's cache folder."""
    chosen = os.environ.get("TELLAPART_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tellapart"
