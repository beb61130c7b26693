"""How a study's arms are measured, compared and shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from tellapart.data.prepare import Prepared
from tellapart.metrics import PairedDifference
from tellapart.run import Run
from tellapart.studies.base import Arm, Study
from tellapart.studies.columns import Column
from tellapart.studies.result import ArmResult, Result, SeedResult


class Measure(ABC):
    """Measures the arms of one study; `Study.measure` names the class.

    Args:
        study: what is measured.
        retrieval_images: rank only the first N images.
        listener: run of a retriever that no arm was trained with; it also ranks the images for every caption.
        diversity_images: write n captions for only the first N images (studies of UNKT).

    Attributes:
        trains: what the arms are, `captioner` or `retriever`.
        compared: headline figures: the first table, and what every row is compared with its control by.
        template: template of the page.
        many_captions: it measures n captions of each image.
    """

    trains: ClassVar[str]
    compared: ClassVar[tuple[Column, ...]]
    template: ClassVar[str]
    many_captions: ClassVar[bool] = False

    def __init__(
        self,
        study: Study,
        *,
        retrieval_images: int | None = None,
        listener: Run | str | Path | None = None,
        diversity_images: int | None = None,
    ) -> None:
        self.study, self.retrieval_images, self.listener = study, retrieval_images, listener
        self.diversity_images = diversity_images

    @abstractmethod
    def measure(self, arm: Arm, arms: Sequence[Arm], runs: Mapping[str, Run]) -> SeedResult:
        """Measure one arm of one seed, or find earlier results.

        Args:
            arm: the arm to measure.
            arms: all arms of the study.
            runs: arm key -> run of this seed.
        """

    @abstractmethod
    def differences(self, control: ArmResult, row: ArmResult, prepared: Prepared) -> dict[str, PairedDifference]:
        """Differences (row - control) of the compared figures that both have, resampled over seeds and images."""

    def all_differences(
        self, rows: Sequence[ArmResult], people: ArmResult | None, prepared: Prepared
    ) -> dict[str, dict[str, PairedDifference]]:
        """The differences of every row that has a control, people's captions among them: arm key -> differences."""
        by_key = {row.arm.key: row for row in rows}
        compared = [*rows, *([] if people is None else [people])]
        return {
            row.arm.key: self.differences(by_key[row.arm.control], row, prepared)
            for row in compared
            if row.arm.control is not None
        }

    def people(self, rows: Sequence[ArmResult]) -> ArmResult | None:
        """People's captions of the same images, measured as those of the arms; `None` if that makes no sense here."""
        return None

    @abstractmethod
    def images(self, rows: Sequence[ArmResult], prepared: Prepared) -> dict[str, int]:
        """Number of items measured."""

    def finish(self, rows: Sequence[ArmResult], folder: Path) -> dict[str, Any]:
        """Add figures that need all rows at once; returns results about all rows together."""
        return {}

    @abstractmethod
    def introduction(self, result: Result) -> str:
        """A sentence of Markdown above the table."""

    def conclusion(self, result: Result) -> list[str]:
        """Lines of Markdown below the tables."""
        return []

    @abstractmethod
    def page(self, result: Result, prepared: Prepared) -> dict[str, Any]:
        """Values for the template, besides the tables of all studies."""


def measure_of(study: Study, **options: Any) -> Measure:
    """The `Measure` of a study, with its options.

    >>> from tellapart.studies.base import find_study
    >>> measure_of(find_study("coder-table1")).trains
    'retriever'
    """
    module, _, name = study.measure.partition(":")
    measure: Measure = getattr(import_module(module), name)(study, **options)
    return measure
