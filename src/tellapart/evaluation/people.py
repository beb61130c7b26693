"""People's captions as if a model had written them: one of each image is measured against its others."""

from __future__ import annotations

from dataclasses import replace

from tellapart.data.records import Dataset, Record
from tellapart.errors import DataError

# What people's captions are called in tables and folders.
PEOPLE = "people"


def leave_one_out(dataset: Dataset, split: str, choice: int = 0) -> tuple[list[str], Dataset]:
    """One caption of each image of a split, and the data set without these captions.

    Args:
        dataset: has people's captions.
        split: the images; a `DataError` if one of them has fewer than two captions.
        choice: which caption of each image: this number, from 0, modulo the number of its captions.
    """
    if choice < 0:
        raise DataError(f"caption number {choice} does not exist; they count from 0")
    captions = []
    for record in dataset.split(split):
        if len(record.captions) < 2:
            raise DataError(
                f"{dataset.name}: '{record.id}' has only {len(record.captions)} caption; people's captions can be "
                "measured only if every image of the split has at least two, one of them to compare with"
            )
        captions.append(record.captions[choice % len(record.captions)])
    others = (_without(record, choice) if record.split == split else record for record in dataset)
    return captions, replace(dataset, records=tuple(others))


def has_others(dataset: Dataset, split: str) -> bool:
    """Whether every image of a split has at least two captions."""
    return all(len(record.captions) > 1 for record in dataset.split(split))


def _without(record: Record, choice: int) -> Record:
    # A skipped image may have any number of captions; it is in no split.
    left_out = choice % max(1, len(record.captions))
    return replace(record, captions=record.captions[:left_out] + record.captions[left_out + 1 :])
