"""The real encoder on real photographs: it knows what they show, and ONNX Runtime says what torch says."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tellapart.data.images import load_image
from tellapart.encoders import images as encoders
from tellapart.encoders.images import EfficientNetLite0, EncoderIdentity, cache_folder
from tellapart.errors import StoreError

skimage = pytest.importorskip("skimage", reason="scikit-image (of the dev extra) brings the photographs")
PHOTOGRAPHS = Path(skimage.__file__).parent / "data"
FLICKR8K = Path(__file__).parents[3] / "shared" / "data" / "flickr8k"

# Photograph -> ImageNet classes that are right for it.
SHOWN = {
    "chelsea.png": {281, 282, 283, 284, 285},  # cats
    "coffee.png": {504, 967, 968},  # coffee mug, espresso, cup
    "motorcycle_left.png": {665, 670},  # moped, motor scooter
    "camera.png": {872},  # a tripod, in greyscale
}
DOGS = range(151, 269)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TELLAPART_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def encoder(cache: Path) -> EfficientNetLite0:
    return EfficientNetLite0(threads=1)


@pytest.fixture(scope="module")
def network(encoder: EfficientNetLite0) -> torch.nn.Module:
    return encoder.network()


@pytest.fixture(scope="module")
def photographs() -> list[Image.Image]:
    return [load_image(PHOTOGRAPHS / name) for name in SHOWN]


@torch.no_grad()
def classes(
    network: torch.nn.Module, encoder: EfficientNetLite0, pictures: list[Image.Image], first: int
) -> np.ndarray:
    """The likeliest classes of each picture, `[pictures, first]`."""
    logits: torch.Tensor = network(torch.from_numpy(encoder.pixels(pictures)))
    return logits.topk(first, dim=1).indices.numpy()


def test_it_knows_what_photographs_show(
    network: torch.nn.Module, encoder: EfficientNetLite0, photographs: list[Image.Image]
) -> None:
    found = classes(network, encoder, photographs, 1)[:, 0]
    right = [row for row, of in enumerate(SHOWN.values()) if found[row] in of]
    assert right == list(range(len(SHOWN))), dict(zip(SHOWN, found.tolist(), strict=True))


def test_pixels(encoder: EfficientNetLite0) -> None:
    pixels = encoder.pixels([Image.new("RGB", (300, 100), (127, 255, 0)), Image.new("RGB", (224, 224), "white")])
    assert pixels.shape == (2, 3, 224, 224)
    assert pixels.dtype == np.float32
    assert pixels[0, :, 0, 0].tolist() == [0.0, 1.0, -127 / 128]
    assert (pixels[1] == 1.0).all()


def test_the_whole_picture_is_squeezed(encoder: EfficientNetLite0) -> None:
    wide = Image.new("RGB", (448, 112))
    wide.paste((255, 255, 255), (0, 0, 20, 112))
    squeezed = np.asarray(encoder.squeeze(wide))
    assert squeezed.shape == (224, 224, 3)
    assert (squeezed[:, :8] > 250).all()
    assert (squeezed[:, 12:] < 5).all()
    once = encoder.squeeze(wide)
    assert encoder.squeeze(once) is once


def test_onnx_equals_torch(
    encoder: EfficientNetLite0, network: torch.nn.Module, photographs: list[Image.Image]
) -> None:
    grid = encoder.encode(photographs)
    assert grid.shape == (len(photographs), 49, 1280)
    assert grid.dtype == np.float32
    assert grid.std() > 0.1, "not all alike"
    with torch.no_grad():
        features = network.extract_features(torch.from_numpy(encoder.pixels(photographs)))  # type: ignore[operator]
    for row in range(7):
        for column in range(7):  # regions go row by row from the top left
            region = features[:, :, row, column].numpy()
            np.testing.assert_allclose(grid[:, row * 7 + column], region, atol=1e-4)


def test_regions_lie_where_their_pixels_do(encoder: EfficientNetLite0, photographs: list[Image.Image]) -> None:
    picture = encoder.squeeze(photographs[0])
    changed = picture.copy()
    changed.paste((0, 0, 0), (192, 0, 224, 32))  # the top right corner
    difference = np.abs(encoder.encode([changed]) - encoder.encode([picture]))[0].mean(axis=1).reshape(7, 7)
    assert difference[:2, 5:].min() > 5 * difference[5:, :2].max()


def test_a_batch_equals_single_pictures(encoder: EfficientNetLite0, photographs: list[Image.Image]) -> None:
    together = encoder.encode(photographs)
    for row, photograph in enumerate(photographs):
        np.testing.assert_allclose(encoder.encode([photograph])[0], together[row], atol=1e-4)


def test_a_classifier_on_the_grid_says_the_same(
    encoder: EfficientNetLite0, network: torch.nn.Module, photographs: list[Image.Image]
) -> None:
    """The grid is the very layer before the network's own pooling and classifier."""
    head: Any = network
    with torch.no_grad():
        pooled = torch.from_numpy(encoder.encode(photographs)).mean(dim=1)
        logits = head._fc(pooled)
        expected = network(torch.from_numpy(encoder.pixels(photographs)))
    np.testing.assert_allclose(logits.numpy(), expected.numpy(), atol=1e-3)


