"""A part of the training captions: the most generic ones (D⁻ of UNKT) or the most specific ones (D⁺)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tellapart.data.records import Dataset

Chosen = NDArray[np.bool_]


def highest(values: NDArray[np.float64], share: float) -> Chosen:
    """Which values are the highest `share` of all; of equal ones the last. At least one is, and one is not.

    >>> highest(np.array([3.0, 1.0, 2.0, 2.0]), 0.5).astype(int).tolist()
    [1, 0, 0, 1]
    """
    count = min(max(1, round(share * len(values))), max(1, len(values) - 1))
    chosen = np.zeros(len(values), np.bool_)
    chosen[np.argsort(values, kind="stable")[len(values) - count :]] = True
    return chosen


def keep_captions(dataset: Dataset, ids: Sequence[str], image_of_caption: NDArray[np.int64], kept: Chosen) -> Dataset:
    """The data set with only some captions of these images; other images stay as they are.

    Records keep their places, so that they have the same rows in a feature store.

    Args:
        dataset: the whole.
        ids: of the images.
        image_of_caption: the place among `ids` of the image of each of their captions, in order.
        kept: which of these captions stay.
    """
    places = np.split(kept, np.cumsum(np.bincount(image_of_caption, minlength=len(ids)))[:-1])
    kept_of = dict(zip(ids, places, strict=True))

    def captions(id: str, own: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(text for text, stays in zip(own, kept_of[id], strict=True) if stays) if id in kept_of else own

    records = tuple(replace(record, captions=captions(record.id, record.captions)) for record in dataset)
    return replace(dataset, records=records)
