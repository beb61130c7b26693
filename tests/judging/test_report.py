"""The report: known answers give known figures, and only here A and B are told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from tellapart.data.records import Dataset
from tellapart.errors import DataError
from tellapart.judging.answers import Answers
from tellapart.judging.report import check_judge_report, judge_report, print_judge_report, write_judge_report
from tellapart.judging.trial import QUESTIONS, Choice, Trial

Side = Literal["a", "tie", "b"]


def choice(trial: Trial, rater: str, item: str, side: Side) -> Choice:
    """What this rater clicks to choose a system."""
    if side == "tie":
        return "tie"
    return "left" if (side == "a") == trial.a_is_left(rater, item) else "right"


@pytest.fixture
def answered(tmp_path: Path, trial: Trial) -> Path:
    """Three raters; all find B more informative, two of three more relevant; fluency is always equal."""
    path = tmp_path / "answers.jsonl"
    with Answers(path, trial) as answers:
        for rater in ("Anna", "Ben", "Carla"):
            for place in trial.asked(rater):
                item = trial.items[place].id
                relevant: Side = "a" if rater == "Carla" else "b"
                sides: dict[str, Side] = {"informativeness": "b", "relevance": relevant, "fluency": "tie"}
                for question, side in sides.items():
                    answers.put(rater, item, question, choice(trial, rater, item, side))
    return path


def test_the_figures_are_those_of_the_answers(answered: Path) -> None:
    found = judge_report(answered)
    assert (found.a, found.b, found.items, found.identical) == ("plain", "special", 8, 2)
    assert list(found.questions) == list(QUESTIONS)
    informative, relevant, fluent = found.questions.values()
    # Two of eight pictures have identical captions and are ties.
    assert (informative.win.mean, informative.tie.mean, informative.lose.mean) == pytest.approx((0, 2 / 8, 6 / 8))
    assert (relevant.win.mean, relevant.tie.mean, relevant.lose.mean) == pytest.approx((2 / 8, 2 / 8, 4 / 8))
    assert fluent.tie.mean == pytest.approx(1.0)
    assert (informative.items_won, informative.items_lost) == (0, 6)
    assert informative.p_value == pytest.approx(2 / 2**6)
    assert informative.corrected == pytest.approx(3 * 2 / 2**6)
    assert fluent.p_value == 1.0
    assert informative.kappa is None  # everybody said the same of everything
    assert informative.agreement == 1.0
    assert relevant.agreement == pytest.approx(1 / 3)
    assert relevant.kappa is not None
    assert relevant.kappa.mean == pytest.approx((1 / 3 - 5 / 9) / (1 - 5 / 9))
    assert {one.name: one.items for one in found.raters} == {"Anna": 6, "Ben": 6, "Carla": 6}


def test_a_changed_answer_counts_once(answered: Path, trial: Trial) -> None:
    before = judge_report(answered).questions["fluency"].answers
    with Answers(answered, trial) as answers:
        answers.put("Anna", "red.jpg", "fluency", choice(trial, "Anna", "red.jpg", "a"))
    after = judge_report(answered).questions["fluency"]
    assert after.answers == before == 18
    assert after.win.mean == pytest.approx(6 / 8 * 1 / 18)


def test_a_trial_that_is_not_finished_is_reported(tmp_path: Path, trial: Trial) -> None:
    path = tmp_path / "answers.jsonl"
    with Answers(path, trial) as answers:
        answers.put("Anna", "red.jpg", "fluency", choice(trial, "Anna", "red.jpg", "a"))
    found = judge_report(path)
    assert list(found.questions) == ["fluency"]
    assert found.questions["fluency"].win.mean == pytest.approx(6 / 8)
    assert found.raters[0].items == 0
    assert found.raters[0].answers == 1


def test_nobody_has_judged_yet(tmp_path: Path, trial: Trial) -> None:
    Answers(tmp_path / "answers.jsonl", trial).close()
    with pytest.raises(DataError, match="nobody has judged"):
        judge_report(tmp_path / "answers.jsonl")


def test_the_report_is_a_table_json_and_a_page(
    answered: Path, tmp_path: Path, dataset: Dataset, trial: Trial, capsys: pytest.CaptureFixture[str]
) -> None:
    found = judge_report(answered)
    print_judge_report(found)
    table = capsys.readouterr().out
    assert "special wins, %" in table
    assert "75.0 [" in table
    for name in ("report.json", "report.html"):
        path = tmp_path / name
        check_judge_report(path, [answered])
        write_judge_report(found, answered, path, dataset)
        check_judge_report(path, [answered])  # it may be written again
    figures = json.loads((tmp_path / "report.json").read_text())
    assert figures["questions"]["informativeness"]["lose"]["mean"] == 0.75
    page = (tmp_path / "report.html").read_text()
    assert "Where special won most clearly" in page
    assert page.count("data:image/jpeg") == 6
    assert trial.secret not in page + json.dumps(figures)
    with pytest.raises(DataError, match="ending"):
        check_judge_report(tmp_path / "report.pdf", [])
    with pytest.raises(DataError, match="is an input"):
        check_judge_report(answered.with_suffix(".json"), [answered.with_suffix(".json")])
