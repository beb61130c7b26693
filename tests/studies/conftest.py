"""Studies so small that they take seconds; those of one test module share their runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tellapart.studies.result import Result
from tellapart.studies.run import run_study


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studies")


@pytest.fixture(scope="module")
def studying(place: Path, tiny: tuple[str, ...]) -> Callable[..., Result]:
    """`run_study` on scenes at the smoke budget, with the module's own overrides `tiny`."""

    def study(name: str, **options: object) -> Result:
        given = {"budget": "smoke", "overrides": tiny, "runs": place / "runs", "prepared": place / "prepared"}
        return run_study(name, "scenes", out=place / name, **{**given, **options})  # type: ignore[arg-type]

    return study
