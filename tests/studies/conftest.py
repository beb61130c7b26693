"""Small studies that take seconds; those of one test module share their runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tellapart.studies.result import Result
from tellapart.studies.run import run_study


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studies")


@pytest.fixture(scope="module")
def studying(place: Path, request: pytest.FixtureRequest) -> Callable[..., Result]:
    """`run_study` on scenes at the smoke budget, with the overrides `TINY` of the test module."""
    tiny = request.module.TINY

    def study(name: str, **options: object) -> Result:
        given = {"budget": "smoke", "overrides": tiny, "runs": place / "runs", "prepared": place / "prepared"}
        return run_study(name, "scenes", **{"out": place / name, **given, **options})  # type: ignore[arg-type]

    return study


@pytest.fixture(scope="module")
def written(place: Path) -> Callable[[Result], tuple[str, str]]:
    """Reads a study's table and page, after checks that hold for all studies."""

    def read(result: Result) -> tuple[str, str]:
        folder = place / result.study.name
        table, page = ((folder / name).read_text(encoding="utf-8") for name in ("table.md", "study.html"))
        assert f"Quoted, not measured here: {result.study.source}" in table
        assert not re.findall(r"(?:src|href)=\"(?!data:|#)", page)
        for heading in ("Measured here", "Against the control", "Quoted from the paper", "<svg"):
            assert heading in page
        assert json.loads((folder / "study.json").read_text()) == json.loads(json.dumps(result.to_json()))
        return table, page

    return read
