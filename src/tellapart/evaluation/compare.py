"""Several runs on the same images, side by side, with paired significance against a control."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tellapart.data.prepare import Prepared
from tellapart.data.records import Record
from tellapart.errors import RunError
from tellapart.evaluation.evaluate import (
    Evaluation,
    evaluate_run,
    judge_digest,
    rank_captions,
    rank_captions_by_similarity,
    retrieval_figures,
)
from tellapart.files import digest_of, read_json, write_json
from tellapart.metrics import PairedDifference, paired_bootstrap
from tellapart.run import Run


@dataclass(frozen=True)
class Row:
    """One run of a comparison.

    Attributes:
        label: what the table calls it.
        run: the training.
        evaluation: its figures, its captions ranked by itself.
        under_judge: ranks of its captions under the judge.
    """

    label: str
    run: Run
    evaluation: Evaluation
    under_judge: np.ndarray

    def figures(self) -> dict[str, float]:
        judged = retrieval_figures(self.under_judge, len(self.under_judge))
        return {
            **self.evaluation.corpus,
            "under_judge_R@1": judged["self_retrieval_R@1"],
            "under_judge_mean_rank": judged["self_retrieval_mean_rank"],
        }


@dataclass(frozen=True)
class Comparison:
    """Rows of a table and the last row's differences from the control.

    Attributes:
        rows: the first is usually the MLE model.
        control: label of the row that the last one is compared with.
        differences: figure -> paired bootstrap of (last row - control).
        records: the images of the split, in row order.
        prepared: their data.
        under: name of the run under which the captions of all are ranked, where it is none of the rows.
    """

    rows: list[Row]
    control: str
    differences: dict[str, PairedDifference]
    records: list[Record]
    prepared: Prepared
    under: str | None = None

    @property
    def judge(self) -> str:
        """Who ranks the captions of all: the first row, unless another run was asked to."""
        return self.under or self.rows[0].label

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": {row.label: row.figures() for row in self.rows},
            "judge": self.judge,
            "control": self.control,
            "compared": self.rows[-1].label,
            "differences": {name: asdict(difference) for name, difference in self.differences.items()},
        }


def compare(
    runs: Mapping[str, Run],
    control: str,
    split: str = "test",
    retrieval_images: int | None = None,
    under: Run | None = None,
) -> Comparison:
    """Evaluate every run; compare the last one with the control by paired bootstrap.

    Near-duplicates of one family are resampled together: they are not independent.

    Args:
        runs: label -> run, in table order.
        control: label of the run that the last one is compared with.
        split: the images.
        retrieval_images: limit of the self-retrieval study.
        under: the run that judges the captions of all, a captioner's or a retriever's; by default the first one.
    """
    if len(runs) < 2 or control not in runs:
        raise RunError(f"a comparison needs at least two runs, the control '{control}' among them: {', '.join(runs)}")
    first = next(iter(runs.values()))
    judge, judge_label = (first, next(iter(runs))) if under is None else (under, under.recipe.name)
    prepared = first.data
    for label, run in {**runs, judge_label: judge}.items():
        if run.data.dataset.digest != prepared.dataset.digest:
            raise RunError(f"{label} ({run.folder}) has other data than {first.folder}; compare runs on the same data")
    records = prepared.dataset.split(split)
    rows = []
    for label, run in runs.items():
        evaluation = evaluate_run(run, split, retrieval_images)
        under_judge = ranks_under(judge, run, prepared, evaluation, f"{label} under {judge_label}")
        rows.append(Row(label, run, evaluation, under_judge))
    by_label = {row.label: row for row in rows}
    differences = _differences(by_label[control], rows[-1], records)
    return Comparison(rows, control, differences, records, prepared, None if under is None else judge_label)


def ranks_under(judge: Run, run: Run, prepared: Prepared, evaluation: Evaluation, label: str) -> np.ndarray:
    """Ranks of a run's captions under the judge; kept in the run's folder and found again."""
    ranked = evaluation.retrieval_rows
    if run.folder == judge.folder:
        return np.array([row["rank"] for row in ranked])
    captions = {row["id"]: row["caption"] for row in ranked}
    made_from = digest_of([judge_digest(judge), prepared.dataset.digest, captions])
    path = run.folder / f"ranks-under-{made_from[:16]}.json"
    if not path.exists():
        records = [prepared.dataset.records[prepared.dataset.row(id)] for id in captions]
        said = list(captions.values())
        if judge.recipe.trains == "retriever":
            ranks = rank_captions_by_similarity(judge, records, said, label).ranks
        else:
            ranks = rank_captions(judge, judge.data, records, said, label).ranks
        write_json(path, {"judge": judge.recipe.name, "ranks": ranks.tolist()})
    return np.array(read_json(path, "file of ranks")["ranks"])


def _differences(control: Row, compared: Row, records: list[Record]) -> dict[str, PairedDifference]:
    families = np.unique([record.family or record.id for record in records], return_inverse=True)[1]
    judged = families[: len(compared.under_judge)]

    def hits(ranks: np.ndarray) -> np.ndarray:
        return np.asarray(ranks == 1, dtype=np.float64)

    ranks = [row.evaluation.values("rank") for row in (control, compared)]
    under = [row.under_judge for row in (control, compared)]
    cider = [row.evaluation.values("CIDEr") for row in (control, compared)]
    return {
        "self_retrieval_R@1": paired_bootstrap(hits(ranks[0]), hits(ranks[1]), groups=judged),
        "under_judge_R@1": paired_bootstrap(hits(under[0]), hits(under[1]), groups=judged),
        "under_judge_rank": paired_bootstrap(under[0], under[1], groups=judged),
        "CIDEr": paired_bootstrap(cider[0], cider[1], groups=families),
    }
