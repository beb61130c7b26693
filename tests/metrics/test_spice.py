"""SPICE is reported where the tool can run, and otherwise says what is missing; nothing is ever fetched."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tellapart.errors import TellapartError
from tellapart.metrics import evaluate, spice

REFERENCES = {"one": ["a dog runs", "the dog"], "two": ["a red bus"]}
CANDIDATES = {"two": "a bus", "one": "a dog"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of SPICE with all files, and Java 11."""
    (tmp_path / "lib").mkdir()
    for name in ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar"):
        (tmp_path / "lib" / name).write_bytes(b"")
    monkeypatch.setattr(spice, "_folder", lambda: tmp_path)
    monkeypatch.setattr(spice, "_java_version", lambda: "11")
    return tmp_path


def test_all_is_there(folder: Path) -> None:
    assert spice.why_no_spice() is None


def test_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spice, "find_spec", lambda name: None)
    assert spice.why_no_spice() == "pycocoevalcap is not installed; it comes with: pip install 'tellapart[metrics]'"


@pytest.mark.parametrize("name", ["stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar"])
def test_no_parser(folder: Path, name: str) -> None:
    (folder / "lib" / name).unlink()
    assert f"needs {name}" in str(spice.why_no_spice())


@pytest.mark.parametrize(("version", "said"), [(None, "there is no java"), ("17", "java is version 17")])
def test_wrong_java(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, said: str) -> None:
    monkeypatch.setattr(spice, "_java_version", lambda: version)
    assert said in str(spice.why_no_spice())


@pytest.mark.parametrize(
    ("printed", "version"),
    [('openjdk version "17.0.15" 2025-04-15', "17"), ('java version "1.8.0_371"', "8"), ("no idea", None)],
)
def test_java_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, version: str | None) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho '{printed}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert spice._java_version.__wrapped__() == version
    monkeypatch.setenv("PATH", "")
    assert spice._java_version.__wrapped__() is None


def test_what_cannot_run_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spice, "_folder", lambda: None)
    scores = evaluate(REFERENCES, CANDIDATES, metrics=["spice", "bleu"])
    assert "SPICE" not in scores.corpus
    assert "SPICE" not in scores.per_image
    assert scores.not_reported["SPICE"].startswith("pycocoevalcap is not installed")
    assert "\n" not in scores.not_reported["SPICE"]
    with pytest.raises(TellapartError, match="not installed"):
        spice.spice_scores([["a"]], ["a"])


def test_what_can_run_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Spice:
        def compute_score(self, gts: dict[int, list[str]], res: dict[int, list[str]]) -> tuple[float, list[Any]]:
            assert gts == {0: ["a red bus"], 1: ["a dog runs", "the dog"]}
            assert res == {0: ["a bus"], 1: ["a dog"]}
            return 0.5, [{"All": {"f": 0.75}}, {"All": {"f": 0.25}}]

    module = ModuleType("pycocoevalcap.spice.spice")
    module.Spice = Spice  # type: ignore[attr-defined]
    for name in ("pycocoevalcap", "pycocoevalcap.spice"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    scores = evaluate(REFERENCES, CANDIDATES, metrics=["spice"])
    assert scores.corpus == {"SPICE": 0.5}
    assert scores.per_image == {"SPICE": {"two": 0.75, "one": 0.25}}
