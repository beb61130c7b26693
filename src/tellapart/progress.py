"""Progress on the standard error stream: bars on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # rich is imported only when a bar is drawn
    from rich.console import Console
    from rich.progress import Progress, TaskID

T = TypeVar("T")

OnProgress = Callable[[str, int, int], None]

# Seconds of work in one piece that are shown when it is done.
SLOW = 1.0
# Seconds between two updates of a bar, and before its first one; its width in a narrow terminal.
BAR_EVERY, BAR_AFTER, BAR_WIDTH = 0.2, 1.0, 6

# The bars of unfinished work, as one display, and what closes each; a bar is also closed when its owner is deleted.
_bars: Progress | None = None
_closers: dict[TaskID, weakref.finalize[[TaskID], ProgressLine]] = {}


class ProgressLine:
    """Shows what is being done, how far it is, its figures, rate and time left.

    The bar of work that stops early stays as it is when its `ProgressLine` is deleted or `close_bars` is called.

    Args:
        what: the work.
        unit: of the rate, such as `" images"`.
        every: seconds between two plain lines.

    Attributes:
        shown: whether anything was shown yet.

    Example:
        >>> line = ProgressLine("training", " steps")            # doctest: +SKIP
        >>> line.update(10, 100, {"loss": 2.5})                  # doctest: +SKIP
        training 10/100 (10 %) · loss 2.500 · 8.1 steps/s · 11 s left
    """

    def __init__(self, what: str, unit: str = "", every: float = 10.0) -> None:
        self.what = what
        self.unit = unit
        self.every = every
        self.shown = False
        self._console = _terminal()
        self._start: tuple[float, int] | None = None
        self._next = 0.0
        self._close: weakref.finalize[[TaskID], ProgressLine] | None = None

    def update(self, done: int, of: int, figures: Mapping[str, float] | None = None) -> None:
        now = time.monotonic()
        if self._start is None:
            self._start = (now, done)
            self._next = now + (self.every if self._console is None else BAR_AFTER)
        if now < self._next and done < of:
            return
        self.shown = True
        self._next = now + (self.every if self._console is None else BAR_EVERY)
        since, first = self._start
        shown = [f"{name} {value:.3f}" for name, value in (figures or {}).items()]
        speed = []
        if done > first:
            rate = (done - first) / max(1e-9, now - since)
            speed.append(f"{rate:.1f}{self.unit}/s")
            if done < of:
                speed.append(f"{duration((of - done) / rate)} left")
        if self._console is None:
            parts = [f"{self.what} {done}/{of} ({100 * done // max(1, of)} %)", *shown, *speed]
            print(" · ".join(parts), file=sys.stderr, flush=True)
        else:  # a narrow terminal cuts off what comes last
            self._draw(self._console, done, of, " · ".join([f"{done}/{of}", *speed, *shown]))

    def _draw(self, console: Console, done: int, of: int, details: str) -> None:
        global _bars
        if _bars is None:
            _bars = _start_bars(console)
        if self._close is None or not self._close.alive:
            self._task = _bars.add_task("", details="")
            self._close = _closers[self._task] = weakref.finalize(self, _close_bar, self._task)
        what = _shorten(self.what, console.width // 4)
        details = _shorten(details, console.width - len(what) - BAR_WIDTH - 2)
        _bars.update(self._task, completed=done, total=of, description=what, details=details, refresh=True)
        if done >= of:
            self._close()


def show_progress() -> OnProgress:
    """Progress of several pieces of work, each known by its name."""
    lines: dict[str, ProgressLine] = {}

    def show(what: str, done: int, of: int) -> None:
        lines.setdefault(what, ProgressLine(what)).update(done, of)

    return show


def show_long() -> OnProgress:
    """As `show_progress`, for work that is done again and again: what is done before its first line shows nothing.

    Call it with 0 when a piece of work begins.
    """
    lines: dict[str, ProgressLine] = {}

    def show(what: str, done: int, of: int) -> None:
        line = lines.setdefault(what, ProgressLine(what))
        if done < of or line.shown:
            line.update(done, of)
        if done >= of:
            del lines[what]

    return show


def show_slow(on_progress: OnProgress | None, what: str, work: Callable[[], T], count: Callable[[T], int]) -> T:
    """Do work in one piece, and show it when it is done, if it took longer than `SLOW`.

    Args:
        on_progress: shows it.
        what: the work.
        work: does it.
        count: number of items in the result.
    """
    began = time.monotonic()
    result = work()
    if on_progress is not None and time.monotonic() - began > SLOW:
        on_progress(what, count(result), count(result))
    return result


def close_bars() -> None:
    """Leave the bars of unfinished work as they are, so that what is printed next comes below them."""
    for close in list(_closers.values()):
        close()


def duration(seconds: float) -> str:
    """`95` -> `1 min 35 s`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _terminal() -> Console | None:
    """The terminal behind the standard error stream, if there is one."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return None
    from rich.console import Console

    return Console(stderr=True)


def _start_bars(console: Console) -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None, table_column=Column(max_width=30)),
        TextColumn("{task.fields[details]}", markup=False),
        console=console,
        auto_refresh=False,
        redirect_stdout=False,  # it may be a pipe; standard error is redirected, and shows above the bars
    )
    bars.start()
    console.show_cursor(True)  # a killed process must not leave it hidden
    return bars


def _close_bar(task: TaskID) -> None:
    """Leave a bar as it is: above those that go on, or in its place when it is the last."""
    global _bars
    assert _bars is not None
    del _closers[task]
    if _closers:
        row = _bars.make_tasks_table([one for one in _bars.tasks if one.id == task])
        _bars.remove_task(task)
        _bars.console.print(row)
    else:
        _bars.stop()
        _bars = None
