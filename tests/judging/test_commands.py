"""`tellapart judge` and `judge-report`: mistakes are one message, and nothing is left behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tellapart import cli
from tellapart.judging.answers import Answers
from tellapart.judging.trial import Trial

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")


def mistake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    monkeypatch.setattr(sys, "argv", ["tellapart", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_mistakes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    files: tuple[Path, Path],
    pictures: Path,
    tmp_path: Path,
) -> None:
    out = tmp_path / "answers.jsonl"
    usual = ["judge", *files, "--images", pictures, "--out", out]
    assert "needs a token" in mistake(monkeypatch, capsys, *usual, "--host", "0.0.0.0")
    assert "same name" in mistake(monkeypatch, capsys, *usual, "--rater", "Anna", "--rater", "anna")
    assert "does not exist" in mistake(monkeypatch, capsys, "judge", "no.jsonl", *usual[2:])
    assert "is an input" in mistake(monkeypatch, capsys, *usual[:-1], files[0])
    assert not out.exists()
    assert "does not exist" in mistake(monkeypatch, capsys, "judge-report", out)
    assert "not a file of answers" in mistake(monkeypatch, capsys, "judge-report", files[0])


def test_other_settings_are_another_trial(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    files: tuple[Path, Path],
    pictures: Path,
    trial: Trial,
    tmp_path: Path,
) -> None:
    out = tmp_path / "answers.jsonl"
    Answers(out, trial).close()
    before = out.read_bytes()
    told = mistake(monkeypatch, capsys, "judge", *files, "--images", pictures, "--out", out, "--count", "3")
    assert "--count or --seed" in told
    assert out.read_bytes() == before
