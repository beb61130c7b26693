"""Reference replacement: rounds are runs, found again; the target of one is the reference of the next."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tellapart.errors import RecipeError
from tellapart.files import read_json
from tellapart.models import model_digest
from tellapart.recipe import Recipe
from tellapart.recipe_files import recipes_folder
from tellapart.training import train_in_rounds

TINY = [
    "data.scenes={train: 8, val: 4, test: 3}",
    "data.min_count=1",
    "training.steps=2",
    "training.images_per_batch=4",
]


def test_the_target_becomes_the_reference(tmp_path: Path) -> None:
    recipe = Recipe.load(
        recipes_folder() / "scenes" / "adaptive-cl.yaml", [*TINY, f"data.prepared={tmp_path / 'prepared'}"], "smoke"
    )
    runs = train_in_rounds(recipe, 3, tmp_path / "runs")
    for before, after in pairwise(runs):
        upstreams = read_json(after.folder / "run.json")["made_from"]["upstreams"]
        assert upstreams == dict.fromkeys(("start", "reference"), model_digest(before.folder))
    times = [(run.folder / "checkpoints" / "kept").stat().st_mtime_ns for run in runs]
    again = train_in_rounds(recipe, 3, tmp_path / "runs")
    assert [(run.folder / "checkpoints" / "kept").stat().st_mtime_ns for run in again] == times


def test_without_a_reference_there_is_nothing_to_replace() -> None:
    recipe = Recipe.load(recipes_folder() / "scenes" / "adaptive-mle.yaml")
    with pytest.raises(RecipeError, match="this recipe has none"):
        train_in_rounds(recipe, 2)


def test_rounds_of_no_step_keep_the_first_model(tmp_path: Path) -> None:
    place = f"data.prepared={tmp_path / 'prepared'}"
    path = recipes_folder() / "scenes" / "adaptive-cl.yaml"
    recipe = Recipe.load(path, [*TINY, place, "training.steps=0"], "smoke")
    runs = train_in_rounds(recipe, 2, tmp_path / "runs")
    assert len({model_digest(run.folder) for run in runs}) == 1
    assert len({run.folder for run in runs}) == 2
