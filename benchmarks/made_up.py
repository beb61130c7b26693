"""Made-up data for benchmarks: captions of random words, features of random numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset, Record
from tellapart.encoders.base import EncoderIdentity

IDENTITY = EncoderIdentity("made-up", "0", "none", regions=49, width=1280)
WORDS = [f"word{number}" for number in range(2500)]


def make_data(images: int, validation: int = 0) -> tuple[Dataset, FeatureStore]:
    """Images with five captions of 8 to 13 words each; the last so many are for validation, the others for training."""
    rng = np.random.default_rng(0)
    records = tuple(
        Record(
            str(number),
            f"{number}.png",
            "train" if number < images - validation else "val",
            tuple(" ".join(rng.choice(WORDS, size=rng.integers(8, 14))) for _ in range(5)),
        )
        for number in range(images)
    )
    dataset = Dataset("made-up", Path(), records)
    return dataset, FeatureStore(rng.normal(size=(images, 50, 1280)).astype(np.float16), IDENTITY, dataset.digest)
