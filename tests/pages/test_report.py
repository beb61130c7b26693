"""Pieces of the report that no evaluation needs to be run for."""

from __future__ import annotations

from tellapart.pages.base import curves


def test_curves_of_a_model_that_was_only_measured() -> None:
    svg = curves({"as it comes": [{"step": 0, "split": "val", "loss": 1.5, "log_ratio_positive": 0.1}]})
    assert svg.startswith("<svg")
