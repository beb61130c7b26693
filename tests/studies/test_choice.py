"""The best arm is chosen on another split than the one reported, among those that keep what the control has."""

from __future__ import annotations

import pytest

from tellapart.studies.base import Arm, Choice
from tellapart.studies.choice import choose_by

CONTROL = Arm("control", "control", "r", start="mle")
OTHERS = [Arm(key, key, "r", start="mle", control="control") for key in ("honest", "careless", "dull")]
ARMS = (Arm("mle", "MLE", "r", control="control"), CONTROL, *OTHERS)
RULE = Choice("val", ("true_R", "R"), {"truth": 0.99, "CIDEr": 0.97})


def figures(**true: float) -> dict[str, dict[str, float]]:
    """Those of all arms: the best one loses truth, the start would be better than all."""
    found = {
        "mle": {"R": 0.99, "truth": 1.0, "CIDEr": 1.0},
        "control": {"R": 0.50, "truth": 0.90, "CIDEr": 1.00},
        "honest": {"R": 0.55, "truth": 0.90, "CIDEr": 0.98},
        "careless": {"R": 0.70, "truth": 0.80, "CIDEr": 1.00},
        "dull": {"R": 0.40, "truth": 0.95, "CIDEr": 1.10},
    }
    return {key: {**one, **({"true_R": true[key]} if true else {})} for key, one in found.items()}


def test_the_best_of_those_that_keep_enough() -> None:
    chosen = choose_by(RULE, ARMS, figures())
    assert (chosen.key, chosen.by, chosen.split) == ("honest", "R", "val")
    assert chosen.left_out == {"careless": "truth 0.800, control 0.900"}
    assert list(chosen.means) == ["control", "honest", "careless", "dull"], "the start of all arms is not a candidate"


def test_the_first_figure_that_was_measured_decides() -> None:
    chosen = choose_by(RULE, ARMS, figures(mle=0.9, control=0.3, honest=0.2, careless=0.8, dull=0.4))
    assert (chosen.key, chosen.by) == ("dull", "true_R")
    assert chosen.means["dull"] == {"true_R": 0.4, "R": 0.40, "truth": 0.95, "CIDEr": 1.10}


@pytest.mark.parametrize("lost", [{"truth": 0.0}, {"CIDEr": 0.0}])
def test_the_control_is_chosen_if_no_other_arm_keeps_enough(lost: dict[str, float]) -> None:
    found = {key: one | (lost if key in ("honest", "careless", "dull") else {}) for key, one in figures().items()}
    chosen = choose_by(RULE, ARMS, found)
    assert chosen.key == "control"
    assert set(chosen.left_out) == {"honest", "careless", "dull"}


def test_an_arm_without_truth_has_kept_none() -> None:
    found = figures()
    del found["honest"]["truth"]
    assert choose_by(RULE, ARMS, found).left_out["honest"] == "truth 0.000, control 0.900"
