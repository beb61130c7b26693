"""The learning rate of a method, searched on the validation split: each method gets the rate that suits it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tellapart.data.prepare import prepare
from tellapart.engine.run import run_recipe
from tellapart.files import read_jsonl
from tellapart.recipe import Recipe

# Trainings of the search are this part of a whole one; rates tried are this factor apart, and so many at most.
SHARE = 0.25
FACTOR = 3.0
MOST = 5


@dataclass(frozen=True)
class Search:
    """Rates that were tried, with the validation loss each ended with."""

    losses: dict[float, float]

    @property
    def best(self) -> float:
        """The rate of the lowest loss.

        >>> Search({1e-4: 1.2, 1e-5: 1.3}).best
        0.0001
        """
        return min(self.losses, key=lambda rate: (self.losses[rate], rate))


def updates(recipe: Recipe) -> int:
    """The steps of a recipe's training."""
    training = recipe.training
    images = sum(1 for record in prepare(recipe.data).dataset.split("train") if record.captions)
    return training.steps or (training.epochs or 0) * -(-images // training.images_per_batch)


def search_rate(recipe: Recipe, runs: Path) -> Search:
    """Try the recipe's rate, a third and three times of it, and go on beyond an end that is the best so far.

    Each trial is a short training with a whole schedule; its validation loss decides. Trials are runs like any
    others, found again when the search is repeated.
    """
    steps = max(1, round(SHARE * updates(recipe)))
    losses: dict[float, float] = {}

    def attempt(rate: float) -> None:
        rate = float(f"{rate:.3g}")
        changes = {
            "learning_rate": rate,
            "steps": steps,
            "epochs": None,
            "validate_every": steps,
            "warmup_steps": round(SHARE * recipe.training.warmup_steps),
            "monitor": "loss",
            "validate_captions": 0,
            "patience": None,
        }
        training = recipe.training.model_copy(update=changes)
        trial = recipe.model_copy(update={"name": f"{recipe.name}-rate", "training": training})
        journal = read_jsonl(run_recipe(trial, runs).folder / "metrics.jsonl")
        losses[rate] = next(row["loss"] for row in reversed(journal) if row["split"] == "val")

    for factor in (1.0, 1 / FACTOR, FACTOR):
        attempt(factor * recipe.training.learning_rate)
    while len(losses) < MOST:
        best = Search(losses).best
        if best == min(losses):
            attempt(best / FACTOR)
        elif best == max(losses):
            attempt(best * FACTOR)
        else:
            break
    return Search(losses)
