"""Run a module as `python -m` would, and say at the end which of Gloo's threads are left.

torchrun --nproc-per-node 2 -m support.threads_worker MODULE ARGUMENTS
"""

from __future__ import annotations

import atexit
import runpy
import sys
from pathlib import Path

LEFT = "threads left at exit: "


def tell_threads() -> None:
    names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    left = sorted(name for name in names if "gloo" in name)
    if left:
        print(LEFT + ", ".join(left), file=sys.stderr)


if __name__ == "__main__":
    atexit.register(tell_threads)  # the first to be registered is the last to be called
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
