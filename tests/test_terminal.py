"""Tables: plain text in pipes, drawn on a terminal, and no figure cut off."""

from __future__ import annotations

import re
import sys

import pytest

from tellapart.terminal import print_table

HEADINGS = ["", "CIDEr", "95 % interval", "p"]
ROWS = [["MLE", 0.91234, "[0.89, 0.94]", None], ["CL [bold]", 1.0, "[-0.98, 1.02]", "<0.001"]]


def test_plain_text_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(HEADINGS, ROWS, "Table 4")
    assert capsys.readouterr().out.splitlines() == [
        "Table 4",
        "            CIDEr  95 % interval       p",
        "MLE        0.9123   [0.89, 0.94]       –",
        "CL [bold]  1.0000  [-0.98, 1.02]  <0.001",
    ]


@pytest.mark.parametrize("columns", [80, 30])
def test_a_terminal(columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(HEADINGS, ROWS, "Table 4 of [CL]")
    shown = capsys.readouterr().out
    assert ("───" in shown) == (columns == 80), "a table that does not fit is plain text"
    for text in ("Table 4 of [CL]", "0.9123", "CL [bold]", "[-0.98, 1.02]", "<0.001"):
        assert text in shown


def test_words_wrap_and_figures_do_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(["caption", "ln p"], [["a caption of many words " * 3, -12.5]])
    shown = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out)
    assert "-12.5000" in shown
    assert max(map(len, shown.splitlines())) <= 40
