"""Table 1 of the CODER paper on COCO: recalls in folds of 1,000 images ("1K") beside those among all ("5K")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tellapart.data.prepare import Prepared
from tellapart.evaluation.evaluate_retrieval import RetrievalEvaluation, compare_seeds, evaluate_retrieval
from tellapart.evaluation.spread import measure_spread
from tellapart.metrics import PairedDifference
from tellapart.run import Run
from tellapart.studies.base import Arm
from tellapart.studies.measure_retrieval import RetrievalMeasure
from tellapart.studies.result import ArmResult, SeedResult

# The papers cut COCO's 5,000 test images into five folds. Where a part of the images is at hand, there are fewer.
FOLD = 1000


class FoldedRetrievalMeasure(RetrievalMeasure):
    """`RetrievalMeasure`, whose figures are means over folds of 1,000 images if the split has at least two of them.

    The figures among all images are then called `5K_…`. Differences are those of the ranks within the folds, too.
    """

    def measure(self, arm: Arm, arms: Sequence[Arm], runs: Mapping[str, Run]) -> SeedResult:
        run = runs[arm.key]
        records = [record for record in run.data.dataset.split(self.study.split) if record.captions]
        measured = evaluate_retrieval(run, self.study.split, FOLD if len(records) >= 2 * FOLD else None)
        spread = measure_spread(run, self.study.split)
        figures = {**recalls_in_folds(measured), **spread.figures()}
        per_anchor = {f"{name}_negative_SD": values for name, values in vars(spread).items()}
        return SeedResult(run, measured, figures, per_anchor=per_anchor)

    def differences(self, control: ArmResult, row: ArmResult, prepared: Prepared) -> dict[str, PairedDifference]:
        compared, against = ([ranked_in_folds(one.evaluation) for one in of.seeds] for of in (row, control))
        return compare_seeds(compared, against, prepared, [column.figure for column in self.compared])


def recalls_in_folds(measured: RetrievalEvaluation) -> dict[str, float]:
    """The figures over folds under their usual names, those among all with `5K_` before; without folds the latter."""
    if not measured.folds:
        return measured.figures
    return {**measured.folds, **{f"5K_{name}": value for name, value in measured.figures.items()}}


def ranked_in_folds(measured: RetrievalEvaluation) -> RetrievalEvaluation:
    """The same with the ranks within the folds in the place of those among all; unchanged without folds.

    The folds have equal numbers of images, so that a recall over all ranks within folds is the mean over the folds.
    """
    if not measured.folds:
        return measured
    rows = (
        [{**row, "rank": row["rank_in_fold"]} for row in of if "rank_in_fold" in row]
        for of in (measured.images, measured.captions)
    )
    images, captions = rows
    return replace(measured, images=images, captions=captions)
