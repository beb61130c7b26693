"""Towers of CLIP, SigLIP and captioners, tiny ones with random weights: the model's own grid, prepared as it says."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from support.huggingface import KINDS, make_folder
from tellapart.encoders import open_encoder
from tellapart.errors import MissingExtraError, RecipeError, StoreError
from tellapart.huggingface.towers import CaptionerTower, VisionTower, vision_tower, whole_model

transformers = pytest.importorskip("transformers", reason="transformers is in the extra 'hf'")

SIZE, PATCH, WIDTH = 32, 8, 12
TOWER = {
    "hidden_size": WIDTH,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIZE,
    "patch_size": PATCH,
}
TEXT = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}
PREPROCESSOR = {
    "clip": {
        "do_resize": True,
        "size": {"shortest_edge": SIZE},
        "do_center_crop": True,
        "crop_size": {"height": SIZE, "width": SIZE},
        "resample": 3,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    },
    "siglip": {
        "do_resize": True,
        "size": {"height": SIZE, "width": SIZE},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 0.00392156862745098,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.25, 0.5],
    },
}
FAMILIES = ("clip", "siglip")


def make(folder: Path, family: str, dual: bool = False, seed: int = 0, **preprocessor: Any) -> Path:
    """A tiny model with random weights, as transformers would save it."""
    prefix = {"clip": "CLIP", "siglip": "Siglip"}[family]
    torch.manual_seed(seed)
    if dual:
        config = getattr(transformers, f"{prefix}Config")(vision_config=TOWER, text_config=TEXT)
        model = getattr(transformers, f"{prefix}Model")(config)
    else:
        model = getattr(transformers, f"{prefix}VisionModel")(getattr(transformers, f"{prefix}VisionConfig")(**TOWER))
    for parameter in model.parameters():  # as they are made, weights are small and biases zero: all would look alike
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    change(folder / "preprocessor_config.json", **{**PREPROCESSOR[family], **preprocessor})
    return folder


def change(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **values}))


@pytest.fixture
def pictures() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)) for _ in range(3)]


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_grid_is_the_models_own(
    family: str, dual: bool, tmp_path: Path, pictures: list[Image.Image], capfd: pytest.CaptureFixture[str]
) -> None:
    folder = make(tmp_path / "model", family, dual)
    before = torch.get_rng_state()
    capfd.readouterr()
    encoder = open_encoder(f"{family}:{folder}")
    grid = encoder.encode(pictures)
    assert torch.equal(torch.get_rng_state(), before)
    assert capfd.readouterr() == ("", ""), "no bars, no reports"
    assert isinstance(encoder, VisionTower)
    assert (encoder.identity.regions, encoder.identity.width) == (16, WIDTH)

    whole = transformers.AutoModel.from_pretrained(folder).eval()
    tower = getattr(whole, "vision_model", whole)
    with torch.no_grad():
        hidden = tower(pixel_values=torch.from_numpy(encoder.pixels(pictures))).last_hidden_state
    patches = hidden[:, 1:] if family == "clip" else hidden
    assert grid.shape == patches.shape == (3, 16, WIDTH)
    assert (grid.dtype, grid.flags.c_contiguous) == (np.float32, True)
    np.testing.assert_allclose(grid, patches.numpy(), rtol=1e-5, atol=5e-5)
    assert grid.std(axis=(0, 1)).max() > 0.1, "not all alike"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_equals_single_pictures(family: str, tmp_path: Path, pictures: list[Image.Image]) -> None:
    encoder = open_encoder(f"{family}:{make(tmp_path / 'model', family)}", device="cpu")
    together = encoder.encode(pictures)
    for row, picture in enumerate(pictures):
        np.testing.assert_allclose(encoder.encode([picture])[0], together[row], rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_are_prepared_as_the_model_says(family: str, tmp_path: Path) -> None:
    """On a square picture, where squeezing and cropping agree, the model's own processor gives the same pixels."""
    folder = make(tmp_path / "model", family)
    encoder = VisionTower(f"{family}:{folder}")
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 50, 3), dtype=np.uint8))
    processors = pytest.importorskip(f"transformers.models.{family}.image_processing_pil_{family}")
    processor = getattr(processors, {"clip": "CLIPImageProcessorPil", "siglip": "SiglipImageProcessorPil"}[family])
    expected = processor.from_pretrained(folder)(picture, return_tensors="np")["pixel_values"]
    np.testing.assert_allclose(encoder.pixels([picture]), np.asarray(expected), rtol=1e-5, atol=5e-5)


