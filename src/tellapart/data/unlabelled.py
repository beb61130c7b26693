"""Data sets without a training split: pictures without captions, and a folder of captioned pictures."""

from __future__ import annotations

from dataclasses import replace

from tellapart.data.records import Dataset
from tellapart.errors import DataError
from tellapart.files import digest_of

# One picture in so many validates, but at least two.
EVERY = 10
FEWEST = 4


def has_training_split(dataset: Dataset) -> bool:
    return any(record.split == "train" for record in dataset)


def with_training_split(dataset: Dataset) -> Dataset:
    """A data set without a training split, such as a folder of pictures, divided: every tenth picture validates.

    The records stay in their order, so that their rows in a feature store are the same. A data set with a training
    split is returned as it is.
    """
    if has_training_split(dataset):
        return dataset
    count = len(dataset)
    if count < FEWEST:
        raise DataError(f"{dataset.name}: has {count} pictures, and training needs at least {FEWEST}; add pictures")
    every = EVERY if count >= 2 * EVERY else count // 2
    records = tuple(
        replace(record, split="val" if number % every == every - 1 else "train")
        for number, record in enumerate(dataset)
    )
    return replace(dataset, records=records)


def hold_out(dataset: Dataset, share: float) -> Dataset:
    """A data set without a training split, divided by the names of its pictures; the rest trains.

    The same names give the same division in any order. Pictures without captions are left out. A data set with a
    training split is returned as it is.

    Args:
        dataset: such as a folder of pictures with captions in text files.
        share: of the validation split, and again of the test split; each has at least one picture.
    """
    if has_training_split(dataset):
        return dataset
    captioned = [record for record in dataset if record.captions]
    if len(captioned) < FEWEST:
        raise DataError(
            f"{dataset.root}: {len(captioned)} of its {len(dataset)} pictures have captions, and training needs at "
            f"least {FEWEST}; write captions of photo.jpg into photo.txt, one a line"
        )
    held = max(1, round(share * len(captioned)))
    order = sorted((record.id for record in captioned), key=digest_of)
    splits = (
        dict.fromkeys(order, "train")
        | dict.fromkeys(order[:held], "val")
        | dict.fromkeys(order[held : 2 * held], "test")
    )
    return replace(dataset, records=tuple(replace(record, split=splits[record.id]) for record in captioned))
