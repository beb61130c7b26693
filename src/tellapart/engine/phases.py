"""The phases of a training step: each updates its own parameters with its own optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from tellapart.data.batches import Batch
from tellapart.engine.schedule import make_optimiser
from tellapart.engine.settings import TrainingSettings
from tellapart.errors import RecipeError
from tellapart.objectives.base import Objective, Progress, Total


@dataclass
class Phase:
    """One phase of a step.

    Attributes:
        name: as in `Objective.phases`.
        objective: what is minimised.
        losses: the totals this phase minimises, with their weights.
        parameters: those it updates.
        module: its modules as wrapped by Fabric.
        optimiser: its optimiser as wrapped by Fabric.
        plain_optimiser: the same optimiser without the wrapper.
        prefix: of its figures' names; empty if there is only one phase.
    """

    name: str
    objective: Objective
    losses: dict[str, float]
    parameters: list[nn.Parameter]
    module: Any
    optimiser: Any
    plain_optimiser: torch.optim.Optimizer
    prefix: str

    def forward(self, batch: Batch, progress: Progress) -> dict[str, Total]:
        """The objective's totals of a batch."""
        counts: dict[str, int] = {}

        def compute() -> dict[str, torch.Tensor]:
            totals = self.objective(batch, progress, self.name)
            counts.update({name: total.count for name, total in totals.items()})
            sums = {name: total.sum for name, total in totals.items()}
            if torch.is_grad_enabled() and not any(sums[name].requires_grad for name in self.losses):
                # A process whose share is empty must still take part in the gradient exchange, with zeros.
                name = next(iter(self.losses))
                sums[name] = sums[name] + 0 * self.parameters[0].sum()
            return sums

        sums: dict[str, torch.Tensor] = self.module(compute)
        return {name: Total(value, counts[name]) for name, value in sums.items()}

    def named(self, totals: dict[str, Total]) -> dict[str, Total]:
        """Totals under the names of their figures."""
        return {self.prefix + name: total for name, total in totals.items()}

    def scale_gradients(self, factor: float) -> None:
        if factor != 1.0:
            torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], factor)

    def clip_gradients(self, fabric: Fabric, max_norm: float | None) -> torch.Tensor:
        """Clip the gradients to a norm, unless it is `None`; returns their norm before."""
        if max_norm is None:
            return torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        norm = fabric.clip_gradients(self.module, self.optimiser, max_norm=max_norm, error_if_nonfinite=False)
        assert norm is not None
        return norm

    def update(self, rate: float) -> None:
        """Step the optimiser at this learning rate."""
        for group in self.plain_optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()

    def load_optimiser(self, state: dict[str, Any]) -> None:
        """Load the state of the optimiser; a `ValueError` if it does not fit the parameters."""
        groups = [set(group) for group in self.plain_optimiser.param_groups]
        self.plain_optimiser.load_state_dict(state)
        if [set(group) for group in self.plain_optimiser.param_groups] != groups:
            raise ValueError("the optimiser has other settings")
        for parameter, values in self.plain_optimiser.state.items():
            if not isinstance(parameter, torch.Tensor) or set(values) != {"step", "exp_avg", "exp_avg_sq"}:
                raise ValueError("the optimiser's state is not Adam's")
            if any(values[name].shape != parameter.shape for name in ("exp_avg", "exp_avg_sq")):
                raise ValueError("the optimiser's state has other shapes")

    def require_gradients(self, required: bool) -> None:
        for parameter in self.parameters:
            parameter.requires_grad_(required)


def make_phases(objective: Objective, settings: TrainingSettings, fabric: Fabric) -> list[Phase]:
    """The objective's phases, with modules and optimisers set up by Fabric."""
    modules = objective.phases()
    unknown = set(settings.phase_learning_rates) - set(modules)
    if unknown:
        raise RecipeError(
            f"training.phase_learning_rates: there is no phase '{min(unknown)}'; phases: {', '.join(modules)}"
        )
    phases = []
    for name, module in modules.items():
        parameters = [p for p in module.parameters() if p.requires_grad]
        optimiser = make_optimiser(settings, parameters)
        wrapped, wrapped_optimiser = fabric.setup(_Compute(module), optimiser)
        prefix = f"{name}/" if len(modules) > 1 else ""
        losses = objective.losses(name)
        phases.append(Phase(name, objective, losses, parameters, wrapped, wrapped_optimiser, optimiser, prefix))
    return phases


def add_totals(batches: Iterable[dict[str, Total]]) -> dict[str, Total]:
    """The sums of totals, name by name."""
    added: dict[str, Total] = {}
    for batch in batches:
        for name, total in batch.items():
            before = added.get(name)
            added[name] = total if before is None else Total(before.sum + total.sum, before.count + total.count)
    return added


class _Compute(nn.Module):
    """Runs a given function as the forward pass of one phase's modules, so that Fabric can wrap it.

    The function has no arguments, so that Fabric does not look for tensors to convert in batches and totals.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, compute: Callable[[], dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return compute()
