"""Kills a training again and again with SIGKILL while it saves, and continues it until it is finished.

    python -m support.kill_worker OUT SAVES SEED

Children are forked, so that a life costs no imports. After every death each checkpoint there is must be whole, and
`last` must name one of them.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from support.shapes_worker import train
from support.stand_ins import make
from tellapart.captioners.base import load_captioner
from tellapart.engine.checkpoint import checkpoint_path, has_checkpoint, load_trainer_state


def live(run: Path, saves: int, slow: bool) -> None:
    """Train to the end, a checkpoint each step; slow flushes make it likely to die in the middle of one."""
    if slow:
        flush = os.fsync

        def slowly(handle: int) -> None:
            time.sleep(0.002)
            flush(handle)

        os.fsync = slowly
    train(make("momentum-bank", dropout=0.3), run, steps=saves, validate_every=1, keep_last=3)


def _last_step(run: Path) -> int:
    """The step of the last checkpoint; 0 without one."""
    return int(checkpoint_path(run, "last").name.removeprefix("step-")) if has_checkpoint(run) else 0


def main(run: Path, saves: int, seed: int) -> None:
    torch.set_num_threads(1)
    chance = random.Random(seed)
    deaths = torn = 0
    longer = 1.0
    while True:
        before = _last_step(run)
        child = os.fork()
        if child == 0:
            try:
                live(run, saves, slow=True)
            except BaseException:
                os._exit(1)
            os._exit(0)
        time.sleep(longer * chance.uniform(0.05, 0.35))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, "a life ended by itself, and not well"
            break
        deaths += 1
        torn += any((run / "checkpoints").glob(".tellapart-*")) if run.exists() else 0
        for folder in (run / "checkpoints").glob("step-*[0-9]"):
            load_captioner(folder)
            assert load_trainer_state(folder)["step"] == int(folder.name.removeprefix("step-"))
        if has_checkpoint(run):
            assert checkpoint_path(run, "last").is_dir()
        # On a busy machine a life may be too short for a step.
        longer = 1.0 if _last_step(run) > before else 1.2 * longer
    left = [path.name for path in (run / "checkpoints").iterdir() if path.name.startswith(".tellapart-")]
    assert not left, left
    print(f"deaths {deaths}, in the middle of a checkpoint {torn}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
