"""COCO's server: result files, and scores against 5 and 40 captions per image."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tellapart.data.records import Dataset, Record
from tellapart.metrics import evaluate
from tellapart.studies.base import find_study
from tellapart.studies.measure_server import ServerMeasure, server_figures


def records(captions: int) -> list[Record]:
    things = ("dog", "bus")
    return [
        Record(f"00{7 + i}", f"{i}.jpg", "test", tuple(f"a {thing} number {n}" for n in range(captions)))
        for i, thing in enumerate(things)
    ]


def test_c40_needs_more_than_five_captions() -> None:
    few, many = (server_figures(records(count), ["a dog number 9", "a big bus"]) for count in (5, 41))
    assert set(few) == {f"C5 {name}" for name in ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr")} | (
        {"C5 METEOR"} & set(few)
    )
    assert few["C5 Bleu_1"] == many["C5 Bleu_1"]
    assert many["C40 Bleu_4"] > many["C5 Bleu_4"]  # the tenth caption is the same
    references = {record.id: record.captions[:40] for record in records(41)}
    candidates = {"007": "a dog number 9", "008": "a big bus"}
    assert many["C40 CIDEr"] == evaluate(references, candidates, metrics=["cider"]).corpus["CIDEr"]


def rows(records: list[Record]) -> list[Any]:
    """Two seeds of one arm that say the same; what `finish` reads of them."""
    dataset = Dataset("two", Path(), tuple(records))
    said = [{"caption": "a dog number 9"}, {"caption": "a big bus"}]

    def seed() -> Any:
        run, evaluation = SimpleNamespace(data=SimpleNamespace(dataset=dataset)), SimpleNamespace(rows=said)
        return SimpleNamespace(run=run, evaluation=evaluation, figures={})

    return [SimpleNamespace(arm=SimpleNamespace(key="adaptive-cl"), seeds=[seed(), seed()], values=lambda _: [])]


def test_result_files_have_the_images_own_ids(tmp_path: Path) -> None:
    named = [
        Record("COCO_val2014_000000391895", "val2014/COCO_val2014_000000391895.jpg", "test", ("a dog",)),
        Record("x", "x.jpg", "test", ("a bus",), cocoid=7),
    ]
    more = ServerMeasure(find_study("cl-table2")).finish(rows(named), tmp_path)
    assert "no_server_files" not in more
    names = [f"captions_test2014_adaptive-cl{seed}_results.json" for seed in ("", "-seed1")]
    assert sorted(path.name for path in (tmp_path / "server").iterdir()) == sorted(names)
    for name in names:
        assert json.loads((tmp_path / "server" / name).read_text()) == [
            {"image_id": 391895, "caption": "a dog number 9"},
            {"image_id": 7, "caption": "a big bus"},
        ]


def test_without_coco_ids_the_study_says_so_and_writes_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure, of_arm = ServerMeasure(find_study("cl-table2")), rows(records(1))
    more = measure.finish(of_arm, tmp_path)
    line = more["no_server_files"]
    assert line.startswith("No result files for the COCO server: 0.jpg: this image has no COCO id")
    assert "\n" not in line
    assert capsys.readouterr().err == line + "\n"
    assert list(tmp_path.iterdir()) == []
    assert "C5 CIDEr" in of_arm[0].seeds[0].figures, "the figures need no ids"
    result: Any = SimpleNamespace(more={**more, "correlation": None}, study=measure.study)
    assert measure.conclusion(result) == [line], "the table has the line too"
