"""The search of a learning rate: which rates are tried, which is used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tellapart.recipe import Recipe, recipes_folder
from tellapart.studies import rates
from tellapart.studies.rates import MOST, search_rate


@pytest.mark.parametrize(
    ("loss", "best", "tried"),
    [
        (lambda rate: abs(rate - 1e-3), 1e-3, 3),
        (lambda rate: abs(rate - 3e-3), 3e-3, 4),  # an end: one more beyond it
        (lambda rate: rate, 1e-3 / 3**3, MOST),  # always lower: stop at the limit
        (lambda rate: 1.0, 1e-3 / 3**3, MOST),  # no difference: the smallest rate
    ],
)
def test_the_search_continues_while_the_best_is_at_an_end(
    loss: Callable[[float], float], best: float, tried: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials: list[Recipe] = []

    def train(recipe: Recipe, runs: Path) -> SimpleNamespace:
        trials.append(recipe)
        folder = runs / str(len(trials))
        folder.mkdir()
        rows = [{"split": "val", "loss": 99.0}, {"split": "val", "loss": loss(recipe.training.learning_rate)}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": 1, **row}) + "\n" for row in rows))
        return SimpleNamespace(folder=folder)

    monkeypatch.setattr(rates, "run_recipe", train)
    recipe = Recipe.load(recipes_folder() / "scenes" / "adaptive-cl.yaml")
    monkeypatch.setattr(rates, "updates", lambda recipe: 300)
    found = search_rate(recipe, tmp_path)
    assert found.best == pytest.approx(best, rel=0.01)
    assert len(found.tried) == len(trials) == tried
    # A trial has a complete schedule over a quarter of the updates, validated once.
    assert {(trial.training.steps, trial.training.validate_every) for trial in trials} == {(75, 75)}
    assert trials[0].objective == recipe.objective
