"""Run by `torchrun` (or by one plain process): trains recipes straight, and with a stop and a resume.

python -m support.resume_worker OUT
torchrun --nproc-per-node 2 -m support.resume_worker OUT

Each recipe leaves OUT/NAME/straight/ and OUT/NAME/resumed/. After the stop, making a vocabulary or concepts fails.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tellapart.engine.loop import Interrupted
from tellapart.recipe import Recipe
from tellapart.registry import find
from tellapart.retrievers import coder
from tellapart.text import Vocabulary
from tellapart.training import resume, run_recipe

TINY = [
    "data.scenes={train: 12, val: 4, test: 3}",
    "data.min_count=1",
    "training.images_per_batch=4",
    "training.epochs=3",
    "training.steps=null",
    "training.validate_every=4",
    "training.ema=0.9",
]
# Whole CODER has concepts, their graph, a momentum encoder, banks and a classifier of its own that starts from chance.
NAMES = ("transformer-mle", "coder")


def stopping(after_step: Callable[[Any], None]) -> Callable[[Any], None]:
    """The same, and Ctrl-C."""

    def stop(objective: Any) -> None:
        after_step(objective)
        os.kill(os.getpid(), signal.SIGINT)

    return stop


def fail(*given: Any, **named: Any) -> Any:
    raise AssertionError("made again, though the checkpoint has it")


def main(out: Path) -> None:
    for name in NAMES:
        recipe = Recipe.load(f"scenes/{name}.yaml", [*TINY, f"data.prepared={out / 'prepared'}"], "smoke")
        run_recipe(recipe, out=out / name / "straight")
        objective = find("objective", recipe.objective["name"])
        stop = patch.object(objective, "after_step", stopping(objective.after_step))
        with stop, pytest.raises(Interrupted, match="stopped after step"):
            run_recipe(recipe, out=out / name / "resumed")
        with patch.object(Vocabulary, "build", fail), patch.object(coder, "mine_concepts", fail):
            resume(out / name / "resumed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
