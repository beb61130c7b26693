"""The source distribution holds what is in the repository, so that tests, docs and wheel can be made from it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import packages_distributions
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


# Packages that come with a declared one, and the extra that declares it.
BROUGHT = {"huggingface_hub": "transformers", "tokenizers": "transformers", "starlette": "fastapi"}
# Modules whose package may not be installed here.
ABSENT = {"timm": "timm", "pycocoevalcap": "pycocoevalcap"}


def test_every_package_that_is_imported_is_declared() -> None:
    """`test_wheel.py` borrows the packages of this environment, so a missing one would not be seen there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [one for name, group in project["optional-dependencies"].items() if name != "dev" for one in group]
    declared = {_normal(re.split(r"[<>=\[;]", one)[0]) for one in (*project["dependencies"], *extras)}
    installed = packages_distributions()
    imported = {
        name.partition(".")[0]
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in _imported(node)
    }
    for module in imported - sys.stdlib_module_names - {"tellapart"}:
        names = installed.get(module) or [ABSENT[module]]
        assert declared & {_normal(BROUGHT.get(name, name)) for name in names}, f"{module} is not in pyproject.toml"


def _imported(node: ast.AST) -> list[str]:
    """The modules that a statement imports by their full name."""
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


def _normal(name: str) -> str:
    """As package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()
