"""The studies of the CL paper: what is trained from what, what is measured, and that an interrupted one goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tellapart.errors import RecipeError
from tellapart.files import read_json, read_jsonl
from tellapart.metrics import paired_bootstrap
from tellapart.models import model_digest
from tellapart.recipe import BUDGETS, read_recipe, recipes_folder
from tellapart.run import Run
from tellapart.studies import run as study_run
from tellapart.studies.base import TABLE, Model, find_study
from tellapart.studies.page import quoted_rows
from tellapart.studies.run import Result, in_training_order, run_study

# Scenes so few and trainings so short that a study takes seconds; the captioners stay as the recipes have them.
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
)
Studying = Callable[..., Result]


@pytest.fixture(scope="module")
def tiny() -> tuple[str, ...]:
    return TINY


@pytest.fixture(scope="module")
def table5(studying: Studying) -> Result:
    return studying("cl-table5", seeds=2)


@pytest.mark.parametrize("name", [name for name in TABLE if name.startswith("cl-")])
@pytest.mark.parametrize("captioner", ["adaptive", "neuraltalk"])
def test_every_study_has_a_control_for_its_claims_and_recipes_at_every_budget(name: str, captioner: str) -> None:
    study = find_study(name)
    models = {model.key: model for model in study.models(captioner)}
    assert any("MLE continued" in model.label for model in models.values())
    for model in models.values():
        for needed in (model.start, *model.roles.values(), model.control, model.rate_of):
            assert needed is None or needed in models
        if model.start is not None and "continued" not in model.key:
            assert model.control is not None
            assert "continued" in model.control
        for family in ("scenes", "flickr8k", "coco") if name != "cl-table3" else ("instapic",):
            budgets = read_recipe(recipes_folder() / family / f"{model.recipe}.yaml")["budgets"]
            assert {"laptop", *budgets} == set(BUDGETS)


def test_a_study_trains_what_a_row_says(table5: Result) -> None:
    for seed in range(2):
        digest = {row.model.key: model_digest(row.seeds[seed].run.folder) for row in table5.rows}
        assert len(set(digest.values())) == len(digest)
        for row in table5.rows:
            made_from = read_json(row.seeds[seed].run.folder / "run.json")["made_from"]["upstreams"]
            expected = {"start": row.model.start, **row.model.roles}
            assert made_from == {role: digest[key] for role, key in expected.items() if key is not None}
            assert row.seeds[seed].run.recipe.seed == seed
    crossed = table5.row("neuraltalk-cl-adaptive").seeds[0].run.recipe
    assert crossed.captioner["name"] == "neuraltalk"
    assert crossed.captioner["dropout"] == 0


def test_figures_are_means_over_seeds_and_differences_are_paired_over_images(table5: Result) -> None:
    row, control = table5.row("adaptive-cl"), table5.row("adaptive-continued")
    assert row.model.control == "adaptive-continued"
    per_image = {}
    for of in (row, control):
        files = [read_jsonl(one.run.folder / "per_image-val.jsonl") for one in of.seeds]
        per_image[of.model.key] = np.mean([[line["CIDEr"] for line in lines] for lines in files], axis=0)
        expected = [read_json(one.run.folder / "scores-val.json")["corpus"]["CIDEr"] for one in of.seeds]
        assert of.mean("CIDEr") == pytest.approx(np.mean(expected))
        assert of.deviation("CIDEr") == pytest.approx(np.std(expected, ddof=1))
    found = table5.differences["adaptive-cl"]["CIDEr"]
    records = row.seeds[0].run.data.dataset.split("val")
    families = np.unique([record.family or record.id for record in records], return_inverse=True)[1]
    expected_difference = paired_bootstrap(per_image["adaptive-continued"], per_image["adaptive-cl"], groups=families)
    assert found == expected_difference


def test_the_judge_is_the_likelihood_model_a_row_goes_back_to(table5: Result) -> None:
    own = table5.row("neuraltalk-mle").seeds[0]
    assert own.figures["under_judge_R@1"] == own.figures["self_retrieval_R@1"]
    crossed = table5.row("neuraltalk-cl-adaptive").seeds[0]
    judges = {read_json(path)["judge"] for path in own.run.folder.glob("ranks/*.json")}
    assert judges == {own.run.recipe.name}
    scores = read_json(crossed.run.folder / "scores-val.json")
    assert scores["judge"] == own.run.recipe.name


def test_the_table_and_the_page_say_what_is_measured_and_what_is_quoted(table5: Result, place: Path) -> None:
    table = (place / "cl-table5" / "table.md").read_text(encoding="utf-8")
    assert "Quoted, not measured here: Dai and Lin, NIPS 2017, Table 5" in table
    assert "| target NeuralTalk2, reference AdaptiveAttention | 0.716 | 0.547 |" in table
    assert "mean ± standard deviation over 2 seeds" in table
    page = (place / "cl-table5" / "study.html").read_text(encoding="utf-8")
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)", page)
    for said in (
        "Measured here",
        "Against the control",
        "Quoted from the paper",
        "Accuracy and distinctiveness",
        "<svg",
    ):
        assert said in page
    content = json.loads((place / "cl-table5" / "study.json").read_text())
    assert content == json.loads(json.dumps(table5.to_json()))


def test_finished_runs_are_taken_as_they_are(table5: Result, studying: Studying) -> None:
    given = table5.row("neuraltalk-mle").seeds[1].run.folder
    result = studying("cl-table1", use={"neuraltalk-mle": given})
    assert result.row("neuraltalk-mle").seeds[0].run.folder == given
    # Table 1 shares its other models with Table 5: nothing new is trained.
    assert result.row("adaptive-cl").seeds[0].run.folder == table5.row("adaptive-cl").seeds[0].run.folder
    assert "self_retrieval_R@5" in result.rows[0].seeds[0].figures
    assert quoted_rows(result)[0][1]["self_retrieval_R@1"] == pytest.approx(0.0002)


def test_a_study_that_was_interrupted_goes_on(
    studying: Studying, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before its third model, it finds the first two and gives what a study left alone gives."""
    real, calls = study_run.run_recipe, []

    def interrupted(*args: object) -> Run:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(study_run, "run_recipe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        studying("cl-table1", runs=tmp_path / "runs")
    assert len(list((tmp_path / "runs").iterdir())) == 2
    again, alone = studying("cl-table1", runs=tmp_path / "runs"), studying("cl-table1")
    assert len(list((tmp_path / "runs").iterdir())) == len(again.rows)
    for one, other in zip(alone.rows, again.rows, strict=True):
        assert [seed.figures for seed in one.seeds] == [seed.figures for seed in other.seeds]


def test_posts_of_people(tmp_path: Path) -> None:
    """Table 3 on data in InstaPIC's layout: one caption a picture, the paper's own text rule."""
    colours = ("red", "green", "blue", "white")
    for split, count in (("train", 40), ("test1", 4)):
        posts = {f"{n}": {"caption": f"my {colours[n % 4]} day! \U0001f600", "tags": []} for n in range(count)}
        path = tmp_path / "insta" / "json" / f"insta-caption-{split}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({f"user-{split}": posts}))
        for n in range(count):
            picture = tmp_path / "insta" / "images" / f"user-{split}_@_{n}.jpg"
            picture.parent.mkdir(exist_ok=True)
            Image.new("RGB", (64, 64), colours[n % 4]).save(picture)
    result = run_study(
        "cl-table3",
        str(tmp_path / "insta"),
        "smoke",
        out=tmp_path / "out",
        runs=tmp_path / "runs",
        prepared=tmp_path / "prepared",
    )
    assert [row.model.key for row in result.rows] == ["adaptive-mle", "adaptive-continued", "adaptive-cl"]
    recipe = result.rows[0].seeds[0].run.recipe
    assert recipe.data.normaliser == "alphabetic"
    assert "\U0001f600" in result.rows[0].seeds[0].run.captioner.vocabulary.tokens
    assert "CSMN" in (tmp_path / "out" / "table.md").read_text(encoding="utf-8")


def test_in_rounds_the_target_becomes_the_reference(studying: Studying) -> None:
    result = studying("cl-table6")
    first, second = (result.row(f"adaptive-round-{number}").seeds[0].run for number in (1, 2))
    upstreams = read_json(second.folder / "run.json")["made_from"]["upstreams"]
    assert upstreams == dict.fromkeys(("start", "reference"), model_digest(first.folder))
    assert first.recipe.training.monitor == "CIDEr"
    assert first.recipe.training.keep == "best"


def test_a_plan_comes_first(studying: Studying, table5: Result, capsys: pytest.CaptureFixture[str]) -> None:
    studying("cl-table5")
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "cl-table5: Which target, which reference?"
    assert [line for line in said if line.startswith("planned: ")]
    assert sum("2 updates, " in line for line in said) == len(table5.rows)


def test_mistakes_are_told(studying: Studying) -> None:
    with pytest.raises(RecipeError, match="there is no study 'cl-table9'; did you mean 'cl-table"):
        studying("cl-table9")
    with pytest.raises(
        RecipeError, match="--use adaptive-mla: cl-table4 has no such model; did you mean 'adaptive-mle'"
    ):
        studying("cl-table4", use={"adaptive-mla": Path("x")})
    with pytest.raises(RecipeError, match="there is no captioner 'adaptiv' to study; did you mean 'adaptive'"):
        studying("cl-table4", captioner="adaptiv")


def test_models_are_trained_after_those_they_need() -> None:
    models = [Model("b", "", "r", start="a", rate_of="c"), Model("c", "", "r", start="a"), Model("a", "", "r")]
    assert [model.key for model in in_training_order(models)] == ["a", "c", "b"]
    with pytest.raises(RecipeError, match="wait for one another: a"):
        in_training_order([Model("a", "", "r", start="a")])
