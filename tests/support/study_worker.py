"""`tellapart study`, killed with SIGKILL in the middle of a training.

    python -m support.study_worker ARM CHECKPOINT ARGUMENTS…

It dies when the training of this arm is about to write this checkpoint, such as `step-3`, so no test depends on the
speed of the machine; the updates since the checkpoint before are lost.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tellapart import cli
from tellapart.engine import checkpoint


def main(arm: str, last: str, arguments: list[str]) -> None:
    save = checkpoint.save_checkpoint

    def deadly(run: Path, name: str, *more: Any) -> None:
        if name == last and f"-{arm}-" in run.name:
            os.kill(os.getpid(), signal.SIGKILL)
        save(run, name, *more)

    checkpoint.save_checkpoint = deadly
    sys.argv = ["tellapart", *arguments]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
