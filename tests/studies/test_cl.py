"""The studies of the CL paper: what is trained, what is measured, and that an interrupted study continues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tellapart.errors import RecipeError
from tellapart.files import read_json, read_jsonl
from tellapart.metrics import paired_bootstraps_over_seeds
from tellapart.models import model_digest
from tellapart.recipe_files import BUDGETS, read_recipe, recipes_folder
from tellapart.run import Run
from tellapart.studies import run as study_run
from tellapart.studies.base import Arm, all_studies, find_study
from tellapart.studies.page import quoted_rows
from tellapart.studies.result import Result
from tellapart.studies.run import in_training_order

# Few scenes and short trainings, so that a study takes seconds; the captioners are those of the recipes.
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
Written = Callable[[Result], tuple[str, str]]


@pytest.fixture(scope="module")
def table5(studying: Studying) -> Result:
    return studying("cl-table5", seeds=2)


@pytest.mark.parametrize("name", [name for name in all_studies() if name.startswith("cl-")])
@pytest.mark.parametrize("captioner", ["adaptive", "neuraltalk"])
def test_every_study_has_a_control_for_its_claims_and_recipes_at_every_budget(name: str, captioner: str) -> None:
    study = find_study(name)
    arms = {arm.key: arm for arm in study.arms(captioner)}
    assert any("MLE continued" in arm.label for arm in arms.values())
    for arm in arms.values():
        for needed in (arm.start, *arm.roles.values(), arm.control, arm.rate_of):
            assert needed is None or needed in arms
        if arm.start is not None and "continued" not in arm.key:
            assert arm.control is not None
            assert "continued" in arm.control
        for family in ("scenes", "flickr8k", "coco") if name != "cl-table3" else ("instapic",):
            budgets = read_recipe(recipes_folder() / family / f"{arm.recipe}.yaml")["budgets"]
            assert {"laptop", *budgets} == set(BUDGETS)


def test_each_row_is_trained_from_its_start_and_roles(table5: Result) -> None:
    for seed in range(2):
        digest = {row.arm.key: model_digest(row.seeds[seed].run.folder) for row in table5.rows}
        assert len(set(digest.values())) == len(digest)
        for row in table5.rows:
            made_from = read_json(row.seeds[seed].run.folder / "run.json")["made_from"]["upstreams"]
            expected = {"start": row.arm.start, **row.arm.roles}
            assert made_from == {role: digest[key] for role, key in expected.items() if key is not None}
            assert row.seeds[seed].run.recipe.seed == seed
    crossed = table5.row("neuraltalk-cl-adaptive").seeds[0].run.recipe
    assert crossed.captioner["name"] == "neuraltalk"
    assert crossed.captioner["dropout"] == 0


def test_figures_are_means_over_seeds_and_differences_are_resampled_over_seeds_and_images(table5: Result) -> None:
    row, control = table5.row("adaptive-cl"), table5.row("adaptive-continued")
    assert row.arm.control == "adaptive-continued"
    per_image = {}
    for of in (row, control):
        files = [read_jsonl(one.run.folder / "per_image-val.jsonl") for one in of.seeds]
        per_image[of.arm.key] = [
            {
                "CIDEr": np.array([line["CIDEr"] for line in lines]),
                "self_retrieval_R@1": np.array([line["rank"] == 1 for line in lines]),
                "under_judge_R@1": np.array([line["rank_under_judge"] == 1 for line in lines]),
            }
            for lines in files
        ]
        expected = [read_json(one.run.folder / "scores-val.json")["corpus"]["CIDEr"] for one in of.seeds]
        assert of.mean("CIDEr") == pytest.approx(np.mean(expected))
        assert of.deviation("CIDEr") == pytest.approx(np.std(expected, ddof=1))
    records = row.seeds[0].run.data.dataset.split("val")
    families = np.unique([record.family or record.id for record in records], return_inverse=True)[1]
    differences = paired_bootstraps_over_seeds(
        per_image["adaptive-continued"], per_image["adaptive-cl"], groups=families
    )
    for figure, expected_difference in differences.items():
        found = table5.differences["adaptive-cl"][figure]
        assert found.resampled == "seeds and images"
        assert (found.difference, found.low, found.high) == pytest.approx(
            (expected_difference.difference, expected_difference.low, expected_difference.high), rel=1e-6, abs=1e-9
        )
        assert found.p_value == pytest.approx(expected_difference.p_value, abs=1e-3)


def test_the_judge_is_the_mle_model_that_training_started_from(table5: Result) -> None:
    own = table5.row("neuraltalk-mle").seeds[0]
    assert own.figures["under_judge_R@1"] == own.figures["self_retrieval_R@1"]
    crossed = table5.row("neuraltalk-cl-adaptive").seeds[0]
    judges = {read_json(path)["judge"] for path in own.run.folder.glob("ranks/*.json")}
    assert judges == {own.run.recipe.name}
    scores = read_json(crossed.run.folder / "scores-val.json")
    assert scores["judge"] == own.run.recipe.name


def test_table_and_page_show_measured_and_quoted_figures(table5: Result, written: Written) -> None:
    table, page = written(table5)
    assert "Dai and Lin, NIPS 2017, Table 5" in table
    assert "| target NeuralTalk2, reference AdaptiveAttention | 0.716 | 0.547 |" in table
    assert "mean ± standard deviation over 2 seeds" in table
    assert "Accuracy and distinctiveness" in page


def test_finished_runs_are_used(table5: Result, studying: Studying) -> None:
    given = table5.row("neuraltalk-mle").seeds[1].run.folder
    result = studying("cl-table1", use={"neuraltalk-mle": given})
    assert result.row("neuraltalk-mle").seeds[0].run.folder == given
    # Table 1 shares its other arms with Table 5, so nothing new is trained.
    assert result.row("adaptive-cl").seeds[0].run.folder == table5.row("adaptive-cl").seeds[0].run.folder
    assert "self_retrieval_R@5" in result.rows[0].seeds[0].figures
    assert quoted_rows(result)[0][1]["self_retrieval_R@1"] == pytest.approx(0.0002)


def test_an_interrupted_study_continues(studying: Studying, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped before the third arm, it finds the first two and gives the same figures as without a stop."""
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
    continued, whole = studying("cl-table1", runs=tmp_path / "runs"), studying("cl-table1")
    assert len(list((tmp_path / "runs").iterdir())) == len(continued.rows) + 1  # and the listener
    for one, other in zip(whole.rows, continued.rows, strict=True):
        assert [seed.figures for seed in one.seeds] == [seed.figures for seed in other.seeds]


