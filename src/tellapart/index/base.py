"""What an index holds and what every store of it can do; `lance` and `milvus` are the two stores.

A photograph is one row: its file (path, size, time and content digest), when it was taken, its caption if it has one,
and its vector. The row's id is a digest of the path, so that no path ever stands in a command to an engine as a key.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tellapart.encoders.base import EncoderIdentity
from tellapart.files import Stored

FORMAT = 1
# Rows in one command to an engine.
ROWS = 1000
# Longest path and longest caption, in bytes: limits of Milvus.
MAX_PATH, MAX_CAPTION = 16_384, 65_535

Vector = NDArray[np.float32]
NoteType = TypeVar("NoteType", bound=Stored)


class Made(Stored):
    """What made an index: only the same retriever may add to it and search it.

    Attributes:
        retriever: digest of the retriever's weights and settings and of its image encoder.
        name: of its architecture.
        folder: where it was; it is opened from there unless another place is given.
        encoder: of its image features.
        width: of the vectors.
    """

    format: int = FORMAT
    retriever: str
    name: str
    folder: str
    encoder: EncoderIdentity
    width: int


class Recall(Stored):
    """How much of the exact first results the approximate search found when it was built.

    Attributes:
        recall: mean share of the exact first `first` results.
        queries: number of queries, and `of` what: captions or photographs of the index.
        photos: number of photographs then.
    """

    recall: float
    first: int
    queries: int
    of: str
    photos: int


@dataclass(frozen=True)
class File:
    """The file of a photograph as it was when it was encoded; see `data.pictures`."""

    path: str
    size: int
    time: int
    content: str
    caption: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> File:
        """The file of a stored row, which may have other columns too."""
        return cls(**{name: row[name] for name in FILE_COLUMNS})


FILE_COLUMNS = [field.name for field in fields(File)]


@dataclass(frozen=True)
class Photo:
    """A row of an index: the file, when it was taken (seconds of clock time) and its vector."""

    file: File
    taken: int
    vector: Vector


@dataclass(frozen=True)
class Hit:
    """A photograph that a store found. A higher similarity is better; BM25 scores are better the farther from 0."""

    path: str
    taken: int
    caption: str
    score: float


@dataclass(frozen=True)
class Where:
    """Which photographs may be found.

    Attributes:
        path: pattern of the path, in which `*` stands for any characters and `?` for one. Unless it begins with `/`
            or `*` it may begin at any folder: `holiday/*` finds `/home/me/photos/holiday/2024/sea.jpg`.
        after: taken at this time or later (seconds of clock time).
        before: taken before this time.
    """

    path: str | None = None
    after: int | None = None
    before: int | None = None

    def like(self) -> str | None:
        r"""The pattern as SQL's LIKE writes it, with `\` before signs that stand for themselves.

        >>> Where("IMG_*.jpg").like()
        '%/IMG\\_%.jpg'
        """
        if self.path is None:
            return None
        anywhere = "" if self.path.startswith(("/", "*")) else "%/"
        return anywhere + escape_like(self.path).replace("*", "%").replace("?", "_")


ALL = Where()


def escape_like(text: str) -> str:
    r"""Escape the signs of a LIKE pattern, so that the text is searched as it is."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def row_id(path: str) -> str:
    """The key of a photograph."""
    return hashlib.sha256(path.encode("utf-8")).hexdigest()[:32]


class Store(ABC):
    """Where the rows of an index are kept.

    A row that was put is there when the call returns, whatever happens to the process afterwards. Several processes may
    search and put at the same time.

    Attributes:
        place: its folder or address, for messages.
        made: what made the index.
    """

    place: str
    made: Made

    @abstractmethod
    def __len__(self) -> int:
        """Number of photographs."""

    @abstractmethod
    def files(self, folders: Sequence[str], paths: Sequence[str]) -> Iterator[File]:
        """The files below these folders, and those with these paths; one may come twice."""

    @abstractmethod
    def put(self, photos: Sequence[Photo]) -> None:
        """Add photographs; a row with the same path is replaced."""

    @abstractmethod
    def remove(self, paths: Sequence[str]) -> None:
        """Remove photographs; paths that are not there are ignored."""

    @abstractmethod
    def read(self, paths: Sequence[str]) -> list[Photo]:
        """The rows of these paths, in any order; those that are not there are left out."""

    @abstractmethod
    def with_id(self, id: str) -> Photo | None:
        """The row with this id."""

    @abstractmethod
    def sample(self, count: int, with_caption: bool) -> list[Photo]:
        """Some rows; with `with_caption` only those that have one."""

    @abstractmethod
    def has_captions(self) -> bool:
        """Whether a photograph has a caption."""

    @abstractmethod
    def nearest(self, vector: Vector, count: int, where: Where, approximate: bool) -> list[Hit]:
        """The photographs with the largest inner products, best first; exact unless `approximate`."""

    @abstractmethod
    def worded(self, text: str, count: int, where: Where) -> list[Hit]:
        """The photographs whose captions have words of the text, best first (BM25)."""

    @abstractmethod
    def build_approximate(self) -> None:
        """Make, or make anew, what approximate search needs."""

    @abstractmethod
    def tidy(self) -> None:
        """Called after rows were put or removed: merge small files, bring what searches use up to date."""

    @abstractmethod
    def note(self, name: str, schema: type[NoteType]) -> NoteType | None:
        """A small object that was stored beside the rows."""

    @abstractmethod
    def write_note(self, name: str, value: Stored) -> None:
        """Store a small object; one of the same name is replaced."""


def blocks(items: Sequence[str]) -> Iterator[Sequence[str]]:
    """The items in blocks of at most `ROWS`."""
    for start in range(0, len(items), ROWS):
        yield items[start : start + ROWS]


def partitions(photos: int) -> int:
    """Number of clusters of vectors for approximate search; a tenth of them is searched (`probes`)."""
    return max(1, round(math.sqrt(photos)))


def probes(count: int) -> int:
    """Clusters that an approximate search looks into."""
    return max(1, -(-count // 10))
