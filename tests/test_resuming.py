"""A resumed run loads its model from the checkpoint: vocabulary, concepts and graph are not made a second time."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from support import resume_worker
from support.workers import assert_equal_runs, run_worker
from tellapart.engine.journal import read_journal
from tellapart.engine.loop import Interrupted
from tellapart.errors import RunError
from tellapart.evaluation.specificity_guard import START
from tellapart.files import lock
from tellapart.models import pointed_checkpoint
from tellapart.objectives.likelihood import Likelihood
from tellapart.recipe import Recipe
from tellapart.text import Vocabulary
from tellapart.training import resume, run_recipe, train


@pytest.mark.parametrize("processes", [1, 2])
def test_it_is_bit_equal_and_makes_nothing_again(tmp_path: Path, processes: int) -> None:
    run_worker(processes, "support.resume_worker", str(tmp_path))
    for name in resume_worker.NAMES:
        straight, resumed = (tmp_path / name / kind for kind in ("straight", "resumed"))
        assert_equal_runs(straight, resumed)
        rows = [
            [{k: v for k, v in row.items() if k not in ("seconds", "waiting")} for row in read_journal(run)]
            for run in (straight, resumed)
        ]
        assert rows[0] == rows[1]
        cards = [pointed_checkpoint(run, "last") / "model.json" for run in (straight, resumed)]
        assert cards[0].read_bytes() == cards[1].read_bytes()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a captioner that was stopped after its first step."""
    place = tmp_path_factory.mktemp("stopped")
    recipe = Recipe.load("scenes/transformer-mle.yaml", [*resume_worker.TINY, f"data.prepared={place}"], "smoke")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Likelihood, "after_step", lambda self: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Interrupted):
            run_recipe(recipe, out=place / "run")
    return place / "run"


@pytest.fixture
def run(stopped: Path) -> Any:
    """A copy of it, beside its data."""
    yield Path(shutil.copytree(stopped, stopped.parent / "copy"))
    shutil.rmtree(stopped.parent / "copy")


def test_what_is_damaged_or_changed_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Vocabulary, "build", lambda *given: pytest.fail("made again"))
    with pytest.raises(RunError, match="another process is training here"), lock(run / ".lock"):
        resume(run)
    with pytest.raises(RunError, match="changed: recipe, data"):
        train(run / "recipe.yaml", "data.scenes.train=9", out=run)
    last = pointed_checkpoint(run, "last")
    weights = (last / "model.safetensors").read_bytes()
    (last / "model.safetensors").write_bytes(weights[:-9])
    with pytest.raises(RunError, match=r"step-1: model\.safetensors cannot be read .*; use another checkpoint"):
        resume(run)
    (last / "model.safetensors").write_bytes(weights)
    (run / "checkpoints" / "last").write_text("step-7")
    with pytest.raises(RunError, match="the checkpoint 'step-7' is not there; write the name of a checkpoint into it"):
        resume(run)
    (run / "checkpoints" / "last").write_text("step-1")
    assert resume(run).folder == run


def test_missing_figures_of_the_start_are_measured_with_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ["training.validate_specificity=4", "roles.retriever.from=shipped/retriever", f"data.prepared={tmp_path}"]
    fast = ["training.learning_rate=0.3", "training.schedule=constant", "training.warmup_steps=0", "training.ema=null"]
    recipe = Recipe.load("scenes/transformer-mle.yaml", [*resume_worker.TINY, *chosen, *fast], "smoke")
    with monkeypatch.context() as patch:
        patch.setattr(Likelihood, "after_step", lambda self: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Interrupted):
            run_recipe(recipe, out=tmp_path / "run")
    figures = (tmp_path / "run" / START).read_bytes()
    (tmp_path / "run" / START).unlink()
    resume(tmp_path / "run")
    assert (tmp_path / "run" / START).read_bytes() == figures