def test_the_whole_picture_is_squeezed(tmp_path: Path) -> None:
    encoder = VisionTower(f"clip:{make(tmp_path / 'model', 'clip')}")
    wide = Image.new("RGB", (128, 16))
    wide.paste((255, 255, 255), (0, 0, 16, 16))  # a crop of the middle would lose it
    squeezed = np.asarray(encoder.squeeze(wide))
    assert squeezed.shape == (SIZE, SIZE, 3)
    assert (squeezed[:, :3] > 240).all()
    assert (squeezed[:, 6:] < 10).all()


def test_mean_and_std(tmp_path: Path) -> None:
    white = Image.new("RGB", (9, 9), "white")
    settings = {"image_mean": [0.5, 0.25, 0.0], "image_std": [0.5, 0.25, 2.0]}
    encoder = VisionTower(f"clip:{make(tmp_path / 'a', 'clip', **settings)}")
    np.testing.assert_allclose(encoder.pixels([white])[0, :, 0, 0], [1.0, 3.0, 0.5], rtol=1e-6)
    encoder = VisionTower(f"clip:{make(tmp_path / 'b', 'clip', do_normalize=False)}")
    np.testing.assert_allclose(encoder.pixels([white])[0, :, 0, 0], [1.0, 1.0, 1.0], rtol=1e-6)
    encoder = VisionTower(f"clip:{make(tmp_path / 'c', 'clip', do_rescale=False, **settings)}")
    np.testing.assert_allclose(encoder.pixels([white])[0, :, 0, 0], [509.0, 1019.0, 127.5], rtol=1e-6)


def test_both_files_and_forms_of_the_preprocessor(tmp_path: Path) -> None:
    encoder = VisionTower(f"siglip:{make(tmp_path / 'a', 'siglip')}")
    together = make(tmp_path / "b", "siglip")
    (together / "preprocessor_config.json").unlink()
    change(together / "processor_config.json", image_processor=PREPROCESSOR["siglip"])
    plain = make(tmp_path / "c", "siglip", size=SIZE)  # old files have a plain number
    for folder in (together, plain):
        assert VisionTower(f"siglip:{folder}").identity.preprocessing == encoder.identity.preprocessing
    assert encoder.identity.preprocessing == (
        f"squeeze to {SIZE}×{SIZE} bilinear, (x-[127.5, 127.5, 127.5])/[127.5, 63.75, 127.5]"
    )


