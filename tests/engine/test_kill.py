"""kill -9 at random points during 20 saves: the run always resumes, and no checkpoint is ever torn."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from support.shapes_worker import train
from support.stand_ins import make
from support.workers import assert_equal, run_worker
from tellapart.captioners.folder import load_captioner
from tellapart.engine.checkpoint import checkpoint_path, load_trainer_state

SAVES = 20


def test_a_run_killed_again_and_again_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    killed, straight = tmp_path / "killed", tmp_path / "straight"
    done = run_worker(1, "support.kill_worker", str(killed), str(SAVES), "0")
    assert done.returncode == 0, done.stderr[-4000:]
    told = re.search(r"deaths (\d+), in the middle of a checkpoint (\d+)", done.stdout)
    assert told is not None
    assert int(told[1]) >= 5, "it was killed a few times"

    train(make("momentum-bank", dropout=0.3), straight, steps=SAVES, validate_every=1, keep_last=3)
    one, other = (load_captioner(run).state_dict() for run in (killed, straight))
    assert all(torch.equal(one[name], other[name]) for name in one)
    states = [load_trainer_state(checkpoint_path(run, "last")) for run in (killed, straight)]
    for state in states:
        del state["seconds"]
    assert_equal(*states)
