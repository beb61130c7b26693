"""The objective contract: what a training step minimises.

An objective is a module that holds what is trained and, in a `Frozen` holder, what is not. Its `forward` gives named
(sum, count) totals; the loop divides after reducing over processes, so that two processes on half batches equal one
on the whole. The total named `loss` is minimised, the others are logged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import torch
from pydantic import BaseModel
from torch import nn

from tellapart.captioners.base import Captioner
from tellapart.data.batches import Batch, Kind

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Total:
    """A sum over `count` items."""

    sum: torch.Tensor
    count: int


@dataclass(frozen=True)
class Needs:
    """What an objective asks of the recipe and of the batches."""

    reference: bool = False
    negatives: int = 0


@dataclass(frozen=True)
class Progress:
    """How far the training is, for schedules inside an objective."""

    step: int
    steps: int

    @property
    def fraction(self) -> float:
        return self.step / max(1, self.steps)


class Frozen(Generic[Model]):
    """Holds a model that is never trained: eval mode, no gradient, and no part of the objective's own modules.

    It is not an `nn.Module`, so that its weights are in no optimiser, no checkpoint and no gradient exchange.
    """

    def __init__(self, model: Model) -> None:
        self.model = model.eval().requires_grad_(False)


class Objective(nn.Module, ABC):
    """Base of all objectives.

    Args:
        settings: the objective's own settings (an instance of `Settings`).
        target: the captioner that is trained.
        reference: the frozen captioner it is compared with, where `needs.reference`.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[BaseModel]]

    def __init__(self, settings: BaseModel, target: Captioner, reference: Captioner | None = None) -> None:
        super().__init__()
        self.settings = settings
        self.target = target
        self.reference = None if reference is None else Frozen(reference)

    @classmethod
    def needs(cls, settings: BaseModel) -> Needs:
        """What these settings ask for; nothing by default."""
        return Needs()

    def phases(self) -> dict[str, nn.Module]:
        """Which modules each phase of a step updates, each with an optimiser of its own; one phase by default."""
        return {"train": self.target}

    @abstractmethod
    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        """Totals of one batch; `loss` is minimised."""

    def epoch_start(self, epoch: int) -> None:
        """Called before each epoch, e.g. for clustering."""

    def after_step(self) -> None:
        """Called after each update, e.g. for momentum encoders and banks."""


def pair_log_prob(captioner: Captioner, batch: Batch, *kinds: Kind) -> torch.Tensor:
    """ln p(caption | image) of the batch's pairs of these kinds; computed once per step and captioner."""

    def compute() -> torch.Tensor:
        rows = batch.pairs.of(*kinds)
        captions = [batch.captions[row] for row in batch.pairs.caption_row[rows].tolist()]
        memory = captioner.encode(batch.features[captioner.encoder.name])
        return captioner.log_prob(memory, captioner.tokenize(captions), batch.pairs.image_row[rows])

    return batch.once(("pair_log_prob", id(captioner), kinds), compute)
