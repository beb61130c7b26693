"""Reference replacement (CL, sec. 4.3 and Table 6): the target of one round is the reference of the next."""

from __future__ import annotations

from pathlib import Path

from tellapart.engine.run import Run, run_recipe
from tellapart.errors import RecipeError
from tellapart.recipe import Recipe, Upstream


def train_in_rounds(recipe: Recipe, rounds: int, runs: Path = Path("runs")) -> list[Run]:
    """Train a recipe again and again, each time from the target of the round before and against it.

    The first round is the recipe as it is. Every round is a run of its own, kept and found again: an interrupted
    chain goes on in the round it was in. With `training.patience` a round lasts until its target is best.

    Args:
        recipe: one with a reference.
        rounds: how many trainings.
        runs: where run folders go.

    Example:
        >>> recipe = Recipe.load("recipes/scenes/adaptive-cl.yaml")   # doctest: +SKIP
        >>> first, second = train_in_rounds(recipe, 2)                # doctest: +SKIP
    """
    if recipe.reference is None:
        raise RecipeError(f"{recipe.name}: rounds replace the reference, and this recipe has none; train it without")
    finished = [run_recipe(recipe, runs)]
    for number in range(2, rounds + 1):
        before = Upstream.model_validate({"from": str(finished[-1].folder)})
        changes = {"name": f"{recipe.name}-round-{number}", "start": before, "reference": before}
        finished.append(run_recipe(recipe.model_copy(update=changes), runs))
    return finished
