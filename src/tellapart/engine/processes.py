"""Devices, precision and processes, by Lightning Fabric.

Processes are started by `torchrun` or Slurm's `srun`; a plain `tellapart train` is one process.
"""

from __future__ import annotations

import atexit
import gc
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

# Long, since the others wait while the first process encodes a data set; `torchrun` and `srun` notice dead processes.
TIMEOUT = timedelta(days=1)

PRECISIONS: dict[str, Literal["32-true", "bf16-mixed", "16-mixed"]] = {
    "full": "32-true",
    "bf16": "bf16-mixed",
    "fp16": "16-mixed",
}


def open_fabric(precision: str = "full") -> Fabric:
    """Set up Fabric on this machine's device, with all processes started by `torchrun` or `srun`.

    Args:
        precision: `full`, or `bf16`/`fp16` for mixed precision if the device supports it.
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
        # A process with an empty share of the batch does not use all parameters. Buffers need no exchange: they are
        # equal in all processes, since banks are filled with gathered keys.
        strategy = DDPStrategy(find_unused_parameters=True, timeout=TIMEOUT, **_unsynced_buffers())
    fabric = Fabric(
        accelerator="auto",
        strategy=strategy,
        devices=per_node,
        num_nodes=nodes,
        precision=PRECISIONS[precision],
        # Without this, Fabric takes the size of a Slurm job even if srun did not start this process.
        plugins=[LightningEnvironment()] if alone else None,
    )
    fabric.launch()
    if not alone:
        atexit.register(_close_groups)  # Fabric does this for NCCL only
    return fabric


def _close_groups() -> None:
    """End Gloo's threads before the interpreter ends.

    A thread that lets go of its last tensor while the interpreter ends aborts the process ("terminate called without an
    active exception"). Threads end with their group, and a group ends when nothing refers to it. DDP's modules do, and
    they are in cycles, so these are collected first.
    """
    gc.collect()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    gc.collect()


def _unsynced_buffers() -> dict[str, Any]:
    """The option that turns off the exchange of buffers; newer torch renamed it and warns about the old name."""
    known = inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}


def launched(environment: Mapping[str, str]) -> tuple[int, int]:
    """Processes per node and nodes, from the variables of `torchrun` or `srun`; by default one process.

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


def first_then_others(fabric: Fabric, work: Callable[[], T]) -> T:
    """Run a function in the first process, then in the others, which find its files."""
    if fabric.global_rank == 0:
        made = work()
        fabric.barrier()
        return made
    fabric.barrier()
    return work()


def on_first(fabric: Fabric, work: Callable[[], T]) -> T:
    """Run a function in the first process and return its result in all; if it fails, all raise its error."""
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
    """The processes set up by Fabric.

    Gathers use their own process group, so that their backward passes do not mix with the gradient exchange, whose
    order may differ between processes.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.rank = fabric.global_rank
        self.world = fabric.world_size
        self._group = torch.distributed.new_group(timeout=TIMEOUT) if self.world > 1 else None

    def gather(self, tensor: torch.Tensor, gradient: bool = False) -> torch.Tensor:
        tensor = tensor if gradient else tensor.detach()
        if self.world == 1:
            return tensor
        own = torch.tensor([len(tensor)], device=tensor.device)
        sizes = self._all_gather(own, gradient=False).flatten().tolist()
        # Gathered tensors must have equal shapes, so they are padded before and cut after.
        padding = tensor.new_zeros(max(sizes) - len(tensor), *tensor.shape[1:])
        gathered = self._all_gather(torch.cat([tensor, padding]), gradient)
        return torch.cat([rows[:size] for rows, size in zip(gathered, sizes, strict=True)])

    def _all_gather(self, tensor: torch.Tensor, gradient: bool) -> torch.Tensor:
        gathered = self.fabric.all_gather(tensor, group=self._group, sync_grads=gradient)
        assert isinstance(gathered, torch.Tensor)
        return gathered

    def sum(self, values: list[float]) -> list[float]:
        """The sums over all processes."""
        if self.world == 1:
            return values
        own = torch.tensor(values, dtype=torch.float64, device=self.fabric.device)
        total = self.fabric.all_reduce(own, reduce_op="sum")
        assert isinstance(total, torch.Tensor)
        sums: list[float] = total.tolist()
        return sums
