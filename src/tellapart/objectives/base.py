"""The objective interface: what a training step minimises.

An objective is a module that contains the trained model and has frozen models by role. Its `forward` returns named
(sum, count) totals. The loop divides after summing over processes, so that two processes with half a batch each equal
one process with the whole batch. Totals named in `losses` are minimised, the others are logged.

State that outlives a step (banks, pointers, momentum encoders, cluster centres) is a registered module or persistent
buffer: it is saved in checkpoints, and resuming is bit-exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import BaseModel
from torch import nn

from tellapart.captioners.base import Captioner
from tellapart.data.batches import Batch, BatchSource, Kind
from tellapart.decoding.base import Decodable
from tellapart.errors import RecipeError
from tellapart.models import Model
from tellapart.progress import OnProgress
from tellapart.retrievers.base import Retriever


@dataclass(frozen=True)
class Total:
    """A sum over `count` items."""

    sum: torch.Tensor
    count: int


@dataclass(frozen=True)
class Needs:
    """What an objective needs from the recipe and the batches.

    Attributes:
        roles: frozen models: role -> kind of model, such as `{"reference": "captioner"}`.
        negatives: number of captions of other images to draw for each true pair.
        image_negatives: number of other images to draw for each true pair.
        captions: whether every image must have captions; otherwise images without them are used too.
    """

    roles: Mapping[str, str] = field(default_factory=dict)
    negatives: int = 0
    image_negatives: int = 0
    captions: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class Progress:
    """The current step and the number of steps, for schedules in an objective."""

    step: int
    steps: int

    @property
    def fraction(self) -> float:
        return self.step / max(1, self.steps)


@dataclass(frozen=True)
class Epoch:
    """The argument of `Objective.epoch_start`.

    Attributes:
        number: of the epoch, from 0.
        batches: one pass over the training split in record order, on the device; each process gets its part.
        pairs: the same with every caption of an image and no negatives.
    """

    number: int
    batches: Callable[[], Iterator[Batch]]
    pairs: Callable[[], Iterator[Batch]]


@dataclass(frozen=True)
class Start:
    """The argument of `Objective.before_training`.

    Attributes:
        sources: split -> its batches, this process's share.
        steps: number of steps of the training.
        folders: role -> folder for files derived from its frozen model, where other trainings find them too; nothing is
            kept for a role without one.
        on_progress: called with the name of the work, the number done and the total.
    """

    sources: Mapping[str, BatchSource]
    steps: int
    folders: Mapping[str, Path] = field(default_factory=dict)
    on_progress: OnProgress | None = None


class Processes:
    """The processes that train together; this default is a single process, and the loop sets the real one."""

    rank = 0
    world = 1

    def gather(self, tensor: torch.Tensor, gradient: bool = False) -> torch.Tensor:
        """The rows of all processes, in the order of the whole batch; processes may have different numbers of rows.

        Every process must make the same calls, with an empty tensor if it has no rows.

        Args:
            tensor: `[rows, ...]`.
            gradient: send gradients back to the process that a row came from, for losses over the whole batch;
                otherwise the result is detached.
        """
        return tensor if gradient else tensor.detach()


class Roles:
    """The models of an objective: the target, which is trained, and frozen models by role.

    Args:
        target: the captioner or retriever to train.
        frozen: role -> model, for each role in the objective's `Needs.roles`.

    Example:
        >>> roles = Roles(target, reference=mle)                    # doctest: +SKIP
        >>> objective = Contrastive(ContrastiveSettings(), roles)   # doctest: +SKIP
    """

    def __init__(self, target: Model, **frozen: nn.Module) -> None:
        self.target = target
        self.frozen = frozen


class Frozen(Mapping[str, Any]):
    """Frozen models by role, in eval mode and without gradient.

    It is not an `nn.Module`, so the weights are in no optimiser, checkpoint or gradient exchange.
    """

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self._models = {role: model.eval().requires_grad_(False) for role, model in models.items()}

    def __getitem__(self, role: str) -> Any:
        return self._models[role]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


def frozen_models(objective: nn.Module) -> list[nn.Module]:
    """The frozen models of an objective and its parts."""
    return [model for part in objective.modules() if isinstance(part, Objective) for model in part.frozen.values()]


class Objective(nn.Module, ABC):
    """Base of all objectives; for objectives that train a retriever use `RetrievalObjective`.

    Args:
        settings: settings of the objective (an instance of `Settings`).
        roles: the target, and a frozen model for each role in `needs(settings).roles`.

    Attributes:
        frozen: the frozen models by role.
        trains: kind of the target, `captioner` or `retriever`, which is also its key in the recipe.
        processes: the processes that train together; `gather` collects rows from all of them.
    """

    name: ClassVar[str]
    trains: ClassVar[str] = Captioner.kind
    Settings: ClassVar[type[BaseModel]]
    target: Captioner

    def __init__(self, settings: BaseModel, roles: Roles) -> None:
        super().__init__()
        assert roles.target.kind == self.trains, f"{self.name} trains a {self.trains}, not a {roles.target.kind}"
        missing = [role for role in self.needs(settings).roles if role not in roles.frozen]
        if missing:
            raise RecipeError(
                f"the {self.name} objective needs a {missing[0]}; set roles.{missing[0]}.from to a run or a recipe"
            )
        self.settings = settings
        self.target = roles.target  # type: ignore[assignment]  # checked by the assertion above
        self.frozen = Frozen(roles.frozen)
        self.processes = Processes()

    @classmethod
    def needs(cls, settings: BaseModel) -> Needs:
        """Roles and negatives needed with these settings; none by default."""
        return Needs()

    def phases(self) -> dict[str, nn.Module]:
        """Phases of a step: name -> the modules it updates, with their own optimiser. One phase by default."""
        return {"train": self}

    def losses(self, phase: str = "train") -> dict[str, float]:
        """The totals that a phase minimises, with their weights: Σ weight · sum / count."""
        return {"loss": 1.0}

    @abstractmethod
    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        """Totals of one batch. The names are always the same; a process's part of the batch may be empty.

        In eval mode, do not store anything for `after_step`.
        """

    def join(self, processes: Processes) -> None:
        """Called once before training, with the processes that train together."""
        self.processes = processes

    def prepare_for(self, batches: BatchSource) -> None:
        """Called once before training, and before a resume, with the training batches: for buffers of their size."""

    def before_training(self, start: Start) -> None:
        """Called once before the first step, in eval mode: for long work with frozen models that is kept in files.

        It may be called or not; what is not done here is done when it is needed.
        """

    def epoch_start(self, epoch: Epoch) -> None:
        """Called before each epoch, for example to cluster."""

    def after_step(self) -> None:
        """Called after each update, for example to update banks; with `training.accumulate`, after several forwards."""


class RetrievalObjective(Objective):
    """Base of objectives that train a retriever; see `Objective` for the arguments."""

    trains = Retriever.kind
    target: Retriever  # type: ignore[assignment]


def pair_log_prob(captioner: Captioner, batch: Batch, *kinds: Kind) -> torch.Tensor:
    """ln p(caption | image) of the batch's pairs of these kinds, `[pairs]`.

    All pairs of the batch are scored in one pass per step and captioner, which composed objectives share.
    """
    rows = batch.pairs.of(*kinds)
    every = torch.arange(len(batch.pairs), device=rows.device)
    scores = batch.once(("pair_log_prob", id(captioner)), lambda: log_prob_of_rows(captioner, batch, every))
    return scores if len(rows) == len(scores) else scores[rows]


def log_prob_of_rows(captioner: Decodable, batch: Batch, rows: torch.Tensor) -> torch.Tensor:
    """ln p(caption | image) of these rows of the batch's pairs, `[rows]`."""
    if not len(rows):
        return torch.zeros(0, device=captioner.device)
    memory = captioner.encode(batch.features[captioner.encoder.name])
    return captioner.log_prob(memory, captioner.tokenize(captions_of(batch, rows)), batch.pairs.image_row[rows])


def captions_of(batch: Batch, rows: torch.Tensor) -> list[str]:
    """The captions of these rows of the batch's pairs."""
    return [batch.captions[row] for row in batch.pairs.caption_row[rows].tolist()]
