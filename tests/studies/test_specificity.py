"""The studies of the specificity paper: arms that differ in the objective only, judged by the retriever that taught."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tellapart.data.settings import DataSettings
from tellapart.engine.journal import read_journal
from tellapart.errors import RecipeError
from tellapart.recipe_files import BUDGETS, read_recipe, recipes_folder
from tellapart.run import open_run
from tellapart.studies.base import find_study
from tellapart.studies.measure import measure_of
from tellapart.studies.result import Result
from tellapart.studies.run import ArmTrainer

TINY = (
    "data.scenes.train=12",
    "data.scenes.val=6",
    "data.scenes.test=6",
    "data.min_count=1",
    "training.steps=2",
    "training.epochs=null",
    "training.validate_every=1",
    "training.images_per_batch=4",
    "training.log_every=1",
    "decoding.max_words=4",
    "decoding.length_penalty=3.0",  # so that captions have words after so little training
)
TABLES = ("specificity-table1", "specificity-table2", "specificity-table3")
TRAINED = ("dp", "cos", "cdp", "ccos", "recommended")
Studying = Callable[..., Result]
Written = Callable[[Result], tuple[str, str]]


@pytest.fixture(scope="module")
def table1(studying: Studying) -> Result:
    return studying(TABLES[0])


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("captioner", ["adaptive", "updown"])
def test_every_arm_has_the_control_and_recipes_at_every_budget(name: str, captioner: str) -> None:
    arms = {arm.key: arm for arm in find_study(name).arms(captioner)}
    control = f"{captioner}-specificity-continued"
    assert list(arms) == [f"{captioner}-mle", control, *(f"{captioner}-specificity-{key}" for key in TRAINED)]
    for arm in arms.values():
        assert arm.control == (None if arm.key == control else control)
        for family in ("scenes", "flickr8k", "coco"):
            budgets = read_recipe(recipes_folder() / family / f"{arm.recipe}.yaml")["budgets"]
            assert {"laptop", *budgets} == set(BUDGETS)


@pytest.mark.parametrize("family", ["scenes", "flickr8k", "coco"])
@pytest.mark.parametrize("budget", BUDGETS)
def test_arms_differ_from_the_control_in_the_objective_only(family: str, budget: str, tmp_path: Path) -> None:
    study = find_study(TABLES[0])
    data = DataSettings(source="scenes", prepared=str(tmp_path))
    trainer = ArmTrainer(
        study=study,
        recipes=recipes_folder() / family,
        data=data,
        budget=budget,
        runs=tmp_path,
        use={},
        overrides=(),
    )
    captioner = "adaptive" if family == "scenes" or budget != "paper" else "updown"
    for key, found in trainer.treatments(study.arms(captioner)).items():
        deviations = {one.key for one in found if one.why}
        papers_own = budget == "paper" and family != "scenes" and key.endswith(("-dp", "-cos"))
        assert deviations == ({"training.learning_rate", "training.steps"} if papers_own else set())
        assert all(one.key.startswith("objective") for one in found if not one.why)


def test_repeats_are_removed_in_every_row(table1: Result) -> None:
    assert len(table1.rows) == 2 + len(TRAINED)
    assert all(row.seeds[0].run.recipe.decoding.remove_repeats for row in table1.rows)
    assert all(row.seeds[0].figures["mean_length"] > 0 for row in table1.rows), "there are captions to see"


def test_the_judge_is_the_retriever_that_taught(table1: Result) -> None:
    """One retriever for all rows; the MLE model and people's captions are judged by it too."""
    places = {
        str(Path(role.places[0]).resolve())
        for row in table1.rows
        for name, role in open_run(row.seeds[0].run.folder).recipe.roles.items()
        if name == "retriever"
    }
    assert len(places) == 1
    assert open_run(places.pop()).recipe.trains == "retriever"
    people = table1.people
    assert people is not None
    for row in (*table1.rows, people):
        figures = row.seeds[0].figures
        assert {"under_judge_R@1", "under_judge_mean_rank", "distinct", "novel", "vocabulary"} <= set(figures)
        assert "CLIPScore" in figures, "which only retrievers give"


def test_table_and_page(table1: Result, written: Written) -> None:
    table, page = written(table1)
    assert "R@1, teaching retriever" in table
    assert "R@1, frozen start" not in table
    assert "<b>teaching retriever</b>" in page
    assert "<b>frozen start</b>" not in page
    assert "84.5 %" in table, "the paper's diversity of CDP"
    compared = {column.figure for column in measure_of(table1.study).compared}
    assert {"under_judge_mean_rank", "novel", "CIDEr"} <= compared
    assert {"under_judge_mean_rank", "novel", "CIDEr"} <= set(table1.differences["adaptive-specificity-ccos"])


