"""How time and memory of the data path grow with the number of images.

    .venv/bin/python benchmarks/scale.py [--sizes 1000 10000 100000]

Made-up images with five captions each and narrow features, so that what is measured is the work for each image, not
the reading of its features. Each line is CPU time and peak memory (of Python and numpy) at each size, and the exponent
a of time ~ imagesᵃ: the slope of a line through log time over log images. Everything but the search for neighbours
should be at most linear, and what is done at each step constant. Neighbours are compared in pairs, so they are measured
at a tenth of the sizes. Take the exponents and the ratios from here, not the times.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tellapart.data import neighbours
from tellapart.data.batches import BatchSource
from tellapart.data.features import FeatureStore
from tellapart.data.inspect import inspect_dataset
from tellapart.data.neighbours import nearest_images, nearest_in_store
from tellapart.data.pictures import PICTURE
from tellapart.data.read_ahead import ReadAhead
from tellapart.data.readers import read_dataset
from tellapart.data.records import Dataset
from tellapart.data.rows import array_layout
from tellapart.data.settings import NegativeSettings
from tellapart.data.write_features import write_store
from tellapart.encoders.base import EncoderIdentity
from tellapart.files import write_json
from tellapart.text import Vocabulary

IDENTITY = EncoderIdentity("made-up", "0", "none", regions=4, width=16)
WORDS = [f"word{number}" for number in range(2500)]
STEPS = 50

# What is measured -> (images, seconds, bytes) at each size.
Found = dict[str, list[tuple[int, float, int]]]


class NoEncoder:
    """Opening a finished store must encode nothing."""

    size, concurrency, identity = 8, 1, IDENTITY

    def squeeze(self, image: Image.Image) -> Image.Image:
        raise AssertionError("an image is encoded")

    def encode(self, images: list[Image.Image]) -> np.ndarray:
        raise AssertionError("an image is encoded")


def write_data(folder: Path, images: int) -> Path:
    """Karpathy's file, and an empty file for each image."""
    rng = np.random.default_rng(0)
    words = rng.choice(WORDS, size=(images, 5, 10))
    (folder / "images").mkdir()
    content = []
    for number in range(images):
        (folder / "images" / f"{number}.jpg").touch()
        sentences = [{"raw": " ".join(caption)} for caption in words[number]]
        content.append({"filename": f"{number}.jpg", "split": "train", "sentences": sentences})
    path = folder / "data.json"
    path.write_text(json.dumps({"images": content, "dataset": "made-up"}), encoding="utf-8")
    return path


def write_finished_store(folder: Path, dataset: Dataset) -> None:
    """A finished store with random features, as `prepare` leaves it."""
    folder.mkdir()
    shape = (len(dataset), IDENTITY.regions + 1, IDENTITY.width)
    dtype, _ = array_layout("float16", shape)
    np.save(folder / "features.npy", np.random.default_rng(0).normal(size=shape).astype(dtype))
    pictures = np.ones(len(dataset), PICTURE)
    stamps = [os.stat(dataset.path(record)) for record in dataset]
    pictures["size"], pictures["time"] = zip(*((stamp.st_size, stamp.st_mtime_ns) for stamp in stamps), strict=True)
    np.save(folder / "pictures.npy", pictures)
    plan = {"encoder": vars(IDENTITY), "records": dataset.digest, "dtype": "float16", "shape": list(shape)}
    write_json(folder / "manifest.json", {**plan, "skipped": []})


def measure(found: Found, what: str, images: int, work: Callable[[], Any], times: int = 1) -> Any:
    """Time some work, which is done `times` times; then do it again and watch its memory."""
    began = time.process_time()
    result = work()
    seconds = (time.process_time() - began) / times
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    found.setdefault(what, []).append((images, max(seconds, 1e-6), peak))
    return result


def read_steps(source: BatchSource) -> None:
    with ReadAhead(source.at, 0, STEPS) as ahead:
        for step in range(STEPS):
            ahead.take(step)


def measure_size(found: Found, images: int, folder: Path) -> None:
    path = write_data(folder, images)
    dataset = measure(found, "read the records", images, lambda: read_dataset(path))
    measure(found, "inspect without images", images, lambda: inspect_dataset(dataset, images=False))
    captions = [caption for record in dataset for caption in record.captions]
    measure(found, "make the vocabulary", images, lambda: Vocabulary.build(captions, 5))
    write_finished_store(folder / "store", dataset)
    store = measure(found, "open a finished store", images, lambda: write_store(folder / "store", dataset, NoEncoder()))
    assert isinstance(store, FeatureStore)
    settings: dict[str, Any] = {"images_per_batch": 32, "captions_per_image": 2, "bucket_batches": 10}
    source = measure(found, "begin training", images, lambda: BatchSource(dataset, store, "train", **settings))
    source._order(0)  # also counts the words of all captions, once
    measure(found, "order of an epoch", images, lambda: source._make_order(0))
    measure(found, "a step read ahead", images, lambda: read_steps(source), STEPS)
    likely = np.random.default_rng(0).integers(0, 5 * images, size=(images, 10))
    hard = NegativeSettings(by="retriever", hard=1.0, ramp_epochs=0)
    negatives = BatchSource(
        dataset, store, "train", **settings, negatives=5, negative_settings=hard, likely_captions=likely
    )
    read_steps(negatives)
    measure(found, "a step with hard negatives", images, lambda: read_steps(negatives), STEPS)
    rows = list(range(images // 10))
    measure(found, "find neighbours", len(rows), lambda: nearest_images(store.pooled(rows), 5))
    nearest_in_store(store, rows, 5)
    measure(found, "open kept neighbours", len(rows), lambda: nearest_in_store(store, rows, 5))


def report(found: Found) -> None:
    for what, measured in found.items():
        images, seconds, peak = (np.array(column, dtype=float) for column in zip(*measured, strict=True))
        exponent = np.polyfit(np.log(images), np.log(seconds), 1)[0] if len(images) > 1 else float("nan")
        shown = "  ".join(
            f"{int(n):>7,}: {1000 * s:10.2f} ms {b / 2**20:8.1f} MB"
            for n, s, b in zip(images, seconds, peak, strict=True)
        )
        print(f"{what:28} {shown}   exponent {exponent:5.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    neighbours.KEPT_FROM = 1
    found: Found = {}
    for images in chosen.sizes:
        with tempfile.TemporaryDirectory() as folder:
            measure_size(found, images, Path(folder))
    report(found)


if __name__ == "__main__":
    main()
