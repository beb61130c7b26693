"""Pictures on the disk: which were asked for, what an index keeps of their files, and their captions."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from tellapart.data.images import SUFFIXES, date_taken
from tellapart.data.parts import WHOLE, Part
from tellapart.data.pictures import describe_picture
from tellapart.errors import DataError, shorten, some
from tellapart.evaluation.caption_files import read_captions
from tellapart.files import is_utf8
from tellapart.index.base import MAX_CAPTION, File, row_id


@dataclass(frozen=True)
class Listed:
    """Pictures that were asked for, by absolute path.

    Attributes:
        files: those that are there, each once.
        folders: the folders that were named. named: the other paths that were named.
        missing: named paths without a file. empty: named folders without a picture.
        bad_names: paths that are not UTF-8 text.
    """

    files: list[str]
    folders: list[str]
    named: list[str]
    missing: list[str]
    empty: list[str]
    bad_names: list[str]


def list_pictures(paths: Sequence[str | Path]) -> Listed:
    """Find the pictures in folders and among named files."""
    if isinstance(paths, str | Path):
        raise DataError(f"{paths}: give a list of pictures and folders, such as [{str(paths)!r}]")
    if not paths:
        raise DataError("no picture was given; give picture files or folders")
    listed = Listed([], [], [], [], [], [])
    found: dict[str, None] = {}
    for path in map(absolute, paths):
        if os.path.isdir(path):
            inside = list(_walk(path))
            listed.folders.append(path)
            found.update(dict.fromkeys(inside))
            if not inside:
                listed.empty.append(path)
        else:
            listed.named.append(path)
            if os.path.exists(path):
                found[path] = None
            else:
                listed.missing.append(path)
    for path in found:
        (listed.files if is_utf8(path) else listed.bad_names).append(path)
    wrong = [path for path in (*listed.folders, *listed.missing) if not is_utf8(path)]
    if wrong:
        raise bad_name(wrong[0])
    return replace(listed, named=[path for path in listed.named if is_utf8(path)])


def _walk(folder: str) -> Iterator[str]:
    """Pictures below a folder, in alphabetical order."""

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename}: this folder cannot be read ({error.strerror}); check its permissions")

    for inner, folders, names in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES:
                yield os.path.join(inner, name)


def absolute(path: str | Path) -> str:
    """A path as the index names it: absolute, with `/`; links are not followed."""
    if "\0" in str(path):
        raise DataError(f"{str(path)!r}: this is not a path; check it")
    return Path(os.path.abspath(path)).as_posix()


def bad_name(path: str) -> DataError:
    """The error of a picture whose name the index cannot keep."""
    return DataError(f"{path!a}: the name of this picture is not UTF-8 text; rename it")


def is_in_part(path: str, part: Part) -> bool:
    """Whether a picture is in this part: it depends on its path only."""
    return part == WHOLE or int(row_id(path if is_utf8(path) else ascii(path)), 16) % part.of == part.index


def describe(path: str) -> File:
    """The file of a picture as it is now, without a caption."""
    size, time, content = describe_picture(Path(path))
    return File(path, size, time, bytes(content).hex(), "")


def taken_at(path: str, file: File) -> int:
    """When a picture was taken, in seconds of clock time: by the camera, else the time of the file."""
    date = date_taken(Path(path))
    return clock_seconds(date if date is not None else datetime.fromtimestamp(file.time / 1e9))


def clock_seconds(date: datetime) -> int:
    """A date and time as the clock on the wall showed it, as a number; cameras do not say in which time zone.

    >>> clock_seconds(datetime(1970, 1, 2))
    86400
    """
    return int(date.replace(tzinfo=UTC).timestamp())


def parse_date(text: str) -> datetime:
    """A date, and a time if it has one.

    >>> parse_date("2024-05"), parse_date("2024-05-31T18:30")
    (datetime.datetime(2024, 5, 1, 0, 0), datetime.datetime(2024, 5, 31, 18, 30))
    """
    short = re.fullmatch(r"(\d{4})(-\d\d)?", text)  # without a day, or without a month too
    try:
        return datetime.fromisoformat(f"{short[1]}{short[2] or '-01'}-01" if short else text)
    except ValueError:
        raise DataError(f"'{shorten(text, 40)}' is not a date; write it as 2024, 2024-05 or 2024-05-31") from None


def match_captions(
    captions: str | Path | Mapping[str, Sequence[str]] | None, listed: Listed
) -> tuple[dict[str, str], int]:
    """Captions by absolute path, and how many ids are none of these pictures.

    Several captions of a picture are lines of one text.
    """
    if captions is None:
        return {}, 0
    source = "the captions" if isinstance(captions, Mapping) else str(captions)
    if not isinstance(captions, Mapping):
        captions = read_captions(Path(captions), ragged=True)
    files = set(listed.files)
    names = Counter(os.path.basename(path) for path in listed.files)
    by_name = {os.path.basename(path): path for path in listed.files}
    said: dict[str, str] = {}
    unmatched = []
    for id, texts in captions.items():
        candidates = [absolute(id), *(absolute(os.path.join(folder, id)) for folder in listed.folders)]
        path = next((one for one in candidates if one in files), None)
        if path is None and names[os.path.basename(id)] == 1:
            path = by_name[os.path.basename(id)]
        if path is None:
            unmatched.append(id)
        else:
            said[path] = "\n".join(texts).encode("utf-8")[:MAX_CAPTION].decode("utf-8", "ignore")
    if not said:
        raise DataError(
            f"{source}: no caption is of one of these pictures (ids: {some(unmatched)}); name them by path or file name"
        )
    return said, len(unmatched)
