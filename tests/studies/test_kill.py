"""kill -9 in the middle of a study: the same command continues, and ends as if nothing had happened."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.smoke import run_smoke, study_arguments
from support.workers import environment
from tellapart.engine import checkpoint

# Four arms of retrievers; the third is killed between its second and its third checkpoint of four.
STUDY, ARM = "coder-table4", "coder-prototypes-more"
TINY = (
    *("data.scenes.train=24", "data.scenes.val=6", "data.scenes.test=8"),
    "data.min_count=1",
    "training.steps=4",
    "training.validate_every=1",
    "training.images_per_batch=8",
    "training.warmup_steps=0",
)


def written(folder: Path) -> dict[str, Any]:
    """What a study wrote, without where its runs are."""
    found: dict[str, Any] = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    for row in found["rows"].values():
        row["runs"] = [Path(run).name for run in row["runs"]]
    return found


def test_a_killed_study_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed, straight = tmp_path / "killed", tmp_path / "straight"
    command = [sys.executable, "-m", "support.study_worker", ARM, "step-3", *study_arguments(STUDY, killed, TINY)]
    died = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=900)
    assert died.returncode == -signal.SIGKILL, died.stderr[-4000:]
    (cut,) = (killed / "runs").glob(f"*-{ARM}-*")
    assert checkpoint.checkpoint_path(cut, "last").name == "step-2"
    assert not (killed / "smoke" / STUDY / "study.json").exists()

    save, saved = checkpoint.save_checkpoint, []

    def recorded(run: Path, name: str, *more: Any) -> None:
        saved.append((run.name, name))
        save(run, name, *more)

    monkeypatch.setattr(checkpoint, "save_checkpoint", recorded)
    continued = run_smoke(STUDY, killed, TINY)
    assert saved[:2] == [(cut.name, "step-3"), (cut.name, "step-4")], "arms before it are found, and it goes on"
    assert len({run for run, _ in saved}) == 2
    assert written(continued) == written(run_smoke(STUDY, straight, TINY))
