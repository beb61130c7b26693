"""Every shape of objective, with one and with two processes: resuming is bit-equal, and two processes do what one does.

The trainings run in two commands (`support/shapes_worker.py`), one plain and one by `torchrun` over gloo.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.close import assert_close
from support.shapes_worker import GRADIENT_STEPS, STOP
from support.stand_ins import SHAPES
from support.workers import assert_equal_runs, run_worker
from tellapart.captioners.base import load_captioner
from tellapart.engine.checkpoint import checkpoint_path, load_trainer_state


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folders = {}
    for processes in (1, 2):
        folders[processes] = tmp_path_factory.mktemp(f"processes-{processes}")
        run_worker(processes, "support.shapes_worker", str(folders[processes]))
    return folders


def rows_of(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    for row in rows:
        row["split"] = float(row["split"] == "val")
        row.pop("seconds", None)
        row.pop("waiting", None)
    return rows


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_stopping_and_resuming_is_bit_equal(trained: dict[int, Path], shape: str, processes: int) -> None:
    """Weights, optimisers, banks, centres and what the loop remembers; the worker compares the random state."""
    straight, resumed = (trained[processes] / shape / name for name in ("straight", "resumed"))
    assert assert_equal_runs(straight, resumed)["step"] == 7
    assert rows_of(straight) == rows_of(resumed)


@pytest.mark.parametrize("processes", [1, 2])
def test_averaged_weights_and_plateaus_resume_bit_equal(trained: dict[int, Path], processes: int) -> None:
    """The stop comes after a cut of the rate, when the average is not equal to the weights that are trained."""
    straight, resumed = (trained[processes] / "averaged" / name for name in ("straight", "resumed"))
    state = assert_equal_runs(straight, resumed)
    assert rows_of(straight) == rows_of(resumed)
    rates = [row["learning_rate"] for row in rows_of(straight) if "learning_rate" in row and row["step"] < STOP]
    assert rates[-1] < rates[0], "a cut before the stop"
    averaged = load_captioner(straight).state_dict()
    assert any(not torch.equal(averaged[name], value) for name, value in state["own_weights"].items())


@pytest.mark.parametrize("shape", SHAPES)
def test_the_shapes_keep_state_of_their_own(trained: dict[int, Path], shape: str) -> None:
    """What the bit-equality above is about is really in the checkpoint, and the target's weights are there once."""
    state = load_trainer_state(checkpoint_path(trained[1] / shape / "straight", "last"))
    own = {name.split(".")[0] for name in state["objective"]}
    expected = {
        "two-phases": {"evaluator"},
        "momentum-bank": {"head", "momentum", "bank", "pointer"},
        "clustering": {"centres"},
    }
    assert own == expected.get(shape, set())
    assert set(state["optimisers"]) == ({"evaluator", "generator"} if shape == "two-phases" else {"train"})


@pytest.mark.parametrize("shape", SHAPES)
def test_two_processes_on_half_batches_equal_one_on_the_whole(trained: dict[int, Path], shape: str) -> None:
    """Every step's gradients, the ragged batch that leaves the second process without images included."""
    one, two = (torch.load(trained[n] / shape / "gradients.pt", weights_only=True) for n in (1, 2))
    assert len(one) == len(two) == GRADIENT_STEPS
    for step, (whole, halves) in enumerate(zip(one, two, strict=True)):
        assert any(gradient.abs().max() > 1e-4 for gradient in whole.values()), "there is something to compare"
        assert_close(halves, whole, f"{shape}, step {step}")
    for row, other in zip(*(rows_of(trained[n] / shape / "plain") for n in (1, 2)), strict=True):
        assert row == pytest.approx(other, rel=1e-4, abs=1e-5)
    states = [load_trainer_state(checkpoint_path(trained[n] / shape / "plain", "last"))["objective"] for n in (1, 2)]
    assert_close(states[1], states[0], shape)
