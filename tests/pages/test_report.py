"""Pieces of the report that no training needs to be run for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tellapart.data.records import Record
from tellapart.evaluation.compare import ComparedRun
from tellapart.evaluation.evaluate import Evaluation
from tellapart.pages.base import curves
from tellapart.pages.caption_gallery import caption_gallery


def test_curves_of_a_model_that_was_only_measured() -> None:
    svg = curves({"as it comes": [{"step": 0, "split": "val", "loss": 1.5, "log_ratio_positive": 0.1}]})
    assert svg.startswith("<svg")
    assert "#000000" not in svg, "black is the colour of the page's text, which is light on a dark screen"


def compared(label: str, ranks: list[int], agreement: list[float]) -> ComparedRun:
    rows: list[dict[str, Any]] = [
        {"id": f"{place}", "caption": f"{label} {place}", "rank": rank, "CIDEr": cider}
        for place, (rank, cider) in enumerate(zip(ranks, agreement, strict=True))
    ]
    return ComparedRun(label, None, Evaluation(label, Path(), "test", {}, {}, rows))  # type: ignore[arg-type]


def test_the_gallery_has_the_pictures_of_each_kind_in_order() -> None:
    before = compared("MLE", [9, 1, 2, 5, 1], [0.0] * 5)
    after = compared("CL", [1, 3, 2, 1, 9], [0.5, 2.0, 0.3, 0.9, 0.1])
    records = [Record(f"{place}", f"{place}.png", "test", (f"people {place}",)) for place in range(5)]
    cards = caption_gallery((before, after), records, {f"{place}": f"picture {place}" for place in range(5)})  # type: ignore[arg-type]
    order = {
        kind: [
            card["picture"][-1]
            for card in sorted(cards, key=lambda card: card["places"].get(kind, 0))
            if kind in card["places"]
        ]
        for kind in ("improved", "worse", "best", "worst")
    }
    assert order["improved"] == ["0", "3"], "by the gain in rank; an unchanged rank is no gain"
    assert order["worse"] == ["4", "1"]
    assert order["best"] == ["3", "0", "2", "1", "4"], "by rank, then by the agreement with people's captions"
    assert order["worst"] == ["4", "1", "2", "0", "3"]
    says = next(card["says"] for card in cards if card["picture"].endswith("0"))
    assert [(one["label"], one["caption"], one["rank"]) for one in says] == [
        ("MLE", "MLE 0", 9),
        ("CL", "CL 0", 1),
        ("people", "people 0", None),
    ]