def test_in_rounds_the_target_becomes_the_reference(studying: Studying) -> None:
    result = studying("cl-table6")
    first, second = (result.row(f"adaptive-round-{number}").seeds[0].run for number in (1, 2))
    upstreams = read_json(second.folder / "run.json")["made_from"]["upstreams"]
    assert upstreams == dict.fromkeys(("start", "reference"), model_digest(first.folder))
    assert first.recipe.training.monitor == "CIDEr"
    assert first.recipe.training.keep == "best"


def test_the_plan_is_printed_first(
    studying: Studying, table5: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    studying("cl-table5", out=tmp_path)
    printed = capsys.readouterr().err.splitlines()
    assert printed[0] == "cl-table5: Which target, which reference?"
    assert [line for line in printed if line.startswith("planned: ")]
    assert sum("2 updates, " in line for line in printed) == len(table5.rows)


def test_errors(studying: Studying) -> None:
    with pytest.raises(RecipeError, match="there is no study 'cl-table9'; did you mean 'cl-table"):
        studying("cl-table9")
    with pytest.raises(RecipeError, match="--use adaptive-mla: cl-table4 has no such arm; did you mean 'adaptive-mle'"):
        studying("cl-table4", use={"adaptive-mla": Path("x")})
    with pytest.raises(RecipeError, match="--set adaptive-mla: cl-table4 has no such arm; did you mean 'adaptive-mle'"):
        studying("cl-table4", overrides=["adaptive-mla:training.steps=1"])
    with pytest.raises(RecipeError, match="there is no captioner 'adaptiv' to study; did you mean 'adaptive'"):
        studying("cl-table4", captioner="adaptiv")


def test_arms_are_trained_after_those_they_need() -> None:
    arms = [Arm("b", "", "r", start="a", rate_of="c"), Arm("c", "", "r", start="a"), Arm("a", "", "r")]
    assert [[arm.key for arm in level] for level in in_training_order(arms)] == [["a"], ["c"], ["b"]]
    with pytest.raises(RecipeError, match="depend on each other: a"):
        in_training_order([Arm("a", "", "r", start="a")])
