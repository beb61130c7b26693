"""Ctrl-C and SIGTERM as a flag that the training loop checks after each step."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def catch_stop_signals() -> Iterator[Callable[[], bool]]:
    """Catch Ctrl-C and SIGTERM; gives a function that tells whether one came. A second one raises KeyboardInterrupt.

    With `torchrun` a process gets the same Ctrl-C twice, from the terminal and from `torchrun`, so a second signal
    within one second is ignored.
    """
    first: float | None = None

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if first is not None and time.monotonic() - first > 1.0:
            raise KeyboardInterrupt
        first = first or time.monotonic()

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
