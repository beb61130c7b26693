"""Two halves of the training images, so that a model can judge captions that it was not trained on (cross-fitting)."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from tellapart.data.records import Dataset, Record
from tellapart.errors import DataError


def half_of(record: Record, seed: int = 0) -> int:
    """The half of an image, 1 or 2: a bit of the sha256 of the seed and its id.

    It depends on nothing else, so it stays the same when images are added or ordered differently. Near-duplicates of
    one family are in the same half.

    >>> [half_of(Record(id, f"{id}.jpg", "train", ())) for id in "abcdef"]
    [2, 1, 1, 2, 1, 2]
    """
    digest = hashlib.sha256(f"{seed}:{record.family or record.id}".encode("utf-8", "surrogatepass")).digest()
    return 1 + digest[0] % 2


def keep_half(dataset: Dataset, half: int, seed: int = 0) -> Dataset:
    """The data set with only one half of its training images; the other splits stay whole.

    Records keep their places, so that they have the same rows in a feature store: those of the other half are marked
    as skipped, and are in no split.

    Args:
        dataset: the whole.
        half: 1 or 2.
        seed: gives another division.
    """
    training = [record for record in dataset if record.split == "train"]
    others = {record.id for record in training if half_of(record, seed) != half}
    if training and len(others) == len(training):
        raise DataError(f"{dataset.name}: none of its {len(training)} training images is in half {half}; add images")
    return replace(dataset, skipped=dataset.skipped | others)
