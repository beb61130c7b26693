"""timm models. timm itself needs torchvision, which is not here: a stand-in has the few names that are used of it.

The real timm 1.0.30 was tried by hand, with a stub for torchvision (docs/encoders.md).
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tellapart.encoders import open_encoder
from tellapart.errors import MissingExtraError, StoreError

SETTINGS = {"input_size": (3, 8, 8), "mean": (0.5, 0.25, 0.0), "std": (0.5, 0.25, 2.0), "interpolation": "bilinear"}


class Fake(torch.nn.Module):
    """A 2×2 grid of mean colours, in the layouts that timm's models have."""

    def __init__(self, layout: str, scale: float = 1.0, settings: dict[str, Any] = SETTINGS) -> None:
        super().__init__()
        self.layout, self.pretrained_cfg = layout, settings
        self.scale = torch.nn.Parameter(torch.tensor(scale))
        if layout == "NHWC":
            self.output_fmt = "NHWC"
        if layout == "tokens":
            self.num_prefix_tokens = 2

    def forward_features(self, pixels: torch.Tensor) -> torch.Tensor:
        grid = torch.nn.functional.avg_pool2d(pixels, 4) * self.scale
        if self.layout == "NCHW":
            return grid
        if self.layout == "NHWC":
            return grid.permute(0, 2, 3, 1)
        patches = grid.flatten(2).transpose(1, 2)
        return torch.cat([torch.full_like(patches[:, :2], 9.0), patches], dim=1)


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `timm.create_model` knows, by name."""
    models: dict[str, Any] = {layout: Fake(layout) for layout in ("NCHW", "NHWC", "tokens")}

    def create_model(name: str, pretrained: bool, num_classes: int) -> torch.nn.Module:
        assert pretrained
        assert num_classes == 0
        if name not in models:
            raise RuntimeError(f"Unknown model ({name})\nand more")
        torch.rand(3)  # as making a real one does
        model: torch.nn.Module = models[name]
        return model

    module = types.ModuleType("timm")
    module.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", module)
    return models


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "tokens"])
def test_regions_row_by_row(layout: str, timm: dict[str, Any]) -> None:
    before = torch.get_rng_state()
    encoder = open_encoder(f"timm:{layout}")
    picture = Image.new("RGB", (16, 16))
    for corner, colour in (((8, 0), (255, 0, 0)), ((0, 8), (0, 255, 0))):  # top right, bottom left
        picture.paste(colour, (*corner, corner[0] + 8, corner[1] + 8))
    expected = [[-1, -1, 0], [1, -1, 0], [-1, 3, 0], [-1, -1, 0]]
    grid = encoder.encode([picture])[0]
    np.testing.assert_allclose(grid[:, 2], 0.0, atol=1e-6)
    # Bilinear squeezing blurs the borders between the quarters a little.
    np.testing.assert_allclose(grid, expected, atol=0.5)
    assert (encoder.identity.regions, encoder.identity.width, encoder.size) == (4, 3, 8)
    assert encoder.identity.preprocessing == "squeeze to 8×8 bilinear, (x-[127.5, 63.75, 0])/[127.5, 63.75, 510]"
    assert torch.equal(torch.get_rng_state(), before)


def test_the_identity_depends_on_weights(timm: dict[str, Any]) -> None:
    first = open_encoder("timm:NCHW").identity
    assert open_encoder("timm:NCHW").identity == first
    timm["NCHW"] = Fake("NCHW", scale=1.0000001)
    assert open_encoder("timm:NCHW").identity.weights != first.weights


def test_what_timm_cannot_load(timm: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match=r"encoder 'timm:nosuch': timm cannot load this model \(Unknown model .*\)$"):
        open_encoder("timm:nosuch")
    timm["wide"] = Fake("NCHW", settings={**SETTINGS, "input_size": (3, 8, 16)})
    with pytest.raises(StoreError, match="needs pictures of 16×8 pixels; only square"):
        open_encoder("timm:wide")


def test_a_folder_is_read_from_safetensors_only(timm: dict[str, Any], tmp_path: Path) -> None:
    name = f"local-dir:{tmp_path}"
    timm[name] = Fake("NCHW")
    with pytest.raises(StoreError, match=r"holds no model \(config.json is missing\)"):
        open_encoder(f"timm:{name}")
    (tmp_path / "config.json").write_text("{}")
    torch.save({}, tmp_path / "pytorch_model.bin")
    for asked in (name, name.replace("local-dir", "Local-Dir")):
        with pytest.raises(StoreError, match=r"has no model\.safetensors, and other weights can run code and are not"):
            open_encoder(f"timm:{asked}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert open_encoder(f"timm:{name}").identity.width == 3
    timm[name] = Fake("NCHW", settings={**SETTINGS, "mean": None})
    with pytest.raises(StoreError, match="its preprocessing cannot be read"):
        open_encoder(f"timm:{name}")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match=r"timm is not installed; .* 'tellapart\[timm\]'"):
        open_encoder("timm:resnet18")
