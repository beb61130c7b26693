"""Specificity training from a recipe: on a folder of pictures without captions, with early stopping and a listener."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tellapart.data.records import Dataset, Record
from tellapart.data.unlabelled import with_training_split
from tellapart.engine.journal import read_journal
from tellapart.errors import DataError, RecipeError
from tellapart.evaluation import specificity_guard
from tellapart.evaluation.run_captions import run_captions
from tellapart.recipe import Recipe
from tellapart.run import Run
from tellapart.training import resume, run_recipe, train

TINY = ["data.scenes.train=12", "data.scenes.val=6", "data.scenes.test=6", "data.encoder=efficientnet-lite0@32"]
STEPS = ["training.steps=4", "training.validate_every=2", "training.images_per_batch=4", "training.log_every=1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unlabelled")


def upstream(folder: Path, recipe: str, *more: str) -> Run:
    overrides = [*TINY, f"data.prepared={folder / 'prepared'}", "training.steps=2", *more]
    return run_recipe(Recipe.load(recipe, overrides, "smoke"), folder / "runs")


@pytest.fixture(scope="module")
def start(folder: Path) -> Run:
    return upstream(folder, "scenes/adaptive-mle.yaml", "captioner.hidden=8")


@pytest.fixture(scope="module")
def retriever(folder: Path) -> Run:
    return upstream(folder, "scenes/ranking.yaml")


@pytest.fixture(scope="module")
def photos(folder: Path, start: Run) -> Path:
    """Ten pictures in a folder, and nothing else."""
    place = folder / "photos"
    place.mkdir()
    dataset = start.data.dataset
    for number, record in enumerate(dataset.records[:10]):
        shutil.copy(dataset.path(record), place / f"{number}.png")
    return place


def adapt(start: Run, retriever: Run, out: Path, *more: str) -> Run:
    given = [f"start.from={start.folder}", f"roles.retriever.from={retriever.folder}", *STEPS, *more]
    return train("scenes/specificity-ccos.yaml", *given, budget="smoke", out=out)


def validations(run: Run) -> list[dict[str, Any]]:
    return [row for row in read_journal(run.folder) if row["split"] == "val"]


def test_a_folder_of_pictures(start: Run, retriever: Run, photos: Path, tmp_path: Path) -> None:
    run = adapt(start, retriever, tmp_path / "run", f"data.source={photos}")
    assert run.captioner.vocabulary.tokens == start.captioner.vocabulary.tokens
    assert run.model_digest != start.model_digest
    rows = validations(run)
    assert len(rows) == 2
    assert all(1 <= row["mean_rank"] <= 2 for row in rows), "two of ten pictures validate"
    # Adapted to the collection, it captions all of it.
    assert len(run_captions(run, "test")) == 10
    assert resume(run.folder).folder == run.folder


def test_changed_pictures_are_noticed(start: Run, retriever: Run, photos: Path, tmp_path: Path) -> None:
    """Otherwise a run on other pictures of the same names would be taken for this one."""
    changed = tmp_path / "photos"
    shutil.copytree(photos, changed)
    shutil.copy(changed / "0.png", changed / "1.png")
    first, second = (
        json.loads((adapt(start, retriever, tmp_path / name, f"data.source={source}").folder / "run.json").read_text())
        for name, source in (("one", photos), ("other", changed))
    )
    assert first["made_from"]["data"] == second["made_from"]["data"]
    assert first["key"] != second["key"]


def test_likelihood_needs_captions(start: Run, retriever: Run, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"no captions, which the composed objective learns from; .*own/specificity",
    ):
        train(
            "scenes/specificity.yaml",
            *(f"data.source={photos}", f"start.from={start.folder}", f"roles.retriever.from={retriever.folder}"),
            budget="smoke",
            out=tmp_path / "run",
        )


def test_training_stops_when_the_mean_rank_gets_no_better(
    start: Run, retriever: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = iter([9.0, 5.0, 4.0, 4.5, 6.0, 1.0, 1.0])  # before training, then at each validation

    def measure(*_: Any) -> dict[str, float]:
        return {"mean_rank": next(ranks), "R@1": 0.0}

    monkeypatch.setattr(specificity_guard, "measure_specificity", measure)
    patient = ["training.steps=10", "training.validate_every=1", "training.patience=2"]
    run = adapt(start, retriever, tmp_path / "run", *patient)
    assert [row["mean_rank"] for row in validations(run)] == [5.0, 4.0, 4.5, 6.0]
    assert run.captioner.history["steps"] == 2, "the best"


def test_a_listener_is_measured_and_a_warning_is_printed(
    start: Run,
    retriever: Run,
    folder: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    listener = upstream(folder, "scenes/ranking.yaml", "seed=5", "data.encoder=efficientnet-lite0@64")
    run = adapt(start, retriever, tmp_path / "run", f"roles.listener.from={listener.folder}")
    begun = json.loads((run.folder / specificity_guard.START).read_text())["figures"]
    warned = 0
    for row in validations(run):
        better, worse = row["mean_rank"] < begun["mean_rank"], row["listener_mean_rank"] > begun["listener_mean_rank"]
        assert row["only_teacher"] == float(better and worse)
        warned += int(better and worse)
        assert 0 <= row["listener_R@1"] <= 1
    assert capfd.readouterr().err.count("may please only their teacher") == warned


def test_length_repeated_words_and_fluency_are_logged(start: Run, retriever: Run, tmp_path: Path) -> None:
    """In each validation, of the control too, without a setting for it."""
    given = [f"start.from={start.folder}", f"roles.retriever.from={retriever.folder}", *STEPS]
    for recipe in ("scenes/specificity-ccos.yaml", "scenes/specificity-continued.yaml"):
        run = train(recipe, *given, budget="smoke", out=tmp_path / Path(recipe).stem)
        for row in validations(run):
            assert {"greedy_words", "greedy_repeated", "greedy_fluency", "distinct"} <= set(row)


def test_the_shipped_models_adapt_to_a_folder_of_pictures(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = train("own/specificity.yaml", f"data.source={photos}", "training.steps=1", budget="smoke")
    assert run.captioner.history["objective"] == "specificity"
    assert all({"mean_rank", "greedy_fluency"} <= set(row) for row in validations(run))


def test_the_control_is_measured_by_the_same_rule(start: Run, retriever: Run, tmp_path: Path) -> None:
    given = [f"start.from={start.folder}", f"roles.retriever.from={retriever.folder}", *STEPS]
    run = train("scenes/specificity-continued.yaml", *given, budget="smoke", out=tmp_path / "run")
    assert all("mean_rank" in row for row in validations(run))


def test_recipes_name_a_missing_retriever() -> None:
    more = ["training.validate_specificity=5"]
    with pytest.raises(RecipeError, match=r"roles\.retriever\.from: training\.validate_specificity needs a retriever"):
        Recipe.load("scenes/adaptive-mle-continued.yaml", more)
    with pytest.raises(RecipeError, match=r"training\.validate_specificity: not available when training a retriever"):
        Recipe.load("scenes/ranking.yaml", more)
    with pytest.raises(RecipeError, match=r"roles\.listener: the likelihood objective has no such role"):
        Recipe.load("scenes/adaptive-mle-continued.yaml", ["roles.listener.from=scenes/ranking.yaml"])


@pytest.mark.parametrize(("pictures", "validating"), [(4, 2), (7, 2), (19, 2), (20, 2), (57, 5)])
def test_every_tenth_picture_validates(pictures: int, validating: int) -> None:
    records = tuple(Record(str(n), f"{n}.png", "test", ()) for n in range(pictures))
    divided = with_training_split(Dataset("photos", Path(), records))
    assert [record.id for record in divided] == [record.id for record in records]
    assert len(divided.split("val")) == validating
    assert len(divided.split("train")) == pictures - validating


def test_few_pictures_are_refused_and_splits_are_kept() -> None:
    records = tuple(Record(str(n), f"{n}.png", "test", ()) for n in range(3))
    with pytest.raises(DataError, match="has 3 pictures, and training needs at least 4"):
        with_training_split(Dataset("photos", Path(), records))
    own = Dataset("own", Path(), (Record("0", "0.png", "train", ()), *records[1:]))
    assert with_training_split(own) is own
