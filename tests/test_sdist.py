"""The source distribution holds what is in the repository, so that tests, docs and wheel can be made from it."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

import tellapart

ROOT = Path(__file__).parents[1]


def in_the_repository() -> set[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}


def test_it_holds_the_repository(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="builds the distributions")
    wanted = in_the_repository()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = tmp_path.glob("tellapart-*.tar.gz")
    assert built.name == f"tellapart-{tellapart.__version__}.tar.gz"
    with tarfile.open(built) as content:
        found = {member.name.partition("/")[2] for member in content.getmembers() if member.isfile()}
    assert wanted - found == set(), "missing in the sdist; see pyproject.toml"
    assert {name for name in found - wanted if "__pycache__" not in name} == {"PKG-INFO"}


def test_the_version_is_semantic_and_the_same_everywhere() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?", tellapart.__version__)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == tellapart.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == tellapart.__version__


def test_the_citation_names_the_four_papers() -> None:
    """The keys that version 1.2.0 of the format requires, and the papers of docs/methods.md."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    methods = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    for paper in citation["references"]:
        assert {"type", "title", "authors"} <= set(paper)
        assert f"{paper['authors'][0]['family-names']} " in methods
        assert str(paper["year"]) in methods
    assert len(citation["references"]) == 4
