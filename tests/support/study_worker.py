"""`tellapart study`, killed with SIGKILL in the middle of its work.

    python -m support.study_worker PATTERN ARGUMENTS…

It dies when it is about to write the first checkpoint (`RUN/step-3`) or file whose path the pattern matches, so no test
depends on the speed of the machine.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

from tellapart import cli
from tellapart.engine import checkpoint
from tellapart.files import writing


def main(pattern: str, arguments: list[str]) -> None:
    save, new_file = checkpoint.save_checkpoint, writing.new_file

    def die_at(path: str) -> None:
        if re.search(pattern, path):
            os.kill(os.getpid(), signal.SIGKILL)

    def save_or_die(run: Path, name: str, *more: Any) -> None:
        die_at(f"{run.name}/{name}")
        save(run, name, *more)

    def write_or_die(path: Path, *more: Any, **named: Any) -> Any:
        die_at(str(path))
        return new_file(path, *more, **named)

    checkpoint.save_checkpoint = save_or_die
    writing.new_file = write_or_die
    sys.argv = ["tellapart", *arguments]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
