"""Model folders: round trip, overrides, and clear refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tellapart.captioners.adaptive import AdaptiveAttention
from tellapart.captioners.base import load_captioner
from tellapart.errors import RunError
from tellapart.models import model_digest, write_model

Make = Callable[..., AdaptiveAttention]


@pytest.fixture
def folder(make_captioner: Make, tmp_path: Path) -> Path:
    write_model(make_captioner(seed=3, dropout=0.2), tmp_path)
    return tmp_path


def test_the_description_of_a_captioner(folder: Path) -> None:
    description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    assert list(description) == ["format", "captioner", "encoder", "history"]
    assert description["format"] == 1
    assert description["captioner"]["name"] == "adaptive-attention"


def test_round_trip_gives_the_same_scores(folder: Path, make_captioner: Make, features: torch.Tensor) -> None:
    saved, loaded = make_captioner(seed=3, dropout=0.2), load_captioner(folder)
    assert not loaded.training
    assert loaded.settings == saved.settings
    assert loaded.encoder == saved.encoder
    tokens, images = saved.tokenize(["a red house", "two"]), torch.tensor([0, 1])
    scores = [model.log_prob(model.encode(features), tokens, images) for model in (saved, loaded)]
    assert torch.equal(*scores)


def test_settings_that_change_no_shape_may_differ(folder: Path) -> None:
    assert load_captioner(folder, {"dropout": 0.0}).settings.dropout == 0.0
    with pytest.raises(RunError, match="do not fit"):
        load_captioner(folder, {"hidden": 9})


def test_a_missing_or_broken_model_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no model is here"):
        load_captioner(tmp_path / "nowhere")
    (folder / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(RunError, match="cannot be read"):
        load_captioner(folder)


def test_a_format_from_the_future_is_refused(folder: Path) -> None:
    path = folder / "model.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(RunError, match="99"):
        load_captioner(folder)


def test_the_digest_follows_the_weights(folder: Path, make_captioner: Make) -> None:
    before = model_digest(folder)
    assert model_digest(folder) == before
    write_model(make_captioner(seed=4, dropout=0.2), folder)
    assert model_digest(folder) != before
