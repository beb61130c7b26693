"""Runs: found again, continued, and made from what they say; their model folders and cards."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tellapart
from support.workers import assert_equal_runs
from tellapart import training
from tellapart.captioners.base import Captioner, load_captioner
from tellapart.captioning import caption_split
from tellapart.decoding.search import decode_rows
from tellapart.decoding.settings import DecodingSettings
from tellapart.engine import loop
from tellapart.engine.journal import read_journal
from tellapart.errors import DataError, RecipeError, RunError
from tellapart.evaluation.evaluate import evaluate
from tellapart.models import model_folder
from tellapart.objectives.contrastive import Contrastive
from tellapart.objectives.likelihood import Likelihood
from tellapart.run import Run, open_run
from tellapart.training import resume, train

RECIPES = Path(__file__).parents[2] / "recipes" / "scenes"
DATA = {
    "source": "scenes",
    "scenes": {"train": 8, "val": 4, "test": 3},
    "min_count": 1,
}
TRAINING = {"steps": 4, "images_per_batch": 4, "validate_every": 2, "log_every": 1}


def write_recipes(folder: Path, data: dict[str, Any]) -> None:
    """Two tiny recipes: likelihood, and contrast against it."""
    mle = {
        "name": "mle",
        "data": data,
        "captioner": {"name": "adaptive-attention", "hidden": 8, "embedding": 8, "attention": 8},
        "objective": {"name": "likelihood"},
        "training": TRAINING,
        "decoding": {"max_words": 4},
    }
    upstream = {"from": "mle.yaml"}
    cl = {
        "name": "cl",
        "objective": {"name": "contrastive", "negatives": 2},
        "start": upstream,
        "roles": {"reference": upstream},
        "training": TRAINING,
        "decoding": {"max_words": 4},
    }
    for recipe in (mle, cl):
        (folder / f"{recipe['name']}.yaml").write_text(json.dumps(recipe))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two recipes: likelihood, and contrast against it."""
    folder = tmp_path_factory.mktemp("place")
    write_recipes(folder, {**DATA, "prepared": str(folder / "prepared")})
    return folder


