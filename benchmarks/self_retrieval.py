"""Self-retrieval beside teacher forcing over all pairs: the same model, captions, images and ranks, in one run.

    .venv/bin/python benchmarks/self_retrieval.py RUN [--images 250 500 1000] [--captions captions.jsonl]
    .venv/bin/python benchmarks/self_retrieval.py models/captioner --captions captions.jsonl --data dataset_coco.json
        --images 4407 --part 60 [--threads 2]

RUN is a finished run; its `captions.jsonl` (as `tellapart evaluate RUN` leaves it) is ranked by default. A model folder
needs captions and data. "All pairs" is the plain way: every caption against every image by `log_prob`, in batches of
captions of about one length against blocks of images, each image encoded once. It runs once for each number of images,
between two runs of ours whose times are averaged. With `--part` ours runs once, and all pairs have only so many
captions, spread evenly, against all images: their time is then that for all captions, by their tokens, and only the
ranks of these captions are compared. A rank may differ only where scores are closer than 1e-5.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from tellapart.captioners.base import Captioner, load_captioner
from tellapart.data.features import FeatureStore
from tellapart.data.prepare import prepare
from tellapart.data.settings import DataSettings
from tellapart.evaluation.self_retrieval import SHOWN, SelfRetrieval, self_retrieval
from tellapart.files import read_jsonl
from tellapart.metrics import rank_of_true
from tellapart.run import open_run

CAPTION_BLOCK = 32
IMAGE_BLOCK = 16
CLOSE = 1e-5

T = TypeVar("T")


@torch.no_grad()
def all_pairs(captioner: Captioner, store: FeatureStore, rows: list[int], captions: list[str]) -> np.ndarray:
    """ln p of every caption against every image by teacher forcing, `[captions, images]`."""
    order = np.argsort([len(caption.split()) for caption in captions], kind="stable")
    matrix = np.empty((len(captions), len(rows)))
    for left in range(0, len(rows), IMAGE_BLOCK):
        block = rows[left : left + IMAGE_BLOCK]
        memory = captioner.encode(torch.from_numpy(store.grid(block)).to(captioner.device))
        for top in range(0, len(captions), CAPTION_BLOCK):
            some = order[top : top + CAPTION_BLOCK]
            tokens = captioner.tokenize([captions[number] for number in some])
            image_of_row = torch.arange(len(block), device=tokens.device).repeat(len(tokens))
            repeated = tokens.repeat_interleave(len(block), dim=0)
            scores = captioner.log_prob(memory, repeated, image_of_row, per_token=True).cpu().double().sum(dim=1)
            matrix[some, left : left + len(block)] = scores.view(len(tokens), -1).numpy()
    return matrix


def timed(call: Callable[[], T]) -> tuple[T, np.ndarray]:
    """What it gives; wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = call()
    return found, np.array([time.perf_counter() - wall, time.process_time() - cpu])


def check_same(ranks: np.ndarray, scores: np.ndarray, true: np.ndarray) -> int:
    """How many ranks differ; one that differs by more images than have scores closer than 1e-5 is an error."""
    plain = rank_of_true(scores, true)
    close = (np.abs(scores - scores[np.arange(len(true)), true][:, None]) < CLOSE).sum(axis=1) - 1
    wrong = np.flatnonzero(np.abs(ranks - plain) > close)
    assert not len(wrong), f"{len(wrong)} ranks differ, the first that of caption {true[wrong[0]]}"
    return int((ranks != plain).sum())


