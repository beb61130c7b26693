"""The loop: exact resume, interruption, schedules, clear stops."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tellapart.captioners.adaptive import AdaptiveAttention
from tellapart.captioners.folder import load_captioner, model_folder
from tellapart.data.batches import BatchSource
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset
from tellapart.engine import loop
from tellapart.engine.checkpoint import checkpoint_path, load_trainer_state
from tellapart.engine.schedule import learning_rate
from tellapart.errors import RunError
from tellapart.objectives.base import Objective
from tellapart.objectives.contrastive import Contrastive, ContrastiveSettings
from tellapart.objectives.likelihood import Likelihood, LikelihoodSettings
from tellapart.recipe import TrainingSettings

Make = Callable[..., AdaptiveAttention]
Data = tuple[Dataset, FeatureStore]


def objective_of(kind: str, make: Make) -> Objective:
    target = make(seed=1, dropout=0.3)
    if kind == "likelihood":
        return Likelihood(LikelihoodSettings(), target)
    return Contrastive(ContrastiveSettings(negatives=2), target, make(seed=2))


def train(objective: Objective, data: Data, folder: Path, **settings: object) -> None:
    folder.mkdir(exist_ok=True)
    negatives = 2 if isinstance(objective, Contrastive) else 0
    sources = [BatchSource(*data, split, 4, None, negatives, seed=7) for split in ("train", "val")]
    chosen = TrainingSettings(**{"steps": 7, "learning_rate": 0.01, "log_every": 1, "validate_every": 3, **settings})
    loop.train(objective, *sources, chosen, 7, folder, "test")


@pytest.mark.parametrize("kind", ["likelihood", "contrastive"])
@pytest.mark.parametrize("stop", [0, 2, 4])
def test_stopping_and_resuming_is_bit_equal(
    kind: str, stop: int, tiny_data: Data, make_captioner: Make, tmp_path: Path
) -> None:
    train(objective_of(kind, make_captioner), tiny_data, tmp_path / "straight")

    stopping = objective_of(kind, make_captioner)
    steps = itertools.count()

    def ctrl_c() -> None:
        if next(steps) == stop:
            os.kill(os.getpid(), signal.SIGINT)

    stopping.after_step = ctrl_c  # type: ignore[method-assign]
    with pytest.raises(loop.Interrupted, match=f"after step {stop + 1} of 7"):
        train(stopping, tiny_data, tmp_path / "resumed")
    train(objective_of(kind, make_captioner), tiny_data, tmp_path / "resumed")

    one, other = (load_captioner(tmp_path / name).state_dict() for name in ("straight", "resumed"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    states = [load_trainer_state(checkpoint_path(tmp_path / name, "last")) for name in ("straight", "resumed")]
    for moments, others in zip(*(state["optimisers"]["train"]["state"].values() for state in states), strict=True):
        assert all(torch.equal(moments[key], others[key]) for key in moments)
    journals = [
        [
            {k: v for k, v in json.loads(line).items() if k != "seconds"}
            for line in (tmp_path / n / "metrics.jsonl").open()
        ]
        for n in ("straight", "resumed")
    ]
    assert journals[0] == journals[1]


def test_a_journal_ahead_of_its_checkpoint_is_cut(tiny_data: Data, make_captioner: Make, tmp_path: Path) -> None:
    """A killed process has logged steps after its last checkpoint; they are trained and logged again, once."""
    train(objective_of("likelihood", make_captioner), tiny_data, tmp_path / "run", steps=3)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as journal:
        journal.write('{"step": 4, "split": "train", "loss": 9.0}\n')
    train(objective_of("likelihood", make_captioner), tiny_data, tmp_path / "run", steps=5)
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").open() if '"train"' in line]
    assert steps == [1, 2, 3, 4, 5]


def test_training_lowers_the_loss(tiny_data: Data, make_captioner: Make, tmp_path: Path) -> None:
    train(objective_of("likelihood", make_captioner), tiny_data, tmp_path / "run", steps=100, learning_rate=0.03)
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").open() if '"train"' in line]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_kept_checkpoint_and_only_what_is_needed_remain(
    keep: str, tiny_data: Data, make_captioner: Make, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(objective_of("likelihood", make_captioner), tiny_data, run, steps=9, learning_rate=0.3, keep=keep)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    validation = {row["step"]: row["loss"] for row in rows if row["split"] == "val"}
    assert sorted(validation) == [3, 6, 9]
    best = min(validation, key=lambda step: validation[step])
    expected = best if keep == "best" else 9
    assert model_folder(run).name == f"step-{expected}"
    folders = {path.name for path in (run / "checkpoints").glob("step-*")}
    assert folders == {f"step-{best}", "step-9"}


def test_a_loss_that_is_not_a_number_stops_with_step_and_images(
    tiny_data: Data, make_captioner: Make, tmp_path: Path
) -> None:
    objective = objective_of("likelihood", make_captioner)
    with torch.no_grad():
        objective.target.predict.bias.fill_(torch.nan)
    with pytest.raises(RunError, match=r"step 0: the loss is nan on the images \d+, \d+"):
        train(objective, tiny_data, tmp_path / "run")


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(
    tiny_data: Data, make_captioner: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    train(objective_of("likelihood", make_captioner), tiny_data, run, steps=3)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(RunError, match="No space left"):
        train(objective_of("likelihood", make_captioner), tiny_data, run, steps=6)
    assert checkpoint_path(run, "last").name == "step-3"
    assert not list((run / "checkpoints").glob("*.tmp"))
    monkeypatch.undo()
    train(objective_of("likelihood", make_captioner), tiny_data, run, steps=6)
    assert checkpoint_path(run, "last").name == "step-6"


def test_learning_rate_schedules() -> None:
    cosine = TrainingSettings(steps=110, learning_rate=2.0, warmup_steps=10)
    assert learning_rate(cosine, 0, 110, 10) == pytest.approx(0.2)
    assert learning_rate(cosine, 9, 110, 10) == pytest.approx(2.0)
    assert learning_rate(cosine, 10, 110, 10) == pytest.approx(2.0)
    assert learning_rate(cosine, 60, 110, 10) == pytest.approx(1.0)
    assert learning_rate(cosine, 109, 110, 10) == pytest.approx(1 + math.cos(math.pi * 0.99))
    constant = TrainingSettings(steps=5, learning_rate=2.0, schedule="constant")
    assert learning_rate(constant, 4, 5, 10) == 2.0
