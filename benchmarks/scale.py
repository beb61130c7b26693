"""How time and memory of the data path grow with the number of images.

    .venv/bin/python benchmarks/scale.py [--sizes 1000 10000 100000] [--pairs 1000 3000 10000]

Made-up images with five captions each and narrow features, so that what is measured is the work for each image, not its
network. Each line is CPU time and peak memory (of Python and numpy) at each size, and the exponents a of time ~ imagesᵃ
and of memory: the slope of a line through logarithms. Everything but the search for neighbours and self-retrieval
should be at most linear, and what is done at each step constant. Neighbours are compared in pairs, so they are measured
at a tenth of the sizes. Hard negatives by a retriever too, so they are those of the first 1,000 images among all
captions; the whole table takes as many times that as there are thousands of images. Self-retrieval is that of
`tellapart self-retrieval`: exact, with images dropped early. It has sizes of its own, and a tiny captioner that is
trained for some seconds, so that its captions tell images apart. Its memory is that of the process, torch included.

Preparing writes a store from image files of 16 × 16 pixels, with an encoder that computes one mean.

Take the exponents and the ratios from here, not the times.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import json
import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tellapart.captioners.neuraltalk import NeuralTalk, NeuralTalkSettings
from tellapart.data import neighbours
from tellapart.data.batches import BatchSource
from tellapart.data.features import FeatureStore
from tellapart.data.inspect import inspect_dataset
from tellapart.data.negatives import CaptionPool
from tellapart.data.neighbours import nearest_images, nearest_in_store
from tellapart.data.pictures import PICTURE
from tellapart.data.read_ahead import ReadAhead
from tellapart.data.readers import read_dataset
from tellapart.data.records import Dataset
from tellapart.data.rows import array_layout
from tellapart.data.settings import NegativeSettings
from tellapart.data.write_features import write_store
from tellapart.decoding.search import decode_store
from tellapart.decoding.settings import DecodingSettings
from tellapart.encoders.base import EncoderIdentity
from tellapart.evaluation.hard_negatives import best_captions, compare_on_grid
from tellapart.evaluation.self_retrieval import SelfRetrieval, self_retrieval
from tellapart.files import write_json
from tellapart.text import Vocabulary

IDENTITY = EncoderIdentity("made-up", "0", "none", regions=4, width=16)
WORDS = [f"word{number}" for number in range(2500)]
STEPS = 50
# Of the search for hard negatives: images, width of the vectors, candidates of an image.
SEARCHED, WIDTH, CANDIDATES = 1000, 256, 100
# Of the captions for self-retrieval: their number of words, and the words that each place chooses from.
PLACES, CHOICES = 6, 8
# Updates of the captioner for self-retrieval, and images in each.
UPDATES, BATCH = 200, 64

# What is measured -> (images, seconds, bytes) at each size.
Found = dict[str, list[tuple[int, float, int]]]


class NoEncoder:
    """Opening a finished store must encode nothing."""

    size, concurrency, identity = 8, 1, IDENTITY

    def squeeze(self, image: Image.Image) -> Image.Image:
        raise AssertionError("an image is encoded")

    def encode(self, images: list[Image.Image]) -> np.ndarray:
        raise AssertionError("an image is encoded")


class MeanEncoder(NoEncoder):
    """Almost no work: the mean of each picture, in every region."""

    def squeeze(self, image: Image.Image) -> Image.Image:
        return image

    def encode(self, images: list[Image.Image]) -> np.ndarray:
        means = np.array([np.asarray(image).mean() for image in images], np.float32)
        return np.broadcast_to(means[:, None, None], (len(images), IDENTITY.regions, IDENTITY.width))


def make_pictures() -> list[bytes]:
    """A few small JPEG files; many images may have the same content."""
    rng = np.random.default_rng(0)
    files = []
    for _ in range(64):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(file, "JPEG")
        files.append(file.getvalue())
    return files


def write_data(folder: Path, images: int) -> Path:
    """Karpathy's file, and the image files."""
    rng = np.random.default_rng(0)
    words = rng.choice(WORDS, size=(images, 5, 10))
    (folder / "images").mkdir()
    pictures = make_pictures()
    content = []
    for number in range(images):
        (folder / "images" / f"{number}.jpg").write_bytes(pictures[number % len(pictures)])
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


