"""From files as people have them to records. Each reader checks what it reads and says what is wrong with it.

| source | reader |
|---|---|
| `scenes` | the embedded set (rendered on first use) |
| a `.json` file | Karpathy layout: `{"images": [{"filename", "split", "sentences": [{"raw"}]}]}` |
| a folder | every picture in it, with the lines of `NAME.txt` as captions where there are any |
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tellapart.data.images import SUFFIXES
from tellapart.data.records import SPLITS, Dataset, Record
from tellapart.errors import DataError
from tellapart.files import read_json, read_text


def read_dataset(source: Path) -> Dataset:
    """Read a Karpathy JSON file or a folder of pictures."""
    if source.is_dir():
        return read_folder(source)
    if source.suffix == ".json":
        return read_karpathy(source)
    if not source.exists():
        raise DataError(f"{source}: does not exist; give a Karpathy .json file, a folder of pictures, or 'scenes'")
    raise DataError(f"{source}: this kind of file is not read; give a Karpathy .json file or a folder of pictures")


def read_karpathy(path: Path) -> Dataset:
    """Karpathy's layout (COCO, Flickr8k, Flickr30k). `restval` counts as training data, as is usual.

    Images are looked for beside the JSON file in `filepath` (if given), `images/`, or its own folder.
    """
    content = read_json(path, "data set")
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list) or not images:
        raise DataError(f"{path}: not in Karpathy's layout (a list 'images' is missing or empty)")
    records = []
    root = path.parent
    fallback = "images" if (root / "images").is_dir() else ""
    for position, image in enumerate(images):
        where = f"{path}: images[{position}]"
        if not isinstance(image, dict):
            raise DataError(f"{where} is not an object")
        filename, split = image.get("filename"), image.get("split")
        if not isinstance(filename, str) or not filename:
            raise DataError(f"{where} has no 'filename'")
        split = "train" if split == "restval" else split
        if split not in SPLITS:
            raise DataError(f"{where} ({filename}): split is {split!r}; it must be train, restval, val or test")
        filepath = image.get("filepath", fallback)
        if not isinstance(filepath, str):
            raise DataError(f"{where}: 'filepath' is {filepath!r}; it must name a folder, or be left out")
        relative = Path(filepath) / filename
        if "\0" in str(relative) or not (root / relative).resolve().is_relative_to(root.resolve()):
            raise DataError(f"{where}: '{relative}' leaves the data set's folder; image names must stay inside it")
        captions = tuple(_captions(image.get("sentences"), where))
        records.append(
            Record(
                id=Path(filename).stem,
                image=relative.as_posix(),
                split=split,
                captions=captions,
                family=image.get("family"),
            )
        )
    name = content.get("dataset")
    return Dataset(name if isinstance(name, str) and name else path.stem, root, tuple(records))


def _captions(sentences: Any, where: str) -> list[str]:
    if not isinstance(sentences, list) or not sentences:
        raise DataError(f"{where} has no 'sentences'")
    captions = []
    for sentence in sentences:
        raw = sentence.get("raw") if isinstance(sentence, dict) else None
        if not isinstance(raw, str) or not raw.strip():
            raise DataError(f"{where} has a sentence without text in 'raw'; remove it or write one")
        captions.append(raw.strip())
    return captions


def read_folder(folder: Path) -> Dataset:
    """Every picture below a folder, as split `test`; `photo.txt` beside `photo.jpg` holds its captions, one a line."""
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not paths:
        raise DataError(f"{folder}: no picture found; pictures end in {', '.join(sorted(SUFFIXES))}")
    records = []
    for path in paths:
        sidecar = path.with_suffix(".txt")
        lines = read_text(sidecar, "caption file").splitlines() if sidecar.is_file() else []
        captions = tuple(line.strip() for line in lines if line.strip())
        name = path.relative_to(folder).as_posix()
        records.append(Record(id=name, image=name, split="test", captions=captions))
    return Dataset(folder.resolve().name, folder, tuple(records))
