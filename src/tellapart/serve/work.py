"""One thread for the models, with bounded queues: waiting items of several requests go through as one batch."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tellapart.serve.web import Refusal

# Called with a kind, the size of a batch and the seconds it took.
OnBatch = Callable[[str, int, float], None]


class Room:
    """Room for items that are accepted and not answered yet; a request that finds none is refused with 503.

    Args:
        most: number of items.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._seconds = 1.0

    @contextmanager
    def take(self, count: int = 1) -> Iterator[None]:
        if self.taken + count > self.most:
            # What is in a full room is answered in about the time that a request takes now.
            wait = min(60, max(1, math.ceil(self._seconds)))
            raise Refusal(503, "busy", f"the server is busy; try again in {wait} s", retry_after=wait)
        self.taken += count
        began = time.monotonic()
        try:
            yield
        finally:
            self.taken -= count
            self._seconds += 0.1 * (time.monotonic() - began - self._seconds)


@dataclass
class Kind:
    """A kind of work.

    Attributes:
        do: makes a list of results from a list of items, in the thread of the models.
        batch: most items at once.
    """

    do: Callable[[list[Any]], Sequence[Any]]
    batch: int
    waiting: deque[tuple[Any, asyncio.Future[Any]]] = field(default_factory=deque)


class Work:
    """Work for one thread. Kinds take turns, so that a search never waits for more than one batch of each kind.

    Args:
        kinds: by name.
        on_batch: told of every batch.

    Example:
        >>> work = Work({"double": Kind(lambda items: [2 * item for item in items], batch=8)})
        >>> work.start()
        >>> asyncio.run(work.do("double", [1, 2]))
        [2, 4]
        >>> work.close()
    """

    def __init__(self, kinds: dict[str, Kind], on_batch: OnBatch | None = None) -> None:
        self.kinds = kinds
        self._on_batch = on_batch
        self._changed = threading.Condition()
        self._turns = list(kinds)
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        assert not self.alive, "one thread runs the models"
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="models", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """Finish what is waiting, then end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    async def do(self, name: str, items: Sequence[Any]) -> list[Any]:
        """The results of items, in their order."""
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in items]
        with self._changed:
            self.kinds[name].waiting.extend(zip(items, futures, strict=True))
            self._changed.notify()
        return await asyncio.gather(*futures)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._next() is not None)
                name = self._next()
                if name is None:
                    return
                self._turns.remove(name)
                self._turns.append(name)
                kind = self.kinds[name]
                some = [kind.waiting.popleft() for _ in range(min(kind.batch, len(kind.waiting)))]
            self._do(name, kind, some)

    def _next(self) -> str | None:
        return next((name for name in self._turns if self.kinds[name].waiting), None)

    def _do(self, name: str, kind: Kind, some: Sequence[tuple[Any, asyncio.Future[Any]]]) -> None:
        began = time.perf_counter()
        try:
            results: Sequence[Any] = kind.do([item for item, _ in some])
        except Exception as error:
            if len(some) > 1:  # one item must not spoil those of other requests
                for one in some:
                    self._do(name, kind, [one])
                return
            results = [error]
        seconds = time.perf_counter() - began
        if self._on_batch is not None:
            self._on_batch(name, len(some), seconds)
        for (_, future), result in zip(some, results, strict=True):
            future.get_loop().call_soon_threadsafe(_settle, future, result)


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():  # the request was cancelled
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
