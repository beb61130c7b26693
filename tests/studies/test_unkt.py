"""The studies of the UNKT paper: matched arms, D⁻ and D⁺, and n captions per image."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.smoke import check_smoke, run_smoke
from tellapart.data.settings import DataSettings
from tellapart.errors import RecipeError
from tellapart.evaluation.many_captions import DIVERSITY, ManyCaptionsScorer
from tellapart.files import read_jsonl
from tellapart.recipe_files import BUDGETS, recipes_folder
from tellapart.run import open_run
from tellapart.studies.base import all_studies, find_study
from tellapart.studies.measure import measure_of
from tellapart.studies.measure_unkt import DIVERSITY as COMPARED
from tellapart.studies.measure_unkt import MATCHED
from tellapart.studies.result import Result
from tellapart.studies.run import ArmTrainer

TINY = (
    "data.scenes.train=12",
    "data.scenes.val=4",
    "data.scenes.test=4",
    "data.min_count=1",
    "training.steps=2",
    "training.epochs=null",
    "training.validate_every=2",
    "training.images_per_batch=6",
    "training.log_every=1",
    "decoding.max_words=4",
    "decoding.min_words=1",
)
NAMES = [name for name in all_studies() if name.startswith("unkt-")]
TABLES = ("table1", "table2", "table3", "table4", "table5", "table6", "table8")
Studying = Callable[..., Result]
Written = Callable[[Result], tuple[str, str]]


def test_every_study_is_there() -> None:
    assert [*(f"unkt-{table}" for table in TABLES), "unkt-figure2"] == NAMES


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("captioner", ["transformer", "meshed", "updown"])
def test_arms_differ_from_the_control_in_the_treatment_only(captioner: str, budget: str) -> None:
    for table in ("table3", "table4", "table5", "table6", "table8"):
        study = find_study(f"unkt-{table}")
        arms = study.arms(captioner)
        trainer = ArmTrainer(
            study=study,
            recipes=recipes_folder() / "coco",
            data=DataSettings(source="scenes"),
            budget=budget,
            runs=Path(),
            use={},
            overrides=(),
        )
        found = trainer.treatments(arms)
        for arm in arms:
            if arm.key in found:
                parts = {difference.key.split(".")[0] for difference in found[arm.key]}
                assert parts <= ({"data"} if table == "table4" else {"objective", "roles", "negatives"}) or (
                    parts == {"data"} and "positive" in arm.key
                )
                assert not any(difference.why for difference in found[arm.key])


@pytest.fixture(scope="module")
def table4(studying: Studying) -> Result:
    return studying("unkt-table4")


def test_two_halves_of_the_captions(table4: Result, written: Written) -> None:
    table, page = written(table4)
    assert "0.180" in table, "the paper's Div-1 of its negative teacher"
    assert "Quality and diversity" in page
    generic, specific = (open_run(row.seeds[0].run.folder).recipe for row in table4.rows)
    assert (generic.data.captions, specific.data.captions) == ("generic", "specific")
    judges = [
        [open_run(place).recipe.data.half for place in recipe.roles["entropy"].places] for recipe in (generic, specific)
    ]
    assert judges == [[1, 2], [1, 2]]
    assert generic.roles == specific.roles
    assert table4.treatments == {
        "transformer-unkt-positive-teacher": ["data.captions: specific, control generic"],
    }


def test_n_captions_of_each_image(table4: Result) -> None:
    for row in table4.rows:
        one = row.seeds[0]
        rows = read_jsonl(one.run.folder / "many-captions" / "test-20-sample-1.jsonl", "captions")
        assert len(rows) == 20 * table4.images["captioned"]
        figures = one.figures
        assert 0 <= figures["best_5_Div_1"] <= 1
        assert figures["oracle_20_CIDEr"] >= figures["best_5_mean_CIDEr"]
    compared = table4.differences["transformer-unkt-positive-teacher"]
    assert {"best_5_Div_1", "oracle_20_CIDEr", "CIDEr"} <= set(compared)
    assert {name.removeprefix(MATCHED) for name in compared if name.startswith(MATCHED)} <= set(DIVERSITY)


def test_n_captions_of_the_first_images_only(
    studying: Studying, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []
    measure = ManyCaptionsScorer.measure
    monkeypatch.setattr(
        ManyCaptionsScorer, "measure", lambda self, run: limits.append(self.images) or measure(self, run)
    )
    result = studying("unkt-table4", diversity_images=3, out=tmp_path)
    assert set(limits) == {3}, "also for the page"
    assert result.images == {"captioned": 4, "ranked": 4, "with_many_captions": 3}
    table, page = ((tmp_path / name).read_text(encoding="utf-8") for name in ("table.md", "study.html"))
    assert "Several captions of 3 images." in table
    assert "20 captions of each of 3 pictures" in page
    key = "transformer-unkt-positive-teacher"
    one, control = result.row(key).seeds[0], result.rows[0].seeds[0]
    rows = read_jsonl(one.run.folder / "many-captions" / "test-first-3-20-sample-1.jsonl", "captions")
    assert {row["id"] for row in rows} == {record.id for record in one.run.data.dataset.split("test")[:3]}
    for figure in ("best_5_Div_1", "oracle_20_CIDEr"):
        assert one.statistics[figure].figure == pytest.approx(one.figures[figure], rel=1e-5)
        difference = result.differences[key][figure]
        assert difference.difference == pytest.approx(one.figures[figure] - control.figures[figure], abs=1e-5)


def test_one_caption_of_each_image_has_no_limit(studying: Studying) -> None:
    with pytest.raises(RecipeError, match="--diversity-images: cl-table4 measures one caption of each image"):
        studying("cl-table4", diversity_images=2)


def test_curves_are_kept_and_rows_that_cannot_be_compared_are_named(table4: Result) -> None:
    curves = json.loads(json.dumps(table4.to_json()))["curves"]
    for row in table4.rows:
        (seed,) = curves[row.arm.key]
        assert set(seed) == set(COMPARED)
        temperatures, qualities, diversities = zip(*seed["Div_1"], strict=True)
        assert temperatures == (0.4, 0.6, 0.8, 1.0, 1.2)
        assert qualities[3] == row.seeds[0].figures["best_5_mean_CIDEr"]
        assert diversities[3] == row.seeds[0].figures["best_5_Div_1"]
    key = "transformer-unkt-positive-teacher"
    without = {name: one for name, one in table4.differences[key].items() if not name.startswith(MATCHED)}
    measure = measure_of(table4.study)
    found = measure.conclusion(replace(table4, differences={**table4.differences, key: without}))
    assert any(line.startswith(f"{table4.row(key).arm.label}: its samples and those of its control") for line in found)


def test_an_lstm_and_the_best_of_more_and_more(studying: Studying, place: Path) -> None:
    result = studying("unkt-figure2", captioner="adaptive")
    student = result.row("adaptive-unkt").seeds[0].run.recipe
    assert student.objective["name"] == "negative-teacher"
    assert not student.objective["self_attention"]
    assert open_run(student.roles["negative_teacher"].places[0]).recipe.data.captions == "generic"
    for row in result.rows:
        best = [row.mean(f"oracle_{count}_CIDEr") for count in (1, 5, 10, 20, 50, 100)]
        assert None not in best
        assert (np.diff(np.array(best, float)) >= 0).all()
    page = (place / "unkt-figure2" / "study.html").read_text(encoding="utf-8")
    assert "The best of more captions" in page


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_to_the_end(name: str, place: Path) -> None:
    """As in test_smoke.py; here, so that arms and retrievers are those of the other tests."""
    check_smoke(name, run_smoke(name, place, TINY))
