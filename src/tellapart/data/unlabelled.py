"""Pictures without captions as training data."""

from __future__ import annotations

from dataclasses import replace

from tellapart.data.records import Dataset
from tellapart.errors import DataError

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
