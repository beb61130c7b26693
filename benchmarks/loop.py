"""What the loop costs beside a bare loop of the same model on the same batches, in one run.

    .venv/bin/python benchmarks/loop.py [--rounds 5] [--steps 20]

The model is AdaptiveAttention at the size of the Flickr8k recipe on random features and made-up captions. The bare
loop draws the batch, runs the objective forward and backward, clips and steps AdamW, nothing else. Rounds of both
alternate; a step's time is CPU time on one thread, the median over rounds is compared. On a busy machine the
difference drowns in noise, so it is also measured on a model so small that the loop's own work shows, in milliseconds
a step. Writing checkpoints is not in it: it happens once an epoch and is reported apart.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from made_up import IDENTITY, WORDS, make_data

from tellapart.captioners.adaptive import AdaptiveAttention, AdaptiveAttentionSettings
from tellapart.data.batches import BatchSource
from tellapart.engine.loop import Trainer
from tellapart.engine.processes import open_fabric
from tellapart.engine.schedule import make_optimiser
from tellapart.engine.settings import TrainingSettings
from tellapart.objectives.base import Progress, Roles
from tellapart.objectives.likelihood import Likelihood, LikelihoodSettings
from tellapart.text import Vocabulary


def make_objective(size: AdaptiveAttentionSettings) -> Likelihood:
    torch.manual_seed(0)
    return Likelihood(LikelihoodSettings(), Roles(AdaptiveAttention(size, Vocabulary(WORDS), IDENTITY)))


def bare(size: AdaptiveAttentionSettings, batches: BatchSource, settings: TrainingSettings, steps: int) -> list[float]:
    """Seconds of each step of a loop that only trains."""
    objective = make_objective(size).train()
    optimiser = make_optimiser(settings, objective.parameters())
    times = [time.process_time()]
    for step in range(steps):
        total = objective(batches.at(step), Progress(step, steps))["loss"]
        optimiser.zero_grad(set_to_none=True)
        (total.sum / total.count).backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 5.0)
        optimiser.step()
        times.append(time.process_time())
    return [float(seconds) for seconds in np.diff(times)[1:]]


def ours(
    size: AdaptiveAttentionSettings,
    batches: BatchSource,
    validation: BatchSource,
    settings: TrainingSettings,
) -> tuple[list[float], float]:
    """Seconds of each step of the loop, logging included; and of its one validation and checkpoint."""
    objective = make_objective(size)
    times: list[float] = []
    objective.after_step = lambda: times.append(time.process_time())  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        Trainer(objective, batches, validation, settings, 0, Path(folder), open_fabric()).run("benchmark")
        saving = time.process_time() - times[-1]
    return [float(seconds) for seconds in np.diff(times)], saving


def compare(size: AdaptiveAttentionSettings, images_per_batch: int, rounds: int, steps: int) -> tuple[float, float]:
    """Prints and gives the median step of both."""
    settings = TrainingSettings(steps=steps, validate_every=10_000, log_every=20, schedule="constant")
    data = make_data(128, validation=4)
    batches, validation = (BatchSource(*data, split, images_per_batch) for split in ("train", "val"))
    loop_steps: list[float] = []
    bare_steps: list[float] = []
    saves: list[float] = []
    for round_number in range(rounds + 1):
        one = bare(size, batches, settings, steps)
        other, saving = ours(size, batches, validation, settings)
        if round_number > 0:  # the first warms up
            bare_steps += one
            loop_steps += other
            saves.append(saving)
    plain, looped = statistics.median(bare_steps), statistics.median(loop_steps)
    print(f"hidden {size.hidden}, {images_per_batch} images of 5 captions, {len(bare_steps)} steps of each:")
    print(f"  bare loop       {1000 * plain:8.2f} ms a step")
    print(f"  tellapart loop  {1000 * looped:8.2f} ms a step ({100 * (looped / plain - 1):+.2f} %)")
    print(f"  validation of 4 images and a checkpoint: {statistics.median(saves):.2f} s")
    return plain, looped


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    real, _ = compare(AdaptiveAttentionSettings(), 16, chosen.rounds, chosen.steps)
    small = AdaptiveAttentionSettings(hidden=8, embedding=8, attention=8)
    plain, looped = compare(small, 1, chosen.rounds, 10 * chosen.steps)
    own = looped - plain
    print(f"the loop's own work: {1000 * own:.2f} ms a step, {100 * own / real:.2f} % of a real one")


if __name__ == "__main__":
    main()
