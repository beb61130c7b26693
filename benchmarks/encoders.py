"""Image encoders compared: what their features know of the captions, what captioners and retrievers make of them, cost.

.venv/bin/python benchmarks/encoders.py DATA [--encoders NAME ...] [--train] [--runs FOLDER] [--prepared FOLDER]

DATA is a captioned data set with the splits train and test, such as Flickr8k. For each encoder:

- ms: milliseconds a picture on one thread, one picture after another, the encoders in turn; a ratio, not a constant;
- word mAP: mean average precision of a linear probe (ridge) that predicts, from the pooled vector and the mean of the
  regions, which of the 300 most frequent content words are in a picture's captions; 3,000 training pictures;
- 5-NN: share of the words of a test picture's captions that the captions of its five nearest training pictures have
  (Jaccard), by the cosine of the pooled vectors;
- off: how far the features are from those of the same network in float32, relative to their size;
- with `--train`: CIDEr of an AdaptiveAttention captioner and R@sum of a VSE++ retriever on the validation split,
  trained on these features by the Flickr8k recipes.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tellapart.data.images import load_image
from tellapart.data.prepare import Prepared, prepare
from tellapart.data.settings import DataSettings
from tellapart.encoders import open_encoder
from tellapart.evaluation.evaluate import evaluate
from tellapart.evaluation.evaluate_retrieval import evaluate_retrieval
from tellapart.progress import show_progress
from tellapart.recipe_files import recipes_folder
from tellapart.terminal import print_table
from tellapart.training import train

ENCODERS = ("efficientnet-lite0", "efficientnet-lite2", "dinov2-small", "clip-vit-b16")
TRAINING, TEST, WORDS, NEIGHBOURS = 3000, 1000, 300, 5
TIMED = 12
# Words of every second caption, which say nothing of the picture.
STOP = frozenset(
    ["a", "an", "the", "and", "or", "of", "in", "on", "at", "to", "with", "by", "for", "from", "is", "are", "as", "it"]
)


def words_of(prepared: Prepared, split: str, most: int) -> tuple[list[int], list[set[str]]]:
    """Rows in the store and caption words of the first pictures of a split."""
    rows, words = [], []
    for row, record in enumerate(prepared.dataset.records):
        if record.split == split and record.captions and record.id not in prepared.store.skipped:
            rows.append(row)
            words.append({word for caption in record.captions for word in caption.lower().split()} - STOP)
    return rows[:most], words[:most]


def vectors(prepared: Prepared, rows: list[int]) -> NDArray[np.float64]:
    """Pooled vector and mean of the regions, each of length one."""
    parts = []
    for start in range(0, len(rows), 250):
        block = rows[start : start + 250]
        pooled, mean = prepared.store.pooled(block), prepared.store.grid(block).mean(axis=1)
        parts.append(np.concatenate([one / np.linalg.norm(one, axis=1, keepdims=True) for one in (pooled, mean)], 1))
    return np.concatenate(parts).astype(np.float64)


def average_precision(scores: NDArray[np.float64], truth: NDArray[np.bool_]) -> float:
    """Average precision of a ranking."""
    hits = truth[np.argsort(-scores, kind="stable")]
    found = np.cumsum(hits)
    return float((found[hits] / (np.flatnonzero(hits) + 1)).mean())


def probe(prepared: Prepared) -> tuple[float, float]:
    """Word mAP and 5-NN overlap."""
    train_rows, train_words = words_of(prepared, "train", TRAINING)
    test_rows, test_words = words_of(prepared, "test", TEST)
    counts: dict[str, int] = {}
    for words in train_words:
        for word in words:
            counts[word] = counts.get(word, 0) + 1
    vocabulary = sorted(counts, key=lambda word: (-counts[word], word))[:WORDS]
    known, asked = vectors(prepared, train_rows), vectors(prepared, test_rows)
    table = np.array([[word in words for word in vocabulary] for words in train_words], np.float64)
    truth = np.array([[word in words for word in vocabulary] for words in test_words])
    centre, spread = known.mean(axis=0), known.std(axis=0) + 1e-9
    x, y = (known - centre) / spread, (asked - centre) / spread
    # The strength of the ridge is chosen on the last sixth of the training pictures.
    cut = len(x) * 5 // 6
    strengths = (300.0, 1000.0, 3000.0, 10000.0, 30000.0)
    best = max(strengths, key=lambda one: _map(x[:cut], table[:cut], x[cut:], table[cut:] > 0, one))
    width = known.shape[1] // 2
    near = np.argsort(-(asked[:, :width] @ known[:, :width].T), axis=1, kind="stable")[:, :NEIGHBOURS]
    overlaps = [
        np.mean([len(words & train_words[other]) / max(1, len(words | train_words[other])) for other in row])
        for words, row in zip(test_words, near, strict=True)
    ]
    return _map(x, table, y, truth, best), float(np.mean(overlaps))


def _map(x: NDArray[Any], table: NDArray[Any], y: NDArray[Any], truth: NDArray[np.bool_], strength: float) -> float:
    mean = table.mean(axis=0)
    weights = np.linalg.solve(x.T @ x + strength * np.eye(x.shape[1]), x.T @ (table - mean))
    scores = y @ weights + mean
    present = np.flatnonzero(truth.any(axis=0))
    return float(np.mean([average_precision(scores[:, word], truth[:, word]) for word in present]))


def cost(names: list[str], prepared: Prepared) -> tuple[dict[str, float], dict[str, float]]:
    """Milliseconds a picture, the best of three rounds, and the distance from float32."""
    encoders = {name: open_encoder(name, threads=1) for name in names}
    paths = [prepared.dataset.path(record) for record in prepared.dataset.records[:TIMED]]
    milliseconds: dict[str, float] = {}
    for number in range(4):
        for name, encoder in encoders.items():
            pictures = [load_image(path, at_least=encoder.size) for path in paths]
            began = time.perf_counter()
            encoder.encode(pictures)
            taken = 1000 * (time.perf_counter() - began) / len(paths)
            if number:  # the first round loads and warms up
                milliseconds[name] = min(taken, milliseconds.get(name, taken))
    off = {}
    for name, encoder in encoders.items():
        pictures = [load_image(path, at_least=encoder.size) for path in paths]
        exact, found = open_encoder(name, threads=1, device="cpu").encode(pictures), encoder.encode(pictures)
        off[name] = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    return milliseconds, off


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--encoders", nargs="+", default=list(ENCODERS))
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--prepared", default="prepared")
    given = parser.parse_args()
    torch.set_num_threads(1)
    ready = {
        name: prepare(DataSettings(source=given.data, encoder=name, prepared=given.prepared), show_progress())
        for name in given.encoders
    }
    milliseconds, off = cost(given.encoders, next(iter(ready.values())))
    rows = []
    for name, prepared in ready.items():
        accuracy, overlap = probe(prepared)
        identity = prepared.store.encoder
        row = [name, f"{identity.regions} × {identity.width}", f"{milliseconds[name]:.0f}", f"{off[name]:.3f}"]
        row += [f"{accuracy:.3f}", f"{overlap:.3f}"]
        if given.train:
            settings = [f"data.source={given.data}", f"data.prepared={given.prepared}", f"data.encoder={name}"]
            recipes = recipes_folder() / "flickr8k"
            captioner = train(recipes / "adaptive-mle.yaml", *settings, runs=given.runs)
            row.append(f"{evaluate(captioner, split='val').corpus['CIDEr']:.3f}")
            retriever = train(recipes / "vse.yaml", *settings, runs=given.runs)
            row.append(f"{evaluate_retrieval(retriever, split='val').figures['R@sum']:.1f}")
        rows.append(row)
    header = ["encoder", "regions", "ms", "off", "word mAP", "5-NN", *(["CIDEr", "R@sum"] if given.train else [])]
    print_table(header, rows)


if __name__ == "__main__":
    main()
