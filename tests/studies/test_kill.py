"""kill -9 in the middle of a study: the same command continues, and ends as if nothing had happened."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.smoke import run_smoke, study_arguments
from support.workers import environment
from tellapart.engine import checkpoint

TINY = (
    *("data.scenes.train=24", "data.scenes.val=6", "data.scenes.test=8"),
    "data.min_count=1",
    "training.steps=4",
    "training.validate_every=1",
    "training.images_per_batch=8",
    "training.warmup_steps=0",
)
SHORT = ("decoding.max_words=4", "decoding.length_penalty=3.0")
Straight = Callable[..., Path]


def written(folder: Path) -> dict[str, Any]:
    """What a study wrote, without where its runs are."""
    found: dict[str, Any] = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    for row in found["rows"].values():
        row["runs"] = [Path(run).name for run in row["runs"]]
    return found


def die(study: str, place: Path, pattern: str, changes: tuple[str, ...], options: tuple[str, ...] = ()) -> None:
    """Run a study until it is about to write what the pattern matches."""
    arguments = [*study_arguments(study, place, changes), *options]
    command = [sys.executable, "-m", "support.study_worker", pattern, *arguments]
    died = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=900)
    assert died.returncode == -signal.SIGKILL, died.stderr[-4000:]
    assert not (place / "smoke" / study / "study.json").exists()


def test_a_killed_study_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four arms of retrievers; the third is killed between its second and its third checkpoint of four."""
    killed, straight, arm = tmp_path / "killed", tmp_path / "straight", "coder-prototypes-more"
    die("coder-table4", killed, rf"-{arm}-\w+/step-3", TINY)
    (cut,) = (killed / "runs").glob(f"*-{arm}-*")
    assert checkpoint.checkpoint_path(cut, "last").name == "step-2"

    save, saved = checkpoint.save_checkpoint, []

    def recorded(run: Path, name: str, *more: Any) -> None:
        saved.append((run.name, name))
        save(run, name, *more)

    monkeypatch.setattr(checkpoint, "save_checkpoint", recorded)
    continued = run_smoke("coder-table4", killed, TINY)
    assert saved[:2] == [(cut.name, "step-3"), (cut.name, "step-4")], "arms before it are found, and it goes on"
    assert len({run for run, _ in saved}) == 2
    assert written(continued) == written(run_smoke("coder-table4", straight, TINY))


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """A study that nothing disturbed."""

    @cache
    def run(study: str, changes: tuple[str, ...], options: tuple[str, ...]) -> Path:
        return run_smoke(study, tmp_path_factory.mktemp("straight"), changes, options=options)

    return run


@pytest.mark.parametrize(
    ("study", "options", "pattern"),
    [
        pytest.param("cl-table6", ("--search",), r"-round-1-rate-\w+/step-", id="searching a rate"),
        pytest.param("cl-table6", ("--search",), r"-round-1-[0-9a-f]+/per_image-val", id="measuring"),
        pytest.param("cl-table6", ("--search",), r"/study\.json", id="at the end"),
        pytest.param("unkt-table6", (), r"-unkt-[0-9a-f]+/many-captions/test-20-sample-1\.jsonl", id="many captions"),
    ],
)
def test_it_continues_wherever_it_was_killed(
    study: str, options: tuple[str, ...], pattern: str, straight: Straight, tmp_path: Path
) -> None:
    changes = (*TINY, *SHORT, "training.steps=2", "training.validate_every=2")
    die(study, tmp_path, pattern, changes, options)
    continued = run_smoke(study, tmp_path, changes, options=options)
    assert written(continued) == written(straight(study, changes, options))