def compare(captioner: Captioner, store: FeatureStore, rows: list[int], captions: list[str], part: int | None) -> float:
    """Prints times, savings and figures; gives our CPU seconds."""
    scored = np.unique(np.linspace(0, len(captions) - 1, part or len(captions)).astype(int))
    some = [captions[number] for number in scored]
    ours, seconds = timed(lambda: self_retrieval(captioner, store, rows, captions))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    scores, plain = timed(lambda: all_pairs(captioner, store, rows, some))
    plain *= sum(len(caption.split()) + 1 for caption in captions) / sum(len(caption.split()) + 1 for caption in some)
    differ = check_same(ours.ranks[scored], scores, scored)
    print(f"{len(captions)} captions × {len(rows)} images, {len(set(captions))} different captions:")
    if part:
        print(f"  all pairs of {len(some)} captions only: time of all by tokens, ranks of these are compared")
    else:
        again, after = timed(lambda: self_retrieval(captioner, store, rows, captions))
        assert (ours.ranks == again.ranks).all()
        seconds = (seconds + after) / 2
    print(f"  all pairs         {plain[0]:8.1f} s wall {plain[1]:8.1f} s CPU")
    print(f"  tellapart         {seconds[0]:8.1f} s wall {seconds[1]:8.1f} s CPU")
    print(f"  ratio             {plain[0] / seconds[0]:8.1f}        {plain[1] / seconds[1]:8.1f}")
    if not part:
        with_first(captioner, store, rows, captions, ours, scores)
    summary = ours.summary()
    print(f"  shared            {ours.shared:8.1%}")
    print(f"  pruned of the rest{ours.pruned:8.1%}")
    print(f"  ranks that differ {differ} (all of scores closer than {CLOSE:g}); memory at most {memory} MB")
    recalls = ", ".join(f"R@{k} {share:.3f} ({summary.chance[k]:.3f})" for k, share in summary.recalls.items())
    print(f"  {recalls}; mean rank {summary.mean:.2f}, median {summary.median:g}", flush=True)
    return float(seconds[1])


def with_first(
    captioner: Captioner,
    store: FeatureStore,
    rows: list[int],
    captions: list[str],
    ours: SelfRetrieval,
    scores: np.ndarray,
) -> None:
    """Print what it takes to give the first images of each caption as well, and check them."""
    shown, taken = timed(lambda: self_retrieval(captioner, store, rows, captions, shown=SHOWN))
    assert (shown.ranks == ours.ranks).all()
    first = np.argsort(-scores, axis=1, kind="stable")[:, :SHOWN]
    apart = np.abs(np.take_along_axis(scores, shown.first, 1) - np.take_along_axis(scores, first, 1)).max()
    assert apart < CLOSE, f"the first images differ by {apart}"
    print(f"  with the first {SHOWN}  {taken[0]:8.1f} s wall {taken[1]:8.1f} s CPU ({shown.pruned:.1%} pruned)")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--images", type=int, nargs="+", default=[250, 500, 1000])
    parser.add_argument("--captions", type=Path)
    parser.add_argument("--data", help="of a model folder; a run has its own")
    parser.add_argument("--prepared", default="prepared")
    parser.add_argument("--part", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--split", default="test")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.data is None:
        run = open_run(chosen.model)
        captioner, data = run.captioner, run.recipe.data
    else:
        captioner = load_captioner(chosen.model).eval()
        data = DataSettings(source=chosen.data, encoder=captioner.encoder.name, prepared=chosen.prepared)
    prepared = prepare(data)
    said = {row["id"]: row["caption"] for row in read_jsonl(chosen.captions or chosen.model / "captions.jsonl")}
    records = [record for record in prepared.dataset.split(chosen.split) if record.id in said]
    rows = [prepared.dataset.row(record.id) for record in records]
    captions = [said[record.id] for record in records]
    sizes = sorted({min(images, len(rows)) for images in chosen.images})
    seconds = [compare(captioner, prepared.store, rows[:images], captions[:images], chosen.part) for images in sizes]
    for images, took in zip(sizes[1:], seconds[1:], strict=True):
        pairs, grown = (images / sizes[0]) ** 2, took / seconds[0]
        print(f"from {sizes[0]} to {images}: {pairs:.0f} times the pairs, {grown:.1f} times our CPU time")


if __name__ == "__main__":
    main()
