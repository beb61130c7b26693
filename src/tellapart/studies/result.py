"""The result of a study."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tellapart.metrics import PairedDifference
from tellapart.run import Run
from tellapart.studies.base import Arm, Study
from tellapart.studies.rates import Search


@dataclass(frozen=True)
class SeedResult:
    """An arm trained with one seed, and its figures.

    Attributes:
        run: the training.
        evaluation: an `Evaluation` of captions or a `RetrievalEvaluation`.
        figures: all figures by name, with those under the judge.
        per_image: figure -> one value per image (or per query), for paired comparisons and histograms.
    """

    run: Run
    evaluation: Any
    figures: dict[str, float]
    per_image: dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class ArmResult:
    """A row of the table: an arm with all its seeds."""

    arm: Arm
    seeds: list[SeedResult]

    def values(self, figure: str) -> list[float]:
        return [one.figures[figure] for one in self.seeds if figure in one.figures]

    def mean(self, figure: str) -> float | None:
        values = self.values(figure)
        return float(np.mean(values)) if values else None

    def deviation(self, figure: str) -> float | None:
        """The standard deviation over seeds; `None` with one seed."""
        values = self.values(figure)
        return float(np.std(values, ddof=1)) if len(values) > 1 else None


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished study.

    Attributes:
        study: the study.
        data: name of the data set.
        budget: budget of the trainings.
        images: number of items measured: `captioned` and `ranked`, or `images` and `captions`.
        rows: one per arm, in table order.
        differences: arm key -> figure -> difference from its control.
        searches: arm key -> learning rates tried (first seed).
        more: results about all rows together, such as `correlation`.
    """

    study: Study
    data: str
    budget: str
    images: dict[str, int]
    rows: list[ArmResult]
    differences: dict[str, dict[str, PairedDifference]]
    searches: dict[str, Search]
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def seeds(self) -> str:
        """The number of seeds, in words."""
        count = len(self.rows[0].seeds)
        return f"mean ± standard deviation over {count} seeds" if count > 1 else "one seed"

    def row(self, key: str) -> ArmResult:
        return next(row for row in self.rows if row.arm.key == key)

    def to_json(self) -> dict[str, Any]:
        return {
            "study": self.study.name,
            "data": self.data,
            "budget": self.budget,
            "split": self.study.split,
            "images": self.images,
            "rows": {
                row.arm.key: {
                    "label": row.arm.label,
                    "runs": [str(one.run.folder) for one in row.seeds],
                    "learning_rate": [one.run.recipe.training.learning_rate for one in row.seeds],
                    "figures": [one.figures for one in row.seeds],
                    "quoted": dict(row.arm.quoted),
                }
                for row in self.rows
            },
            "differences": {
                key: {figure: asdict(found) for figure, found in figures.items()}
                for key, figures in self.differences.items()
            },
            "searches": {
                key: {f"{rate:g}": figure for rate, figure in search.tried.items()}
                for key, search in self.searches.items()
            },
            **self.more,
        }
