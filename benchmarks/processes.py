"""Training steps a second on two cores: one process with one or two threads, and two processes, in one run.

    .venv/bin/python benchmarks/processes.py [--steps 5] [--models updown transformer] [--precision bf16]

Whole steps of the training loop at the size of COCO: 32 images with two captions each, a grid of 49 regions of 1,280
numbers read from a memory-mapped file of 2,000 made-up images in float16, a vocabulary of 10,000 words, hidden states
of 512 numbers. All three train the same batches: two processes have 16 images each. They run one after another; a
step's time is wall clock, the mean of all steps but the first. Run it on a quiet machine with two cores: two threads or
processes that share a core with something else wait for each other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric

from tellapart import registry
from tellapart.data.batches import BatchSource
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset, Record
from tellapart.encoders.base import EncoderIdentity
from tellapart.engine.journal import read_journal
from tellapart.engine.loop import Trainer
from tellapart.engine.processes import open_fabric
from tellapart.engine.settings import TrainingSettings
from tellapart.objectives.base import Roles
from tellapart.objectives.likelihood import Likelihood, LikelihoodSettings
from tellapart.text import Vocabulary

IDENTITY = EncoderIdentity("made-up", "0", "none", regions=49, width=1280)
WORDS = [f"word{number}" for number in range(10_000)]
IMAGES, VALIDATION = 2_000, 2  # the last ones are for the loop's validation, which is not timed
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
            "train" if image < IMAGES - VALIDATION else "val",
            tuple(
                " ".join(WORDS[word] for word in row[:length])
                for row, length in zip(words[image], lengths[image], strict=True)
            ),
        )
        for image in range(IMAGES)
    )
    return Dataset("made-up", Path(), records)


def measure(features: Path, models: list[str], threads: int, steps: int, precision: str) -> dict[str, float]:
    """Seconds of a step of the loop for each model, in this process, which may be one of two."""
    torch.set_num_threads(threads)
    fabric = open_fabric(precision)
    dataset = make_dataset()
    store = FeatureStore(np.load(features, mmap_mode="r"), IDENTITY, dataset.digest)
    rank, world = fabric.global_rank, fabric.world_size
    training, validation = (
        BatchSource(dataset, store, split, images_per_batch=32, captions_per_image=2, rank=rank, world=world)
        for split in ("train", "val")
    )
    return {model: measure_model(model, training, validation, fabric, steps) for model in models}


def measure_model(model: str, training: BatchSource, validation: BatchSource, fabric: Fabric, steps: int) -> float:
    torch.manual_seed(0)
    captioner = registry.find("captioner", model)
    target = captioner(captioner.Settings(**MODELS[model]), Vocabulary(WORDS), IDENTITY)
    settings = TrainingSettings(steps=steps + 1, schedule="constant", validate_every=steps + 1, log_every=1)
    objective = Likelihood(LikelihoodSettings(), Roles(target))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(fabric.broadcast(name))  # one folder for all processes
        Trainer(objective, training, validation, settings, 0, folder, fabric).run(model)
        seconds = [line["seconds"] for line in read_journal(folder) if line["split"] == "train"]
        fabric.barrier()
    return float(seconds[-1] - seconds[0]) / steps


def start_and_measure(features: Path, processes: int, threads: int, options: list[str]) -> dict[str, float]:
    """`measure` in new processes; the first one prints its figures."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    own = [__file__, "--worker", str(features), str(threads), *options]
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
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--precision", choices=("full", "bf16"), default="full")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        features, threads = chosen.worker
        found = measure(Path(features), chosen.models, int(threads), chosen.steps, chosen.precision)
        if int(os.environ.get("RANK", "0")) == 0:
            print(json.dumps(found))
        return
    options = ["--models", *chosen.models, "--steps", str(chosen.steps), "--precision", chosen.precision]
    with tempfile.TemporaryDirectory() as folder:
        features = Path(folder) / "features.npy"
        write_features(features)
        base: dict[str, float] = {}
        for label, (processes, threads) in WAYS.items():
            print(f"{label}:")
            found = start_and_measure(features, processes, threads, options)
            base = base or found
            for model, seconds in found.items():
                print(f"  {model:<20} {1 / seconds:6.3f} steps/s   {base[model] / seconds:5.2f} times", flush=True)


if __name__ == "__main__":
    main()
