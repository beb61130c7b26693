"""The moving average of the weights: its values, what is validated and kept, and what goes on training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.close import assert_close
from support.tiny import make_captioner, make_data
from tellapart.captioners.base import load_captioner
from tellapart.data.batches import BatchSource
from tellapart.engine.average import WeightAverage
from tellapart.engine.checkpoint import checkpoint_path, load_trainer_state
from tellapart.engine.loop import Trainer
from tellapart.engine.settings import TrainingSettings
from tellapart.errors import RunError
from tellapart.objectives.base import Progress, Roles
from tellapart.objectives.likelihood import Likelihood, LikelihoodSettings

DECAY = 0.4  # smaller than the warm-up, (1 + n) / (10 + n), from the sixth update on


def make_objective() -> Likelihood:
    return Likelihood(LikelihoodSettings(), Roles(make_captioner(seed=1, dropout=0.3)))


def train(folder: Path, steps: int = 7, **settings: Any) -> Likelihood:
    objective = make_objective()
    folder.mkdir(exist_ok=True)
    sources = [BatchSource(*make_data(), split, 4, seed=7) for split in ("train", "val")]
    usual = {"learning_rate": 0.05, "validate_every": 1, "schedule": "constant", "keep_last": 100}
    chosen = TrainingSettings(**{"steps": steps, **usual, **settings})
    Trainer(objective, *sources, chosen, 7, folder).run("test")
    return objective


def weights_of(run: Path, step: int) -> dict[str, torch.Tensor]:
    model = load_captioner(run / "checkpoints" / f"step-{step}")
    return {name: value.detach() for name, value in model.named_parameters()}


def test_the_kept_weights_are_the_average_of_all_steps(tmp_path: Path) -> None:
    train(tmp_path / "plain")
    trained = train(tmp_path / "averaged", ema=DECAY)
    expected = {name: value.detach().clone() for name, value in make_objective().target.named_parameters()}
    for number in range(1, 8):
        decay = min(DECAY, (1 + number) / (10 + number))
        raw = weights_of(tmp_path / "plain", number)
        expected = {name: decay * before + (1 - decay) * raw[name] for name, before in expected.items()}
        assert_close(weights_of(tmp_path / "averaged", number), expected, f"step {number}")
    assert_close(dict(load_captioner(tmp_path / "averaged").named_parameters()), expected)
    # The training itself does not notice the average.
    for name, value in trained.target.named_parameters():
        assert torch.equal(value, weights_of(tmp_path / "plain", 7)[name])


def test_the_validation_measures_the_average(tmp_path: Path) -> None:
    train(tmp_path / "run", ema=DECAY)
    kept = load_captioner(tmp_path / "run")
    objective = Likelihood(LikelihoodSettings(), Roles(kept)).eval()
    totals = [objective(batch, Progress(7, 7))["loss"] for batch in BatchSource(*make_data(), "val", 4, seed=7).epoch()]
    expected = sum(float(total.sum.detach()) for total in totals) / sum(total.count for total in totals)
    assert kept.history["measured"]["validation"]["loss"] == pytest.approx(expected, rel=1e-5)


def test_buffers_and_frozen_weights_are_not_averaged() -> None:
    model = nn.BatchNorm1d(2)
    model.bias.requires_grad_(False)
    average = WeightAverage(model, 0.5)
    with torch.no_grad():
        model.weight.fill_(3.0)
        model.bias.fill_(7.0)
        model.running_mean.fill_(5.0)  # type: ignore[union-attr]
    average.update(1)
    with average.applied():
        assert_close(model.weight, torch.full((2,), 1 + 9 / 11 * 2))
        assert torch.equal(model.bias, torch.full((2,), 7.0))
        assert torch.equal(model.running_mean, torch.full((2,), 5.0))  # type: ignore[arg-type]
    assert torch.equal(model.weight, torch.full((2,), 3.0))


def test_the_own_weights_come_back_after_an_error() -> None:
    model = nn.Linear(2, 2)
    average = WeightAverage(model, 0.5)
    with torch.no_grad():
        model.weight.fill_(3.0)
    with pytest.raises(KeyError), average.applied():
        raise KeyError
    assert torch.equal(model.weight, torch.full((2, 2), 3.0))


@pytest.mark.parametrize("damage", ["missing", "other shape"])
def test_a_checkpoint_without_fitting_weights_is_refused(damage: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, steps=2, ema=DECAY)
    path = checkpoint_path(run, "last")
    state = load_trainer_state(path)
    if damage == "missing":
        del state["own_weights"]
    else:
        state["own_weights"]["predict.bias"] = torch.zeros(1)
    torch.save(state, path / "trainer.pt")
    with pytest.raises(RunError, match=r"trainer\.pt: does not fit this training"):
        train(run, steps=3, ema=DECAY)
