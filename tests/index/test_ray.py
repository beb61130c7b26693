"""The example with Ray Data, on this machine."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from support.photos import register
from tellapart.index.photos import open_index

ray = pytest.importorskip("ray", reason="Ray is not installed; only the example needs it")
pytest.importorskip("ray.data", reason="Ray Data is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_index.py"


def test_parts_fill_one_index(tmp_path: Path, model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("ray_index", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    plain = example.index_part

    def with_colours(row: dict[str, Any]) -> dict[str, Any]:
        register()  # the encoder of these pictures, in the task's process
        return plain(row)

    monkeypatch.setattr(example, "index_part", with_colours)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("RAY_worker_niceness", "0")  # by default 15: other work on the machine would starve the tasks
    place = str(tmp_path / "photos.lance")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        done = example.index_with_ray([str(photos)], place, str(model), parts=2)
    finally:
        ray.shutdown()
    assert sorted(row["part"] for row in done) == [1, 2]
    assert sum(row["added"] for row in done) == 12
    index = open_index(place, model)
    assert len(index) == 12
    assert index.add([photos]).unchanged == 12
