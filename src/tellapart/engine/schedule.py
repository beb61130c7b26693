"""Optimisers and learning rate schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from tellapart.engine.settings import TrainingSettings


def make_optimiser(settings: TrainingSettings, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Adam (weight decay added to the gradient) or AdamW (decoupled weight decay, Loshchilov and Hutter)."""
    kinds: dict[str, type[torch.optim.Adam]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    kind = kinds[settings.optimiser]
    return kind(
        parameters,
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        # One pass over the weights instead of several: a tenth of a COCO step. fp16's scaler cannot clip with it.
        fused=settings.precision != "fp16",
    )


def learning_rate(settings: TrainingSettings, step: int, steps: int, steps_in_epoch: int, cuts: int = 0) -> float:
    """The learning rate of a step: linear warm-up, then constant, cut at intervals, cut at plateaus, or half a cosine.

    Args:
        settings: the recipe's `training` section.
        step: number of the step, from 0.
        steps: number of steps in the whole training.
        steps_in_epoch: number of steps in an epoch, for the `step` schedule.
        cuts: number of plateaus so far, for the `plateau` schedule.

    Example:
        >>> halved = TrainingSettings(epochs=9, learning_rate=0.8, schedule="step", decay_epochs=3, decay_factor=0.5)
        >>> [learning_rate(halved, epoch * 10, 90, 10) for epoch in (0, 2, 3, 6)]
        [0.8, 0.8, 0.4, 0.2]
    """
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.learning_rate
    if settings.schedule == "step":
        return settings.learning_rate * settings.decay_factor ** (step // (settings.decay_epochs * steps_in_epoch))
    if settings.schedule == "plateau":
        return settings.learning_rate * settings.decay_factor**cuts
    fraction = (step - settings.warmup_steps) / max(1, steps - settings.warmup_steps)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * fraction))