# --- towers of captioners -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_captioners_tower_gives_all_tokens_its_decoder_sees(kind: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", kind)
    encoder = open_encoder(f"{KINDS[kind]}:{folder}")
    assert isinstance(encoder, CaptionerTower)
    assert (encoder.identity.regions, encoder.identity.width) == (5, 12), "the class token and four patches"
    rng = np.random.default_rng(0)
    squares = [Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)) for _ in range(3)]
    pixels = torch.from_numpy(encoder.pixels(squares))
    whole = whole_model(KINDS[kind], folder)
    with torch.no_grad():
        hidden = vision_tower(whole, KINDS[kind])(pixel_values=pixels).last_hidden_state
    np.testing.assert_allclose(encoder.encode(squares), hidden.numpy(), rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_captioners_tower_is_the_same_in_any_file(kind: str, tmp_path: Path, pictures: list[Image.Image]) -> None:
    family, folder = KINDS[kind], make_folder(tmp_path / "model", kind)
    encoder = open_encoder(f"{family}:{folder}")
    assert isinstance(encoder, CaptionerTower)
    (tmp_path / "alone").mkdir()
    encoder.save(tmp_path / "alone")
    alone = open_encoder(f"{family}:{tmp_path / 'alone'}")
    assert replace(alone.identity, name=encoder.identity.name) == encoder.identity
    np.testing.assert_array_equal(alone.encode(pictures), encoder.encode(pictures))

    other = make_folder(tmp_path / "other", kind, seed=1)
    assert open_encoder(f"{family}:{other}").identity.weights != encoder.identity.weights
    config = json.loads((folder / "config.json").read_text())
    config["encoder" if family == "encoder-decoder" else "vision_config"]["hidden_act"] = "relu"
    change(folder / "config.json", **config)
    assert open_encoder(f"{family}:{folder}").identity.weights != encoder.identity.weights


def test_a_captioners_tower_that_is_not_whole(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "blip")
    tensors = load_file(folder / "model.safetensors")
    del tensors[next(name for name in tensors if name.startswith("vision_model.encoder.layers.1"))]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StoreError, match=r"the weights lack 1 tensors of a BlipForConditionalGeneration, such as "):
        open_encoder(f"blip:{folder}").identity  # noqa: B018
    with pytest.raises(RecipeError, match=r"holds a model of type 'blip'; did you mean blip:\?"):
        open_encoder(f"git:{folder}")
    with pytest.raises(RecipeError, match="say which model, as a folder or a model's id, as git:FOLDER_OR_ID"):
        open_encoder("git")


# --- identity -------------------------------------------------------------------------------------------------------


def test_the_identity_depends_on_weights_configuration_and_preprocessing(tmp_path: Path) -> None:
    folder = make(tmp_path / "model", "clip")
    first = VisionTower(f"clip:{folder}").identity
    assert VisionTower(f"clip:{folder}").identity == first
    assert open_encoder(first.name).identity == first
    make(folder, "clip", seed=1)
    weights = VisionTower(f"clip:{folder}").identity
    change(folder / "config.json", hidden_act="gelu")
    activation = VisionTower(f"clip:{folder}").identity
    change(folder / "preprocessor_config.json", image_mean=[0.5, 0.5, 0.5])
    mean = VisionTower(f"clip:{folder}").identity
    assert len({one.digest for one in (first, weights, activation, mean)}) == 4
    assert first.weights != weights.weights
    assert first.preprocessing == activation.preprocessing


def test_weights_in_other_files(tmp_path: Path, pictures: list[Image.Image]) -> None:
    whole = make(tmp_path / "whole", "clip")
    expected = VisionTower(f"clip:{whole}").encode(pictures)
    model = transformers.CLIPVisionModel.from_pretrained(whole)

    shards = make(tmp_path / "shards", "clip")
    (shards / "model.safetensors").unlink()
    model.save_pretrained(shards, max_shard_size="4KB")
    sharded = VisionTower(f"clip:{shards}")
    assert len(sharded.files) > 1
    np.testing.assert_allclose(sharded.encode(pictures), expected, rtol=1e-5, atol=5e-5)
    weights = sharded.identity.weights
    sharded.files[1].write_bytes(sharded.files[1].read_bytes() + b"\0")
    assert VisionTower(f"clip:{shards}").identity.weights != weights, "every shard counts"
    sharded.files[1].unlink()
    with pytest.raises(StoreError, match=f"{sharded.files[1].name} is missing"):
        VisionTower(f"clip:{shards}")

    old = make(tmp_path / "old", "clip")
    torch.save(model.state_dict(), old / "pytorch_model.bin")
    assert VisionTower(f"clip:{old}").files == [old / "model.safetensors"], "as transformers prefers"
    (old / "model.safetensors").unlink()
    with pytest.raises(StoreError, match=r"pytorch_model\.bin is a pickle, .* save_pretrained\(FOLDER, safe_serial"):
        VisionTower(f"clip:{old}")
    model.save_pretrained(old, safe_serialization=True)  # as the message says
    np.testing.assert_allclose(VisionTower(f"clip:{old}").encode(pictures), expected, rtol=1e-5, atol=5e-5)


