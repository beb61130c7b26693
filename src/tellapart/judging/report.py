"""What people's judgements say: win rates with intervals, the sign test, agreement; as a table, JSON and a page.

Only here is it looked up whose caption was chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tellapart.data.images import load_image
from tellapart.data.records import Dataset
from tellapart.errors import DataError
from tellapart.files import GENERATOR, check_output, write_json, write_text
from tellapart.judging.answers import Answer, latest_answers, read_answers
from tellapart.judging.trial import QUESTIONS, Trial, rater_key
from tellapart.metrics.agreement import answer_rates, sign_test
from tellapart.metrics.bootstrap import LEVEL, Interval, holm
from tellapart.pages.base import data_address, render
from tellapart.terminal import print_table

# Numbers of the answers in arrays; -1 is no answer.
OUTCOMES = ("a", "tie", "b")
WIN, TIE, LOSE = range(3)
# Pictures that the page shows of each kind.
EXAMPLES = 6
ENDINGS = (".json", ".html")


@dataclass(frozen=True)
class QuestionFigures:
    """What was answered to one question, from A's side.

    Attributes:
        win, tie, lose: shares of the answers, with 95 % intervals over items and raters. Identical captions are ties.
        answers: number of answers; identical captions have none.
        items_won, items_lost: pictures for which more raters preferred A, or B.
        p_value: of the sign test over pictures. corrected: by Holm, for all questions.
        kappa: Fleiss' κ over the pictures that were asked; `None` where it is not defined.
        agreement: share of pairs of raters with the same answer; `None` without such pairs.
    """

    win: Interval
    tie: Interval
    lose: Interval
    answers: int
    items_won: int
    items_lost: int
    p_value: float
    corrected: float
    kappa: Interval | None
    agreement: float | None

    @property
    def verdict(self) -> str:
        """Who is better by the corrected test: `a`, `b`, or nobody."""
        if self.corrected >= LEVEL:
            return ""
        return "a" if self.items_won > self.items_lost else "b"


@dataclass(frozen=True)
class RaterFigures:
    """One rater: pictures that are fully judged, and how often A won and lost, over all questions."""

    name: str
    items: int
    answers: int
    win: float
    lose: float


@dataclass(frozen=True)
class JudgeReport:
    """Figures of a trial.

    Attributes:
        a, b: names of the systems.
        items: number of pictures, and `identical` of those with the same caption by both.
        questions: question -> figures; only those that have answers.
        raters: who judged.
        left: share of the caption on the left among answers that are no tie; far from one half, raters may have a side.
    """

    a: str
    b: str
    items: int
    identical: int
    questions: dict[str, QuestionFigures]
    raters: tuple[RaterFigures, ...]
    left: float | None


def judge_report(path: Path) -> JudgeReport:
    """The figures of a file of answers; it may still be written to."""
    trial, rows = read_answers(path)
    if not rows:
        raise DataError(f"{path}: nobody has judged yet; open the page of 'tellapart judge' and answer")
    raters = {rater_key(row.rater): row.rater for row in rows}
    outcomes = _outcomes(trial, rows, list(raters))
    identical = sum(item.identical for item in trial.items)
    figures: dict[str, dict[str, Any]] = {}
    for question, answers in outcomes.items():
        heard = answers[(answers >= 0).any(axis=1)]
        if not len(heard):
            continue
        rates = answer_rates(heard, len(OUTCOMES), known=np.full(identical, TIE))
        net = (heard == WIN).sum(axis=0) - (heard == LOSE).sum(axis=0)
        won, lost = int((net > 0).sum()), int((net < 0).sum())
        figures[question] = {
            **dict(zip(("win", "tie", "lose"), rates.rates, strict=True)),
            "answers": int((heard >= 0).sum()),
            "items_won": won,
            "items_lost": lost,
            "p_value": sign_test(won, lost),
            "kappa": rates.kappa,
            "agreement": rates.agreement,
        }
    corrected = holm({question: values["p_value"] for question, values in figures.items()})
    together = np.stack(list(outcomes.values()))  # [questions, raters, items]
    decided = [choice for choice in latest_answers(rows).values() if choice != "tie"]
    return JudgeReport(
        a=trial.names[0],
        b=trial.names[1],
        items=len(trial.items),
        identical=identical,
        questions={name: QuestionFigures(**values, corrected=corrected[name]) for name, values in figures.items()},
        raters=tuple(_rater(name, together[:, row]) for row, name in enumerate(raters.values())),
        left=decided.count("left") / len(decided) if decided else None,
    )


def _outcomes(trial: Trial, rows: Sequence[Answer], raters: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """Question -> [raters, asked items], the number of the outcome or -1."""
    row_of = {rater: row for row, rater in enumerate(raters)}
    asked = [item for item in trial.items if not item.identical]
    column_of = {item.id: column for column, item in enumerate(asked)}
    outcomes = {question: np.full((len(raters), len(asked)), -1) for question in QUESTIONS}
    for (rater, item, question), choice in latest_answers(list(rows)).items():
        if item in column_of:
            who = trial.winner(rater, item, choice)
            outcomes[question][row_of[rater], column_of[item]] = OUTCOMES.index(who)
    return outcomes


def _rater(name: str, outcomes: NDArray[np.int64]) -> RaterFigures:
    """Figures of one rater from [questions, items]."""
    answers = int((outcomes >= 0).sum())
    shares = [float((outcomes == kind).sum() / answers) if answers else 0.0 for kind in (WIN, LOSE)]
    return RaterFigures(name, int((outcomes >= 0).all(axis=0).sum()), answers, *shares)


# --- as a table, JSON and a page --------------------------------------------------------------------------------------


def print_judge_report(report: JudgeReport) -> None:
    """The table, and a line on raters."""
    rows = [
        [
            name,
            *(_percent(interval) for interval in (found.win, found.tie, found.lose)),
            f"{found.corrected:.4f}",
            "–" if found.kappa is None else f"{found.kappa.mean:.2f} [{found.kappa.low:.2f}, {found.kappa.high:.2f}]",
        ]
        for name, found in report.questions.items()
    ]
    print_table(["", f"{report.a} wins, %", "tie, %", f"{report.b} wins, %", "p", "Fleiss' κ"], rows)
    raters = ", ".join(f"{one.name} ({one.items})" for one in report.raters)
    print(f"\n{report.items:,} pictures, {report.identical:,} of them with identical captions (counted as ties)")
    print(f"raters, with the pictures that each has judged: {raters}")
    over = "pictures and raters" if len(report.raters) > 1 else "pictures only, since there is one rater"
    print(f"95 % intervals over {over}; p of the sign test over pictures, corrected by Holm for the questions")


def _percent(interval: Interval) -> str:
    return f"{100 * interval.mean:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def check_judge_report(path: Path, inputs: Sequence[Path]) -> None:
    """Raise unless a report can be written to this file. Call it before the work."""
    if path.suffix not in ENDINGS:
        raise DataError(f"{path}: the ending tells what is written; use one of {', '.join(ENDINGS)}")
    marks = [GENERATOR] if path.suffix == ".html" else ["questions", "raters", "identical"]
    check_output(path, *marks, inputs=inputs)


def write_judge_report(report: JudgeReport, answers: Path, path: Path, dataset: Dataset | None = None) -> None:
    """Write JSON or a page, by the ending of the file.

    Args:
        report: the figures.
        answers: the file that they are of.
        path: of the report.
        dataset: has the pictures, for the page; without it, the page has captions only.
    """
    if path.suffix == ".json":
        write_json(path, asdict(report))
        return
    trial, rows = read_answers(answers)
    write_text(
        path, render("judgements.html", report=report, examples=_examples(trial, rows, dataset), file=answers.name)
    )


def _examples(trial: Trial, rows: Sequence[Answer], dataset: Dataset | None) -> dict[str, list[dict[str, Any]]]:
    """The pictures on which A or B won most clearly, over all questions and raters."""
    raters = sorted({rater_key(row.rater) for row in rows})
    together = np.stack(list(_outcomes(trial, rows, raters).values()))
    won, tied, lost = ((together == kind).sum(axis=(0, 1)) for kind in (WIN, TIE, LOSE))
    asked = [item for item in trial.items if not item.identical]
    order = np.argsort(lost - won, kind="stable")
    best = [int(place) for place in order if won[place] > lost[place]][:EXAMPLES]
    worst = [int(place) for place in order[::-1] if lost[place] > won[place]][:EXAMPLES]

    def card(place: int) -> dict[str, Any]:
        item = asked[place]
        votes = {"won": int(won[place]), "tied": int(tied[place]), "lost": int(lost[place])}
        return {"a": item.a, "b": item.b, "id": item.id, "picture": _picture(item.id, dataset), **votes}

    return {"a": [card(place) for place in best], "b": [card(place) for place in worst]}


def _picture(id: str, dataset: Dataset | None) -> str | None:
    if dataset is None:
        return None
    try:
        return data_address(load_image(dataset.path(dataset.records[dataset.row(id)]), at_least=480), 480)
    except DataError:  # moved since it was judged
        return None
