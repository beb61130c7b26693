"""Files that are made from others: made once, read again while their inputs are the same, continued after a kill."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tellapart.errors import DataError, shorten
from tellapart.files.digests import digest_of
from tellapart.files.locks import lock
from tellapart.files.outputs import check_folder
from tellapart.files.reading import REBUILD, check_json, parse_json_file, read_model, read_models, read_text
from tellapart.files.temporary import remove_old_temporary_files
from tellapart.files.writing import new_file, write_json, write_jsonl, write_text

T = TypeVar("T")


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
        found = parse_json_file(text, path)
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


def find_or_make_arrays(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Read named NumPy arrays (`.npz`) if they are there, else make and write them; a damaged file is made again.

    The name of the file must have the digest of what they are made from. Of several processes one makes them, and the
    others wait.
    """
    import numpy as np

    with _making(path):
        if path.exists():
            try:
                with np.load(path, allow_pickle=False) as found:
                    return dict(found)  # zipfile compares checksums while reading
            except Exception as error:  # numpy and zipfile raise many kinds of errors for a damaged file
                print(f"{path}: is damaged ({shorten(str(error))}); it is made again", file=sys.stderr, flush=True)
        made = make()
        with new_file(path) as temporary, open(temporary, "wb") as handle:
            np.savez(handle, **made)
        return made


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
        >>> from tellapart.files import Pieces, read_json
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
