"""Run by `torchrun` (or by one plain process): trains every stand-in straight, and with a stop and a resume.

    python -m support.shapes_worker OUT

One more training, OUT/averaged, has averaged weights and cuts its learning rate at plateaus.
Each shape leaves OUT/SHAPE/{straight,resumed}/ (run folders), and OUT/SHAPE/gradients.pt: the gradients of each step of
a training without dropout.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from support.stand_ins import SHAPES, make
from support.tiny import make_data
from tellapart.data.batches import BatchSource
from tellapart.engine import loop
from tellapart.engine.processes import open_fabric
from tellapart.engine.settings import TrainingSettings
from tellapart.objectives.base import Objective

STEPS, STOP = 7, 5
GRADIENT_STEPS = 4  # two epochs
# The large epsilon keeps Adam from turning gradients that are only rounding into steps of full size.
HARDLY_MOVING: dict[str, Any] = {"rate": 1e-4, "epsilon": 1e-2, "clip_norm": None}

# A rate at which the validation figure soon stops improving.
AVERAGED: dict[str, Any] = {
    "rate": 0.3,
    "validate_every": 1,
    "ema": 0.9,
    "schedule": "plateau",
    "plateau_patience": 1,
    "decay_factor": 0.5,
}


def train(objective: Objective, folder: Path, rate: float = 0.01, precision: str = "full", **settings: Any) -> None:
    """Six images in batches of five: the second batch of an epoch is one image, so the second process has none."""
    fabric = open_fabric(precision)
    if fabric.global_rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
    fabric.barrier()
    usual = {"steps": STEPS, "learning_rate": rate, "log_every": 2, "validate_every": 3, "precision": precision}
    chosen = TrainingSettings(**{**usual, **settings})
    place = (fabric.global_rank, fabric.world_size)
    image_negatives = objective.needs(objective.settings).image_negatives
    sources = [
        BatchSource(*make_data(), split, 5, None, 2, None, 1, 7, *place, parts, image_negatives=image_negatives)
        for split, parts in (("train", chosen.accumulate), ("val", 1))
    ]
    loop.Trainer(objective, *sources, chosen, 7, folder, fabric).run("test")


def stop_after(objective: Objective, steps: int) -> None:
    """Ctrl-C at one process only, during the step."""
    done = 0
    before = objective.after_step

    def after_step() -> None:
        nonlocal done
        before()
        done += 1
        # With several processes the wish is agreed on in the next step.
        asked = steps if objective.processes.world == 1 else steps - 1
        if done == asked and objective.processes.rank == objective.processes.world - 1:
            os.kill(os.getpid(), signal.SIGINT)

    objective.after_step = after_step  # type: ignore[method-assign]


def record_gradients(objective: Objective) -> list[dict[str, torch.Tensor]]:
    steps: list[dict[str, torch.Tensor]] = []
    before = objective.after_step

    def after_step() -> None:
        before()
        steps.append({n: p.grad.clone() for n, p in objective.named_parameters() if p.grad is not None})

    objective.after_step = after_step  # type: ignore[method-assign]
    return steps


def train_straight_and_resumed(make_objective: Callable[..., Objective], out: Path, **settings: Any) -> None:
    """Leaves OUT/straight, trained in one go, and OUT/resumed, stopped and taken up; with dropout."""
    train(make_objective(dropout=0.3), out / "straight", **settings)
    random_state = torch.get_rng_state()
    stopping = make_objective(dropout=0.3)
    stop_after(stopping, STOP)
    with pytest.raises(loop.Interrupted, match=f"after step {STOP} of {STEPS}"):
        train(stopping, out / "resumed", **settings)
    train(make_objective(dropout=0.3), out / "resumed", **settings)
    assert torch.equal(random_state, torch.get_rng_state())


def train_for_gradients(objective: Objective, folder: Path, file: Path, **settings: Any) -> None:
    """Saves the gradients of each step of a training that hardly moves."""
    gradients = record_gradients(objective)
    train(objective, folder, **HARDLY_MOVING, steps=GRADIENT_STEPS, **settings)
    if objective.processes.rank == 0:
        torch.save(gradients, file)


def main(out: Path) -> None:
    torch.set_num_threads(1)
    for shape in SHAPES:
        train_straight_and_resumed(partial(make, shape), out / shape)
        train_for_gradients(make(shape), out / shape / "plain", out / shape / "gradients.pt")
    train_straight_and_resumed(partial(make, "two-phases"), out / "averaged", **AVERAGED)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
