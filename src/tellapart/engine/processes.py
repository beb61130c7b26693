"""Devices, precision and processes, by Lightning Fabric; nothing outside `engine/` knows of it.

Processes are started by `torchrun` or by Slurm's `srun`, not by us: a plain `tellapart train` is one process.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal, TypeVar, cast

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.strategies.ddp import DDPStrategy
from torch.nn.parallel import DistributedDataParallel

from tellapart.errors import RecipeError, RunError, TellapartError
from tellapart.objectives.base import Processes

T = TypeVar("T")

# Others wait while the first process encodes a data set; a process that dies is noticed by whoever started it.
PATIENCE = timedelta(days=1)

PRECISIONS: dict[str, Literal["32-true", "bf16-mixed", "16-mixed"]] = {
    "full": "32-true",
    "bf16": "bf16-mixed",
    "fp16": "16-mixed",
}


def open_fabric(precision: str = "full") -> Fabric:
    """Fabric on this machine's device, joined with the processes started beside this one.

    Args:
        precision: `full`, or `bf16`/`fp16` for mixed precision where the device has it.
    """
    cuda = torch.cuda.is_available()
    if precision == "fp16" and not cuda:
        raise RecipeError("training.precision: fp16 needs a CUDA device, and there is none; use bf16 or full")
    if precision == "bf16" and cuda and not torch.cuda.is_bf16_supported():
        raise RecipeError("training.precision: this CUDA device has no bf16; use fp16 or full")
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    per_node, nodes = launched(os.environ)
    strategy: str | DDPStrategy = "auto"
    alone = per_node * nodes == 1
    if not alone:
        # Which parameters a step uses may differ from process to process (a share can be empty), so the unused are
        # looked for; buffers are equal by construction, banks are filled with gathered keys.
        strategy = DDPStrategy(find_unused_parameters=True, timeout=PATIENCE, **_unsynced_buffers())
    fabric = Fabric(
        accelerator="auto",
        strategy=strategy,
        devices=per_node,
        num_nodes=nodes,
        precision=PRECISIONS[precision],
        # Inside a batch job, but not started by srun: one process, whatever the job asked for.
        plugins=[LightningEnvironment()] if alone else None,
    )
    fabric.launch()
    return fabric


def _unsynced_buffers() -> dict[str, Any]:
    """Newer torch has another word for it and warns of the old one."""
    known = inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}


def launched(environment: Mapping[str, str]) -> tuple[int, int]:
    """Processes per node and nodes, as `torchrun` or `srun` say; one process otherwise.

    >>> launched({"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"})
    (4, 2)
    >>> launched({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "6", "SLURM_NNODES": "2", "SLURM_JOB_NAME": "train"})
    (3, 2)
    >>> launched({})
    (1, 1)
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        per_node = int(environment["LOCAL_WORLD_SIZE"])
        return per_node, int(environment["WORLD_SIZE"]) // per_node
    interactive = environment.get("SLURM_JOB_NAME") in ("bash", "interactive")
    if "SLURM_NTASKS" in environment and "SLURM_STEP_ID" in environment and not interactive:
        nodes = int(environment.get("SLURM_NNODES", "1"))
        return int(environment["SLURM_NTASKS"]) // nodes, nodes
    return 1, 1


def on_first(fabric: Fabric, work: Callable[[], T]) -> T:
    """Let the first process work, and give its result to all; when it fails, all fail with its message."""
    if fabric.world_size == 1:
        return work()
    result: T | None = None
    failure: tuple[type[TellapartError], str] | None = None
    if fabric.global_rank == 0:
        try:
            result = work()
        except TellapartError as error:
            failure = (type(error), str(error))
        except OSError as error:
            failure = (RunError, str(error))
    result, failure = fabric.broadcast((result, failure))
    if failure is not None:
        kind, message = failure
        raise kind(message)
    return cast(T, result)


class FabricProcesses(Processes):
    """Processes joined by Fabric.

    Gathers have a process group of their own: their backward passes must not be mixed up with the exchange of
    gradients, whose order may differ from process to process.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.rank = fabric.global_rank
        self.world = fabric.world_size
        self._group = torch.distributed.new_group(timeout=PATIENCE) if self.world > 1 else None

    def gather(self, tensor: torch.Tensor, gradient: bool = False) -> torch.Tensor:
        tensor = tensor if gradient else tensor.detach()
        if self.world == 1:
            return tensor
        own = torch.tensor([len(tensor)], device=tensor.device)
        sizes = self._all(own, gradient=False).flatten().tolist()
        # Collectives exchange equal shapes, so rows are filled up to the most and cut again.
        missing = tensor.new_zeros(max(sizes) - len(tensor), *tensor.shape[1:])
        everyone = self._all(torch.cat([tensor, missing]), gradient)
        return torch.cat([rows[:size] for rows, size in zip(everyone, sizes, strict=True)])

    def _all(self, tensor: torch.Tensor, gradient: bool) -> torch.Tensor:
        gathered = self.fabric.all_gather(tensor, group=self._group, sync_grads=gradient)
        assert isinstance(gathered, torch.Tensor)
        return gathered

    def sum(self, values: list[float]) -> list[float]:
        """The sums of everyone's values."""
        if self.world == 1:
            return values
        own = torch.tensor(values, dtype=torch.float64, device=self.fabric.device)
        total = self.fabric.all_reduce(own, reduce_op="sum")
        assert isinstance(total, torch.Tensor)
        sums: list[float] = total.tolist()
        return sums
