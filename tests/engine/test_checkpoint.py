"""Model folders: round trip, overrides, and clear refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from tellapart.captioners.adaptive import AdaptiveAttention
from tellapart.captioners.base import load_captioner
from tellapart.engine.checkpoint import list_checkpoints, point, remove_old_checkpoints, save_checkpoint
from tellapart.errors import DataError, RunError
from tellapart.files import temporary_path
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


def test_only_exact_names_are_checkpoints(make_captioner: Make, tmp_path: Path) -> None:
    run, folder = tmp_path, tmp_path / "checkpoints"
    mine = ["step-2-backup", "step-3.old", "step-4.tmp", "step-", "step-007", "step-9x", "failed-step-3", "notes"]
    for name in mine:
        (folder / name).mkdir(parents=True)
        (folder / name / "notes.txt").write_text("mine", encoding="utf-8")
    (folder / "step-5").write_text("a file of mine", encoding="utf-8")
    for step in (1, 2, 10, 9):
        save_checkpoint(run, f"step-{step}", make_captioner(), {})
    point(run, "best", "step-2")
    temporary_path(folder / "step-11").mkdir()
    assert [path.name for path in list_checkpoints(run)] == ["step-1", "step-2", "step-9", "step-10"]
    remove_old_checkpoints(run, keep_last=1)
    kept = sorted([*mine, "step-5", "step-2", "step-10", "best"])
    assert sorted(path.name for path in folder.iterdir()) == kept
    assert all((folder / name / "notes.txt").exists() for name in mine)
    with pytest.raises(RunError, match=r"the checkpoint 'step-5' could not be written"):
        save_checkpoint(run, "step-5", make_captioner(), {})
    assert (folder / "step-5").read_text(encoding="utf-8") == "a file of mine"


def test_a_model_replaces_a_model_folder_and_nothing_else(
    make_captioner: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_captioner()
    for name in ("m.old", "m.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("mine", encoding="utf-8")
    model.save_pretrained(tmp_path / "m")
    model.save_pretrained(tmp_path / "m")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "m.old", "m.tmp"]
    assert (tmp_path / "m.old" / "notes.txt").exists()
    assert (tmp_path / "m.tmp" / "notes.txt").exists()
    (tmp_path / "other").mkdir()
    for name in ("README.md", "model.json"):
        (tmp_path / "other" / name).write_text('{"mine": 1}', encoding="utf-8")
    with pytest.raises(RunError, match=r"other: is not a model folder \(it holds README\.md\)"):
        model.save_pretrained(tmp_path / "other")
    with pytest.raises(DataError, match=r"README\.md: this is a file, and a folder is needed"):
        model.save_pretrained(tmp_path / "other" / "README.md" / "m")
    monkeypatch.setattr("tellapart.models.save_file", _full)
    with pytest.raises(RunError, match=r"m: the model could not be written \(.*No space left.*\); make room"):
        model.save_pretrained(tmp_path / "m")
    assert load_captioner(tmp_path / "m").name == model.name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "m.old", "m.tmp", "other"]


def _full(*_: object) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
