"""Training steps a second on two cores: one process with one or two threads, and two processes, in one run.

    .venv/bin/python benchmarks/processes.py [--steps 3] [--models updown transformer]

Whole steps of the training loop at the size of COCO: 32 images with two captions each, a grid of 49 regions of 1,280
numbers read from a memory-mapped file of 2,000 made-up images in float16, a vocabulary of 10,000 words, hidden states
of 512 numbers. All three train the same batches: two processes have 16 images each. They run one after another; a
step's time is wall clock, the median is taken, after one step that warms up. Run it on a quiet machine with two cores:
two threads or processes that share a core with something else wait for each other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric

from tellapart import registry
from tellapart.data.batches import BatchSource
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset, Record
from tellapart.encoders.base import EncoderIdentity
from tellapart.engine.loop import Trainer
from tellapart.engine.processes import open_fabric
from tellapart.engine.settings import TrainingSettings
from tellapart.objectives.base import Roles
from tellapart.objectives.likelihood import Likelihood, LikelihoodSettings
from tellapart.text import Vocabulary

IDENTITY = EncoderIdentity("made-up", "0", "none", regions=49, width=1280)
WORDS = [f"word{number}" for number in range(10_000)]
IMAGES = 2_000
MODELS = {
    "adaptive-attention": {"hidden": 512},
    "updown": {"hidden": 512},
    "transformer": {"width": 512, "layers": 2},
    "neuraltalk": {"hidden": 512},
}
# label -> processes, threads of each
WAYS = {"1 process, 1 thread": (1, 1), "1 process, 2 threads": (1, 2), "2 processes, 1 thread each": (2, 1)}


def write_features(path: Path) -> None:
    """Random features; a few distinct images are enough, and quickly made."""
    few = np.random.default_rng(0).normal(size=(50, IDENTITY.regions + 1, IDENTITY.width)).astype(np.float16)
    features = np.lib.format.open_memmap(path, "w+", np.float16, (IMAGES, *few.shape[1:]))
    for first in range(0, IMAGES, len(few)):
        features[first : first + len(few)] = few
    features.flush()


def make_dataset() -> Dataset:
    """Images with five captions of 8 to 13 words each."""
    rng = np.random.default_rng(0)
    words = rng.integers(len(WORDS), size=(IMAGES, 5, 13))
    lengths = rng.integers(8, 14, size=(IMAGES, 5))
    records = tuple(
        Record(
            str(image),
            f"{image}.png",
            "train",
            tuple(
                " ".join(WORDS[word] for word in row[:length])
                for row, length in zip(words[image], lengths[image], strict=True)
            ),
        )
        for image in range(IMAGES)
    )
    return Dataset("made-up", Path(), records)


def measure(features: Path, models: list[str], threads: int, steps: int) -> dict[str, float]:
    """Seconds of a step of the loop for each model, in this process, which may be one of two."""
    torch.set_num_threads(threads)
    fabric = open_fabric()
    dataset = make_dataset()
    store = FeatureStore(np.load(features, mmap_mode="r"), IDENTITY, dataset.digest)
    rank, world = fabric.global_rank, fabric.world_size
    batches = BatchSource(dataset, store, "train", images_per_batch=32, captions_per_image=2, rank=rank, world=world)
    return {model: measure_model(model, batches, fabric, steps) for model in models}


def measure_model(model: str, batches: BatchSource, fabric: Fabric, steps: int) -> float:
    torch.manual_seed(0)
    captioner = registry.find("captioner", model)
    target = captioner(captioner.Settings(**MODELS[model]), Vocabulary(WORDS), IDENTITY)
    settings = TrainingSettings(steps=steps + 1, schedule="constant")
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            Likelihood(LikelihoodSettings(), Roles(target)), batches, batches, settings, 0, Path(folder), fabric
        )
        times = []
        for step in range(steps + 1):
            began = time.perf_counter()
            trainer._step(step, settings.learning_rate, lambda: False)
            times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def start_and_measure(features: Path, models: list[str], processes: int, threads: int, steps: int) -> dict[str, float]:
    """`measure` in new processes; the first one prints its figures."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    own = [__file__, "--worker", str(features), str(threads), "--models", *models, "--steps", str(steps)]
    done = subprocess.run(
        [sys.executable, *(launcher if processes > 1 else []), *own],
        env={**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(done.stderr[-4000:])
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        found = measure(Path(chosen.worker[0]), chosen.models, int(chosen.worker[1]), chosen.steps)
        if int(os.environ.get("RANK", "0")) == 0:
            print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as folder:
        features = Path(folder) / "features.npy"
        write_features(features)
        base: dict[str, float] = {}
        for label, (processes, threads) in WAYS.items():
            print(f"{label}:")
            found = start_and_measure(features, chosen.models, processes, threads, chosen.steps)
            base = base or found
            for model, seconds in found.items():
                print(f"  {model:<20} {1 / seconds:6.3f} steps/s   {base[model] / seconds:5.2f} times", flush=True)


if __name__ == "__main__":
    main()
