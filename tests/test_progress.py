"""Progress: plain lines in pipes and files, bars on a terminal."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console

from tellapart import progress
from tellapart.progress import ProgressLine, close_bars, duration, show_long, show_progress, show_slow

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let seconds pass."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """A terminal of 100 columns."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=100)
    monkeypatch.setattr(progress, "_terminal", lambda: console)
    yield written
    close_bars()


def screen(written: io.StringIO) -> list[str]:
    """The lines a terminal shows, without empty ones."""
    lines, row = [""], 0
    for part in re.split(r"(\x1b\[[\d;?]*[A-Za-z]|\r|\n)", written.getvalue()):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part == "\x1b[1A":
            row -= 1
        elif not part.startswith("\x1b") and part != "\r":
            lines[row] += part
    return [line.rstrip() for line in lines if line]


def test_plain_lines(clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine("training", " steps")
    line.update(10, 100)
    clock(5)
    line.update(20, 100)
    clock(5)
    line.update(30, 100, {"loss": 2.5})
    line.update(100, 100)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "training 30/100 (30 %) · loss 2.500 · 2.0 steps/s · 35 s left",
        "training 100/100 (100 %) · 9.0 steps/s",
    ]


def test_work_that_is_done_at_once_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressLine("encoding").update(5, 5)
    assert capsys.readouterr().err == "encoding 5/5 (100 %)\n"


def test_bars_one_after_another(clock: Callable[[float], None], terminal: io.StringIO) -> None:
    show = show_progress()
    for what in ("rendering", "encoding"):
        show(what, 0, 10)
        before = terminal.getvalue()
        clock(0.9)
        show(what, 5, 10)
        assert terminal.getvalue() == before, "nothing is drawn in the first second"
        clock(0.1)
        show(what, 5, 10)
        assert re.fullmatch(rf"{what} ━+[╸╺]?━* 5/10 · 5.0/s · 1 s left", screen(terminal)[-1])
        clock(1)
        show(what, 10, 10)
    assert [line.split()[0::2] for line in screen(terminal)] == [
        ["rendering", "10/10", "5.0/s"],
        ["encoding", "10/10", "5.0/s"],
    ]
    assert terminal.getvalue().rindex(SHOW) > terminal.getvalue().rindex(HIDE)


def test_nested_bars(clock: Callable[[float], None], terminal: io.StringIO) -> None:
    """A finished bar and what others write to the standard error stream stay above the bar that goes on."""
    outer = ProgressLine("training")
    outer.update(0, 4)
    clock(2)
    outer.update(1, 4, {"loss": 2.5})
    inner = ProgressLine("validating")
    inner.update(0, 2)
    clock(2)
    inner.update(1, 2)
    assert [line.split()[0] for line in screen(terminal)] == ["training", "validating"]
    inner.update(2, 2)
    print("a warning", file=sys.stderr)
    clock(2)
    outer.update(2, 4, {"loss": 2.0})
    shown = screen(terminal)
    assert [line.split()[0] for line in shown] == ["validating", "a", "training"]
    assert shown[-1].endswith("2/4 · 0.3/s · 6 s left · loss 2.000")
    outer.update(4, 4)
    assert [line.split()[0] for line in screen(terminal)] == ["validating", "a", "training"]


@pytest.mark.parametrize("how", ["deleted", "closed"])
def test_work_that_stops_early_keeps_its_bar(
    clock: Callable[[float], None], terminal: io.StringIO, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    line = ProgressLine("training")
    line.update(0, 10)
    clock(2)
    line.update(3, 10)
    assert terminal.getvalue().rindex(SHOW) > terminal.getvalue().rindex(HIDE), "a killed process leaves a cursor"
    if how == "deleted":
        del line
    else:
        close_bars()
    print("stopped", file=sys.stderr)
    assert capsys.readouterr().err == "stopped\n", "no longer redirected"
    ProgressLine("encoding").update(5, 5)
    assert [line.split()[0] for line in screen(terminal)] == ["training", "encoding"]


def test_a_long_line_is_cut(clock: Callable[[float], None], terminal: io.StringIO) -> None:
    line = ProgressLine("training a recipe that has a long name", " steps")
    for done in (0, 50, 100):
        line.update(done, 100, {f"part {number}": 1.0 for number in range(9)})
        clock(2)
    (shown,) = screen(terminal)
    assert shown.startswith("training a recipe that h…")
    assert "100/100 · 25.0 steps/s · part 0 1.000" in shown
    assert len(shown) == 100


def test_duration() -> None:
    assert [duration(seconds) for seconds in (0.4, 95, 3720)] == ["0 s", "1 min 35 s", "1 h 2 min"]


def test_work_that_is_done_again_and_again_is_shown_if_it_is_long(
    clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    show = show_long()
    for seconds in (1.0, 8.0, 1.0):
        for done in range(4):
            show("clustering", done, 3)
            clock(seconds)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" · ")[0] for line in lines] == ["clustering 2/3 (66 %)", "clustering 3/3 (100 %)"]


def test_slow_work_in_one_piece_is_shown_when_it_is_done(clock: Callable[[float], None]) -> None:
    shown: list[tuple[str, int, int]] = []

    def work(seconds: float) -> list[str]:
        clock(seconds)
        return ["a", "b"]

    for seconds in (0.5, 3.0):
        done = show_slow(lambda *at: shown.append(at), f"reading for {seconds} s", lambda s=seconds: work(s), len)
        assert done == ["a", "b"]
    assert shown == [("reading for 3.0 s", 2, 2)]
    assert show_slow(None, "reading", lambda: work(3), len) == ["a", "b"]
