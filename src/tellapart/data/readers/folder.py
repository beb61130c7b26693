"""Any other folder: every picture in it, with captions in text files of the same names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tellapart.data.images import OTHER_SUFFIXES, SUFFIXES
from tellapart.data.readers.checks import ImageRoot, text_of
from tellapart.data.records import Dataset, Record
from tellapart.errors import DataError
from tellapart.files import read_text


def has_pictures(folder: Path) -> bool:
    """Whether the folder itself, not a subfolder, contains pictures."""
    return any(path.suffix.lower() in SUFFIXES and not path.name.startswith(".") for path in folder.iterdir())


def _files(folder: Path, suffixes: Iterable[str]) -> Iterator[Path]:
    """Files below a folder with one of these endings; hidden files and folders are left out."""
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and path.suffix.lower() in suffixes and path.is_file():
            yield path


def describe_others(folders: Iterable[Path]) -> str | None:
    """How many pictures in folders have a format that is not read, and what to do; `None` if there are none."""
    endings = Counter(path.suffix.lower() for folder in folders for path in _files(folder, OTHER_SUFFIXES))
    if not endings:
        return None
    count, names = endings.total(), ", ".join(name for name, _ in endings.most_common())
    files, them = ("file is", "it") if count == 1 else ("files are", "them")
    return f"{count:,} {files} not read ({names}): convert {them} to JPEG or PNG"


def matches(source: Path) -> bool:
    return source.is_dir()


def read(source: Path) -> Dataset:
    """Read every picture below a folder, as split `test`. `photo.txt` has the captions of `photo.jpg`, one per line.

    Hidden files and folders, with a dot before their name, are left out.
    """
    paths = sorted(_files(source, SUFFIXES))
    if not paths:
        others = describe_others([source])
        told = f"pictures end in {', '.join(sorted(SUFFIXES))}" + (f"; {others}" if others else "")
        raise DataError(f"{source}: no picture found; {told}")
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
