"""COCO caption files of 2014 and 2017, with their own splits or with split lists such as m-RNN's; lists of images."""

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
# Lists of images without captions, such as the server's: image_info_test2014.json, image_info_test-dev2015.json.
_INFO = re.compile(r"image_info_(test|unlabeled)(?:-dev)?(\d{4})\.json")


def matches(source: Path) -> bool:
    if source.is_dir():
        return bool(_caption_files(source))
    return any(pattern.fullmatch(source.name) for pattern in (_FILE, _INFO))


def read(source: Path) -> Dataset:
    """Read `captions_train2014.json` and the like, or a folder with such files in `annotations/`.

    Pictures are in `train2014/`, `val2014/`, … beside `annotations/` (or beside the file), or all in `images/`. Text
    lists in the folder's `splits/`, if any, set the splits. Images in none of them are left out.

    `image_info_test2014.json` and the like list images without captions, as split `test`.
    """
    if info := _INFO.fullmatch(source.name):
        return _read_info(source, info[1] + info[2])
    if not source.is_dir():
        root = _root(source, source.stem.removeprefix("captions_"))
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


def _root(source: Path, pictures: str) -> Path:
    """The folder that the folder of pictures is in: the file's own, or the one above `annotations/`."""
    home = Path(os.path.abspath(source.parent))
    return home.parent if home.name == "annotations" and not (home / pictures).is_dir() else source.parent


def _read_info(path: Path, pictures: str) -> Dataset:
    content = read_json(path, "list of images")
    root = _root(path, pictures)
    images = _read_images(content.get("images") if isinstance(content, dict) else None, path, root, pictures)
    records = (Record(id, image, "test", (), cocoid=int(id)) for id, (_, image) in images.items())
    return Dataset(path.stem, root, tuple(records))


def _read_images(images: Any, path: Path, root: Path, pictures: str) -> dict[str, tuple[str, str]]:
    """Id -> file name and path below the root, of a file's list of images."""
    if not isinstance(images, list) or not images:
        raise DataError(f"{path}: not in COCO's layout (the list 'images' is missing or empty)")
    folder = first_folder(root, (pictures, f"images/{pictures}", "images")) or pictures
    inside = ImageRoot(root)
    files: dict[str, tuple[str, str]] = {}
    for position, image in enumerate(images):
        where = f"{path}: images[{position}]"
        id = _id(image, "id", where)
        if id in files:
            raise DataError(f"{where}: the id {id} is used for two images; ids must be unique")
        filename = text_of(image.get("file_name"), where, "has no 'file_name'")
        files[id] = filename, inside.image(folder, filename, where)
    return files


def _read_file(path: Path, root: Path) -> list[tuple[Record, str]]:
    """Records of one file, each with its file name."""
    content = read_json(path, "caption file")
    images, annotations = (content.get("images"), content.get("annotations")) if isinstance(content, dict) else (0, 0)
    if not isinstance(images, list) or not isinstance(annotations, list) or not images:
        raise DataError(f"{path}: not in COCO's layout (the lists 'images' and 'annotations' are missing or empty)")
    name = _FILE.fullmatch(path.name)
    assert name is not None
    files = _read_images(images, path, root, name[1])
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
    return [
        (Record(id, image, name[2], tuple(captions[id]), cocoid=int(id)), file) for id, (file, image) in files.items()
    ]


def _id(entry: Any, key: str, where: str) -> str:
    if not isinstance(entry, dict):
        raise DataError(f"{where} is not an object")
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise DataError(f"{where}: '{key}' is {quote(value)}; it must be a whole number")
    return str(value)
