"""Starting worker processes, and comparing what they leave."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from support.threads_worker import LEFT
from tellapart.engine.checkpoint import checkpoint_path, load_trainer_state
from tellapart.models import model_folder

TESTS = Path(__file__).parents[1]
COMMANDS = {
    1: [sys.executable, "-m"],
    2: [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "support.threads_worker",
    ],
}


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "OMP_NUM_THREADS": "1"}


def run_worker(processes: int, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module in so many processes; it must end well, and with it the threads that processes talk through."""
    command = [*COMMANDS[processes], module, *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert LEFT not in done.stderr, done.stderr[-4000:]
    return done


def assert_equal_runs(one: Path, other: Path) -> dict[str, Any]:
    """Two run folders ended bit-equal: weights, optimisers, buffers, what the loop remembers; gives that state."""
    assert_equal(*(load_file(model_folder(run) / "model.safetensors") for run in (one, other)))
    states = [load_trainer_state(checkpoint_path(run, "last")) for run in (one, other)]
    for state in states:
        del state["seconds"]
    assert_equal(*states)
    return states[0]


def assert_equal(one: Any, other: Any, where: str = "") -> None:
    """Bit-equal, all the way down."""
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one:
            assert_equal(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for position, pair in enumerate(zip(one, other, strict=True)):
            assert_equal(*pair, f"{where}/{position}")
    else:
        assert one == other, where