def test_half_precision_weights_are_used_in_full(tmp_path: Path, pictures: list[Image.Image]) -> None:
    folder = make(tmp_path / "model", "siglip")
    transformers.SiglipVisionModel.from_pretrained(folder).half().save_pretrained(folder)
    encoder = VisionTower(f"siglip:{folder}")
    assert {parameter.dtype for parameter in encoder.network().parameters()} == {torch.float32}
    assert encoder.encode(pictures).dtype == np.float32


# --- what can be wrong ----------------------------------------------------------------------------------------------


def test_a_model_that_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for model in ("nobody/no-such-model", str(tmp_path / "no-such-folder"), "a b/c/d"):
        with pytest.raises(StoreError, match="neither a folder nor a model in the Hugging Face cache") as caught:
            open_encoder(f"clip:{model}")
        assert f"hf download {model}" in str(caught.value)
    os.mkdir("empty")
    with pytest.raises(StoreError, match=r"empty holds no model \(config.json is missing\)"):
        open_encoder("clip:empty")


def test_a_model_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pictures: list[Image.Image]) -> None:
    """Found by its id where `hf download` puts it; nothing is asked of the network."""
    from huggingface_hub import constants

    repository = tmp_path / "hub" / "models--me--tiny"
    folder = make(repository / "snapshots" / "0123", "clip")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    found = open_encoder("clip:me/tiny")
    assert found.identity.name == "clip:me/tiny"
    assert found.identity.folder.startswith("clip-tiny-")
    np.testing.assert_array_equal(found.encode(pictures), open_encoder(f"clip:{folder}").encode(pictures))


def test_a_model_of_another_kind(tmp_path: Path) -> None:
    folder = make(tmp_path / "model", "siglip")
    with pytest.raises(RecipeError, match=r"holds a model of type 'siglip_vision_model'; did you mean siglip:\?"):
        open_encoder(f"clip:{folder}")
    change(folder / "config.json", model_type="bert")
    with pytest.raises(RecipeError, match="holds a model of type 'bert'; known: clip"):
        open_encoder(f"siglip:{folder}")


def test_files_that_are_missing_or_wrong(tmp_path: Path) -> None:
    def broken(name: str, remove: str | None = None, **preprocessor: Any) -> str:
        folder = make(tmp_path / name, "clip", **preprocessor)
        if remove:
            (folder / remove).unlink()
        return f"clip:{folder}"

    for name, told in (
        (broken("a", remove="model.safetensors"), "holds no weights"),
        (broken("b", remove="preprocessor_config.json"), "preprocessor_config.json is missing"),
        (broken("c", crop_size={"height": 32, "width": 24}), "has no square size"),
        (broken("d", crop_size={"height": 64, "width": 64}), "needs pictures of 32 pixels, its preprocessor makes 64"),
        (broken("e", image_mean=None), "no image_mean and image_std"),
    ):
        with pytest.raises(StoreError, match=told):
            open_encoder(name)


def test_weights_that_lack_a_tensor(tmp_path: Path, pictures: list[Image.Image]) -> None:
    folder = make(tmp_path / "model", "clip")
    tensors = load_file(folder / "model.safetensors")
    lost = next(name for name in tensors if "layers.1" in name)
    del tensors[lost]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StoreError, match=r"the weights lack 1 tensors of a clip vision tower, such as .*layers\.1"):
        open_encoder(f"clip:{folder}").encode(pictures)


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path / "model", "clip")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"transformers is not installed; .* 'tellapart\[hf\]'"):
        open_encoder(f"clip:{folder}")


def test_a_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.move(make(tmp_path / "model", "clip"), tmp_path / "mine")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_encoder("clip:~/mine").identity.regions == 16
