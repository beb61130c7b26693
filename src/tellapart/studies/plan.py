"""Estimate how long a study takes by timing a few updates of each arm on this machine."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tellapart.assembling import assemble, draws_ranked_captions, role_model
from tellapart.data.batches import BatchSource
from tellapart.data.negatives import CaptionPool
from tellapart.data.prepare import prepare
from tellapart.objectives.base import Epoch, Objective, Progress
from tellapart.recipe import ENTROPY, Recipe
from tellapart.studies.rates import updates

TIMED = 3


def training_seconds(recipe: Recipe) -> float:
    """Estimated time of a training: its updates, and the work of its objective between epochs (clustering).

    Args:
        recipe: what is trained. Models it starts from or uses get fresh weights if they are not trained yet.
    """
    steps = updates(recipe)
    in_steps = recipe.objective.get("cluster_steps")
    if in_steps is not None:  # to time a clustering, it must be between epochs
        # No steps come before it here that would embed pairs, so it embeds all: with `cluster_embed` false this is more
        # than training does.
        between_epochs = {"cluster_steps": None, "cluster_embed": True}
        recipe = recipe.model_copy(update={"objective": {**recipe.objective, **between_epochs}})
    objective, batches = _begin(recipe)
    between = _seconds_between_epochs(objective, batches, recipe)
    # The first clustering follows the first epoch, or the first so many updates.
    first = int(in_steps or len(batches))
    every = int(in_steps or int(recipe.objective.get("cluster_every", 1)) * len(batches))
    return steps * _seconds_per_update(objective, batches) + between * max(0, -(-(steps - first) // every))


def _begin(recipe: Recipe) -> tuple[Objective, BatchSource]:
    """The objective with fresh weights, and its training batches."""
    prepared = prepare(recipe.data)
    captions = [caption for record in prepared.dataset.split("train") for caption in record.captions]

    def make(recipe: Recipe) -> Any:
        model, settings = recipe.component(recipe.trains)
        return model.make(settings, captions, recipe.data, prepared.store.encoder)

    torch.manual_seed(0)
    target = make(recipe)
    frozen = {}
    for role, kind in recipe.needed_roles().items():
        if role == ENTROPY:  # decides which captions are read, not how long that takes
            continue
        places = [Path(place) for place in recipe.roles[role].places]
        if all(place.is_dir() for place in places):
            frozen[role] = role_model(places, kind)
        else:
            found = Recipe.load(places[0], budget=recipe.budget)
            same: dict[str, Any] = {"data": recipe.data}  # as in training: the same words
            if found.captioner and recipe.captioner and found.captioner["name"] == recipe.captioner["name"]:
                same["captioner"] = recipe.captioner  # changes of a study reach all of its arms
            frozen[role] = make(found.model_copy(update=same))
    likely = None
    if draws_ranked_captions(recipe):  # any captions: which are drawn does not change how long a step takes
        counts = np.array([len(record.captions) for record in prepared.dataset.split("train") if record.captions])
        likely = np.roll(np.cumsum(counts) - counts, -1)[:, None].astype(np.int32)
    objective, sources = assemble(recipe, prepared, target, frozen, likely=likely)
    return objective, sources["train"]


def _seconds_between_epochs(objective: Objective, batches: BatchSource, recipe: Recipe) -> float:
    """Time of `epoch_start`, measured on a few pairs (at least one per prototype) and scaled to all pairs."""
    if type(objective).epoch_start is Objective.epoch_start:
        return 0.0
    least = int(recipe.objective.get("prototypes", 0))
    captions = np.cumsum([len(record.captions) for record in batches.records])
    images = int(np.searchsorted(captions, least)) + 1
    few = copy.copy(batches)
    few.records, few.rows = batches.records[:images], batches.rows[:images]
    few.pool = CaptionPool([record.captions for record in few.records])
    objective.prepare_for(few)
    began = time.perf_counter()
    objective.epoch_start(Epoch(1, few.epoch, few.positives))
    seconds = time.perf_counter() - began
    objective.prepare_for(batches)
    return seconds * int(captions[-1]) / len(few.pool.captions)


def _seconds_per_update(objective: Objective, batches: BatchSource) -> float:
    """Time of one update, forward and backward: the fastest of a few."""
    seconds = []
    for step in range(TIMED):
        began = time.perf_counter()
        # Pretend to be at the last step, after any warm-up.
        for phase in objective.phases():
            totals = objective(batches.at(step % len(batches)), Progress(TIMED, TIMED), phase)
            losses = [totals[name].sum for name in objective.losses(phase) if totals[name].sum.requires_grad]
            if losses:
                torch.autograd.backward(torch.stack(losses).sum())
        objective.after_step()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
