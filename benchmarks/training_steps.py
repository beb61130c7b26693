"""Shared by the benchmarks of objectives: seconds of training steps, in alternating rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from side_by_side import clock

from tellapart.data.batches import Batch, BatchSource
from tellapart.engine.schedule import make_optimiser
from tellapart.engine.settings import TrainingSettings
from tellapart.objectives.base import Objective, Progress

LONG = Progress(0, 1000)


def stepper(
    objective: Objective,
    source: BatchSource,
    progress: Progress = LONG,
    before: Callable[[Batch], Any] | None = None,
) -> Callable[[int], float]:
    """A function that trains one step (forward, backward, clipping, AdamW) and gives its seconds by `clock`.

    Args:
        objective: what is trained.
        source: its batches; a batch is drawn before the clock starts.
        progress: the same for every step.
        before: called with the batch before the clock starts.
    """
    optimiser = make_optimiser(TrainingSettings(steps=1), objective.target.parameters())
    objective.train()

    def step(number: int) -> float:
        batch = source.at(number)
        if before is not None:
            before(batch)
        began = clock()
        totals = objective(batch, progress)
        optimiser.zero_grad(set_to_none=True)
        losses = [weight * totals[name].sum / totals[name].count for name, weight in objective.losses().items()]
        torch.autograd.backward(torch.stack(losses).sum())
        torch.nn.utils.clip_grad_norm_(objective.target.parameters(), 5.0)
        optimiser.step()
        return clock() - began

    return step


def alternate(steps: Mapping[str, Callable[[int], float]], rounds: int) -> dict[str, list[float]]:
    """The seconds of each in alternating rounds; one more round before them warms up and is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            taken = step(number)
            if number > 0:
                seconds[name].append(taken)
    return seconds