# --- identity and cache ---------------------------------------------------------------------------------------------


def test_the_identity_is_stable(encoder: EfficientNetLite0) -> None:
    identity = encoder.identity
    assert identity == EfficientNetLite0().identity
    assert (identity.name, identity.regions, identity.width) == ("efficientnet-lite0", 49, 1280)
    # Stored with every model and feature store: if this changes, people's stores are refused. Change it knowingly.
    assert identity.digest.startswith("b8eaba26a731aa9d")


def test_the_identity_names_weights_and_preprocessing(encoder: EfficientNetLite0, tmp_path: Path) -> None:
    weights = tmp_path / "weights.pth"
    weights.write_bytes(encoder.weights_path.read_bytes() + b"\0")
    other = EfficientNetLite0()
    other.weights_path = weights
    assert other.identity != encoder.identity
    assert other.identity.digest != encoder.identity.digest
    same = {"name": "a", "weights": "b", "preprocessing": "c", "regions": 1, "width": 2}
    changes = ({}, {"name": "x"}, {"weights": "x"}, {"preprocessing": "x"}, {"regions": 9}, {"width": 9})
    assert len({EncoderIdentity(**{**same, **change}).digest for change in changes}) == len(changes)


def test_the_export_is_cached_whole(
    encoder: EfficientNetLite0, cache: Path, photographs: list[Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder.encode(photographs[:1])
    assert os.listdir(cache) == [f"efficientnet-lite0-{encoder.identity.digest[:16]}.onnx"], "nothing temporary is left"

    def export(*_: Any, **__: Any) -> None:
        raise AssertionError("exported again")

    monkeypatch.setattr(torch.onnx, "export", export)
    again = EfficientNetLite0(threads=1)
    np.testing.assert_allclose(again.encode(photographs[:1]), encoder.encode(photographs[:1]), atol=1e-6)


def test_a_failed_export_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))

    def export(_: Any, __: Any, path: str, **___: Any) -> None:
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.onnx, "export", export)
    monkeypatch.setattr(EfficientNetLite0, "network", lambda _: torch.nn.Identity())
    with pytest.raises(KeyboardInterrupt):
        EfficientNetLite0(threads=1)._exported()
    assert os.listdir(tmp_path / "cache") == []


def test_an_export_that_differs_is_refused(encoder: EfficientNetLite0, cache: Path, network: torch.nn.Module) -> None:
    path = encoder._exported()
    sample = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    grid = encoders._Grid(network)
    encoder._check(path, grid, sample)

    class Slightly(torch.nn.Module):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(grid(pixels)) + 1e-3

    with pytest.raises(StoreError, match=r"differs from the torch network by 1\.0e-03"):
        encoder._check(path, Slightly(), sample)


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("TELLAPART_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "tellapart"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "tellapart"


# --- Flickr8k -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    not (FLICKR8K / "dataset_flickr8k.json").exists() or not (FLICKR8K / "images").exists(),
    reason=f"Flickr8k is not in {FLICKR8K}",
)
def test_dogs_of_flickr8k(network: torch.nn.Module, encoder: EfficientNetLite0) -> None:
    content = json.loads((FLICKR8K / "dataset_flickr8k.json").read_text(encoding="utf-8"))
    names = [
        image["filename"]
        for image in content["images"]
        if image["split"] == "test" and all(re.search(r"\bdogs?\b", s["raw"].lower()) for s in image["sentences"])
    ][:24]
    assert len(names) == 24
    pictures = [load_image(FLICKR8K / "images" / name, at_least=encoder.size) for name in names]
    found = classes(network, encoder, pictures, 1)[:, 0]
    assert sum(one in DOGS for one in found.tolist()) >= 18
