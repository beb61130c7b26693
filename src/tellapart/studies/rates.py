"""Search learning rates on the validation split: the same rates for every arm, the control included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tellapart.data.prepare import prepare
from tellapart.engine.journal import read_journal
from tellapart.recipe import Recipe
from tellapart.training import run_recipe

# Length of a trial as a share of the training, the rates tried first as factors of the recipe's, and the most rates.
SHARE = 0.25
FACTORS = (1 / 9, 1 / 3, 1.0, 3.0, 9.0)
MOST = 7
# Validation images captioned in a trial.
IMAGES = 500


@dataclass(frozen=True)
class Search:
    """Learning rates tried, with the final validation figure of each.

    Attributes:
        tried: rate -> figure; the highest is best.
        figure: name of the figure: `CIDEr` for captioners, `R@sum` for retrievers.
    """

    tried: dict[float, float]
    figure: str = "CIDEr"

    @property
    def best(self) -> float:
        """The rate with the highest figure; the smallest of equal ones.

        >>> Search({1e-4: 0.9, 1e-5: 0.8}).best
        0.0001
        """
        return min(self.tried, key=lambda rate: (-self.tried[rate], rate))

    @property
    def at_edge(self) -> bool:
        """Whether the best rate is the lowest or the highest tried, so that a better one may lie beyond.

        >>> Search({1e-4: 0.9, 1e-5: 0.8, 1e-3: 0.1}).at_edge
        False
        """
        return self.best in (min(self.tried), max(self.tried))


def updates(recipe: Recipe) -> int:
    """Number of updates of a recipe's training."""
    training = recipe.training
    images = sum(1 for record in prepare(recipe.data).dataset.split("train") if record.captions)
    return training.steps or (training.epochs or 0) * -(-images // training.images_per_batch)


def search_rates(recipes: Mapping[str, Recipe], runs: Path) -> dict[str, Search]:
    """Try the same factors of the recipe's rate for each arm; while one is best at an edge, all try one rate more.

    So every arm has the same number of trials, and the best rate lies inside unless `MOST` rates were tried. Each trial
    is a short training with a complete schedule. All arms are compared by the same validation figure: CIDEr of captions
    of the first validation images, or R@sum, because losses of different objectives are on different scales. Trials are
    ordinary runs, so a repeated search finds them.

    Args:
        recipes: arm key -> recipe.
        runs: folder for run folders.
    """
    factors = list(FACTORS)
    while True:
        searches = {key: _search(recipe, factors, runs) for key, recipe in recipes.items()}
        bests = {key: search.best for key, search in searches.items()}
        low = any(best == min(searches[key].tried) for key, best in bests.items())
        high = any(best == max(searches[key].tried) for key, best in bests.items())
        more = [factors[0] / 3] * low + [factors[-1] * 3] * high
        if not more or len(factors) + len(more) > MOST:
            return searches
        factors = sorted([*factors, *more])


def _search(recipe: Recipe, factors: list[float], runs: Path) -> Search:
    """The trials of one arm."""
    figure = "R@sum" if recipe.trains == "retriever" else "CIDEr"
    steps = max(1, round(SHARE * updates(recipe)))
    tried = {}
    for factor in factors:
        rate = float(f"{factor * recipe.training.learning_rate:.3g}")
        changes = {
            "learning_rate": rate,
            "steps": steps,
            "epochs": None,
            "validate_every": steps,
            "warmup_steps": round(SHARE * recipe.training.warmup_steps),
            "keep": "last",
            "monitor": figure,
            "monitor_best": "highest",
            "validate_captions": IMAGES if figure == "CIDEr" else 0,
            "validate_retrieval": figure == "R@sum",
            "patience": None,
        }
        training = recipe.training.model_copy(update=changes)
        objective = {key: _shorter(value, key) for key, value in recipe.objective.items()}
        trial = recipe.model_copy(update={"name": f"{recipe.name}-rate", "training": training, "objective": objective})
        journal = read_journal(run_recipe(trial, runs).folder)
        tried[rate] = next(row[figure] for row in reversed(journal) if row["split"] == "val")
    return Search(tried, figure)


def _shorter(value: Any, key: str) -> Any:
    """A setting of an objective in a trial: what is counted in steps shrinks with it."""
    return round(SHARE * value) if key.endswith("warmup_steps") else value
