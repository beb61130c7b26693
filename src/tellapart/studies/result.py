"""What a study found, and the contract of who measures its models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tellapart.data.prepare import Prepared
from tellapart.metrics import PairedDifference
from tellapart.run import Run
from tellapart.studies.base import Model, Study
from tellapart.studies.rates import Search


@dataclass(frozen=True)
class Measured:
    """A model trained with one seed, and its figures.

    Attributes:
        run: the training.
        evaluation: what was measured of it: an `Evaluation` of captions, a `RetrievalEvaluation` of a retriever.
        figures: everything by name, what the judge says included.
        per_image: figure -> one value per image (or per query), for paired comparisons and histograms.
    """

    run: Run
    evaluation: Any
    figures: dict[str, float]
    per_image: dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Row:
    """One row of the table: a model with all its seeds."""

    model: Model
    seeds: list[Measured]

    def values(self, figure: str) -> list[float]:
        return [one.figures[figure] for one in self.seeds if figure in one.figures]

    def mean(self, figure: str) -> float | None:
        values = self.values(figure)
        return float(np.mean(values)) if values else None

    def deviation(self, figure: str) -> float | None:
        """The standard deviation over seeds; `None` with one."""
        values = self.values(figure)
        return float(np.std(values, ddof=1)) if len(values) > 1 else None


@dataclass(frozen=True)
class Result:
    """A finished study.

    Attributes:
        study: what was asked.
        data: the data's name.
        budget: how large the trainings were.
        images: how many items were measured, by what they are: `captioned` and `ranked`, or `images` and `captions`.
        rows: in table order.
        differences: key of a row -> figure -> difference from its control.
        searches: key of a model -> rates that were tried, of the first seed.
        more: what is said of all rows together, such as `correlation`.
    """

    study: Study
    data: str
    budget: str
    images: dict[str, int]
    rows: list[Row]
    differences: dict[str, dict[str, PairedDifference]]
    searches: dict[str, Search]
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def seeds(self) -> str:
        """How many trainings a figure comes from, in words."""
        count = len(self.rows[0].seeds)
        return f"mean ± standard deviation over {count} seeds" if count > 1 else "one seed"

    def row(self, key: str) -> Row:
        return next(row for row in self.rows if row.model.key == key)

    def to_json(self) -> dict[str, Any]:
        return {
            "study": self.study.name,
            "data": self.data,
            "budget": self.budget,
            "split": self.study.split,
            "images": self.images,
            "rows": {
                row.model.key: {
                    "label": row.model.label,
                    "runs": [str(one.run.folder) for one in row.seeds],
                    "learning_rate": [one.run.recipe.training.learning_rate for one in row.seeds],
                    "figures": [one.figures for one in row.seeds],
                    "quoted": dict(row.model.quoted),
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


class Measuring(ABC):
    """How the models of a study are measured, compared and shown; a study's `measured` names one.

    Attributes:
        trains: what its models are, `captioner` or `retriever`.
        compared: what is compared with the control: figure -> heading.
        template: the page that shows such a study.
    """

    trains: ClassVar[str]
    compared: ClassVar[Mapping[str, str]]
    template: ClassVar[str]

    @abstractmethod
    def measure(
        self,
        model: Model,
        models: Sequence[Model],
        trained: Mapping[str, Run],
        split: str,
        retrieval_images: int | None,
    ) -> Measured:
        """Measure one model of one seed, or find what an earlier call measured.

        Args:
            model: whom.
            models: all of the study.
            trained: key -> run of all models of this seed.
            split: the images.
            retrieval_images: rank only the first so many of them.
        """

    @abstractmethod
    def differences(self, control: Row, row: Row, prepared: Prepared, split: str) -> dict[str, PairedDifference]:
        """Differences (row − control) of the compared figures, paired over images, which are means over seeds."""

    @abstractmethod
    def images(self, rows: Sequence[Row], prepared: Prepared, split: str) -> dict[str, int]:
        """How many items were measured."""

    def finish(self, study: Study, rows: Sequence[Row], folder: Path) -> dict[str, Any]:
        """Measure what needs all rows side by side, into their figures; gives what is said of all together."""
        return {}

    @abstractmethod
    def introduction(self, result: Result) -> str:
        """What was measured on what, in a sentence of Markdown."""

    def conclusion(self, result: Result) -> list[str]:
        """Lines of Markdown below the tables."""
        return []

    @abstractmethod
    def page(self, result: Result, prepared: Prepared) -> dict[str, Any]:
        """What its template shows beyond the tables that all studies have."""


# A study's `measured` -> its class.
MEASURING = {
    "captioning": "tellapart.studies.measure_captions:Captioning",
    "retrieval": "tellapart.studies.measure_retrieval:Retrieval",
    "speed": "tellapart.studies.speed:Speed",
}


def measuring_of(study: Study) -> Measuring:
    """Who measures a study's models.

    >>> from tellapart.studies.base import find_study
    >>> measuring_of(find_study("coder-table1")).trains
    'retriever'
    """
    from importlib import import_module

    module, _, name = MEASURING[study.measured].partition(":")
    found: Measuring = getattr(import_module(module), name)()
    return found
