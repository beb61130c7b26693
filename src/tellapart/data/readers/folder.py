"""Any other folder: every picture in it, with captions in text files of the same names."""

from __future__ import annotations

from pathlib import Path

from tellapart.data.images import SUFFIXES
from tellapart.data.readers.checks import ImageRoot, text_of
from tellapart.data.records import Dataset, Record
from tellapart.errors import DataError
from tellapart.files import read_text


def has_pictures(folder: Path) -> bool:
    """Whether the folder itself, not a subfolder, contains pictures."""
    return any(path.suffix.lower() in SUFFIXES for path in folder.iterdir())


def matches(source: Path) -> bool:
    return source.is_dir()


def read(source: Path) -> Dataset:
    """Read every picture below a folder, as split `test`. `photo.txt` has the captions of `photo.jpg`, one per line."""
    paths = sorted(p for p in source.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not paths:
        raise DataError(f"{source}: no picture found; pictures end in {', '.join(sorted(SUFFIXES))}")
    inside = ImageRoot(source)
    records = []
    for path in paths:
        relative = text_of(path.relative_to(source).as_posix(), f"{source}: a picture's name", "is blank; rename it")
        name = inside.image("", relative, str(source))
        sidecar = path.with_suffix(".txt")
        # Not splitlines(): it would cut a caption at characters such as U+2028.
        lines = read_text(sidecar, "caption file").split("\n") if sidecar.is_file() else []
        captions = tuple(line.strip() for line in lines if line.strip())
        records.append(Record(id=name, image=name, split="test", captions=captions))
    return Dataset(source.resolve().name, source, tuple(records))
