"""Run as two processes: what they exchange, and how they stop together.

torchrun --nproc-per-node 2 -m support.processes_worker OUT
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from support.shapes_worker import train
from support.stand_ins import make
from tellapart.data.batches import Batch
from tellapart.engine.processes import FabricProcesses, open_fabric
from tellapart.errors import RunError
from tellapart.objectives.base import Progress, Total


def check_gather(processes: FabricProcesses) -> None:
    """Ragged rows, an empty process, whole numbers, and gradients that go back to where a row came from."""
    rank = processes.rank
    for rows in ((1, 3), (0, 2), (2, 0)):
        own = torch.arange(rows[rank] * 2.0).view(-1, 2) + 10 * rank
        own.requires_grad_()
        together = processes.gather(own, gradient=True)
        expected = [torch.arange(n * 2.0).view(-1, 2) + 10 * r for r, n in enumerate(rows)]
        assert torch.equal(together, torch.cat(expected))
        assert not processes.gather(own).requires_grad
        # Process r uses row j with the weight (r + 1)(j + 1); everyone's use adds up.
        weights = torch.arange(1.0, len(together) + 1)[:, None]
        ((rank + 1) * weights * together).sum().backward()
        first = 0 if rank == 0 else rows[0]
        assert own.grad is not None
        assert torch.equal(own.grad, (3 * weights[first : first + rows[rank]]).expand(-1, 2))
    places = processes.gather(torch.full((2,), rank))
    assert places.tolist() == [0, 0, 1, 1]
    assert processes.sum([1.0, float(rank)]) == [2.0, 1.0]


def check_failures(out: Path, rank: int) -> None:
    objective = make("per-token")
    forward = objective.forward

    def fails_on_the_second(batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        totals = forward(batch, progress, phase)
        factor = torch.nan if rank == 1 and progress.step == 2 else 1.0
        return {"loss": Total(totals["loss"].sum * factor, totals["loss"].count)}

    objective.forward = fails_on_the_second  # type: ignore[method-assign]
    with pytest.raises(RunError, match=r"step 3: loss is not a finite number, on the images \d+, \d+, \d+ and 2 more;"):
        train(objective, out / "failing")
    # A first process that cannot write stops all of them.
    if rank == 0:
        (out / "unwritable").mkdir()
        (out / "unwritable" / "checkpoints").write_text("a file where a folder should be")
    with pytest.raises(RunError, match="the checkpoint 'step-3' could not be written"):
        train(make("per-token"), out / "unwritable")


def main(out: Path) -> None:
    fabric = open_fabric()
    assert fabric.world_size == 2
    check_gather(FabricProcesses(fabric))
    check_failures(out, fabric.global_rank)
    print(f"process {fabric.global_rank} of {fabric.world_size} is content")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
