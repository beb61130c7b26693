"""kill -9 at random points during 20 saves: the run always resumes, and no checkpoint is ever torn."""

from __future__ import annotations

import re
from pathlib import Path

from support.shapes_worker import train
from support.stand_ins import make
from support.workers import assert_equal_runs, run_worker

SAVES = 20


def test_a_run_killed_again_and_again_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    killed, straight = tmp_path / "killed", tmp_path / "straight"
    done = run_worker(1, "support.kill_worker", str(killed), str(SAVES), "0")
    told = re.search(r"deaths (\d+), in the middle of a checkpoint (\d+)", done.stdout)
    assert told is not None
    assert int(told[1]) >= 5, "it was killed a few times"

    train(make("momentum-bank", dropout=0.3), straight, steps=SAVES, validate_every=1, keep_last=3)
    assert_equal_runs(killed, straight)
