"""Exported networks: cached whole or not at all, under a name that covers all they depend on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tellapart.encoders import export
from tellapart.encoders.base import EncoderIdentity
from tellapart.encoders.export import cached_path, check, exported, open_session
from tellapart.errors import StoreError

IDENTITY = EncoderIdentity("tiny", "0", "none", regions=16, width=5)
SIZE = 8


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Grid(torch.nn.Module):
    def __init__(self, more: float = 0.0) -> None:
        super().__init__()
        self.more = more
        self.convolution = torch.nn.Conv2d(3, 5, 2, stride=2)
        torch.nn.init.zeros_(self.convolution.bias)
        torch.nn.init.normal_(self.convolution.weight, generator=torch.Generator().manual_seed(0))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.convolution(pixels).flatten(2).transpose(1, 2) + self.more


def pixels(pictures: int = 3) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(pictures, 3, SIZE, SIZE)).astype(np.float32)


def test_it_is_exported_once(cache: Path) -> None:
    grid = Grid()
    path = exported(cached_path(IDENTITY, []), lambda: grid, SIZE)
    assert os.listdir(cache) == [path.name], "nothing temporary is left"
    assert path.name.startswith("tiny-")
    with torch.no_grad():
        expected = grid(torch.from_numpy(pixels())).numpy()
    np.testing.assert_allclose(open_session(path)(pixels()), expected, rtol=1e-5, atol=1e-5)

    def again() -> torch.nn.Module:
        raise AssertionError("exported again")

    assert exported(cached_path(IDENTITY, []), again, SIZE) == path


def test_the_name_covers_all_it_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    versions: dict[str, str] = {}
    monkeypatch.setattr(export, "version", lambda package: versions.get(package, "1.0"))
    changes = ({}, {"name": "x"}, {"weights": "x"}, {"preprocessing": "x"}, {"regions": 4}, {"width": 4})
    paths = [cached_path(replace(IDENTITY, **change), ["network"]) for change in changes]
    assert cached_path(IDENTITY, ["network"]) == paths[0]
    for package in ("network", "torch", "onnx", "onnxruntime"):
        versions = {package: "1.1"}
        paths.append(cached_path(IDENTITY, ["network"]))
    versions = {}
    monkeypatch.setattr(export, "EXPORT", export.EXPORT + 1)
    paths.append(cached_path(IDENTITY, ["network"]))
    assert len(set(paths)) == len(paths)


def test_a_failed_export_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(_: Any, __: Any, path: str, **___: Any) -> None:
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch.onnx, "export", half)
        with pytest.raises(KeyboardInterrupt):
            exported(cached_path(IDENTITY, []), Grid, SIZE)
    assert os.listdir(cache) == []
    assert exported(cached_path(IDENTITY, []), Grid, SIZE).exists(), "and holds no lock"


@pytest.mark.parametrize(("more", "told"), [(3e-2, r"\d\.\de-0[23]"), (float("nan"), "nan")])
def test_an_export_that_differs_is_refused(
    more: float, told: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = exported(cached_path(IDENTITY, []), Grid, SIZE)
    check(path, Grid(more=5e-5), torch.from_numpy(pixels()))
    with pytest.raises(StoreError, match=f"differs from the torch network by {told}"):
        check(path, Grid(more=more), torch.from_numpy(pixels()))
    # The check comes before the file gets its name.
    right = torch.onnx.export
    monkeypatch.setattr(torch.onnx, "export", lambda _, *rest, **named: right(Grid(more=1.0), *rest, **named))
    with pytest.raises(StoreError, match="differs from the torch network"):
        exported(cached_path(replace(IDENTITY, weights="1"), []), Grid, SIZE)
    assert os.listdir(cache) == [path.name]


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"broken")
    with pytest.raises(StoreError, match=r"broken\.onnx: this exported encoder cannot be opened .*remove the file"):
        open_session(tmp_path / "broken.onnx")


def test_threads_export_one_after_another(cache: Path) -> None:
    made = []

    def make(more: float) -> Callable[[], torch.nn.Module]:
        def grid() -> torch.nn.Module:
            made.append(more)
            return Grid(more)

        return grid

    with ThreadPoolExecutor(4) as pool:
        same = list(pool.map(lambda _: exported(cached_path(IDENTITY, []), make(0.0), SIZE), range(4)))
        others = [cached_path(replace(IDENTITY, weights=str(number)), []) for number in (1, 2)]
        list(pool.map(lambda path, more: exported(path, make(more), SIZE), others, (1.0, 2.0)))
    assert len(set(same)) == 1
    assert made.count(0.0) == 1
    zero, one, two = (open_session(path)(pixels()) for path in (same[0], *others))
    np.testing.assert_allclose(one - zero, 1.0, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(two - zero, 2.0, rtol=1e-5, atol=1e-5)


# Each process waits, its export written and not yet renamed, until the other is as far: they overlap for certain.
PROCESS = """
import sys, time
from pathlib import Path
import numpy as np, torch
from PIL import Image
from tellapart.encoders import export
from tellapart.encoders import open_encoder
torch.set_num_threads(1)
meeting, mine, other = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
check = export.check
def check_and_meet(*arguments):
    check(*arguments)
    (meeting / mine).touch()
    deadline = time.monotonic() + 60
    while not (meeting / other).exists():
        assert time.monotonic() < deadline, "the other process did not come"
        time.sleep(0.01)
export.check = check_and_meet
grid = open_encoder("efficientnet-lite0@32", threads=1).encode([Image.new("RGB", (9, 9), "red")])
np.save(meeting / f"{mine}.npy", grid)
"""


def test_two_processes_at_once(cache: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROCESS, str(tmp_path)]
    processes = [
        subprocess.Popen([*command, mine, other], stderr=subprocess.PIPE, text=True)
        for mine, other in (("a", "b"), ("b", "a"))
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert [name.split("-")[:2] for name in os.listdir(cache)] == [["efficientnet", "lite0@32"]], "one file, no litter"
    first, second = (np.load(tmp_path / f"{mine}.npy") for mine in "ab")
    assert first.shape == (1, 1, 1280)
    np.testing.assert_array_equal(first, second)
