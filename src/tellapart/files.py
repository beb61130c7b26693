"""Atomic writes, reads with clear errors, digests, and derived files that are made once.

Files are written under a temporary name in the same folder, `.tellapart-` and 16 hex digits, and then renamed.
Nothing else is removed or replaced unless tellapart wrote it; `check_output` is the rule.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from tellapart.errors import DataError, TellapartError, shorten

T = TypeVar("T")

# What to do with a damaged file that can be made again.
REBUILD = "remove it and run the same command again"

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# The process that writes, and 8 random digits.
_TEMPORARY = re.compile(r"\.tellapart-([0-9a-f]{8})[0-9a-f]{8}")
# Older temporary files are no longer being written, whatever machine their process is on.
_DAY = 24 * 60 * 60
# In every page that tellapart writes.
GENERATOR = '<meta name="generator" content="tellapart">'
# Larger JSON files are not results of tellapart.
_LARGEST_RESULT = 1 << 28


def temporary_path(path: Path) -> Path:
    """A new hidden name in the same folder; no two calls give the same one."""
    return path.with_name(f".tellapart-{os.getpid():08x}{secrets.token_hex(4)}")


def is_temporary(path: Path) -> bool:
    """Whether the name is one of `temporary_path`."""
    return _TEMPORARY.fullmatch(path.name) is not None


def remove_temporary_files(folder: Path) -> None:
    """Remove the unfinished files and folders of killed processes; call it only if no other process writes here."""
    for path in folder.iterdir():
        if is_temporary(path):
            _remove(path)


def remove_old_temporary_files(folder: Path) -> None:
    """Remove the temporary files of killed processes; other processes may write here.

    Only names of `temporary_path` count. They must be unchanged for a day, and their process must not run on this
    machine. A file that cannot be removed stays.
    """
    with suppress(OSError):
        for path in folder.iterdir():
            name = _TEMPORARY.fullmatch(path.name)
            if name is not None and not _is_running(int(name[1], 16)):
                with suppress(OSError):
                    if time.time() - path.lstat().st_mtime > _DAY:
                        _remove(path)


def _is_running(process: int) -> bool:
    """Whether a process of this number runs on this machine, also if it is another user's."""
    if fcntl is None:
        return True  # on Windows there is no harmless way to ask
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return process != 0


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Write to the temporary path given; then it is flushed and renamed. A reader sees the old file or the new one.

    If it cannot be written, the `OSError` names `path`.
    """
    path = Path(os.path.realpath(path))  # a symbolic link stays one
    temporary = temporary_path(path)
    with _errors_name(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            _flush_file(temporary)
            os.replace(temporary, path)
            _flush_folder(path.parent)
        finally:
            with suppress(OSError):
                temporary.unlink()


@contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    """Errors of the system name this path, not a temporary one or none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


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
    return _parse(read_text(path, what), path)


def _parse(text: str, path: Path) -> Any:
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


def find_or_make(path: Path, made_from: Any, make: Callable[[], dict[str, Any]], schema: type[T]) -> T:
    """Read a derived JSON file if it was made from the same inputs, else make and write it.

    A file made from other inputs stays until the new one replaces it. `make` may write more files beside it. If it is
    interrupted, the file that is there is not used again, because it may not belong to them. Of several processes one
    makes the file, and the others wait. It is an error if the folder cannot be written; `make` is then not called.

    Args:
        path: the file.
        made_from: the inputs, as plain data; their digest is stored as `made_from`.
        make: returns the content.
        schema: what the file must hold.
    """
    digest = digest_of(made_from)

    def find() -> T | None:
        if not path.exists():
            return None
        text = read_text(path)  # once: another process may replace the file
        found = _parse(text, path)
        if not isinstance(found, dict) or "made_from" not in found:
            raise DataError(f"{path}: was not written by tellapart and is not overwritten; write to another folder")
        if found["made_from"] != digest or _is_being_made(path):
            return None
        return check_json(text, schema, f"{path}: this file of results is damaged", REBUILD, DataError)

    found = find()
    if found is not None:
        return found
    with _making(path) as mark:
        if (found := find()) is not None:  # made by another process while this one waited
            return found
        mark.write_bytes(b"1")
        write_json(path, {"made_from": digest, **make()})
        made = read_model(path, schema, "file of results")
        mark.write_bytes(b"")
        return made


