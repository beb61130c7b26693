"""COCO's server: result files, and scores against 5 and 40 captions per image."""

from __future__ import annotations

from tellapart.data.records import Record
from tellapart.metrics import evaluate
from tellapart.studies.measure_server import server_figures, server_results


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


def test_ids_are_numbers() -> None:
    assert [row["image_id"] for row in server_results(records(1), ["a", "b"])] == [7, 8]
    named = [Record("a.jpg", "a.jpg", "test", ()), Record("7", "b.jpg", "test", ())]
    assert [row["image_id"] for row in server_results(named, ["a", "b"])] == [1, 2]
