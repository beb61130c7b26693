"""Several runs on the same images, side by side; each is compared with a control, with paired significance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tellapart.data.records import Record
from tellapart.errors import RunError, did_you_mean
from tellapart.evaluation.caption_scorer import CaptionScorer
from tellapart.evaluation.evaluate import Evaluation, evaluate, evaluate_people, measured_again, open_judge
from tellapart.evaluation.judge import Judge
from tellapart.evaluation.people import PEOPLE, has_others, leave_one_out
from tellapart.metrics import PairedDifference
from tellapart.run import Run, open_run


@dataclass(frozen=True)
class ComparedRun:
    """One row of a comparison: a run, what the table calls it, and its figures."""

    label: str
    run: Run
    evaluation: Evaluation


@dataclass(frozen=True)
class Comparison:
    """Runs side by side, and people's captions beside them.

    Attributes:
        rows: the runs in table order.
        control: label of the row that all others are compared with.
        treatment: label of the row whose captions the report shows.
        baseline: label of the row whose captions it shows beside them.
        judge: name of the judge that ranked the captions of all.
        listener: name of the listener that ranked them too, if there is one.
        people: figures of people's captions, if they were measured.
        differences: label -> figure -> paired bootstrap of (row - control), for every row but the control; that of
            people's captions is called "people", and has the figures that both have.
        records: the images of the split, in row order.
    """

    rows: list[ComparedRun]
    control: str
    treatment: str
    baseline: str
    judge: str
    differences: dict[str, dict[str, PairedDifference]]
    records: list[Record]
    listener: str | None = None
    people: Evaluation | None = None

    def row(self, label: str) -> ComparedRun:
        """The run with this label."""
        return next(row for row in self.rows if row.label == label)

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """All rows of the table by label: the runs, then people's captions."""
        found = {row.label: row.evaluation for row in self.rows}
        return found if self.people is None else {**found, PEOPLE: self.people}

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": {label: evaluation.corpus for label, evaluation in self.evaluations.items()},
            "judge": self.judge,
            "listener": self.listener,
            "control": self.control,
            "treatment": self.treatment,
            "differences": {
                label: {name: asdict(difference) for name, difference in found.items()}
                for label, found in self.differences.items()
            },
        }


def compare(
    runs: Mapping[str, Run | str | Path],
    *,
    control: str,
    treatment: str | None = None,
    baseline: str | None = None,
    judge: str | Sequence[Run | str | Path] | None = None,
    listener: Run | str | Path | None = None,
    split: str = "test",
    retrieval_images: int | None = None,
    people: bool | None = None,
) -> Comparison:
    """Evaluate every run and compare each with the control by paired bootstrap.

    Near-duplicates of one family are resampled together, because they are not independent.

    Args:
        runs: label -> run or run folder, in table order.
        control: label of the run that the others are compared with.
        treatment: label of the run whose captions the report shows; needed with more than two runs.
        baseline: label of the run whose captions it shows beside them; by default the control.
        judge: who ranks the captions of all: a label, or runs (a captioner, several as an ensemble, or a retriever);
            by default the control.
        listener: a run that ranks them too: a retriever, or a captioner, that had no part in any training.
        split: the images.
        retrieval_images: rank only the first so many images.
        people: also measure people's captions: the first one of each image against its others (`evaluate_people`); by
            default if every image of the split has at least two.

    Example:
        >>> found = compare({"MLE": mle, "CL": cl}, control="MLE")            # doctest: +SKIP
        >>> found.differences["CL"]["self_retrieval_R@1"]                     # doctest: +SKIP
    """
    opened = {label: run if isinstance(run, Run) else open_run(run) for label, run in runs.items()}
    others = [label for label in opened if label != control]
    if len(opened) < 2 or control not in opened:
        raise RunError(f"a comparison needs at least two runs, the control '{control}' among them: {', '.join(opened)}")
    if treatment is None and len(others) > 1:
        raise RunError(f"name the treatment, whose captions are shown: one of {', '.join(others)}")
    treatment, baseline = treatment or others[0], baseline or control
    judge = control if judge is None else judge
    for role, label in (("treatment", treatment), ("baseline", baseline), ("judge", judge)):
        if isinstance(label, str) and label not in opened:
            raise RunError(f"{role}: there is no run '{label}'{did_you_mean(label, opened)}")
    first = opened[control]
    for label, run in opened.items():
        if run.data.dataset.digest != first.data.dataset.digest:
            raise RunError(f"{label} ({run.folder}) has other data than {first.folder}; compare runs on the same data")
    ranking = Judge((opened[judge],)) if isinstance(judge, str) else open_judge(judge)
    judge_name = judge if isinstance(judge, str) else ranking.name
    people = has_others(first.data.dataset, split) if people is None else people
    if people and PEOPLE in opened:
        raise RunError(
            f"'{PEOPLE}' is the label of people's captions; give the run {opened[PEOPLE].folder} another one"
        )
    opened_listener = None if listener is None else open_judge([listener])
    measured_by: dict[str, Any] = {
        "split": split,
        "under": ranking.runs,
        "listener": None if opened_listener is None else opened_listener.runs[0],
        "retrieval_images": retrieval_images,
    }
    rows = [ComparedRun(label, run, evaluate(run, **measured_by)) for label, run in opened.items()]
    scorer = CaptionScorer(first.data.dataset, split)
    measured = {row.label: measured_again(row.evaluation, scorer) for row in rows}
    differences = {label: scorer.differences(measured[label], measured[control]) for label in others}
    said = evaluate_people(first, **measured_by) if people else None
    if said is not None:
        scorer_of_others = CaptionScorer(leave_one_out(first.data.dataset, split)[1], split)
        differences[PEOPLE] = scorer.differences(measured_again(said, scorer_of_others), measured[control])
    listener_name = None if opened_listener is None else opened_listener.name
    return Comparison(rows, control, treatment, baseline, judge_name, differences, scorer.records, listener_name, said)
