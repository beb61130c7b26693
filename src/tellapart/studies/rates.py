"""Search the learning rate of an arm on the validation split."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tellapart.data.prepare import prepare
from tellapart.engine.journal import read_journal
from tellapart.recipe import Recipe
from tellapart.training import run_recipe

# Length of a trial as a share of the training, factor between two rates, and maximum number of trials.
SHARE = 0.25
FACTOR = 3.0
MOST = 5


@dataclass(frozen=True)
class Search:
    """Learning rates tried, with the final validation figure of each.

    Attributes:
        tried: rate -> figure.
        figure: name of the figure: `loss`, or `R@sum` for retrievers that are validated by retrieval.
    """

    tried: dict[float, float]
    figure: str = "loss"

    @property
    def best(self) -> float:
        """The rate with the lowest loss or the highest R@sum; the smallest of equal ones.

        >>> Search({1e-4: 1.2, 1e-5: 1.3}).best
        0.0001
        >>> Search({1e-4: 1.2, 1e-5: 1.3}, "R@sum").best
        1e-05
        """
        sign = 1 if self.figure == "loss" else -1
        return min(self.tried, key=lambda rate: (sign * self.tried[rate], rate))


def updates(recipe: Recipe) -> int:
    """Number of updates of a recipe's training."""
    training = recipe.training
    images = sum(1 for record in prepare(recipe.data).dataset.split("train") if record.captions)
    return training.steps or (training.epochs or 0) * -(-images // training.images_per_batch)


def search_rate(recipe: Recipe, runs: Path) -> Search:
    """Try the recipe's rate, a third of it and three times it; continue while the best is the lowest or the highest.

    Each trial is a short training with a complete schedule, compared by validation loss. Retrievers that are validated
    by retrieval are compared by R@sum, because losses with and without banks are on different scales. Trials are
    ordinary runs, so a repeated search finds them.
    """
    steps = max(1, round(SHARE * updates(recipe)))
    figure = "R@sum" if recipe.training.validate_retrieval else "loss"
    tried: dict[float, float] = {}

    def attempt(rate: float) -> None:
        rate = float(f"{rate:.3g}")
        changes = {
            "learning_rate": rate,
            "steps": steps,
            "epochs": None,
            "validate_every": steps,
            "warmup_steps": round(SHARE * recipe.training.warmup_steps),
            "monitor": figure,
            "monitor_best": None if figure == "loss" else "highest",
            "validate_captions": 0,
            "patience": None,
        }
        training = recipe.training.model_copy(update=changes)
        trial = recipe.model_copy(update={"name": f"{recipe.name}-rate", "training": training})
        journal = read_journal(run_recipe(trial, runs).folder)
        tried[rate] = next(row[figure] for row in reversed(journal) if row["split"] == "val")

    for factor in (1.0, 1 / FACTOR, FACTOR):
        attempt(factor * recipe.training.learning_rate)
    while len(tried) < MOST:
        best = Search(tried, figure).best
        if best == min(tried):
            attempt(best / FACTOR)
        elif best == max(tried):
            attempt(best * FACTOR)
        else:
            break
    return Search(tried, figure)
