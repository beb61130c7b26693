"""A role may read other image features than the target: a batch holds the features of every role's encoder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tellapart.assembling import role_model
from tellapart.errors import RunError
from tellapart.recipe import Recipe
from tellapart.run import Run
from tellapart.training import run_recipe

TINY = ["data.scenes.train=12", "data.scenes.val=6", "data.scenes.test=6", "training.steps=2", "captioner.hidden=8"]


def mle(folder: Path, name: str, encoder: str, *more: str) -> Run:
    overrides = [*TINY, f"data.prepared={folder / 'prepared'}", f"data.encoder={encoder}", f"name={name}", *more]
    return run_recipe(Recipe.load("scenes/adaptive-mle.yaml", overrides, "smoke"), folder / "runs")


def contrast(folder: Path, start: Run, reference: str) -> Run:
    overrides = [f"start.from={start.folder}", f"roles.reference.from={reference}", "training.steps=2"]
    return run_recipe(Recipe.load("scenes/adaptive-cl.yaml", overrides, "smoke"), folder / "runs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("roles")


@pytest.fixture(scope="module")
def target(folder: Path) -> Run:
    return mle(folder, "target", "efficientnet-lite0@32")


def test_a_reference_on_other_features(folder: Path, target: Run) -> None:
    reference = mle(folder, "reference", "efficientnet-lite0@64")
    run = contrast(folder, target, str(reference.folder))
    assert run.captioner.encoder.name == "efficientnet-lite0@32"
    assert Recipe.load(run.folder).data.encoder == "efficientnet-lite0@32"
    # A second call finds the run: the features of the reference are part of neither its key nor its recipe.
    assert contrast(folder, target, str(reference.folder)).folder == run.folder


def test_an_ensemble_as_the_reference(folder: Path, target: Run) -> None:
    other = mle(folder, "other", "efficientnet-lite0@32", "seed=1")
    run = contrast(folder, target, f"[{target.folder}, {other.folder}]")
    alone = contrast(folder, target, str(target.folder))
    assert run.folder != alone.folder
    assert len(Recipe.load(run.folder).roles["reference"].places) == 2


def test_retrievers_make_no_ensemble(target: Run) -> None:
    with pytest.raises(RunError, match="holds a captioner"):
        role_model([target.folder, target.folder], "retriever")
