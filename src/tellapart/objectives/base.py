"""The objective contract: what a training step minimises.

An objective is a module that holds what is trained and, outside its modules, frozen models by role. Its `forward`
gives named (sum, count) totals; the loop divides after reducing over processes, so that two processes on half batches
equal one on the whole. The totals named in `losses` are minimised, the others are logged.

What outlives a step (banks, pointers, momentum encoders, cluster centres) is a registered module or persistent
buffer: it is saved with the checkpoint and resumes bit for bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from pydantic import BaseModel
from torch import nn

from tellapart.captioners.base import Captioner
from tellapart.data.batches import Batch, Kind
from tellapart.errors import RecipeError
from tellapart.models import Model
from tellapart.retrievers.base import Retriever


@dataclass(frozen=True)
class Total:
    """A sum over `count` items."""

    sum: torch.Tensor
    count: int


@dataclass(frozen=True)
class Needs:
    """What an objective asks of the recipe and of the batches.

    Attributes:
        roles: the frozen models it uses: role -> kind of model, such as `{"reference": "captioner"}`.
        negatives: captions of other images that are drawn for each true pair.
    """

    roles: Mapping[str, str] = field(default_factory=dict)
    negatives: int = 0


@dataclass(frozen=True)
class Progress:
    """How far the training is, for schedules inside an objective."""

    step: int
    steps: int

    @property
    def fraction(self) -> float:
        return self.step / max(1, self.steps)


@dataclass(frozen=True)
class Epoch:
    """What an objective is given before an epoch begins.

    Attributes:
        number: from 0.
        batches: one pass over the training split in record order, on the device; each process sees its share.
        pairs: the same with every caption of an image, nothing drawn.
    """

    number: int
    batches: Callable[[], Iterator[Batch]]
    pairs: Callable[[], Iterator[Batch]]


class Processes:
    """The processes that train together, as an objective sees them. This one is alone; the loop gives the real ones."""

    rank = 0
    world = 1

    def gather(self, tensor: torch.Tensor, gradient: bool = False) -> torch.Tensor:
        """Everyone's rows in the order of the whole batch; processes may have unequal numbers of rows.

        Every process must call this equally often, with an empty tensor if it has no rows.

        Args:
            tensor: `[rows, ...]`.
            gradient: let gradients flow back to the process a row came from, for losses over the whole batch;
                without it the result is detached.
        """
        return tensor if gradient else tensor.detach()


class Roles:
    """The models that an objective is given: the target, which is trained, and frozen ones by their role.

    Args:
        target: the captioner or retriever that is trained.
        frozen: role -> model, for each role in the objective's `Needs.roles`.

    Example:
        >>> roles = Roles(target, reference=mle)                    # doctest: +SKIP
        >>> objective = Contrastive(ContrastiveSettings(), roles)   # doctest: +SKIP
    """

    def __init__(self, target: Model, **frozen: nn.Module) -> None:
        self.target = target
        self.frozen = frozen


class Frozen(Mapping[str, Any]):
    """Models that are never trained, by role: eval mode, no gradient, and no part of the objective's own modules.

    It is not an `nn.Module`: its weights are in no optimiser, no checkpoint and no gradient exchange.
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
    """Base of all objectives; those that train a retriever begin with `RetrievalObjective`.

    Args:
        settings: the objective's own settings (an instance of `Settings`).
        roles: the target, and a frozen model for each role in `needs(settings).roles`.

    Attributes:
        frozen: the frozen models by role.
        trains: the kind of its target, `captioner` or `retriever`: the recipe's section that it goes with.
        processes: who trains together; `gather` what a loss or a bank must see of the whole batch.
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
        self.target = roles.target  # type: ignore[assignment]  # the assertion has looked
        self.frozen = Frozen(roles.frozen)
        self.processes = Processes()

    @classmethod
    def needs(cls, settings: BaseModel) -> Needs:
        """What these settings ask for; nothing by default."""
        return Needs()

    def phases(self) -> dict[str, nn.Module]:
        """Which modules each phase of a step updates, each with an optimiser of its own; one phase by default."""
        return {"train": self}

    def losses(self, phase: str = "train") -> dict[str, float]:
        """The totals a phase minimises, with their weights: Σ weight · sum / count."""
        return {"loss": 1.0}

    @abstractmethod
    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        """Totals of one batch, under the same names each time; the batch may be an empty share of a ragged one.

        In eval mode nothing is remembered for `after_step`.
        """

    def join(self, processes: Processes) -> None:
        """Called once before a training, with the processes that train together."""
        self.processes = processes

    def epoch_start(self, epoch: Epoch) -> None:
        """Called before each epoch, e.g. for clustering."""

    def after_step(self) -> None:
        """Called after each update, e.g. for momentum encoders and banks; an accumulated step has several forwards."""


class RetrievalObjective(Objective):
    """Base of objectives that train a retriever; see `Objective` for the arguments."""

    trains = Retriever.kind
    target: Retriever  # type: ignore[assignment]  # in all else it is an objective like any other


def pair_log_prob(captioner: Captioner, batch: Batch, *kinds: Kind) -> torch.Tensor:
    """ln p(caption | image) of the batch's pairs of these kinds.

    All pairs are scored once per step and captioner, whatever kinds are asked for first: composed objectives share
    the pass.
    """
    rows = batch.pairs.of(*kinds)
    scores = batch.once(("pair_log_prob", id(captioner)), lambda: _all_pairs(captioner, batch))
    return scores if len(rows) == len(scores) else scores[rows]


def _all_pairs(captioner: Captioner, batch: Batch) -> torch.Tensor:
    if not len(batch.pairs):
        return torch.zeros(0, device=captioner.device)
    captions = [batch.captions[row] for row in batch.pairs.caption_row.tolist()]
    memory = captioner.encode(batch.features[captioner.encoder.name])
    return captioner.log_prob(memory, captioner.tokenize(captions), batch.pairs.image_row)
