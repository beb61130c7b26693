"""The wheel and the source distribution, installed with pip: all that tellapart needs is there, and it captions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tellapart

ROOT = Path(__file__).parents[1]
# Folders of the checkout -> where they are in the environment's packages.
PLACES = {"src/tellapart": "tellapart", "recipes": "tellapart/recipes", "models": "tellapart/shipped_models"}
# Nothing is downloaded, and hatchling is that of the tests.
INSTALL = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed"]
INSTALL += ["--disable-pip-version-check"]


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command that must end well, without the checkout on its path."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with tellapart in it, and beside it what it depends on, from that of the tests."""
    pytest.importorskip("hatchling", reason="the distributions are built with hatchling (in the extra 'dev')")
    folder = tmp_path_factory.mktemp(request.param)
    run(sys.executable, "-m", "hatchling", "build", "-t", request.param, "-d", folder / "dist")
    (built,) = (folder / "dist").glob("tellapart-*")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "environment")
    # A line in a .pth file adds a folder, but not the .pth files in it: an editable tellapart there stays out of sight.
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages(folder / "environment") / "others.pth").write_text("".join(f"{path}\n" for path in others))
    run(sys.executable, "-m", "pip", "--python", folder / "environment/bin/python", *INSTALL, built)
    return folder / "environment"


def packages(environment: Path) -> Path:
    (found,) = environment.glob("lib/python*/site-packages")
    return found


@pytest.mark.parametrize("folder", PLACES)
def test_all_files_are_in_it(installed: Path, folder: str) -> None:
    """Code, recipes, models, and what is no code: templates, scripts, sample photographs."""
    files = [path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*") if path.is_file()]
    wanted = {path.as_posix() for path in files if "__pycache__" not in path.parts}
    assert wanted
    place = packages(installed) / PLACES[folder]
    missing = {name for name in wanted if not (place / name).is_file()}
    assert not missing
    for name in wanted:
        assert (place / name).read_bytes() == (ROOT / folder / name).read_bytes(), name


def test_it_captions_a_photograph_in_another_folder(installed: Path, tmp_path: Path) -> None:
    place = run(installed / "bin/python", "-c", "import tellapart; print(tellapart.__file__)", cwd=tmp_path).stdout
    assert place.startswith(str(packages(installed))), "the checkout is used instead of what was installed"
    command = installed / "bin/tellapart"
    assert run(command, "--version", cwd=tmp_path).stdout == f"tellapart {tellapart.__version__}\n"
    photo = tmp_path / "photo.jpg"
    photo.write_bytes((packages(installed) / "tellapart" / "samples" / "photographs" / "cat.jpg").read_bytes())
    row = json.loads(run(command, "caption", "photo.jpg", cwd=tmp_path).stdout)
    assert row["id"] == "photo.jpg"
    assert "cat" in row["caption"].split()
