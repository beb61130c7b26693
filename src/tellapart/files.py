"""Atomic writes, reads with clear errors, digests, and derived files that are made once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from tellapart.errors import DataError, TellapartError, shorten

T = TypeVar("T")

# What to do with a damaged file that can be made again.
REBUILD = "remove it and run the same command again"


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


class Stored(BaseModel):
    """Base of the schemas of files that this program writes: strict types; keys that are not read are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


def check_regular(path: Path, what: str = "file") -> None:
    """Raise a `DataError` for a pipe, a device or a socket, which could block or never end."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # opening it says what is wrong
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(f"{path}: not a regular file but a pipe, device or socket; copy the {what} to a file")


def read_text(path: Path, what: str = "file") -> str:
    """Read a UTF-8 file, without a byte order mark; a missing or undecodable file is a `DataError`."""
    check_regular(path, what)
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


def parse_json(text: str) -> Any:
    """Parse JSON; every failure is a `ValueError` that says what is wrong."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError:  # Python's limit on the digits of an integer
        raise ValueError("a number has too many digits") from None


def read_json(path: Path, what: str = "file") -> Any:
    """Parse a JSON file; a missing or broken one is a `DataError` that names it."""
    text = read_text(path, what)
    try:
        return parse_json(text)
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON ({error}); fix or replace it") from None


def read_jsonl(path: Path, what: str = "file") -> list[Any]:
    rows = []
    # Not splitlines(): it would cut a caption at characters such as U+2028, which JSON does not escape.
    for number, line in enumerate(read_text(path, what).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(parse_json(line))
        except ValueError as error:
            reason = str(error).removeprefix("line 1: ")
            raise DataError(f"{path}: line {number} is not valid JSON ({reason}); fix or remove it") from None
    return rows


def read_model(
    path: Path, schema: type[T], what: str, remedy: str = REBUILD, error: type[TellapartError] = DataError
) -> T:
    """Read a JSON file that this program wrote; every failure is one error with the file, the fault and the remedy.

    Args:
        path: the file.
        schema: what it must hold, usually a subclass of `Stored`.
        what: what the file is, for the message.
        remedy: what to do about a damaged file.
        error: the kind of error to raise.
    """
    return _check_text(_own_text(path, what, remedy, error), schema, f"{path}: this {what} is damaged", remedy, error)


def read_models(
    path: Path, schema: type[T], what: str, remedy: str = REBUILD, error: type[TellapartError] = DataError
) -> list[T]:
    """As `read_model`, for the rows of a JSONL file."""
    lines = enumerate(_own_text(path, what, remedy, error).split("\n"), start=1)
    return [
        _check_text(line, schema, f"{path}: line {number} of this {what} is damaged", remedy, error)
        for number, line in lines
        if line.strip()
    ]


def _own_text(path: Path, what: str, remedy: str, error: type[TellapartError]) -> str:
    try:
        return read_text(path, what)
    except DataError as problem:
        if not path.is_file():
            raise error(str(problem)) from None
        raise error(f"{path}: this {what} is damaged (not UTF-8 text); {remedy}") from None


def _check_text(text: str, schema: type[T], where: str, remedy: str, error: type[TellapartError]) -> T:
    """Parse JSON and check it by a schema."""
    try:
        checked: T = _adapter(schema).validate_json(text, strict=True)  # type: ignore[arg-type]
        return checked
    except ValidationError as problems:
        first = problems.errors(include_url=False, include_input=False, include_context=False)[0]
        reason = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        raise error(f"{where} ({shorten(reason)}); {remedy}") from None


@lru_cache(maxsize=64)
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def find_or_make(path: Path, made_from: Any, make: Callable[[], dict[str, Any]], schema: type[T]) -> T:
    """Read a derived JSON file if it was made from the same inputs, else make and write it.

    A file made from other inputs is removed before `make` is called, so that an interrupted call never leaves it beside
    newer files that `make` has written.

    Args:
        path: the file.
        made_from: the inputs, as plain data; their digest is stored as `made_from`.
        make: returns the content.
        schema: what the file must hold.
    """
    digest = digest_of(made_from)
    if path.exists():
        found = read_json(path)
        if not isinstance(found, dict) or "made_from" not in found:
            raise DataError(f"{path}: was not written by tellapart and is not overwritten; write to another folder")
        if found["made_from"] == digest:
            return read_model(path, schema, "file of results")
        path.unlink()
    write_json(path, {"made_from": digest, **make()})
    return read_model(path, schema, "file of results")


def find_or_make_rows(path: Path, made_from: Any, make: Callable[[], list[Any]], schema: type[T]) -> list[T]:
    """As `find_or_make`, for a JSONL file; the digest is in a hidden file beside it."""
    mark, digest = path.with_name(f".{path.name}.made_from"), digest_of(made_from)
    if path.exists():
        if not mark.exists():
            raise DataError(f"{path}: was not written by tellapart and is not overwritten; move it away")
        if _holds(mark, digest):
            return read_models(path, schema, "file of results")
    rows = make()
    path.unlink(missing_ok=True)  # so that the new mark never stands beside the old rows
    write_text(mark, digest)
    write_jsonl(path, rows)
    return read_models(path, schema, "file of results")


def _holds(mark: Path, digest: str) -> bool:
    """Whether a file of a digest is there and holds this one."""
    return mark.is_file() and mark.read_bytes() == digest.encode("ascii")


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
    check_regular(path)
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def cache_folder() -> Path:
    """The folder for derived files: `$TELLAPART_CACHE`, else the user's cache folder."""
    chosen = os.environ.get("TELLAPART_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tellapart"
