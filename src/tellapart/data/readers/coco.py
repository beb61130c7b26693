"""COCO caption files of 2014 and 2017, with their own splits or with split lists such as m-RNN's."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from tellapart.data.readers.checks import ImageRoot, caption_of, first_folder, read_split_lists, text_of
from tellapart.data.records import Dataset, Record
from tellapart.errors import DataError, quote
from tellapart.files import read_json

_FILE = re.compile(r"captions_((train|val|test)(\d{4}))\.json")


def matches(source: Path) -> bool:
    return bool(_caption_files(source)) if source.is_dir() else _FILE.fullmatch(source.name) is not None


def read(source: Path) -> Dataset:
    """Read `captions_train2014.json` and the like, or a folder with such files in `annotations/`.

    Pictures are in `train2014/`, `val2014/`, … beside `annotations/` (or beside the file), or all in `images/`. Text
    lists in the folder's `splits/`, if any, set the splits. Images in none of them are left out.
    """
    if not source.is_dir():
        home = Path(os.path.abspath(source.parent))
        inside = home.name == "annotations" and not (home / source.stem.removeprefix("captions_")).is_dir()
        root = home.parent if inside else source.parent
        return Dataset(source.stem, root, tuple(record for record, _ in _read_file(source, root)))
    files = _caption_files(source)
    years = sorted({path.stem[-4:] for path in files})
    if len(years) > 1:
        raise DataError(f"{source}: has captions of {' and '.join(years)}, which share images; give one file instead")
    named = [pair for path in files for pair in _read_file(path, source)]
    lists = sorted((source / "splits").glob("*.txt"))
    if not lists:
        return Dataset(f"coco{years[0]}", source, tuple(record for record, _ in named))
    records = _split_by_lists(named, lists)
    if not records:
        raise DataError(f"{source / 'splits'}: no list with train, val or test in its name names an image")
    return Dataset(f"coco{years[0]}-splits", source, records, left_out=len(named) - len(records))


def _caption_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "annotations").glob("captions_*.json") if _FILE.fullmatch(path.name))


def _split_by_lists(named: list[tuple[Record, str]], lists: list[Path]) -> tuple[Record, ...]:
    """The records named in the lists, by file name (with or without folder and suffix) or by id."""
    by_id = {record.id: record for record, _ in named}
    ids = {id: id for id in by_id}
    for record, name in named:
        ids[name] = ids[Path(name).stem] = record.id
    splits = read_split_lists(lists, lambda entry: ids.get(entry) or ids.get(PurePosixPath(entry).name))
    return tuple(replace(by_id[id], split=split) for id, split in splits.items())


def _read_file(path: Path, root: Path) -> list[tuple[Record, str]]:
    """Records of one file, each with its file name."""
    content = read_json(path, "caption file")
    images, annotations = (content.get("images"), content.get("annotations")) if isinstance(content, dict) else (0, 0)
    if not isinstance(images, list) or not isinstance(annotations, list) or not images:
        raise DataError(f"{path}: not in COCO's layout (the lists 'images' and 'annotations' are missing or empty)")
    name = _FILE.fullmatch(path.name)
    assert name is not None
    folder = first_folder(root, (name[1], f"images/{name[1]}", "images")) or name[1]
    inside = ImageRoot(root)
    files: dict[str, tuple[str, str]] = {}
    for position, image in enumerate(images):
        where = f"{path}: images[{position}]"
        id = _id(image, "id", where)
        if id in files:
            raise DataError(f"{where}: the id {id} is used for two images; ids must be unique")
        filename = text_of(image.get("file_name"), where, "has no 'file_name'")
        files[id] = filename, inside.image(folder, filename, where)
    captions: dict[str, list[str]] = {id: [] for id in files}
    for position, annotation in enumerate(annotations):
        where = f"{path}: annotations[{position}]"
        id = _id(annotation, "image_id", where)
        if id not in captions:
            raise DataError(f"{where}: there is no image {id} in this file; remove the caption or add the image")
        captions[id].append(caption_of(annotation.get("caption"), where))
    for id, said in captions.items():
        if not said:
            raise DataError(f"{path}: the image {id} ({files[id][0]}) has no caption; remove it or write one")
    return [(Record(id, image, name[2], tuple(captions[id])), file) for id, (file, image) in files.items()]


def _id(entry: Any, key: str, where: str) -> str:
    if not isinstance(entry, dict):
        raise DataError(f"{where} is not an object")
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise DataError(f"{where}: '{key}' is {quote(value)}; it must be a whole number")
    return str(value)