def test_examples_are_chosen_by_the_teacher_and_failures_are_shown(table1: Result, written: Written) -> None:
    shown = measure_of(table1.study).page(table1, table1.rows[0].seeds[0].run.data)["pairs"]
    start = table1.rows[0].seeds[0].evaluation
    for row in table1.rows[2:]:
        ranks = [evaluation.values("rank_under_judge") for evaluation in (start, row.seeds[0].evaluation)]
        better, worse = int((ranks[1] < ranks[0]).sum()), int((ranks[1] > ranks[0]).sum())
        pair = [pair for pair in shown if pair[1] == row.arm.label]
        assert bool(pair) == bool(better + worse)
        if pair:
            assert (len(pair[0][2]), len(pair[0][3])) == (min(9, better), min(3, worse))


def test_guards_are_in_the_table(table1: Result, written: Written) -> None:
    table, _ = written(table1)
    assert "repeated words" in table
    start = table1.rows[0].seeds[0].run
    for row in table1.rows:
        evaluation, figures = row.seeds[0].evaluation, row.seeds[0].figures
        total, tokens = 0.0, 0
        for item in evaluation.rows:
            grid = torch.from_numpy(start.data.store.grid([start.data.dataset.row(item["id"])]))
            said = start.captioner.tokenize([item["caption"]])
            memory = start.captioner.encode(grid)
            total += float(start.captioner.log_prob(memory, said, torch.tensor([0])).detach())
            tokens += said.shape[1]
        assert figures["fluency"] == pytest.approx(total / tokens, rel=1e-5)


def test_the_listener_warns_in_training_and_in_the_report(
    table1: Result, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All trained rows log the ranks of the independent retriever; whether a row pleases only its teacher is shown."""
    listeners = set()
    for row in table1.rows[1:]:
        run = row.seeds[0].run
        listeners.add(str(Path(open_run(run.folder).recipe.roles["listener"].places[0]).resolve()))
        kept = [one for one in read_journal(run.folder) if one["split"] == "val"]
        by_step = {one["step"]: one for one in kept}
        assert all("true_listener_R@1" in one for one in kept), "scenes have a true listener"
        assert row.seeds[0].figures["only_teacher"] == by_step[run.captioner.history["steps"]]["only_teacher"]
    assert len(listeners) == 1
    assert "only_teacher" not in table1.rows[0].seeds[0].figures, "the start was not trained here"
    assert "seeds that please only the teacher" in written(table1)[0]
    monkeypatch.setitem(table1.rows[-1].seeds[0].figures, "only_teacher", 1.0)
    measure = measure_of(table1.study)
    warning = f"Warning: {table1.rows[-1].arm.label}: in 1 of 1 seeds"
    shown = measure.page(table1, table1.rows[0].seeds[0].run.data)["warnings"]
    assert any(line.startswith(warning) for line in measure.conclusion(table1))
    assert any(line.startswith(warning) for line in shown)


def test_a_listener_of_other_data_is_refused_before_anything_is_trained(
    table1: Result, studying: Studying, tmp_path: Path
) -> None:
    listener = open_run(table1.rows[1].seeds[0].run.folder).recipe.roles["listener"].places[0]
    other = ("data.scenes.train=11", *TINY[1:])
    with pytest.raises(RecipeError, match=r"--listener: .* was trained on other data than scenes; make a run of it"):
        studying(TABLES[0], overrides=other, runs=tmp_path / "runs", out=tmp_path / "study", listener=listener)
    assert not (tmp_path / "runs").exists()


def test_pictures_drawn_by_chance_are_shown_with_all_captions(table1: Result) -> None:
    data = table1.rows[0].seeds[0].run.data
    cards = measure_of(table1.study).page(table1, data)["random"]
    assert len(cards) == min(20, table1.images["ranked"])
    records = data.dataset.split("test")
    for card, record in zip(cards, records, strict=True):
        people, *rows = card["says"]
        assert people == {"label": "people", "caption": record.captions[0], "rank": None}
        said = [row.seeds[0].evaluation.captions[record.id][0] for row in table1.rows]
        assert [one["caption"] for one in rows] == said


def test_ten_captions_of_each_image(studying: Studying, written: Written, table1: Result) -> None:
    result = studying(TABLES[1])
    table, _ = written(result)
    assert "diversity within candidates" in table
    for row, before in zip(result.rows, table1.rows, strict=True):
        assert row.seeds[0].run.folder == before.seeds[0].run.folder
        assert all(len(captions) == 10 for captions in row.seeds[0].evaluation.captions.values())
        assert 0 < row.seeds[0].figures["distinct_within"] <= 1


def test_text_metrics(studying: Studying, written: Written) -> None:
    table, _ = written(studying(TABLES[2]))
    assert "1.036" in table, "the paper's CIDEr of its baseline"
