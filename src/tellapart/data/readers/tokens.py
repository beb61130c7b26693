"""Token files of Flickr8k and Flickr30k, with a list of images for each split."""

from __future__ import annotations

import os
from pathlib import Path

from tellapart.data.readers.checks import ImageRoot, caption_of, first_folder, read_split_lists
from tellapart.data.records import Dataset, Record
from tellapart.errors import DataError
from tellapart.files import read_text

# Names used in the published archives, including a misspelt one.
IMAGE_FOLDERS = ("images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images", "flickr30k_images")


def matches(source: Path) -> bool:
    return source.is_dir() and bool(_token_files(source))


def read(source: Path) -> Dataset:
    """Read lines `NAME.jpg#0<TAB>caption`, and text lists with train, val (or dev) and test in their names.

    Pictures are in one of `IMAGE_FOLDERS`, beside the token file, or in such a folder next to this one; in that last
    case the data set's root is the parent. Captioned images in no list are left out.
    """
    found = _token_files(source)
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise DataError(f"{source}: one file *.token.txt or *.token is needed, there are: {names}")
    captions = _read_captions(found[0])
    # Flickr30k's lists omit ".jpg".
    keys = {Path(name).stem: name for name in captions} | {name: name for name in captions}
    lists = [path for path in sorted(source.glob("*.txt")) if path not in found]
    splits = read_split_lists(lists, keys.get)
    if not splits:
        raise DataError(
            f"{source}: no list says which images are for training; add *train*.txt, *val*.txt and *test*.txt, "
            "with one image name per line"
        )
    root, images = _find_images(source, next(iter(splits)))
    inside = ImageRoot(root)
    records = [
        Record(Path(name).stem, inside.image(images, name, str(found[0])), split, tuple(captions[name].values()))
        for name, split in splits.items()
    ]
    return Dataset(_name(found[0]), root, tuple(records), left_out=len(captions) - len(records))


def _token_files(folder: Path) -> list[Path]:
    # Flickr8k also comes with lemmatised captions.
    paths = [*folder.glob("*.token"), *folder.glob("*.token.txt")]
    return sorted(path for path in paths if ".lemma." not in path.name)


def _name(path: Path) -> str:
    if path.name == "results_20130124.token":
        return "flickr30k"
    return path.name.removesuffix(".txt").removesuffix(".token").lower()


def _read_captions(path: Path) -> dict[str, dict[str, str]]:
    """Captions by number by image name, in the file's order."""
    captions: dict[str, dict[str, str]] = {}
    # Not splitlines(): it would cut a caption at characters such as U+2028.
    for position, line in enumerate(read_text(path, "token file").split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}: line {position}"
        key, tab, caption = line.partition("\t")
        name, hash, number = key.rpartition("#")
        if not tab or not hash or not name or not number.isdecimal():
            raise DataError(f"{where} is not 'NAME.jpg#0', a tab, and a caption; fix or remove it")
        of_image = captions.setdefault(name, {})
        if number in of_image:
            raise DataError(f"{where}: '{key}' is there twice; number the captions of an image 0, 1, 2, …")
        of_image[number] = caption_of(caption, where)
    return captions


def _find_images(folder: Path, name: str) -> tuple[Path, str]:
    inside = first_folder(folder, IMAGE_FOLDERS)
    if inside is not None:
        return folder, inside
    parent = Path(os.path.abspath(folder)).parent
    beside = None if (folder / name).is_file() else first_folder(parent, IMAGE_FOLDERS)
    return (folder, "") if beside is None else (parent, beside)
