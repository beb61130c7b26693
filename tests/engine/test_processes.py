"""Processes started by `torchrun` and by Slurm: what they exchange, how they stop, and a whole recipe."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.close import assert_close
from support.threads_worker import LEFT
from support.workers import environment, run_worker
from tellapart.captioners.base import load_captioner
from tellapart.engine.checkpoint import checkpoint_path, load_trainer_state
from tellapart.run import open_run
from tellapart.training import train

RECIPE = Path(__file__).parents[2] / "recipes" / "scenes" / "adaptive-mle.yaml"


def test_by_torchrun(tmp_path: Path) -> None:
    done = run_worker(2, "support.processes_worker", str(tmp_path))
    assert "process 0 of 2 is content" in done.stdout
    assert "process 1 of 2 is content" in done.stdout


def test_by_slurm(tmp_path: Path) -> None:
    """The variables that `srun --ntasks 2` sets, without a Slurm."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tasks = []
    for task in range(2):
        told = {
            "SLURM_JOB_ID": "1",
            "SLURM_JOB_NAME": "train",
            "SLURM_STEP_ID": "0",
            "SLURM_NNODES": "1",
            "SLURM_NTASKS": "2",
            "SLURM_NTASKS_PER_NODE": "2",
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(task),
            "SLURM_NODEID": "0",
            "SLURM_NODELIST": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        command = [sys.executable, "-m", "support.threads_worker", "support.processes_worker", str(tmp_path)]
        tasks.append(
            subprocess.Popen(
                command, env={**environment(), **told}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    for number, task in enumerate(tasks):
        output, errors = task.communicate(timeout=300)
        assert task.returncode == 0, errors[-4000:]
        assert f"process {number} of 2 is content" in output
        assert LEFT not in errors


def test_a_recipe_by_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line from pictures to a finished run; one process gets the same weights and finds the same run."""
    monkeypatch.chdir(tmp_path)
    overrides = [
        *("data.scenes.train=10", "data.scenes.val=4", "data.scenes.test=2", "data.min_count=1"),
        *("captioner.hidden=16", "captioner.embedding=8", "captioner.dropout=0.0"),
        *("training.epochs=null", "training.steps=5", "training.images_per_batch=4", "training.learning_rate=1e-4"),
        "training.epsilon=1e-2",  # Adam would turn gradients that are only rounding into steps of full size
        *("training.validate_captions=3", "training.monitor=CIDEr", "training.monitor_best=highest"),
    ]
    done = run_worker(2, "tellapart.cli", "train", str(RECIPE), *overrides)
    together = open_run(done.stdout.strip()).folder
    alone = train(RECIPE, *overrides, out="alone").folder
    assert_close(load_captioner(together).state_dict(), load_captioner(alone).state_dict())
    assert load_trainer_state(checkpoint_path(together, "last"))["best"] is not None
    before = os.stat(together / "run.json").st_mtime_ns
    assert train(RECIPE, *overrides).folder == together
    assert os.stat(together / "run.json").st_mtime_ns == before
