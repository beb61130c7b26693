"""Checks shared by all readers: captions have text, images are inside their folder, lists name each image once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tellapart.data.records import SPLITS
from tellapart.errors import DataError, quote
from tellapart.files import is_utf8, read_text

# Names that data sets use for the three splits.
SPLIT_NAMES = {name: name for name in SPLITS} | {
    "restval": "train",
    "valid": "val",
    "validation": "val",
    "dev": "val",
}

# Only at the start of a word, so that "retrieval" and "latest" name no split; "8ktrain" and "cocoTrain" do.
_SPLIT_WORD = re.compile(r"(?:(?<![A-Za-z])|(?<=[0-9][kK]))(train|val|dev|test)|(Train|Val|Dev|Test)")

# Names of files that are the same after Path has read them.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def split_in_name(name: str) -> str | None:
    """Infer the split from the file name; `None` unless it names exactly one.

    >>> [split_in_name(name) for name in ("Flickr_8k.devImages.txt", "train-000.tar", "trainval.txt", "notes.txt")]
    ['val', 'train', None, None]
    """
    if "trainval" in name.lower():
        return None
    found = {SPLIT_NAMES[(match[1] or match[2]).lower()] for match in _SPLIT_WORD.finditer(name)}
    return found.pop() if len(found) == 1 else None


def text_of(value: Any, where: str, without: str) -> str:
    """Check that a value is text and not blank; if it is not, the error is `where` and `without`."""
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where} {without}")
    if not value.isascii() and not is_utf8(value):
        raise DataError(f"{where} has {quote(value)}, which is not UTF-8 text; write or name it again")
    return value


def caption_of(value: Any, where: str, without: str = "has a caption without text") -> str:
    """A caption, stripped; a blank one is an error."""
    return text_of(value, where, f"{without}; remove it or write one").strip()


class ImageRoot:
    """Image names below a folder; a name that leads outside, by `..`, an absolute path or a link, is an error.

    Each subfolder is resolved once, and files only if they are links: resolving a million files takes a minute.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._real = Path(os.path.realpath(root))
        self._seen: dict[str, bool] = {}
        self._prefixes: dict[str, str] = {}

    def image(self, folder: str, name: str, where: str) -> str:
        relative = text_of(self._join(folder, name), where, "has no image")
        if not self._holds(relative):
            raise DataError(f"{where}: '{relative}' is outside the data set's folder; image names must stay inside it")
        return relative

    def _join(self, folder: str, name: str) -> str:
        """`Path(folder, name).as_posix()`, which takes long for many images."""
        if not _PLAIN_NAME.fullmatch(name):
            return Path(folder, name).as_posix()
        if folder not in self._prefixes:
            self._prefixes[folder] = Path(folder, "x").as_posix().removesuffix("x")
        return self._prefixes[folder] + name

    def _holds(self, relative: str) -> bool:
        parent, name = os.path.split(relative)
        if "\0" in relative or name in (".", ".."):
            return False
        if parent not in self._seen:
            self._seen[parent] = self._is_inside(os.path.join(self._root, parent))
        path = os.path.join(self._root, relative)
        return self._seen[parent] and (not os.path.islink(path) or self._is_inside(path))

    def _is_inside(self, path: str) -> bool:
        return Path(os.path.realpath(path)).is_relative_to(self._real)


def first_folder(root: Path, names: Iterable[str]) -> str | None:
    """The first of these names that is a folder below `root`."""
    return next((name for name in names if (root / name).is_dir()), None)


def read_split_lists(paths: Iterable[Path], find: Callable[[str], str | None]) -> dict[str, str]:
    """Image -> split, from lists with one image per line, in the order train, val, test, then as listed.

    Args:
        paths: text files; those whose names contain no split are ignored.
        find: returns the image's key for a line, or None if the image has no captions.
    """
    splits: dict[str, str] = {}
    named = [(split, path) for path in paths if (split := split_in_name(path.name)) is not None]
    for split, path in sorted(named, key=lambda pair: (SPLITS.index(pair[0]), pair[1])):
        for number, line in enumerate(read_text(path, "split list").split("\n"), start=1):
            if not (entry := line.strip()):
                continue
            key = find(entry)
            if key is None:
                raise DataError(f"{path}: line {number}: '{entry}' has no captions; remove the line or add them")
            if key in splits:
                raise DataError(f"{path}: line {number}: '{entry}' is listed twice; an image has one split")
            splits[key] = split
    return splits
