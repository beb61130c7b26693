"""Vectors of an index in memory, for programs that ask many times.

Reading the vectors from the files takes about eight times as long as multiplying them with a query. The first exact
search of a process reads the files. If the same version is asked again, its vectors are read once more, and kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tellapart.index.base import Hit, Vector

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

# Most bytes of vectors to keep: 500,000 of width 512. Larger indexes are searched in their files.
MOST = 1 << 30
COLUMNS = ["path", "taken", "caption"]


@dataclass(frozen=True)
class Snapshot:
    """All photographs of one version: `vectors` [photographs, width], and `rows`, a table of `COLUMNS`."""

    vectors: Vector
    rows: pyarrow.Table

    def nearest(self, vector: Vector, count: int) -> list[Hit]:
        """The photographs with the largest inner products, best first."""
        scores = self.vectors @ vector
        count = min(count, len(scores))
        first = np.argpartition(-scores, count - 1)[:count] if count < len(scores) else np.arange(count)
        first = first[np.argsort(-scores[first], kind="stable")]
        found = self.rows.take(first).to_pylist()
        return [Hit(**row, score=float(score)) for row, score in zip(found, scores[first], strict=True)]


class Kept:
    """Keeps the vectors of the version that was last asked for twice.

    Args:
        width: of the vectors.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._asked: int | None = None
        self._version: int | None = None
        self._snapshot: Snapshot | None = None
        self._turn = threading.Lock()

    def find(self, version: int, photos: int, read: Callable[[], Any]) -> Snapshot | None:
        """The photographs of this version if they are in memory; asked again, they are read.

        Args:
            version: of the rows. Vectors of another version are dropped.
            photos: number of photographs in this version.
            read: gives Arrow batches of `COLUMNS` and `vector`.
        """
        with self._turn:
            if self._version != version:
                self._snapshot = None
                asked, self._asked = self._asked, version
                if asked == version and photos > 0 and 4 * photos * self._width <= MOST:
                    self._snapshot = self._read(photos, read)
                    self._version = version if self._snapshot is not None else None
            return self._snapshot

    def _read(self, photos: int, read: Callable[[], Any]) -> Snapshot | None:
        """Read block by block into one array; `None` if the rows changed meanwhile."""
        import pyarrow as arrow

        vectors = np.empty((photos, self._width), np.float32)
        rows, done = [], 0
        for batch in read():
            if done + len(batch) > photos:
                return None
            values = batch.column("vector").flatten().to_numpy(zero_copy_only=False)
            vectors[done : done + len(batch)] = values.reshape(-1, self._width)
            # A copy: the batch would keep its vectors in memory.
            rows.append(arrow.table({name: arrow.array(batch.column(name).to_pylist()) for name in COLUMNS}))
            done += len(batch)
        return Snapshot(vectors, arrow.concat_tables(rows).combine_chunks()) if done == photos else None
