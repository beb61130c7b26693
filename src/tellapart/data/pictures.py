"""Notice changed picture files: size, modification time and content of each file, in one small array.

Sizes and times are cheap to compare. Content is compared only where they differ, so a touched or copied file counts as
unchanged. For pictures inside a tar, size and time are those of the tar.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tellapart.data.records import Record
from tellapart.data.tar import member_bytes, split_tar_path
from tellapart.errors import DataError

# Size in bytes and time in nanoseconds (-1 if there is no file), and sha256 of the content (0 if it cannot be read).
PICTURE = np.dtype([("size", "<i8"), ("time", "<i8"), ("content", "u1", 32)])

Pictures = NDArray[Any]
Stamp = tuple[int, int]
NO_FILE: Stamp = (-1, -1)


def describe_picture(path: Path) -> tuple[int, int, list[int]]:
    """The entry of one picture. The content is read after the stamp: a file that changes in between looks changed."""
    inside = split_tar_path(path)
    size, time = stamp_of(path if inside is None else inside[0])
    return size, time, list(_content(path)) if size >= 0 else [0] * 32


def find_changed(root: Path, records: Sequence[Record], known: Pictures) -> list[int]:
    """Positions of the records whose picture has other content than the known one.

    Entries of files with a new size or time but the same content are updated. A missing file counts as unchanged.

    Args:
        root: folder of the pictures.
        records: the records.
        known: their entries.
    """
    now = np.array(_stamps(root, records), dtype=np.int64).reshape(-1, 2)
    unread = ~known["content"].any(axis=1)
    differs = (now[:, 0] != known["size"]) | (now[:, 1] != known["time"]) | unread
    positions = np.flatnonzero(differs & (now[:, 0] >= 0)).tolist()
    if not positions:
        return []
    with ThreadPoolExecutor() as pool:
        contents = pool.map(lambda position: _content(root / records[position].image), positions)
        changed = []
        for position, content in zip(positions, contents, strict=True):
            if content == known["content"][position].tobytes():
                known["size"][position], known["time"][position] = now[position]
            else:
                changed.append(position)
    return changed


def _stamps(root: Path, records: Sequence[Record]) -> list[Stamp]:
    tars: dict[str, Stamp | None] = {}
    found = []
    for record in records:
        path = f"{root}/{record.image}"  # much faster than joining Paths
        stamp = None
        if ".tar" in path:
            folder = os.path.dirname(path)
            if folder not in tars:
                inside = split_tar_path(Path(path))
                tars[folder] = None if inside is None else stamp_of(inside[0])
            stamp = tars[folder]
        found.append(stamp or stamp_of(path))
    return found


def stamp_of(path: str | Path) -> Stamp:
    """Size and time of a file; `NO_FILE` if there is none."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):  # ValueError: a null character in the name
        return NO_FILE
    return (about.st_size, about.st_mtime_ns) if stat.S_ISREG(about.st_mode) else NO_FILE


def _content(path: Path) -> bytes:
    inside = split_tar_path(path)
    try:
        if inside is not None:
            return hashlib.sha256(member_bytes(*inside)).digest()
        with open(path, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").digest()
    except (DataError, OSError):
        return bytes(32)
