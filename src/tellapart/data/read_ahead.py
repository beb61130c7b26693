"""Read what the next step needs while this step computes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")

# Steps that are read ahead. One hides the reading, and more would only take memory.
AHEAD = 1


class ReadAhead(Generic[T]):
    """The values `read(first)`, …, `read(end - 1)`, each computed in a thread before it is taken.

    At most `AHEAD` values are ready or being read. Nothing is read before the first `take`, nothing from `end` on, and
    nothing new once the block ends. An error is raised by the `take` of its own step, as it was raised by `read`.

    Args:
        read: gives a step's value. It runs in one thread, in the order of the steps.
        first: the first step.
        end: the step after the last one.

    Attributes:
        waited: seconds that `take` has waited.

    Example:
        >>> with ReadAhead(lambda step: step * step, 3, 5) as squares:
        ...     [squares.take(3), squares.take(4)]
        [9, 16]
    """

    def __init__(self, read: Callable[[int], T], first: int, end: int) -> None:
        self.waited = 0.0
        self._read = read
        self._next, self._end = first, end
        self._waiting: deque[tuple[int, Future[T]]] = deque()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")

    def take(self, step: int) -> T:
        """The value of a step; steps are taken in order, each once."""
        self._fill(1)
        if not self._waiting or self._waiting[0][0] != step:
            raise ValueError(f"step {step} is not the next one to be read")
        _, found = self._waiting.popleft()
        began = time.monotonic()
        value = found.result()
        self.waited += time.monotonic() - began
        self._fill(AHEAD)
        return value

    def _fill(self, count: int) -> None:
        while len(self._waiting) < count and self._next < self._end:
            self._waiting.append((self._next, self._thread.submit(self._read, self._next)))
            self._next += 1

    def __enter__(self) -> ReadAhead[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread; what it is reading now is finished and dropped."""
        self._waiting.clear()
        self._thread.shutdown(cancel_futures=True)
