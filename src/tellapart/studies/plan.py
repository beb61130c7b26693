"""How long a study will take: every method's update is timed on this machine before anything is trained."""

from __future__ import annotations

import time
from copy import deepcopy

import torch

from tellapart.data.batches import BatchSource
from tellapart.data.prepare import prepare
from tellapart.objectives.base import Objective, Progress, frozen_models
from tellapart.recipe import Recipe

TIMED = 3


def seconds_per_update(recipe: Recipe, reference: Recipe | None = None) -> float:
    """Time of one update by this recipe: the quickest of a few, forward and backward, with fresh weights.

    Args:
        recipe: what is trained.
        reference: the recipe of the frozen model it is compared with.
    """
    prepared = prepare(recipe.data)
    captions = [caption for record in prepared.dataset.split("train") for caption in record.captions]

    def make(recipe: Recipe) -> torch.nn.Module:
        captioner, settings = recipe.component("captioner")
        made: torch.nn.Module = captioner.make(settings, captions, recipe.data, prepared.store.encoder)
        return made

    torch.manual_seed(0)
    target = make(recipe)
    frozen = None if recipe.reference is None else make(reference) if reference is not None else deepcopy(target)
    objective_class, settings = recipe.component("objective")
    objective: Objective = objective_class(settings, target, frozen)
    for model in frozen_models(objective):
        model.eval()
    training = recipe.training
    needs = objective_class.needs(settings)
    batches = BatchSource(
        prepared.dataset,
        prepared.store,
        "train",
        training.images_per_batch,
        training.captions_per_image,
        needs.negatives,
        seed=recipe.seed,
    )
    seconds = []
    for step in range(TIMED):
        began = time.perf_counter()
        # Its last step: warm-up phases are over.
        for phase in objective.phases():
            totals = objective(batches.at(step % len(batches)), Progress(TIMED, TIMED), phase)
            losses = [totals[name].sum for name in objective.losses(phase) if totals[name].sum.requires_grad]
            if losses:
                torch.autograd.backward(torch.stack(losses).sum())
        objective.after_step()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
