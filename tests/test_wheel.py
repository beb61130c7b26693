"""The wheel: it holds all that tellapart needs, and captions a photograph from any folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Folders of the checkout -> where they are in the wheel.
PLACES = {"src/tellapart": "tellapart", "recipes": "tellapart/recipes", "models": "tellapart/shipped_models"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked."""
    pytest.importorskip("hatchling", reason="the wheel is built with hatchling (in the extra 'dev')")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = (folder / "dist").glob("tellapart-*.whl")
    with zipfile.ZipFile(built) as content:
        content.extractall(folder / "unpacked")
    return folder / "unpacked"


@pytest.mark.parametrize("folder", PLACES)
def test_all_files_are_in_it(wheel: Path, folder: str) -> None:
    """Code, recipes, models, and what is no code: templates, scripts, sample photographs."""
    files = [path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*") if path.is_file()]
    wanted = {path.as_posix() for path in files if "__pycache__" not in path.parts}
    assert wanted
    missing = {name for name in wanted if not (wheel / PLACES[folder] / name).is_file()}
    assert not missing
    for name in wanted:
        assert (wheel / PLACES[folder] / name).read_bytes() == (ROOT / folder / name).read_bytes(), name


def test_it_captions_a_photograph_in_another_folder(wheel: Path, tmp_path: Path) -> None:
    photo = tmp_path / "photo.jpg"
    photo.write_bytes((wheel / "tellapart" / "samples" / "photographs" / "cat.jpg").read_bytes())
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    code = "import tellapart, sys; print(tellapart.__file__, file=sys.stderr); from tellapart.cli import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", code, "caption", "photo.jpg"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert found.stderr.startswith(str(wheel)), "the checkout is used instead of the wheel"
    row = json.loads(found.stdout)
    assert row["id"] == "photo.jpg"
    assert "cat" in row["caption"].split()
