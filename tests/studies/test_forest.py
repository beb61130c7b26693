"""Colours of differences: a better rank is a lower one."""

from __future__ import annotations

import pytest

from tellapart.studies.columns import Column
from tellapart.studies.forest import BETTER, WORSE, colour_of


@pytest.mark.parametrize(
    ("figure", "difference", "colour"),
    [
        ("CIDEr", 0.1, BETTER),
        ("CIDEr", -0.1, WORSE),
        ("under_judge_mean_rank", 1.2, WORSE),
        ("under_judge_mean_rank", -1.2, BETTER),
        ("mBLEU_4_sentence", 0.1, WORSE),
        ("mBLEU_4_sentence_at_equal_quality", -0.1, BETTER),
    ],
)
def test_a_lower_rank_is_better(figure: str, difference: float, colour: str) -> None:
    assert colour_of(Column(figure, figure), difference) == colour
