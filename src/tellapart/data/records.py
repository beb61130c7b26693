"""The records that every reader returns: an image, its captions, its split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tellapart.errors import DataError, shorten
from tellapart.files import digest_of

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Record:
    """One image with its captions.

    `image` is relative to the data set's `root`. `family` names a group of near-duplicates, if the data set has them.
    `cocoid` and `imgid` are the image's numbers in COCO and in Karpathy's file, if the data set gives them. Files of
    others name images by them; they are no part of the content, so digests leave them out.
    """

    id: str
    image: str
    split: str
    captions: tuple[str, ...]
    family: str | None = None
    cocoid: int | None = field(default=None, compare=False)
    imgid: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Dataset:
    """Records in a fixed order, and the folder of their images.

    Attributes:
        left_out: number of captioned images that the source puts in no split.
        skipped: ids of images whose pictures cannot be read, or that are left out of training (`data.half`); they keep
            their row but are in no split.

    Example:
        >>> data = Dataset("two", Path("."), (Record("1", "1.jpg", "train", ("a cat",)),))
        >>> [record.id for record in data.split("train")]
        ['1']
    """

    name: str
    root: Path
    records: tuple[Record, ...]
    left_out: int = 0
    skipped: frozenset[str] = frozenset()
    _rows: dict[str, int] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for row, record in enumerate(self.records):
            if record.id in self._rows:
                raise DataError(f"{self.name}: the id '{record.id}' is used for two images; ids must be unique")
            self._rows[record.id] = row

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def row(self, id: str) -> int:
        """Position of an image among all records, equal to its row in the feature store."""
        try:
            return self._rows[id]
        except KeyError:
            raise DataError(f"{self.name}: there is no image '{shorten(id)}'; use the ids of this data set") from None

    def split(self, name: str) -> list[Record]:
        found = [record for record in self.records if record.split == name and record.id not in self.skipped]
        if not found:
            has = sorted({record.split for record in self.records})
            raise DataError(f"{self.name}: no image is in the split '{name}'; its splits are: {', '.join(has)}")
        return found

    def path(self, record: Record) -> Path:
        return self.root / record.image

    @cached_property
    def digest(self) -> str:
        """Identifies the content: ids, image names, splits, captions, in order."""
        return digest_of([[r.id, r.image, r.split, list(r.captions), r.family] for r in self.records])
