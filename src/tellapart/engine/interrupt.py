"""Ctrl-C and SIGTERM as a flag that the training loop checks after each step."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = b"\nstopping after this step, and its validation or clustering if any; Ctrl-C again stops at once\n"


@contextmanager
def catch_stop_signals(tell: bool = False) -> Iterator[Callable[[], bool]]:
    """Catch Ctrl-C and SIGTERM; gives a function that tells whether one came. A second one raises KeyboardInterrupt.

    With `torchrun` a process gets the same Ctrl-C twice, from the terminal and from `torchrun`, so a second signal
    within one second is ignored.

    Args:
        tell: say on the standard error stream that the first one came; a step or a validation may take minutes.
    """
    first: float | None = None

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if first is not None and time.monotonic() - first > 1.0:
            raise KeyboardInterrupt
        if first is None:
            first = time.monotonic()
            if tell:
                os.write(2, STOPPING)  # a print could be the very call that the signal interrupts

    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, handle)
    except ValueError:  # signals can be handled in the main thread only
        pass
    try:
        yield lambda: first is not None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
