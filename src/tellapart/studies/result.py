"""The result of a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tellapart.metrics import PairedDifference, holm
from tellapart.metrics.bootstrap import LEVEL, CorpusStatistic
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
        statistics: compared figure -> what its differences are resampled from.
        per_anchor: figure -> one value per image (or per query), for histograms.
    """

    run: Run
    evaluation: Any
    figures: dict[str, float]
    statistics: Mapping[str, CorpusStatistic] = field(default_factory=dict)
    per_anchor: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


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

    def figures_to_json(self) -> dict[str, Any]:
        return {"label": self.arm.label, "figures": [one.figures for one in self.seeds]}


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished study.

    Attributes:
        study: the study.
        data: name of the data set.
        budget: budget of the trainings.
        images: number of items measured: `captioned` and `ranked`, or `images` and `captions`.
        rows: one per arm, in table order.
        differences: arm key -> figure -> difference from its control; p values are not corrected.
        searches: arm key -> learning rates tried (first seed).
        treatments: arm key -> its differences from its control, in words.
        people: people's captions as a row: the k-th caption of every image stands in for the k-th seed.
        more: results about all rows together, such as `correlations`.
    """

    study: Study
    data: str
    budget: str
    images: dict[str, int]
    rows: list[ArmResult]
    differences: dict[str, dict[str, PairedDifference]]
    searches: dict[str, Search]
    treatments: dict[str, list[str]] = field(default_factory=dict)
    people: ArmResult | None = None
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def seeds(self) -> str:
        """The number of seeds, in words."""
        count = len(self.rows[0].seeds)
        return f"mean ± standard deviation over {count} seeds" if count > 1 else "one seed"

    @property
    def table(self) -> list[ArmResult]:
        """All rows of the table: the arms, and people's captions last."""
        return [*self.rows, *([] if self.people is None else [self.people])]

    def row(self, key: str) -> ArmResult:
        return next(row for row in self.table if row.arm.key == key)

    @cached_property
    def corrected(self) -> dict[tuple[str, str], float]:
        """(arm key, figure) -> p value, corrected by Holm for all rows and compared figures of the study."""
        return holm(
            {
                (key, figure): found.p_value
                for key, figures in self.differences.items()
                for figure, found in figures.items()
            }
        )

    def significant(self, key: str, figure: str) -> bool:
        """Whether a row differs from its control in a figure, after the correction."""
        return self.corrected[key, figure] < LEVEL

    def differences_to_json(self) -> dict[str, Any]:
        return {
            key: {
                figure: {
                    "against": self.row(key).arm.control,
                    **asdict(found),
                    "corrected_p_value": self.corrected[key, figure],
                }
                for figure, found in figures.items()
            }
            for key, figures in self.differences.items()
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "study": self.study.name,
            "data": self.data,
            "budget": self.budget,
            "split": self.study.split,
            "images": self.images,
            "rows": {
                row.arm.key: {
                    "runs": [str(one.run.folder) for one in row.seeds],
                    "learning_rate": [one.run.recipe.training.learning_rate for one in row.seeds],
                    **row.figures_to_json(),
                    "quoted": dict(row.arm.quoted),
                }
                for row in self.rows
            },
            **({"people": self.people.figures_to_json()} if self.people is not None else {}),
            "differences": self.differences_to_json(),
            "searches": {
                key: {f"{rate:g}": figure for rate, figure in search.tried.items()}
                for key, search in self.searches.items()
            },
            "treatments": self.treatments,
            **self.more,
        }
