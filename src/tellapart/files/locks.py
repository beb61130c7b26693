"""Locks between processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


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
