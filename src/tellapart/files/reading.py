"""Read text, JSON and files that this program wrote; every failure is one error that names the file and the remedy."""

from __future__ import annotations

import json
import stat
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from tellapart.errors import DataError, TellapartError, shorten

T = TypeVar("T")

# What to do with a damaged file that can be made again.
REBUILD = "remove it and run the same command again"


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
    return parse_json_file(read_text(path, what), path)


def parse_json_file(text: str, path: Path) -> Any:
    """The JSON of a file that was read."""
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
    return check_json(_own_text(path, what, remedy, error), schema, f"{path}: this {what} is damaged", remedy, error)


def read_models(
    path: Path, schema: type[T], what: str, remedy: str = REBUILD, error: type[TellapartError] = DataError
) -> list[T]:
    """As `read_model`, for the rows of a JSONL file."""
    lines = enumerate(_own_text(path, what, remedy, error).split("\n"), start=1)
    return [
        check_json(line, schema, f"{path}: line {number} of this {what} is damaged", remedy, error)
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


def check_json(text: str, schema: type[T], where: str, remedy: str, error: type[TellapartError]) -> T:
    """Parse JSON and check it by a schema; `where` begins the message of an error, `remedy` ends it."""
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
