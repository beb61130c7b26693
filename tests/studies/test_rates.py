"""The search of learning rates: the same rates for every arm, more of them while one is best at an edge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tellapart.recipe import Recipe
from tellapart.recipe_files import recipes_folder
from tellapart.studies import rates
from tellapart.studies.rates import FACTORS, MOST, search_rates

Figure = Callable[[float], float]


def near(best: float) -> Figure:
    """A figure that is highest at this rate."""
    return lambda rate: -abs(rate - best)


@pytest.mark.parametrize(
    ("figures", "bests", "tried"),
    [
        ({"adaptive-cl": near(1e-3), "adaptive-il": near(3e-3)}, (1e-3, 3e-3), len(FACTORS)),
        # One arm is best at an edge: both try one rate more.
        ({"adaptive-cl": near(1e-3), "adaptive-il": near(9e-3)}, (1e-3, 9e-3), len(FACTORS) + 1),
        # Always higher, or no difference: stop at the limit.
        ({"adaptive-cl": near(1e-3), "adaptive-il": lambda rate: rate}, (1e-3, 81e-3), MOST),
        ({"adaptive-cl": near(1e-3), "adaptive-il": lambda rate: 1.0}, (1e-3, 1e-3 / 81), MOST),
    ],
)
def test_all_arms_try_the_same_rates(
    figures: dict[str, Figure],
    bests: tuple[float, float],
    tried: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials: dict[tuple[str, float], Recipe] = {}

    def train(recipe: Recipe, runs: Path) -> SimpleNamespace:
        key = recipe.objective["name"]
        rate = recipe.training.learning_rate
        trials[key, rate] = recipe
        folder = runs / f"{key}-{rate}"
        folder.mkdir(exist_ok=True)
        figure = figures["adaptive-cl" if key == "contrastive" else "adaptive-il"](rate)
        rows = [{"split": "val", "loss": 1.0, "CIDEr": 99.0}, {"split": "val", "loss": 1.0, "CIDEr": figure}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": 1, **row}) + "\n" for row in rows))
        return SimpleNamespace(folder=folder)

    monkeypatch.setattr(rates, "run_recipe", train)
    monkeypatch.setattr(rates, "updates", lambda recipe: 300)
    scenes = recipes_folder() / "scenes"
    found = search_rates({key: Recipe.load(scenes / f"{key}.yaml") for key in figures}, tmp_path)
    assert [search.best for search in found.values()] == pytest.approx(bests, rel=0.01)
    assert {tuple(search.tried) for search in found.values()} == {tuple(found["adaptive-cl"].tried)}
    assert len(found["adaptive-cl"].tried) == tried
    assert len(trials) == 2 * tried
    # A trial has a complete schedule over a quarter of the updates, validated once by the same figure.
    kept = {(one.training.steps, one.training.validate_every, one.training.monitor) for one in trials.values()}
    assert kept == {(75, 75, "CIDEr")}
    assert found["adaptive-il"].at_edge == (tried == MOST)


def test_steps_of_an_objective_shrink_with_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the trial of a GAN would train its evaluator only."""
    seen: list[Recipe] = []

    def train(recipe: Recipe, runs: Path) -> SimpleNamespace:
        seen.append(recipe)
        (tmp_path / "metrics.jsonl").write_text(
            json.dumps({"step": 1, "split": "val", "loss": 1.0, "CIDEr": 1.0}) + "\n"
        )
        return SimpleNamespace(folder=tmp_path)

    monkeypatch.setattr(rates, "run_recipe", train)
    monkeypatch.setattr(rates, "updates", lambda recipe: 400)
    search_rates({"gan": Recipe.load(recipes_folder() / "scenes" / "adaptive-gan.yaml")}, tmp_path)
    assert {recipe.objective["evaluator_warmup_steps"] for recipe in seen} == {25}
