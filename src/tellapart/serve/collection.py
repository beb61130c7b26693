"""An index of `tellapart index` as the collection of a service: ids go out, never paths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePath

from tellapart.index.base import ALL, Photo, Vector, row_id
from tellapart.index.photos import PhotoIndex
from tellapart.serve.web import Refusal

# A picture is the same as one of the collection if it is that similar to it, beside its similarity to itself.
SAME = 0.999
# Copies of a picture in the collection that are looked for.
COPIES = 10
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Neighbour:
    """A photograph of the collection.

    Attributes:
        id: its key in the index.
        name: of its file, without the folders.
        score: similarity to what was asked.
        caption: in the index; empty if it has none.
        path: for the server only.
    """

    id: str
    name: str
    score: float
    caption: str
    path: Path


class Collection:
    """The photographs of an index."""

    def __init__(self, index: PhotoIndex) -> None:
        self.index = index
        self.name = PurePath(index.store.place).name

    def __len__(self) -> int:
        return len(self.index)

    def find(self, vector: Vector, text: str | None, count: int) -> list[Neighbour]:
        """What fits a vector best; with a text, captions of the index count too."""
        if not len(self.index):
            return []
        found = self.index.find(vector, text, count)
        return [_neighbour(one.path, one.similarity, one.caption) for one in found]

    def nearest(self, vector: Vector, count: int) -> list[Neighbour]:
        """The nearest photographs by the retriever alone."""
        if not len(self.index):
            return []
        hits = self.index.store.nearest(vector, count, ALL, approximate=False)
        return [_neighbour(hit.path, hit.score, hit.caption) for hit in hits]

    def ranked(self, vector: Vector, count: int, but: Vector) -> tuple[list[Neighbour], int]:
        """The nearest photographs without those that are the same picture as `but`, and the number of all others."""
        same = self._same(but)
        found = [one for one in self.nearest(vector, count) if one.id not in same]
        return found, len(self) - len(same)

    def others(self, vectors: list[Vector], count: int) -> list[Neighbour]:
        """The photographs nearest to any of these, best first, without those that are the same picture as one."""
        same = set().union(*map(self._same, vectors))
        best: dict[str, Neighbour] = {}
        for vector in vectors:
            for one in self.nearest(vector, count + len(same)):
                if one.id not in same and (one.id not in best or one.score > best[one.id].score):
                    best[one.id] = one
        return sorted(best.values(), key=lambda one: -one.score)[:count]

    def _same(self, vector: Vector) -> set[str]:
        """The ids of photographs that are the same picture."""
        own = float(vector @ vector)
        return {one.id for one in self.nearest(vector, COPIES) if one.score >= SAME * own}

    def photo(self, id: str) -> Photo:
        """The row with an id; 404 if there is none."""
        found = self.index.store.with_id(id) if _ID.fullmatch(id) else None
        if found is None:
            raise Refusal(404, "not_found", "no photograph of the collection has this id; search again")
        return found


def _neighbour(path: str, score: float, caption: str) -> Neighbour:
    return Neighbour(row_id(path), PurePath(path).name, score, caption, Path(path))
