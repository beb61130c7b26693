"""Several runs on the same images, side by side; each is compared with a control, with paired significance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tellapart.data.records import Record
from tellapart.errors import RunError, did_you_mean
from tellapart.evaluation.caption_scorer import CaptionScorer
from tellapart.evaluation.evaluate import Evaluation, evaluate, measured_again, open_judge
from tellapart.evaluation.judge import Judge
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
    """Runs side by side.

    Attributes:
        rows: in table order.
        control: label of the row that all others are compared with.
        treatment: label of the row whose captions the report shows.
        baseline: label of the row whose captions it shows beside them.
        judge: name of the judge that ranked the captions of all.
        differences: label -> figure -> paired bootstrap of (row - control), for every row but the control.
        records: the images of the split, in row order.
    """

    rows: list[ComparedRun]
    control: str
    treatment: str
    baseline: str
    judge: str
    differences: dict[str, dict[str, PairedDifference]]
    records: list[Record]

    def row(self, label: str) -> ComparedRun:
        return next(row for row in self.rows if row.label == label)

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": {row.label: row.evaluation.corpus for row in self.rows},
            "judge": self.judge,
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
    split: str = "test",
    retrieval_images: int | None = None,
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
        split: the images.
        retrieval_images: rank only the first so many images.

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
    rows = [
        ComparedRun(label, run, evaluate(run, split=split, under=ranking.runs, retrieval_images=retrieval_images))
        for label, run in opened.items()
    ]
    measure = CaptionScorer(first.data.dataset, split)
    measured = {row.label: measured_again(row.evaluation, measure) for row in rows}
    differences = {label: measure.differences(measured[label], measured[control]) for label in others}
    return Comparison(rows, control, treatment, baseline, judge_name, differences, measure.records)