def find_or_make_rows(path: Path, made_from: Any, make: Callable[[], list[Any]], schema: type[T]) -> list[T]:
    """As `find_or_make`, for a JSONL file; the digest is in a hidden file beside it."""
    mark, digest = path.with_name(f".{path.name}.made_from"), digest_of(made_from)

    def find() -> list[T] | None:
        if not path.exists():
            return None
        if not mark.exists():
            raise DataError(f"{path}: was not written by tellapart and is not overwritten; move it away")
        if not _holds(mark, digest):
            return None
        rows = read_models(path, schema, "file of results")
        return rows if _holds(mark, digest) else None  # else another process has just replaced them

    found = find()
    if found is not None:
        return found
    with _making(path):
        if (found := find()) is not None:
            return found
        rows = make()
        write_text(mark, "")  # so that it never names the rows before or after
        write_jsonl(path, rows)
        write_text(mark, digest)
        return read_models(path, schema, "file of results")


@contextmanager
def _making(path: Path) -> Iterator[Path]:
    """Let one process at a time make this file; gives a hidden file that is locked until then.

    It is removed if it is empty at the end. Something in it tells that the process was interrupted.
    """
    check_folder(path.parent)
    remove_old_temporary_files(path.parent)
    mark = path.with_name(f".{path.name}.making")
    with ExitStack() as held:
        if not held.enter_context(lock(mark, wait=False)):
            print(f"{path}: another process is making this file; waiting for it", file=sys.stderr, flush=True)
            held.enter_context(lock(mark))
        try:
            yield mark
        finally:
            if not _is_being_made(path):
                mark.unlink(missing_ok=True)


def _is_being_made(path: Path) -> bool:
    """Whether a process makes this file, or was killed while it did."""
    mark = path.with_name(f".{path.name}.making")
    return mark.is_file() and mark.stat().st_size > 0


def _holds(mark: Path, digest: str) -> bool:
    """Whether a file of a digest is there and holds this one."""
    return mark.is_file() and mark.read_bytes() == digest.encode("ascii")


class Pieces:
    """Finished pieces of long work, as JSON files in a folder or, without one, in memory.

    Example:
        >>> pieces = Pieces(None)
        >>> pieces.find("first", read_json) or pieces.keep("first", {"sum": 1 + 1})
        {'sum': 2}
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._pieces: dict[str, dict[str, Any]] = {}

    def find(self, name: str, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any] | None:
        """A piece that is there, else `None`.

        Args:
            name: of the piece.
            read: reads its file and raises a `DataError` if it does not fit; it is then made again.
        """
        if self._folder is None:
            return self._pieces.get(name)
        path = self._folder / f"{name}.json"
        if not path.exists():
            return None
        try:
            return read(path)
        except DataError as error:
            if not path.is_file():
                raise
            print(f"{str(error).removesuffix(f'; {REBUILD}')}; it is made again", file=sys.stderr, flush=True)
            return None

    def keep(self, name: str, piece: dict[str, Any]) -> dict[str, Any]:
        if self._folder is None:
            self._pieces[name] = piece
        else:
            write_json(self._folder / f"{name}.json", piece)
        return piece

    def remove(self) -> None:
        """Remove all pieces: the whole is there."""
        self._pieces.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Fill a folder under a temporary name; rename it when the block succeeds.

    A folder that has the name is replaced: check before that tellapart wrote it.
    """
    path = Path(os.path.realpath(path))
    temporary = temporary_path(path)
    with _errors_name(path):
        path.parent.mkdir(parents=True, exist_ok=True)
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
    old = temporary_path(path)
    if path.is_dir():
        with suppress(FileNotFoundError):  # moved by another process
            os.replace(path, old)
    try:
        os.replace(new, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and path.is_dir():  # made by another process
            _replace_folder(new, path)
        else:
            if old.exists():
                os.replace(old, path)
            raise
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def lock(path: Path, wait: bool = True) -> Iterator[bool]:
    """Lock an existing folder, or a file, which is created; the system releases the lock of a killed process.

    Gives whether it is locked. That is false if another process has the lock and `wait` is false.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield True
        return
    handle, locked = _locked(path, wait)
    try:
        yield locked
    finally:
        os.close(handle)


def _locked(path: Path, wait: bool) -> tuple[int, bool]:
    """Open and lock; gives the handle and whether it is locked."""
    while True:
        handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return handle, False
        except OSError:  # a file system without locks
            return handle, True
        except BaseException:
            os.close(handle)
            raise
        if path.is_dir() or _is_at(handle, path):
            return handle, True
        os.close(handle)  # the holder before removed the file: the lock is on a file that no other process finds


def _is_at(handle: int, path: Path) -> bool:
    """Whether the path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


# --- outputs ----------------------------------------------------------------------------------------------------------


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


def cache_hint(path: str | Path) -> str:
    """What to add to an error about a file in the cache folder; nothing about another file."""
    inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(cache_folder()))
    hint = "; this is in the cache folder, choose another one with the environment variable TELLAPART_CACHE"
    return hint if inside else ""