def measure_process(found: Found, what: str, images: int, work: Callable[[], Any]) -> Any:
    """Time some work, and how much the memory of the process grows at most, torch included (Linux with glibc)."""
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before must not hide what is taken now
    Path("/proc/self/clear_refs").write_text("5")  # the highest value so far becomes the present one
    before, began = _status("VmRSS"), time.process_time()
    result = work()
    seconds = time.process_time() - began
    found.setdefault(what, []).append((images, seconds, max(1, _status("VmHWM") - before)))
    return result


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


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
    written = count()

    def write() -> None:
        write_store(folder / f"written-{next(written)}", dataset, MeanEncoder())

    measure(found, "prepare: write a store", images, write)
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
    measure_hard_negatives(found, dataset)
    rows = list(range(images // 10))
    measure(found, "find neighbours", len(rows), lambda: nearest_images(store.pooled(rows), 5))
    nearest_in_store(store, rows, 5)
    measure(found, "open kept neighbours", len(rows), lambda: nearest_in_store(store, rows, 5))


def measure_hard_negatives(found: Found, dataset: Dataset) -> None:
    """The search of a retriever with random vectors among all captions; its memory holds no vectors."""
    pool = CaptionPool([record.captions for record in dataset])
    rng = np.random.default_rng(0)
    pictures = rng.standard_normal((SEARCHED, WIDTH), np.float32)
    captions = rng.standard_normal((len(pool.captions), WIDTH), np.float32)
    compare = compare_on_grid(pictures, captions)
    what = f"hard negatives, {SEARCHED:,} images"
    measure(found, what, len(dataset), lambda: best_captions(compare, pool, slice(0, SEARCHED), CANDIDATES))


def make_captioned(images: int) -> tuple[FeatureStore, list[str]]:
    """Random features, and captions that say which of some directions each image has most of."""
    rng = np.random.default_rng(1)
    grid = rng.normal(size=(images, IDENTITY.regions, IDENTITY.width))
    directions = np.random.default_rng(2).normal(size=(PLACES, IDENTITY.width, CHOICES))
    mean = grid.mean(axis=1, keepdims=True)
    chosen = np.einsum("iw,pwc->ipc", mean[:, 0], directions).argmax(axis=2)
    captions = [" ".join(f"word{place}{choice}" for place, choice in enumerate(row)) for row in chosen.tolist()]
    return FeatureStore(np.concatenate([grid, mean], axis=1).astype(np.float16), IDENTITY, "made-up"), captions


def train_captioner() -> NeuralTalk:
    """A tiny captioner of such images, trained for some seconds."""
    torch.manual_seed(0)
    store, captions = make_captioned(4096)
    vocabulary = Vocabulary.build(captions, 1)
    captioner = NeuralTalk(NeuralTalkSettings(hidden=64, embedding=32, dropout=0.0), vocabulary, IDENTITY)
    optimiser = torch.optim.Adam(captioner.parameters(), lr=0.01)
    rng = np.random.default_rng(3)
    for _ in range(UPDATES):
        rows = rng.integers(0, len(captions), BATCH).tolist()
        memory = captioner.encode(torch.from_numpy(store.grid(rows)))
        tokens = captioner.tokenize([captions[row] for row in rows])
        loss = -captioner.log_prob(memory, tokens, torch.arange(BATCH)).mean()
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
    return captioner.eval()


def measure_self_retrieval(found: Found, sizes: list[int]) -> None:
    """Each image's own caption by the captioner looks for it among all images."""
    captioner = train_captioner()

    def ranking_of(images: int) -> Callable[[], SelfRetrieval]:
        store, _ = make_captioned(images)
        rows = list(range(images))
        captions = [own[0].caption for own in decode_store(captioner, store, rows, DecodingSettings())]
        return lambda: self_retrieval(captioner, store, rows, captions)

    ranking_of(100)()  # what torch makes once is not measured
    for images in sizes:
        ranked = measure_process(found, "self-retrieval", images, ranking_of(images))
        saved = f"shared {ranked.shared:.2f}, pruned {ranked.pruned:.2f}"
        print(f"{images} images: R@1 {100 * ranked.summary().recalls[1]:.0f} %, {saved}", flush=True)


def exponent(images: np.ndarray, values: np.ndarray) -> float:
    """The slope of a line through the logarithms."""
    return float(np.polyfit(np.log(images), np.log(values), 1)[0]) if len(images) > 1 else float("nan")


def report(found: Found) -> None:
    for what, measured in found.items():
        images, seconds, peak = (np.array(column, dtype=float) for column in zip(*measured, strict=True))
        shown = "  ".join(
            f"{int(n):>7,}: {1000 * s:10.2f} ms {b / 2**20:8.1f} MB"
            for n, s, b in zip(images, seconds, peak, strict=True)
        )
        print(f"{what:28} {shown}   exponent {exponent(images, seconds):5.2f}, memory {exponent(images, peak):5.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--pairs", type=int, nargs="*", default=[1_000, 3_000, 10_000])
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    neighbours.KEPT_FROM = 1
    found: Found = {}
    measure_self_retrieval(found, chosen.pairs)  # first, while the process is small
    for images in chosen.sizes:
        with tempfile.TemporaryDirectory() as folder:
            measure_size(found, images, Path(folder))
        print(f"{images} images: done", flush=True)
    report(found)


if __name__ == "__main__":
    main()
