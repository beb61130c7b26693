"""A folder of pictures, with captions in text files of the same names."""

from __future__ import annotations

from pathlib import Path

from tellapart.data.images import SUFFIXES
from tellapart.data.readers.checks import ImageRoot, text_of
from tellapart.data.records import Dataset, Record
from tellapart.errors import DataError
from tellapart.files import read_text


def has_pictures(folder: Path) -> bool:
    """Whether pictures lie in the folder itself."""
    return any(path.suffix.lower() in SUFFIXES for path in folder.iterdir())


def read_folder(folder: Path) -> Dataset:
    """Every picture below a folder, as split `test`; `photo.txt` beside `photo.jpg` holds its captions, one a line."""
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not paths:
        raise DataError(f"{folder}: no picture found; pictures end in {', '.join(sorted(SUFFIXES))}")
    inside = ImageRoot(folder)
    records = []
    for path in paths:
        relative = text_of(path.relative_to(folder).as_posix(), f"{folder}: a picture's name", "is blank; rename it")
        name = inside.image("", relative, str(folder))
        sidecar = path.with_suffix(".txt")
        # Not splitlines(): it would cut a caption at signs such as U+2028.
        lines = read_text(sidecar, "caption file").split("\n") if sidecar.is_file() else []
        captions = tuple(line.strip() for line in lines if line.strip())
        records.append(Record(id=name, image=name, split="test", captions=captions))
    return Dataset(folder.resolve().name, folder, tuple(records))
