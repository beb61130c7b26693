"""Training the shipped captioner further on one's own captions, in one command."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from support.pictures import TinyEncoder, save_model, use_tiny_encoder
from tellapart import cli, shipped
from tellapart.captioners.base import load_captioner
from tellapart.captioning import caption
from tellapart.data.readers.folder import read
from tellapart.data.unlabelled import hold_out
from tellapart.errors import DataError, RecipeError, RunError
from tellapart.models import model_digest
from tellapart.recipe import Recipe, copy_recipe
from tellapart.run import open_run
from tellapart.training import resume, train

COUNT = 12


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twelve pictures with captions beside them, and one without."""
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(COUNT + 1):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{number:02}.png")
        if number < COUNT:
            (folder / f"{number:02}.txt").write_text("a red house\na zeppelin\n" if number % 2 else "a blue tree")
    return folder


@pytest.fixture
def ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny stand-in for the shipped captioner."""
    use_tiny_encoder(monkeypatch)
    monkeypatch.setattr(shipped, "shipped_models", lambda: tmp_path / "models")
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    return save_model(tmp_path / "models" / "captioner", TinyEncoder.identity)


def test_one_command(
    photos: Path, ships: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["training.epochs=8", "training.learning_rate=0.05", "training.warmup_steps=0"]
    changes += ["training.images_per_batch=4", "training.patience=null"]
    arguments = ["train", "own/fine-tune.yaml", f"data.source={photos}", "start.from=shipped", *changes]
    monkeypatch.setattr(sys, "argv", ["tellapart", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert not caught.value.code
    folder = Path(capsys.readouterr().out.splitlines()[-1])
    run = open_run(folder)
    # Its architecture, encoder and words are the shipped model's.
    before, after = load_captioner(ships), run.captioner
    assert after.vocabulary.tokens == before.vocabulary.tokens
    assert run.recipe.captioner == {"name": "adaptive-attention", **before.settings.model_dump()}
    assert run.recipe.data.encoder == "tiny"
    assert run.recipe.start is not None
    assert yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8"))["start"] == {"from": "shipped"}
    state = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert state["made_from"]["upstreams"] == {"start": model_digest(ships)}
    # It has learnt.
    records = run.data.dataset.split("train")
    assert len(records) == COUNT - 2
    rows = [run.data.dataset.row(record.id) for record in records]
    features = torch.from_numpy(run.data.store.grid(rows))
    truth = [record.captions[0] for record in records]
    with torch.no_grad():
        scores = [
            one.log_prob(one.encode(features), one.tokenize(truth), torch.arange(len(rows))).mean().item()
            for one in (before, after.cpu())
        ]
    assert scores[1] > scores[0] + 1
    assert len(caption([photos / "00.png"], folder)) == 1
    # The same command finds it; nothing was written beside the shipped model.
    assert train("own/fine-tune.yaml", f"data.source={photos}", "start.from=shipped", *changes).folder == folder
    assert resume(folder).folder == folder
    assert sorted(path.name for path in ships.iterdir()) == [
        *("README.md", "model.json", "model.safetensors", "vocabulary.json")
    ]


def test_a_run_is_opened_without_the_model_it_started_from(photos: Path, ships: Path) -> None:
    run = train("own/fine-tune.yaml", f"data.source={photos}", "start.from=shipped", budget="smoke")
    shutil.rmtree(ships)
    again = open_run(run.folder)
    assert again.recipe.captioner == run.recipe.captioner
    (run.folder / "run.json").write_text(
        (run.folder / "run.json").read_text(encoding="utf-8").replace('"finished": true', '"finished": false'),
        encoding="utf-8",
    )
    with pytest.raises(RecipeError, match=r"start\.from: 'shipped' does not exist"):
        resume(run.folder)


def test_any_model_folder_is_a_start_and_a_role(photos: Path, ships: Path, tmp_path: Path) -> None:
    shutil.copytree(ships, tmp_path / "mine")
    content = {
        "name": "cl",
        "data": {"source": str(photos), "held_out": 0.2},
        "start": {"from": "mine"},
        "roles": {"reference": {"from": "shipped/captioner"}},
        "objective": {"name": "contrastive", "negatives": 1},
        "training": {"epochs": 2, "images_per_batch": 4},
    }
    (tmp_path / "cl.yaml").write_text(json.dumps(content))
    run = train(tmp_path / "cl.yaml")
    written = yaml.safe_load((run.folder / "recipe.yaml").read_text(encoding="utf-8"))
    assert written["start"]["from"].endswith("mine")
    assert written["roles"] == {"reference": {"from": "shipped"}}
    assert not (ships / "scores").exists()
    assert not (tmp_path / "mine" / "scores").exists()
    assert "from: shipped/captioner" in copy_recipe(tmp_path / "cl.yaml")


def test_mistakes(photos: Path, ships: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no retriever comes with this copy of tellapart"):
        Recipe.load("own/fine-tune.yaml", ["start.from=shipped/retriever"])
    for number in range(3, COUNT):
        (photos / f"{number:02}.txt").unlink()
    with pytest.raises(DataError, match="photos: 3 of its 13 pictures have captions, and training needs at least 4"):
        train("own/fine-tune.yaml", f"data.source={photos}", "start.from=shipped")
    (ships / "model.json").write_text("{}", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"model\.json: is damaged \(it describes no model\)"):
        Recipe.load("own/fine-tune.yaml", ["start.from=shipped"])


def test_pictures_are_held_out_by_their_names(photos: Path) -> None:
    whole = hold_out(read(photos), 0.25)
    assert {split: len(whole.split(split)) for split in ("train", "val", "test")} == {"train": 6, "val": 3, "test": 3}
    assert all(record.captions for record in whole)
    (photos / "00.png").unlink()
    fewer = {record.id: record.split for record in hold_out(read(photos), 0.25)}
    moved = [record.id for record in whole if record.id in fewer and fewer[record.id] != record.split]
    assert len(moved) <= 2, "a removed picture moves at most one picture across each border"
    assert hold_out(whole, 0.1) is whole, "its own splits stay"