def test_a_reference_is_trained_once_and_found_again(place: Path, tmp_path: Path) -> None:
    run = train(place / "cl.yaml", runs=tmp_path)
    (reference,) = tmp_path.glob("mle-*")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert train(place / "cl.yaml", runs=tmp_path).folder == run.folder
    train(place / "mle.yaml", runs=tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before, "nothing was trained again"
    assert Path(open_run(run.folder).recipe.roles["reference"].places[0]).resolve() == reference.resolve()


def test_a_changed_upstream_is_noticed(place: Path, tmp_path: Path) -> None:
    first = train(place / "cl.yaml", runs=tmp_path, out=tmp_path / "mine").folder
    assert train(place / "cl.yaml", runs=tmp_path, out=tmp_path / "mine").folder == first
    (reference,) = tmp_path.glob("mle-*")
    other = load_captioner(reference)
    with torch.no_grad():
        other.predict.bias.add_(0.1)
    (model_folder(reference) / "README.md").unlink()
    other.save_pretrained(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", model_folder(reference))
    with pytest.raises(RunError, match=r"mine: holds another run \(changed: upstreams\)"):
        train(place / "cl.yaml", runs=tmp_path, out=tmp_path / "mine")
    with pytest.raises(RunError, match=r"changed: upstreams"):
        resume(first)
    # Without a folder of one's choice it is another run, beside the first.
    assert train(place / "cl.yaml", runs=tmp_path).folder != train(place / "mle.yaml", runs=tmp_path).folder


def test_a_changed_recipe_or_data_is_noticed(place: Path, tmp_path: Path) -> None:
    train(place / "mle.yaml", out=tmp_path / "mine")
    with pytest.raises(RunError, match=r"changed: recipe"):
        train(place / "mle.yaml", "training.learning_rate=0.5", out=tmp_path / "mine")
    with pytest.raises(RunError, match=r"changed: recipe, data"):
        train(place / "mle.yaml", "data.scenes.train=9", out=tmp_path / "mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match="is not empty and is not a run folder"):
        train(place / "mle.yaml", out=tmp_path / "full")


def test_a_mistake_found_late_does_not_block_the_folder(place: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no validation figure 'CIDER'"):
        train(place / "mle.yaml", "training.monitor=CIDER", "training.monitor_best=highest", out=tmp_path / "mine")
    assert train(place / "mle.yaml", out=tmp_path / "mine").folder == tmp_path / "mine"


def test_only_one_process_trains_in_a_folder(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def inner(self: Likelihood) -> None:
        monkeypatch.undo()
        with pytest.raises(RunError, match="another process is training here"):
            train(place / "mle.yaml", out=tmp_path / "mine")

    monkeypatch.setattr(Likelihood, "after_step", inner)
    train(place / "mle.yaml", out=tmp_path / "mine")


def test_two_processes_train_in_a_new_folder(place: Path, tmp_path: Path) -> None:
    """One trains; the other finds the finished run, or says that the first is training."""
    command = [sys.executable, "-m", "tellapart.cli", "train", str(place / "mle.yaml"), "--out", str(tmp_path / "run")]
    command.append(f"data.prepared={tmp_path / 'prepared'}")
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        for _ in range(2)
    ]
    errors = {process.communicate()[1]: process.returncode for process in running}
    assert 0 in errors.values(), errors
    for error, status in errors.items():
        if status != 0:
            assert status == 2
            assert error.splitlines()[-1].endswith(
                "another process is training here; wait for it or choose another --out"
            )
    assert open_run(tmp_path / "run").model.name == "adaptive-attention"
    assert not list(tmp_path.rglob(".tellapart-*"))


def test_a_run_finished_by_another_process_is_found(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = training.load_and_assemble

    def slow(*arguments: Any) -> Any:
        monkeypatch.undo()
        train(place / "mle.yaml", out=tmp_path / "mine")
        monkeypatch.setattr(training, "Trainer", lambda *_, **__: pytest.fail("trained twice"))
        return load(*arguments)

    monkeypatch.setattr(training, "load_and_assemble", slow)
    run = train(place / "mle.yaml", out=tmp_path / "mine")
    assert json.loads((run.folder / "run.json").read_text(encoding="utf-8"))["finished"]


def test_the_run_folder_is_checked_before_the_data_is_prepared(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = train(place / "mle.yaml", out=tmp_path / "finished").folder
    monkeypatch.setattr(training, "prepare", lambda *_: pytest.fail("prepared before the folder was checked"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "recipe.yaml").write_text("name: mine", encoding="utf-8")
    with pytest.raises(RunError, match="is not empty and is not a run folder"):
        train(place / "mle.yaml", out=tmp_path / "mine")
    with pytest.raises(DataError, match=r"recipe\.yaml: this is a file, and a folder is needed"):
        train(place / "mle.yaml", out=tmp_path / "mine" / "recipe.yaml")
    assert (tmp_path / "mine" / "recipe.yaml").read_text(encoding="utf-8") == "name: mine"
    monkeypatch.undo()

    def read_only(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "fsync", read_only)
    with pytest.raises(DataError, match=r"new: files cannot be written here \(Read-only file system\)"):
        train(place / "mle.yaml", out=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert train(place / "mle.yaml", out=finished).folder == finished, "nothing is written to a finished run"


def test_a_folder_of_the_users_beside_the_checkpoints(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "run" / "checkpoints" / "step-2-backup" / "notes.txt"

    def back_up(self: Likelihood) -> None:
        notes.parent.mkdir(parents=True, exist_ok=True)
        notes.write_text("mine", encoding="utf-8")

    monkeypatch.setattr(Likelihood, "after_step", back_up)
    train(place / "mle.yaml", out=tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.is_dir())[-1] == "step-4"
    assert notes.read_text(encoding="utf-8") == "mine"


def test_a_run_is_found_from_another_folder(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its recipe names data relative to the run."""
    run = train(place / "mle.yaml", out=place / "runs" / "elsewhere")
    monkeypatch.chdir(tmp_path)
    assert "../prepared" in (run.folder / "recipe.yaml").read_text()
    again = resume(Path(os.path.relpath(run.folder)))
    assert open_run(again.folder).recipe.digest == run.recipe.digest
    assert not list(tmp_path.iterdir()), "nothing was rendered again"


def test_a_found_run_takes_the_decoding_asked_for(place: Path, tmp_path: Path) -> None:
    train(place / "mle.yaml", out=tmp_path / "run")
    run = train(place / "mle.yaml", "decoding.beam=5", out=tmp_path / "run")
    assert open_run(run.folder).recipe.decoding.beam == 5
    chosen = ["training.validate_captions=2", "training.monitor=CIDEr", "training.monitor_best=highest"]
    train(place / "mle.yaml", *chosen, out=tmp_path / "other")
    with pytest.raises(RunError, match="changed: recipe"):  # there decoding chooses the checkpoint
        train(place / "mle.yaml", *chosen, "decoding.beam=5", out=tmp_path / "other")


def test_a_stopped_run_is_resumed_by_its_folder(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = train(place / "mle.yaml", out=tmp_path / "straight")
    monkeypatch.setattr(Likelihood, "after_step", lambda self: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(loop.Interrupted, match=r"after step 1 of 4 and saved; the same command .*train --resume"):
        train(place / "mle.yaml", out=tmp_path / "stopped")
    monkeypatch.undo()
    with pytest.raises(RunError, match="not finished; continue it: tellapart train --resume"):
        open_run(tmp_path / "stopped")
    run = resume(tmp_path / "stopped")
    one, other = (load_captioner(found.folder).state_dict() for found in (straight, run))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert resume(tmp_path / "stopped") == run, "a finished run is left as it is"
    with pytest.raises(RunError, match="this is not a run folder"):
        resume(tmp_path)


def test_mirrored_pictures_are_drawn_and_a_stopped_run_draws_the_same(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ["data.mirrored=true", "data.store=int8", "training.ema=0.9", "training.validate_captions=2"]
    straight = train(place / "cl.yaml", *chosen, runs=tmp_path, out=tmp_path / "straight")
    monkeypatch.setattr(Contrastive, "after_step", lambda self: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(loop.Interrupted):
        train(place / "cl.yaml", *chosen, runs=tmp_path, out=tmp_path / "stopped")
    monkeypatch.undo()
    resume(tmp_path / "stopped")
    assert_equal_runs(straight.folder, tmp_path / "stopped")
    plain = train(place / "cl.yaml", *chosen[1:], runs=tmp_path, out=tmp_path / "plain")
    losses = [[row["loss"] for row in read_journal(run.folder) if row["split"] == "train"] for run in (straight, plain)]
    assert losses[0] != losses[1]

    (source,) = (place / "prepared").glob("scenes-*-8-4-3-*/*.json*")  # other tests render scenes of other sizes
    stores = sorted((place / "prepared").rglob("features.npy"))
    said = caption_split(str(source), straight.folder, prepared=place / "prepared")
    assert sorted((place / "prepared").rglob("features.npy")) == stores, "captioned from the run's own store"
    store, rows = straight.data.store, [straight.data.dataset.row(row["id"]) for row in said]
    assert store.mirrored is not None
    read = decode_rows(straight.captioner, store, rows, straight.recipe.decoding)
    assert [row["log_prob"] for row in said] == pytest.approx([one.log_prob for one in read], rel=1e-5)
    assert plain.data.store.mirrored is None


def test_the_best_by_captions(place: Path, tmp_path: Path) -> None:
    chosen = ["training.validate_captions=3", "training.monitor=CIDEr", "training.monitor_best=highest"]
    run = train(place / "mle.yaml", *chosen, "training.keep=best", out=tmp_path / "run")
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").open()]
    figures = {row["step"]: row["CIDEr"] for row in rows if row["split"] == "val"}
    best = max(figures, key=lambda step: figures[step])
    assert model_folder(run.folder).name == f"step-{best}"
    with pytest.raises(RecipeError, match=r"no validation figure 'CIDEr'.*need training\.validate_captions"):
        train(place / "mle.yaml", *chosen[1:], out=tmp_path / "other")


# --- data that moves or changes ---------------------------------------------------------------------------------------


def write_data(folder: Path, seed: int = 0, captions: str = "a red ball") -> Path:
    """A small data set in Karpathy's layout: four images in each split."""
    (folder / "images").mkdir(parents=True)
    rng = np.random.default_rng(seed)
    images = []
    for number in range(12):
        pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
        split = ("train", "val", "test")[number // 4]
        images.append({"filename": f"{number}.png", "split": split, "sentences": [{"raw": f"{captions} {number % 3}"}]})
    (folder / "set.json").write_text(json.dumps({"images": images}))
    return folder / "set.json"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a data set, and runs of two recipes that name it by a path relative to the project."""
    project = tmp_path_factory.mktemp("trained") / "project"
    write_data(project / "data")
    write_recipes(project, {"source": "data/set.json", "encoder": "efficientnet-lite0@32", "min_count": 1})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        train("mle.yaml", out="runs/mle")
        train("cl.yaml", runs="runs", out="runs/cl")
    return project


@pytest.fixture
def project(trained: Path, tmp_path: Path) -> Path:
    """A copy of the project in another folder."""
    return Path(shutil.copytree(trained, tmp_path / "copy" / "project"))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder. Other data sets are there under the relative paths of the recipes and of the runs."""
    folder = tmp_path / "elsewhere" / "more" / "here"
    for place in (folder / "data", folder.parent / "data", folder.parents[1] / "data"):
        write_data(place, seed=9, captions="another blue box")
    monkeypatch.chdir(folder)
    return folder


def files_in(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_a_run_has_the_same_data_from_any_folder(project: Path, elsewhere: Path, tmp_path: Path) -> None:
    before = files_in(tmp_path / "elsewhere")
    shutil.rmtree(project / "prepared")
    for name in ("mle", "cl"):
        run = open_run(os.path.relpath(project / "runs" / name))
        assert run.data.dataset.root == (project / "data").resolve()
        assert run.data.dataset.split("test")[0].captions == ("a red ball 2",)
    assert (project / "prepared").is_dir(), "encoded again where it was"
    assert files_in(tmp_path / "elsewhere") == before, "nothing is written in the current folder"


def test_a_run_never_takes_data_of_the_current_folder(project: Path, elsewhere: Path) -> None:
    """The data of the run is gone, and the current folder has some under the same relative name."""
    shutil.rmtree(project / "data")
    with pytest.raises(RunError, match=r"data\.source: '.*project/data/set\.json' does not exist"):
        open_run(project / "runs" / "mle").data  # noqa: B018


def test_a_run_moved_with_its_data(project: Path, elsewhere: Path, tmp_path: Path) -> None:
    digest = open_run(project / "runs" / "cl").recipe.digest
    moved = project.rename(tmp_path / "moved")
    run = resume(moved / "runs" / "cl")
    assert run.data.dataset.root == (moved / "data").resolve()
    assert run.recipe.digest == digest
    for role in (run.recipe.start, run.recipe.roles["reference"]):
        assert role is not None
        (place,) = role.places
        assert (moved / "runs").resolve() in Path(place).resolve().parents


def test_a_run_opened_or_made_through_a_link(project: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "link").symlink_to(project / "runs" / "mle")
    assert open_run("link").data.dataset.root == (project / "data").resolve()
    (elsewhere / "runs").mkdir()
    (project / "linked").symlink_to(elsewhere / "runs")
    monkeypatch.chdir(project)
    train("mle.yaml", out="linked/run")
    monkeypatch.chdir(elsewhere)
    for folder in (project / "linked" / "run", elsewhere / "runs" / "run"):
        assert open_run(folder).data.dataset.root.resolve() == (project / "data").resolve()


def test_moved_data_is_named_and_can_be_given(project: Path, elsewhere: Path, tmp_path: Path) -> None:
    (project / "data").rename(tmp_path / "new-place")
    run = project / "runs" / "mle"
    message = r"recipe\.yaml: data\.source: '.*project/data/set\.json' does not exist; if the data has moved, write its"
    with pytest.raises(RunError, match=message):
        evaluate(run)
    with pytest.raises(RunError, match=message):
        resume(run)
    recipe = (run / "recipe.yaml").read_text()
    assert "source: ../../data/set.json" in recipe
    (run / "recipe.yaml").write_text(recipe.replace("../../data/set.json", str(tmp_path / "new-place" / "set.json")))
    assert open_run(run).data.dataset.root == tmp_path / "new-place"
    assert resume(run).folder == run


def test_a_finished_run_does_not_need_its_upstream(project: Path, elsewhere: Path) -> None:
    (upstream,) = project.glob("runs/mle-*")
    shutil.move(upstream, elsewhere.parent)  # found from the current folder, as '../mle-KEY'
    run = open_run(project / "runs" / "cl")
    assert run.captioner.name == "adaptive-attention"
    assert len(run.data.dataset) == 12
    with pytest.raises(RecipeError, match=r"cl: start\.from: '.*project/runs/mle-\w+' does not exist; if it has moved"):
        resume(project / "runs" / "cl")


def test_changed_captions_are_refused(project: Path) -> None:
    path = project / "data" / "set.json"
    right = path.read_text()
    path.write_text(right.replace("a red ball 1", "a red cube 1"))
    stores = files_in(project / "prepared")
    with pytest.raises(
        RunError, match=r"mle: the data set \w+ \(.*set\.json\) is not the one .* restore it, write the"
    ):
        evaluate(project / "runs" / "mle")
    assert files_in(project / "prepared") == stores, "nothing is encoded"
    path.write_text(right)
    assert evaluate(project / "runs" / "mle", metrics=["bleu"]).corpus


def test_results_follow_changed_pictures_only(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, pictures = project / "runs" / "mle", project / "data" / "images"

    def measured() -> list[bool]:
        """Whether captions and scores are made again."""
        files = [run / name for name in ("captions.jsonl", "scores.json")]
        before = [path.stat().st_mtime_ns if path.exists() else 0 for path in files]
        evaluate(run, metrics=["bleu"])
        return [path.stat().st_mtime_ns != time for path, time in zip(files, before, strict=True)]

    assert measured() == [True, True]
    assert measured() == [False, False]
    ranks = len(list((run / "ranks").iterdir()))
    for path in pictures.iterdir():
        path.touch()
    assert measured() == [False, False]
    Image.new("RGB", (32, 32), (1, 2, 3)).save(pictures / "9.png")
    assert measured() == [True, True]
    assert len(list((run / "ranks").iterdir())) == ranks + 1
    assert measured() == [False, False]
    # The run was not trained on this picture. On the next one it was.
    monkeypatch.chdir(project)
    assert train("mle.yaml", out="runs/mle").folder == Path("runs/mle")
    Image.new("RGB", (32, 32), (1, 2, 3)).save(pictures / "0.png")
    with pytest.raises(RunError, match=r"changed: pictures"):
        train("mle.yaml", out="runs/mle")


# --- model folders and cards ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(place: Path) -> Run:
    return train(place / "mle.yaml", runs=place / "runs")


def test_a_card_tells_what_was_measured(run: Run) -> None:
    folder = model_folder(run.folder)
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").open()]
    loss = next(row["loss"] for row in rows if row["split"] == "val" and row["step"] == 4)
    card = (folder / "README.md").read_text()
    assert card.startswith("# mle\n")
    assert f"## Measured on the validation split\n\n| figure | value |\n|---|---|\n| loss | {loss:.4f} |" in card
    assert "test split" not in card
    corpus = evaluate(run, retrieval_images=2).corpus
    card = (folder / "README.md").read_text()
    assert "## Measured on the validation split" in card
    assert f"| CIDEr | {corpus['CIDEr']:.4f} |" in card.partition("## Measured on the test split")[2]
    assert Captioner.from_pretrained(run.folder).history["measured"]["test"] == corpus


def test_a_model_folder_alone_captions_a_photograph(run: Run, place: Path, tmp_path: Path) -> None:
    picture = next((place / "prepared").rglob("*.png"))
    expected = tellapart.caption([picture], run.folder, DecodingSettings())
    Captioner.from_pretrained(run.folder).save_pretrained(tmp_path / "model")
    moved = Path(shutil.move(tmp_path / "model", tmp_path / "moved"))
    assert {path.name for path in moved.iterdir()} == {
        *("model.safetensors", "model.json", "vocabulary.json", "README.md")
    }
    assert tellapart.caption([picture], model=moved) == expected


def test_saving_replaces_a_model_and_nothing_else(run: Run, tmp_path: Path) -> None:
    captioner = Captioner.from_pretrained(run.folder)
    captioner.save_pretrained(tmp_path / "model")
    captioner.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"is not a model folder \(it holds notes\.txt\)"):
        captioner.save_pretrained(tmp_path / "model")
    with pytest.raises(RunError, match="is not a model folder"):
        captioner.save_pretrained(model_folder(run.folder))


def test_a_checkpoint_made_to_run_code_is_refused(run: Run, place: Path, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path / 'owned'}",)

    copy = tmp_path / "copy"
    shutil.copytree(run.folder, copy)
    state = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**state, "finished": False}))
    torch.save({"step": Evil()}, model_folder(copy) / "trainer.pt")
    with pytest.raises(RunError, match=r"trainer\.pt: cannot be read"):
        resume(copy)
    assert not (tmp_path / "owned").exists()
