"""Progress for people: a live line on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence

OnProgress = Callable[[str, int, int], None]


class ProgressLine:
    """Shows what is being done, how far it is, its figures, rate and time left.

    Example:
        >>> line = ProgressLine("training")                      # doctest: +SKIP
        >>> line.update(10, 100, {"loss": 2.5})                  # doctest: +SKIP
        training 10/100 (10 %) · loss 2.500 · 8.1/s · 11 s left
    """

    def __init__(self, what: str, unit: str = "", every: float = 10.0) -> None:
        self.what = what
        self.unit = unit
        self.live = sys.stderr.isatty()
        self.every = 0.2 if self.live else every
        self._began: tuple[float, int] | None = None
        self._shown = 0.0

    def update(self, done: int, of: int, figures: Mapping[str, float] | None = None) -> None:
        now = time.monotonic()
        if self._began is None:
            self._began = (now, done)
            self._shown = now if done < of else 0.0
        if now - self._shown < self.every and done < of:
            return
        self._shown = now
        since, first = self._began
        parts = [f"{self.what} {done}/{of} ({100 * done // max(1, of)} %)"]
        parts += [f"{name} {value:.3f}" for name, value in (figures or {}).items()]
        if done > first:
            rate = (done - first) / max(1e-9, now - since)
            parts.append(f"{rate:.1f}{self.unit}/s")
            if done < of:
                parts.append(f"{duration((of - done) / rate)} left")
        self._write(" · ".join(parts), last=done >= of)

    def _write(self, text: str, last: bool) -> None:
        if self.live:
            sys.stderr.write(f"\r\x1b[K{text}" + ("\n" if last else ""))
        else:
            sys.stderr.write(text + "\n")
        sys.stderr.flush()


def duration(seconds: float) -> str:
    """`95` -> `1 min 35 s`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def show_progress() -> OnProgress:
    """Progress of several pieces of work, told apart by their names."""
    lines: dict[str, ProgressLine] = {}

    def show(what: str, done: int, of: int) -> None:
        lines.setdefault(what, ProgressLine(what)).update(done, of)

    return show


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on the standard output stream; all columns but the first are right-aligned."""
    lines = [list(headings), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    for line in lines:
        cells = [line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))]
        print("  ".join(cells).rstrip())
