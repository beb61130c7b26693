"""InstaPIC-1.1M: Instagram posts, one caption each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tellapart.data.readers.checks import ImageRoot, caption_of, text_of
from tellapart.data.records import Dataset, Record
from tellapart.errors import DataError
from tellapart.files import read_json

TRAIN = "json/insta-caption-train.json"
TEST = "json/insta-caption-test1.json"

# Training posts that the CL paper holds out for validation.
VALIDATION = 2_000


def matches(source: Path) -> bool:
    return (source / TRAIN).is_file()


def read(source: Path) -> Dataset:
    """Read `{user: {post: {"caption", "tags"}}}` in `json/`, pictures in `images/USER_@_POST` with or without `.jpg`.

    The last 2,000 training posts become the validation split (a tenth of them if there are fewer than 20,000). The test
    split is `test1`. `test2`, which shares no user with training, is not read.
    """
    images = source / "images"
    present = set(os.listdir(images)) if images.is_dir() else set()
    root = ImageRoot(source)
    train = list(_posts(source / TRAIN, root, "train", present))
    validation = VALIDATION if len(train) >= 10 * VALIDATION else len(train) // 10
    first = len(train) - validation
    records = [*train[:first], *(Record(r.id, r.image, "val", r.captions) for r in train[first:])]
    if (source / TEST).is_file():
        records += _posts(source / TEST, root, "test", present)
    return Dataset("instapic", source, tuple(records))


def _posts(path: Path, root: ImageRoot, split: str, present: set[str]) -> Iterator[Record]:
    content = read_json(path, "caption file")
    if not isinstance(content, dict) or not content:
        raise DataError(f"{path}: not in InstaPIC's layout (an object of users is missing or empty)")
    for user, posts in content.items():
        if not isinstance(posts, dict):
            raise DataError(f"{path}: user '{user}' is not an object of posts")
        for post, content_of_post in posts.items():
            where = f"{path}: post '{post}' of user '{user}'"
            if not isinstance(content_of_post, dict):
                raise DataError(f"{where} is not an object")
            id = text_of(f"{user}_@_{post}", where, "has no name")
            name = f"{id}.jpg" if f"{id}.jpg" in present else id
            caption = caption_of(content_of_post.get("caption"), where, "has no text in 'caption'")
            yield Record(id, root.image("images", name, where), split, (caption,))
