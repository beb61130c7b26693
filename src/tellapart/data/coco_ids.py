"""COCO's image ids, and the result files of its server, which name images by them.

An id is a whole number that the data set gives or that is in the file name. It is never made up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from tellapart.data.images import SUFFIXES
from tellapart.data.records import Record
from tellapart.errors import DataError, shorten

# COCO's file names: those of 2014 and 2015, and those of 2017.
_NAME = re.compile(r"(?:COCO_(?:train|val|test)\d{4}_)?(\d{12})", re.ASCII)


def coco_id_in_name(name: str) -> int | None:
    """The number in one of COCO's file names, with or without folder and ending; None for other names.

    >>> coco_id_in_name("val2014/COCO_val2014_000000391895.jpg"), coco_id_in_name("000000391895")
    (391895, 391895)
    >>> coco_id_in_name("1000092795.jpg") is None
    True
    """
    path = PurePosixPath(name)
    match = _NAME.fullmatch(path.stem if path.suffix.lower() in SUFFIXES else path.name)
    return None if match is None else int(match[1])


def coco_id(record: Record) -> int | None:
    """The image's COCO id: `cocoid` if the data set gives it, else the number in its file name or id."""
    for found in (record.cocoid, coco_id_in_name(record.image), coco_id_in_name(record.id)):
        if found is not None:
            return found
    return None


def coco_ids(records: Sequence[Record]) -> list[int]:
    """The COCO ids of these images; an image without one, or one id for two images, is a `DataError`."""
    image_of: dict[int, str] = {}
    for record in records:
        number = coco_id(record)
        if number is None:
            raise DataError(
                f"{shorten(record.image)}: this image has no COCO id, neither as 'cocoid' in the data set nor in a "
                "file name such as COCO_val2014_000000391895.jpg or 000000391895.jpg"
            )
        if number in image_of:
            raise DataError(
                f"{shorten(record.image)}: has the COCO id {number}, and so has {shorten(image_of[number])}; "
                "each image needs its own"
            )
        image_of[number] = record.image
    return list(image_of)


def server_results(ids: Sequence[int], captions: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a result file of COCO's server.

    >>> server_results([42], ["a dog"])
    [{'image_id': 42, 'caption': 'a dog'}]
    """
    return [{"image_id": id, "caption": caption} for id, caption in zip(ids, captions, strict=True)]
