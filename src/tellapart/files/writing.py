"""Atomic writes: under a temporary name in the same folder, flushed to the disk, then renamed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tellapart.files.temporary import temporary_path


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; then flush and rename it. A reader sees the old file or the new one.

    If it cannot be written, the `OSError` names `path`.
    """
    path = Path(os.path.realpath(path))  # a symbolic link stays one
    temporary = temporary_path(path)
    with _name_in_errors(path):
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
def new_folder(path: Path) -> Iterator[Path]:
    """Fill a folder under a temporary name; rename it when the block succeeds.

    A folder that has the name is replaced: check before that tellapart wrote it.
    """
    path = Path(os.path.realpath(path))
    temporary = temporary_path(path)
    with _name_in_errors(path):
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


def write_text(path: Path, text: str) -> None:
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


@contextmanager
def _name_in_errors(path: Path) -> Iterator[None]:
    """An `OSError` of the block names this path, not the temporary one or none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


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
