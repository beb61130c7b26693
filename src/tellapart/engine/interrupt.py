"""Ctrl-C and a polite kill, as a question that a loop asks after each step."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def finishing_the_step() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and a polite kill into a question asked after each step; a second Ctrl-C stops at once.

    `torchrun` passes a Ctrl-C on to processes that the terminal has told already: what follows within a second is the
    same one.
    """
    first: float | None = None

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if first is not None and time.monotonic() - first > 1.0:
            raise KeyboardInterrupt
        first = first or time.monotonic()

    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, ask)
    except ValueError:  # signals can be handled in the main thread only
        pass
    try:
        yield lambda: first is not None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
