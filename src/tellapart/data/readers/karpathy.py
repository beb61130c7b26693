"""Karpathy's layout: any other JSON file, `{"images": [{"filename", "split", "sentences": [{"raw"}]}]}`.

A folder that holds a file `dataset_NAME.json`, as Karpathy's are called, is read as this file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tellapart.data.readers.checks import ImageRoot, caption_of, text_of
from tellapart.data.records import SPLITS, Dataset, Record
from tellapart.errors import DataError, quote
from tellapart.files import is_utf8, read_json

# Feature stores are put in a folder of the data set's name: a slash in it would move them elsewhere.
_NAME = re.compile(r"\w[\w .@+-]{0,99}")


def matches(source: Path) -> bool:
    return (source.suffix == ".json" and not source.is_dir()) or bool(_inside(source))


def _inside(folder: Path) -> list[Path]:
    """Karpathy's files in a folder; none if it is no folder."""
    return sorted(path for path in folder.glob("dataset_*.json") if path.is_file())


def read(source: Path) -> Dataset:
    """Read a file in Karpathy's layout (COCO, Flickr8k, Flickr30k). `restval` counts as training data, as usual.

    Images are looked for beside the JSON file in `filepath` (if given), `images/`, or the file's own folder.
    """
    if inside := _inside(source):
        if len(inside) > 1:
            names = ", ".join(path.name for path in inside)
            raise DataError(f"{source}: holds several data sets ({names}); give the path of one of them")
        source = inside[0]
    content = read_json(source, "data set")
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list) or not images:
        raise DataError(f"{source}: not in Karpathy's layout (a list 'images' is missing or empty)")
    if "annotations" in content:
        raise DataError(
            f"{source}: not in Karpathy's layout but in COCO's, which names the split in the file's name; "
            "call it captions_train2014.json or captions_val2014.json (2017 likewise)"
        )
    root = ImageRoot(source.parent)
    fallback = "images" if (source.parent / "images").is_dir() else ""
    records = [_record(image, f"{source}: images[{position}]", root, fallback) for position, image in enumerate(images)]
    name = content.get("dataset")
    return Dataset(
        name if isinstance(name, str) and _NAME.fullmatch(name) else source.stem, source.parent, tuple(records)
    )


def _record(image: Any, where: str, root: ImageRoot, fallback: str) -> Record:
    if not isinstance(image, dict):
        raise DataError(f"{where} is not an object")
    filename = text_of(image.get("filename"), where, "has no 'filename'")
    split = image.get("split")
    split = "train" if split == "restval" else split
    if split not in SPLITS:
        raise DataError(f"{where} ({filename}): split is {quote(split)}; it must be train, restval, val or test")
    filepath = image.get("filepath", fallback)
    if not isinstance(filepath, str):
        raise DataError(f"{where}: 'filepath' is {quote(filepath)}; it must name a folder, or be left out")
    family = image.get("family")
    if family is not None and not (isinstance(family, str) and is_utf8(family)):
        raise DataError(f"{where}: 'family' is {quote(family)}; it must be text, or be left out")
    return Record(
        id=Path(filename).stem,
        image=root.image(filepath, filename, where),
        split=split,
        captions=tuple(_captions(image.get("sentences"), where)),
        family=family,
        cocoid=_number(image, "cocoid", where),
        imgid=_number(image, "imgid", where),
    )


def _number(image: dict[str, Any], key: str, where: str) -> int | None:
    """The image's number in COCO or in this file, if it is given."""
    value = image.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise DataError(f"{where}: '{key}' is {quote(value)}; it must be a whole number, or be left out")


def _captions(sentences: Any, where: str) -> list[str]:
    if not isinstance(sentences, list) or not sentences:
        raise DataError(f"{where} has no 'sentences'")
    raws = [sentence.get("raw") if isinstance(sentence, dict) else None for sentence in sentences]
    return [caption_of(raw, where, "has a sentence without text in 'raw'") for raw in raws]
