"""The loop's guarantees for each objective, with one and with two processes.

Resuming is bit-equal; two processes on half batches do what one does on the whole; a step in parts is a whole step.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from objectives.worker import CASES, IN_PARTS
from support.close import assert_close
from support.shapes_worker import GRADIENT_STEPS
from support.tiny import make_objective
from support.workers import assert_equal_runs, run_worker


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folders = {}
    for processes in (1, 2):
        folders[processes] = tmp_path_factory.mktemp(f"processes-{processes}")
        run_worker(processes, "objectives.worker", str(folders[processes]))
    return folders


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_stopping_and_resuming_is_bit_equal(trained: dict[int, Path], name: str, processes: int) -> None:
    """The stop is within an epoch: what the reference said of all true pairs is computed anew, to the same bits."""
    straight, resumed = (trained[processes] / name / kind for kind in ("straight", "resumed"))
    state = assert_equal_runs(straight, resumed)
    assert state["step"] == 7
    saved, whole = (
        {key.split(".")[0] for key in of} for of in (state["objective"], make_objective(**CASES[name]).state_dict())
    )
    assert saved == whole - {"target", "parts"}, "all but the target"


def assert_same_gradients(one: list[dict[str, torch.Tensor]], other: list[dict[str, torch.Tensor]]) -> None:
    assert len(one) == len(other) == GRADIENT_STEPS
    assert any(gradient.abs().max() > 1e-4 for step in one for gradient in step.values()), "there is something to see"
    for step, (first, second) in enumerate(zip(one, other, strict=True)):
        assert first.keys() == second.keys()
        assert_close(second, first, f"step {step}")


@pytest.mark.parametrize("name", CASES)
def test_two_processes_on_half_batches_equal_one_on_the_whole(trained: dict[int, Path], name: str) -> None:
    one, two = (torch.load(trained[n] / name / "gradients.pt", weights_only=True) for n in (1, 2))
    assert_same_gradients(one, two)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", IN_PARTS)
def test_a_step_in_three_parts_is_a_whole_step(trained: dict[int, Path], name: str, processes: int) -> None:
    files = (trained[processes] / name / f"{kind}.pt" for kind in ("gradients", "parts"))
    assert_same_gradients(*(torch.load(file, weights_only=True) for file in files))
