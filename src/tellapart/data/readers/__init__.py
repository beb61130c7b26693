"""Read data sets in the layouts they are published in. Each reader is a module with `matches` and `read`.

To add one, write its module and put it in `READERS`. docs/data.md describes the layouts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tellapart.data.readers import coco, folder, instapic, karpathy, shards, table, tokens
from tellapart.data.readers.folder import read as read_folder
from tellapart.data.records import Dataset
from tellapart.errors import DataError

__all__ = ["READERS", "Reader", "read_dataset", "read_folder"]


class Reader(Protocol):
    """What a reader module must define."""

    def matches(self, source: Path) -> bool:
        """Whether the source has this layout, judged by the names of its files."""

    def read(self, source: Path) -> Dataset:
        """Read a source that matches; anything wrong with it is a `DataError`."""


# The first that matches reads the source: specific layouts come before general ones.
READERS: tuple[Reader, ...] = (coco, instapic, tokens, shards, karpathy, table, folder)


def read_dataset(source: Path) -> Dataset:
    """Read a data set in any of the known layouts."""
    for reader in READERS:
        if reader.matches(source):
            return reader.read(source)
    problem = "this kind of file is not read" if source.exists() else "does not exist"
    raise DataError(
        f"{source}: {problem}; give a Karpathy .json file, a folder of pictures, or 'scenes'; "
        "docs/data.md lists every layout"
    )
