"""A table of numbers on the disk that is made block by block: a killed process continues with the missing blocks.

A table `NAME` is two files. `NAME.npy` has the rows. `NAME.blocks` tells what they are made from, and then one line for
each finished block: its first row and a checksum. A line is written when its rows are on the disk, so a block counts as
finished only if it is whole. Blocks whose checksum does not fit are made again.
"""

from __future__ import annotations

import json
import math
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from tellapart.files import check_folder, digest_of, lock, new_file, remove_old_temporary_files, write_text


class Blocks:
    """A table `[rows, …]` that is filled a block of rows at a time; see `open_blocks`.

    Args:
        path: of the table, without ending; `None` keeps it in memory.
        made_from: plain data that decides the numbers.
        shape: of the table.
        dtype: of its numbers.
        starts: the first row of each block, in rising order, from 0.

    Attributes:
        missing: the blocks that are not there yet, by number.
        done: number of rows that are there.
    """

    def __init__(
        self, path: Path | None, made_from: Any, shape: tuple[int, ...], dtype: DTypeLike, starts: Sequence[int]
    ) -> None:
        self.path = path
        self._dtype, self._shape, self._starts = np.dtype(dtype), shape, [*starts, shape[0]]
        self._head = json.dumps({"made_from": digest_of(made_from), "dtype": self._dtype.str, "shape": list(shape)})
        self.missing = list(range(len(starts)))
        self._values: np.ndarray
        if path is None:
            self._values = np.empty(shape, self._dtype)
            return
        self._array, self._marks = (path.with_name(path.name + ending) for ending in (".npy", ".blocks"))
        marks = self._read_marks()
        if marks is None:
            self._begin()
            marks = {}
        self._values = np.lib.format.open_memmap(self._array, mode="r")
        whole = {number for number in self.missing if number in marks and marks[number] == self._checksum(number)}
        self.missing = [number for number in self.missing if number not in whole]
        damaged = len(set(self.missing) & marks.keys())
        if damaged:
            _tell(f"{self._array}: {damaged} of {len(starts)} blocks are damaged; they are made again")

    def rows(self, number: int) -> slice:
        """The rows of a block."""
        return slice(self._starts[number], self._starts[number + 1])

    @property
    def done(self) -> int:
        sizes = (self._starts[number + 1] - self._starts[number] for number in self.missing)
        return self._shape[0] - sum(sizes)

    def keep(self, number: int, values: np.ndarray) -> None:
        """Write a block; when this returns, it is on the disk."""
        rows = self.rows(number)
        wanted = (rows.stop - rows.start, *self._shape[1:])
        values = np.ascontiguousarray(values, self._dtype)
        assert values.shape == wanted, f"block {number} is {values.shape}, not {wanted}"
        if self.path is None:
            self._values[rows] = values
        else:
            width = math.prod(self._shape[1:]) * self._dtype.itemsize
            head = self._array.stat().st_size - width * self._shape[0]
            # Not through the map: on a full disk that would kill the process.
            with open(self._array, "r+b") as handle:
                handle.seek(head + rows.start * width)
                handle.write(values.tobytes())
                handle.flush()
                os.fsync(handle.fileno())
            # A line begins with its line break: half a line of a power cut stays alone.
            with open(self._marks, "ab") as handle:
                handle.write(f"\n{number} {zlib.crc32(values.tobytes())}".encode())
                handle.flush()
                os.fsync(handle.fileno())
        self.missing.remove(number)

    def values(self) -> np.ndarray:
        """The whole table, for reading only; on the disk it is memory-mapped."""
        assert not self.missing, "values() before all blocks are made"
        values = self._values.view()
        values.flags.writeable = False
        return values

    def _checksum(self, number: int) -> int:
        return zlib.crc32(np.ascontiguousarray(self._values[self.rows(number)]).tobytes())

    def _read_marks(self) -> dict[int, int] | None:
        """Checksums of the finished blocks; `None` if the table is not there or cannot be used."""
        if not self._marks.exists():
            return None
        head, *lines = self._marks.read_bytes().split(b"\n")
        if head != self._head.encode() or not self._is_whole():
            _tell(f"{self._array}: is damaged; it is made again")
            return None
        found = [line.split() for line in lines]
        # A later line of a block replaces an earlier one: it was made again.
        return {int(one[0]): int(one[1]) for one in found if len(one) == 2 and all(map(bytes.isdigit, one))}

    def _is_whole(self) -> bool:
        """Whether the array has the right header and size. Mapping a short file would kill the process."""
        try:
            with open(self._array, "rb") as handle:
                if np.lib.format.read_magic(handle) != (1, 0):
                    return False
                shape, transposed, dtype = np.lib.format.read_array_header_1_0(handle)
                size = handle.tell() + math.prod(self._shape) * self._dtype.itemsize
        except Exception:  # numpy raises many kinds of errors for a damaged header
            return False
        return (shape, transposed, dtype, self._array.stat().st_size) == (self._shape, False, self._dtype, size)

    def _begin(self) -> None:
        """Make an empty table. The marks come last: without them the array is not used."""
        self._marks.unlink(missing_ok=True)
        with new_file(self._array) as temporary:
            # A sparse file: only the header is written.
            np.lib.format.open_memmap(temporary, mode="w+", dtype=self._dtype, shape=self._shape).flush()
        write_text(self._marks, self._head)


@contextmanager
def open_blocks(
    path: Path | None, made_from: Any, shape: tuple[int, ...], dtype: DTypeLike, starts: Sequence[int]
) -> Iterator[Blocks]:
    """Open a table to fill its missing blocks; one process at a time does this, others wait.

    See `Blocks` for the arguments. The name of the table should have the digest of what it is made from: a table of
    this name that is made from something else is replaced.

    Example:
        >>> with open_blocks(None, "squares", (5,), np.int32, range(0, 5, 2)) as blocks:
        ...     for number in list(blocks.missing):
        ...         rows = blocks.rows(number)
        ...         blocks.keep(number, np.arange(rows.start, rows.stop) ** 2)
        ...     blocks.values().tolist()
        [0, 1, 4, 9, 16]
    """
    with ExitStack() as held:
        if path is not None:
            check_folder(path.parent)
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_old_temporary_files(path.parent)
            mark = path.with_name(f".{path.name}.making")
            if not held.enter_context(lock(mark, wait=False)):
                _tell(f"{path}: another process is making this file; waiting for it")
                held.enter_context(lock(mark))
            held.callback(mark.unlink, missing_ok=True)
        yield Blocks(path, made_from, shape, dtype, starts)


def remove_blocks(path: Path) -> None:
    """Remove a table that is not needed any more, whether finished or not; a process that has it open keeps it."""
    for ending in (".blocks", ".npy"):  # without its marks the array is not used
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
