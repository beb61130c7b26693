"""Encoders by name: which one a name opens, and what a wrong name is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tellapart import registry
from tellapart.data.write_features import ImageEncoder as ImageEncoderOfTheStore
from tellapart.encoders import base, open_encoder
from tellapart.encoders.base import EncoderIdentity, accelerator
from tellapart.encoders.efficientnet import EfficientNetLite
from tellapart.errors import RecipeError
from tellapart.files import cache_folder


@pytest.mark.parametrize(
    ("name", "canonical", "size", "regions"),
    [
        ("efficientnet-lite0", "efficientnet-lite0", 224, 49),
        ("efficientnet-lite0@224", "efficientnet-lite0", 224, 49),
        ("efficientnet-lite0@448", "efficientnet-lite0@448", 448, 196),
        ("efficientnet-lite2", "efficientnet-lite2", 224, 49),
        ("efficientnet-lite2@32", "efficientnet-lite2@32", 32, 1),
    ],
)
def test_a_name_and_its_encoder(name: str, canonical: str, size: int, regions: int) -> None:
    encoder: ImageEncoderOfTheStore = open_encoder(name, threads=3)
    assert isinstance(encoder, EfficientNetLite)
    assert encoder.concurrency == 3
    assert encoder.size == size
    assert f"{size}×{size}" in encoder.identity.preprocessing
    assert (encoder.identity.name, encoder.identity.regions, encoder.identity.width) == (canonical, regions, 1280)
    assert open_encoder(encoder.identity.name).identity == encoder.identity, "its name opens it again"
    assert encoder.identity.folder == canonical


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("efficientnet-lite0@abc", "'abc' is not a size; give the input size in pixels: efficientnet-lite0@448"),
        ("efficientnet-lite0@", "'' is not a size"),
        ("efficientnet-lite0@-32", "'-32' is not a size"),
        ("efficientnet-lite0@0", "'0' is not a size"),
        ("efficientnet-lite0@448.0", "'448.0' is not a size"),
        ("efficientnet-lite0@448@224", "'448@224' is not a size"),
        ("efficientnet-lite2@100", "the size must be a multiple of 32; try efficientnet-lite2@96"),
        ("efficientnet-lite2@9", "a multiple of 32; try efficientnet-lite2@32"),
        ("efficientnet-lite0:448", "with a size as in efficientnet-lite0@448"),
        ("efficientnet-lite1", "there is no encoder 'efficientnet-lite1'; did you mean 'efficientnet-lite"),
        ("efficientnet-lit0@448", "there is no encoder 'efficientnet-lit0'; did you mean 'efficientnet-lite0'?"),
        ("clipp:folder", "there is no encoder 'clipp'; did you mean 'clip'?"),
        ("clip", "say which model, as a folder or a model's id, as clip:FOLDER_OR_ID"),
        ("siglip:", "say which model"),
        ("clip@448", "say which model"),
        ("timm:", "name a model, e.g. timm:resnet50.a1_in1k"),
        ("", "there is no encoder ''; known: blip, clip"),
    ],
)
def test_a_wrong_name(name: str, told: str) -> None:
    with pytest.raises(RecipeError) as caught:
        open_encoder(name)
    assert told in str(caught.value)


def test_a_device_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for device in ("cuda:99", "nonsense"):
        with pytest.raises(RecipeError, match=f"device '{device}' cannot be used here"):
            open_encoder("efficientnet-lite0", device=device)


@pytest.mark.parametrize(("cuda", "mps", "found"), [(1, 1, "cuda"), (1, 0, "cuda"), (0, 1, "mps"), (0, 0, None)])
def test_the_accelerator(cuda: int, mps: int, found: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(cuda))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: bool(mps))
    assert accelerator() == found


def test_every_family_takes_what_open_encoder_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    for family in registry.names("encoder"):
        cls = registry.find("encoder", family)
        assert issubclass(cls, base.GridEncoder)
        given = []
        monkeypatch.setattr(cls, "__init__", lambda self, name, threads, device, to=given: to.append((name, threads)))
        open_encoder(f"{family}:a@b:c", threads=2)
        assert given == [(f"{family}:a@b:c", 2)]


# --- identity -------------------------------------------------------------------------------------------------------


def test_the_identity_is_stable() -> None:
    identity = open_encoder("efficientnet-lite0").identity
    # Stored with every model and feature store: if this changes, people's stores are refused. Change it knowingly.
    assert identity.digest.startswith("b8eaba26a731aa9d")
    assert identity.as_dict() == {
        "name": "efficientnet-lite0",
        "weights": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        "preprocessing": "squeeze to 224×224 bicubic, (x-127)/128",
        "regions": 49,
        "width": 1280,
    }


def test_the_identity_names_weights_and_preprocessing(tmp_path: Path) -> None:
    encoder, other = EfficientNetLite(), EfficientNetLite()
    other.weights_path = tmp_path / "weights.pth"
    other.weights_path.write_bytes(encoder.weights_path.read_bytes() + b"\0")
    assert other.identity != encoder.identity
    assert other.identity.digest != encoder.identity.digest
    same = {"name": "a", "weights": "b", "preprocessing": "c", "regions": 1, "width": 2}
    changes = ({}, {"name": "x"}, {"weights": "x"}, {"preprocessing": "x"}, {"regions": 9}, {"width": 9})
    assert len({EncoderIdentity(**{**same, **change}).digest for change in changes}) == len(changes)


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("clip:/home/me/my model", "clip-my-model-"),
        ("clip:../x/..", "clip-..-"),
        ("siglip:google/siglip-base", "siglip-siglip-base-"),
        ("timm:resnet50.a1_in1k", "timm-resnet50.a1_in1k-"),
        ("timm:local-dir:/models/one", "timm-local-dir-one-"),
        ("../escape", "escape-"),
    ],
)
def test_a_folder_name_is_one_plain_name(name: str, begins: str) -> None:
    identity, other = (EncoderIdentity(name, weights, "", 1, 1) for weights in "ab")
    assert len(Path(identity.folder).parts) == 1
    assert not set(identity.folder) & set('/\\: "')
    assert identity.folder.startswith(begins)
    assert identity.folder != other.folder, "two models of one name do not share a folder"


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("TELLAPART_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "tellapart"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "tellapart"
