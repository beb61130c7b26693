"""How rows are compared and shown: corrected p values, tables without empty columns, people's captions, plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tellapart.metrics import PairedDifference, holm
from tellapart.studies.base import Arm, find_study
from tellapart.studies.columns import Column
from tellapart.studies.forest import compared_names, forest
from tellapart.studies.measure import measure_of
from tellapart.studies.measure_captions import CaptionMeasure, correlations
from tellapart.studies.page import difference_tables, explanation, study_table
from tellapart.studies.result import ArmResult, Result, SeedResult

TINY = (
    "data.scenes.train=12",
    "data.scenes.val=8",
    "data.scenes.test=8",
    "data.min_count=1",
    "training.steps=2",
    "training.epochs=null",
    "training.validate_every=1",
    "training.images_per_batch=4",
    "training.log_every=1",
    "decoding.max_words=4",
)
Studying = Callable[..., Result]
MLE, CONTROL = Arm("mle", "Adaptive, MLE", "r"), Arm("control", "Adaptive, continued", "r", start="mle", control="mle")
TREATED = [Arm(f"cl-{n}", f"Adaptive, CL {n}", "r", start="mle", control="control") for n in range(3)]


def row(arm: Arm, *seeds: dict[str, float]) -> ArmResult:
    """A row of these figures; its run is never opened."""
    return ArmResult(arm, [SeedResult(None, None, figures) for figures in seeds])  # type: ignore[arg-type]


def difference(value: float, p: float, resampled: Any = "seeds and images") -> PairedDifference:
    return PairedDifference(0.5, 0.5 + value, value, value - 0.04, value + 0.04, p, resampled)


def made_up(differences: dict[str, dict[str, PairedDifference]], rows: Sequence[ArmResult]) -> Result:
    return Result(
        study=find_study("cl-table4"),
        data="scenes",
        budget="smoke",
        images={"captioned": 8, "ranked": 8},
        rows=list(rows),
        differences=differences,
        searches={},
        more={"correlations": correlations(rows)},
    )


@pytest.fixture
def result() -> Result:
    figures = {"self_retrieval_R@1": 0.5, "under_judge_R@1": 0.4, "CIDEr": 1.0}
    treated = [row(arm, figures, {**figures, "truth": 0.9}) for arm in TREATED]
    differences = {
        "control": {"self_retrieval_R@1": difference(0.01, 0.6)},
        "cl-0": {"self_retrieval_R@1": difference(0.1, 0.0002), "CIDEr": difference(0.1, 0.01)},
        "cl-1": {"self_retrieval_R@1": difference(-0.1, 0.0002), "CIDEr": difference(0.05, 0.03)},
        "cl-2": {"CIDEr": difference(0.05, 0.03)},
    }
    return made_up(differences, [row(MLE, figures, figures), row(CONTROL, figures, figures), *treated])


def test_p_values_are_corrected_over_all_rows_and_figures(result: Result) -> None:
    raw = {(key, name): one.p_value for key, of in result.differences.items() for name, one in of.items()}
    assert len(raw) == 6
    assert result.corrected == holm(raw)
    significant = {place for place in raw if result.significant(*place)}
    assert significant == {("cl-0", "self_retrieval_R@1"), ("cl-1", "self_retrieval_R@1"), ("cl-0", "CIDEr")}
    written = json.loads(json.dumps(result.differences_to_json()))["cl-0"]["CIDEr"]
    assert written["corrected_p_value"] == pytest.approx(0.04)
    assert (written["p_value"], written["against"], written["resampled"]) == (0.01, "control", "seeds and images")


def test_difference_tables_have_interval_and_corrected_p(result: Result) -> None:
    tables = {column.heading: rows for column, rows in difference_tables(result)}
    assert list(tables) == ["R@1, own model", "CIDEr"]
    label, against = "Adaptive, CL 0", "Adaptive, continued"
    assert tables["R@1, own model"][1] == [label, against, "+10.0", "[+6.0, +14.0]", "0.001 *"]
    assert tables["CIDEr"][0] == [label, against, "+0.100", "[+0.060, +0.140]", "0.040 *"]
    # The interval excludes 0, but after the correction this is no difference.
    assert tables["CIDEr"][2] == ["Adaptive, CL 2", against, "+0.050", "[+0.010, +0.090]", "0.090"]
    assert "cover seeds and images" in explanation(result)
    assert "all 6 comparisons" in explanation(result)
    one_seed = made_up({"cl-0": {"CIDEr": difference(0.1, 0.01, "images")}}, [result.rows[0], *result.rows[1:]])
    assert "cover images only: there is one seed" in explanation(one_seed)


def test_columns_without_a_value_are_left_out(result: Result) -> None:
    table = study_table(result)
    first = next(line for line in table.splitlines() if line.startswith("|  |"))
    assert first == "|  | R@1, own model | R@1, frozen start | truth | CIDEr |"
    assert "Further figures" not in table  # nothing else was measured
    assert "| Adaptive, CL 0 | 50.0 ± 0.0 % | 40.0 ± 0.0 % | 90.0 % | 1.000 ± 0.000 |" in table
    assert "| Adaptive, MLE | 50.0 ± 0.0 % | 40.0 ± 0.0 % | – | 1.000 ± 0.000 |" in table


def test_forest_plot_has_a_panel_per_figure(result: Result) -> None:
    columns = [Column("self_retrieval_R@1", "R@1", "percent"), Column("truth", "truth"), Column("CIDEr", "CIDEr")]
    drawn = forest(result, columns)
    assert drawn.startswith("<svg")
    for text, there in (("R@1", True), ("CIDEr", True), ("truth", False)):
        assert (f"<!-- {text} -->" in drawn) == there
    assert compared_names(result) == ["continued, against MLE", "CL 0", "CL 1", "CL 2"]
    assert forest(replace(result, differences={}), columns) == ""


def test_correlations_draw_whole_arms() -> None:
    def seeds(n: int) -> list[dict[str, float]]:
        return [{"self_retrieval_R@1": 0.1 * n + 0.01 * k, "CIDEr": 0.1 * n + 0.02 * k} for k in range(2)]

    rows = [row(Arm(f"{n}", f"{n}", "r"), *seeds(n)) for n in range(5)]
    found = correlations(rows)
    assert set(found) == {"self_retrieval_R@1"}
    one = found["self_retrieval_R@1"]
    x, y = ([value for of in rows for value in of.values(name)] for name in ("self_retrieval_R@1", "CIDEr"))
    assert one["correlation"] == pytest.approx(np.corrcoef(x, y)[0, 1], rel=1e-9)
    assert one["low"] <= one["correlation"] <= one["high"]
    assert correlations(rows[:2]) == {}  # two arms show no tendency
    lines = CaptionMeasure(find_study("cl-table4")).conclusion(made_up({}, rows))
    assert lines[2].startswith("- R@1, own model: +")


def test_only_figures_of_both_rows_are_compared(studying: Studying) -> None:
    measured = studying("cl-table1", seeds=2)
    figures = {column.figure for column in measure_of(measured.study).compared}
    assert set(measured.differences["adaptive-cl"]) == figures & set(measured.row("adaptive-cl").seeds[0].figures)
    assert {"true_listener_R@1", "under_listener_R@1"} <= set(measured.differences["adaptive-cl"])
    # People have no model of their own.
    assert set(measured.differences["adaptive-cl"]) - set(measured.differences["people"]) == {"self_retrieval_R@1"}


def test_people_are_a_row(studying: Studying, place: Path) -> None:
    """Seed k is people's caption k; they are read by the frozen start and compared with the control."""
    measured = studying("cl-table1", seeds=2)
    people = measured.people
    assert people is not None
    assert people.arm.control == "adaptive-continued"
    for choice, (one, start) in enumerate(zip(people.seeds, measured.row("adaptive-mle").seeds, strict=True)):
        assert one.run.folder == start.run.folder
        records = one.run.data.dataset.split("test")
        assert [row["caption"] for row in one.evaluation.rows] == [record.captions[choice] for record in records]
        assert one.figures["truth"] == 1.0
    written = json.loads((place / "cl-table1" / "study.json").read_text())
    assert len(written["people"]["figures"]) == 2
    assert "people" not in written["rows"]
    table = (place / "cl-table1" / "table.md").read_text(encoding="utf-8").splitlines()
    last = max(place for place, line in enumerate(table) if line.startswith("| people's captions | – |"))
    assert table[last - 1].startswith("| AdaptiveAttention, CL |")
    assert "people&#39;s captions" in (place / "cl-table1" / "study.html").read_text(encoding="utf-8")


def test_people_need_two_captions_of_each_image(studying: Studying, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = studying("cl-table1", seeds=2)
    measure = measure_of(measured.study)
    assert measure.people([replace(one, arm=replace(one.arm, control=None)) for one in measured.rows]) is None
    run = measured.rows[0].seeds[0].run
    records = [replace(record, captions=record.captions[:1]) for record in run.data.dataset.split("test")]
    monkeypatch.setattr(type(run.data.dataset), "split", lambda self, name: records)
    assert measure.people(measured.rows) is None


def test_retriever_studies_have_no_people() -> None:
    measure = measure_of(find_study("coder-table2"))
    assert measure.people([]) is None
    assert [column.figure for column in measure.compared] == ["image_to_text_R@1", "text_to_image_R@1", "R@sum"]
