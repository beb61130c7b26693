"""Long work before the first step: shown, kept beside the model that did it, continued, shared by trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.workers import assert_equal_runs
from tellapart import assembling
from tellapart.data import batches
from tellapart.engine.loop import Interrupted, Trainer
from tellapart.errors import DataError
from tellapart.objectives import reference_scores as module
from tellapart.objectives import rewards
from tellapart.recipe import Recipe, Upstream
from tellapart.run import open_run
from tellapart.training import run_recipe

TINY = ["data.scenes={train: 12, val: 4, test: 3}", "data.min_count=1", "training.images_per_batch=4"]


def recipe(name: str, tmp_path: Path) -> Recipe:
    more = [f"data.prepared={tmp_path / 'prepared'}", "training.epochs=2", "training.steps=null"]
    return Recipe.load(f"scenes/{name}.yaml", [*TINY, *more], "smoke")


def scores_of(folder: Path) -> list[Path]:
    return sorted((folder / "scores").glob("true-pairs-*.npy"))


def test_scores_are_kept_beside_the_reference_and_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    shown: list[tuple[str, int, int]] = []
    run = run_recipe(recipe("adaptive-cl", tmp_path), runs, on_progress=lambda *at: shown.append(at))
    (reference,) = (Path(place) for place in Recipe.load(run.folder).roles["reference"].places)
    made = scores_of(reference)
    assert len(made) == 2, "of the training and the validation split"
    assert not scores_of(run.folder)
    assert {what for what, _, _ in shown} >= {"scoring true pairs (train)", "scoring true pairs (val)"}
    assert open_run(reference).model is not None, "it is a run folder still"

    monkeypatch.setattr(module, "_score", lambda *_: pytest.fail("scored again"))
    run_recipe(recipe("adaptive-cl-pairwise", tmp_path), runs)
    assert scores_of(reference) == made


def test_ctrl_c_while_scoring_loses_at_most_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 4)
    chosen = recipe("adaptive-cl", tmp_path)
    straight = run_recipe(chosen, tmp_path / "straight")

    scored: list[int] = []
    score = module._score

    def stop(*given: Any) -> Any:
        scored.append(1)
        if len(scored) == 2:
            raise KeyboardInterrupt
        return score(*given)

    monkeypatch.setattr(module, "_score", stop)
    with pytest.raises(Interrupted, match=r"stopped before the first step; finished scores are kept; the same command"):
        run_recipe(chosen, tmp_path / "runs")
    scored[:] = [1, 1]
    again = run_recipe(chosen, tmp_path / "runs")
    assert len(scored) - 2 == 2 + 1, "two of the three blocks of the training split, and the validation split"
    assert_equal_runs(straight.folder, again.folder)


@pytest.mark.parametrize("name", ["adaptive-il", "adaptive-self-critical"])
def test_similar_images_are_found_before_the_first_step(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There Ctrl-C stops at once; in a step it waits for the end of the step."""
    chosen = recipe(name, tmp_path)
    if name == "adaptive-self-critical":
        settings = {**chosen.objective, "reward": {"cider": 1.0, "cider_between": 0.5}}
        chosen = chosen.model_copy(update={"objective": settings})
    modules = (batches, rewards)
    find, found = batches.nearest_in_store, []

    def stop(*given: Any) -> Any:
        raise KeyboardInterrupt

    def count(*given: Any) -> Any:
        found.append(given[1:])
        return find(*given)

    for module_of in modules:
        monkeypatch.setattr(module_of, "nearest_in_store", stop)
    with pytest.raises(Interrupted, match="stopped before the first step"):
        run_recipe(chosen, tmp_path / "runs")
    for module_of in modules:
        monkeypatch.setattr(module_of, "nearest_in_store", count)
    train = Trainer.run

    def run(trainer: Trainer, label: str) -> None:
        if name.removeprefix("adaptive-") in label:  # not that of the model it starts from
            assert len(found) == 2, "of the training and the validation split"
        train(trainer, label)

    monkeypatch.setattr(Trainer, "run", run)
    run_recipe(chosen, tmp_path / "runs")
    assert len(found) == 2, "not again"


def test_a_reference_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scores are then kept in the folder of the training."""
    reference = run_recipe(recipe("adaptive-mle", tmp_path), tmp_path / "runs").folder
    check = assembling.check_folder

    def check_folder(folder: Path) -> None:
        if folder.name == reference.name:
            raise DataError("read only")
        check(folder)

    monkeypatch.setattr(assembling, "check_folder", check_folder)
    upstream = Upstream.model_validate({"from": str(reference)})
    roles = {"start": upstream, "roles": {"reference": upstream}}
    run = run_recipe(recipe("adaptive-cl", tmp_path).model_copy(update=roles), tmp_path / "runs")
    assert len(scores_of(run.folder)) == 2
    assert not scores_of(reference)
