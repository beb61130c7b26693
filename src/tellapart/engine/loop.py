"""One loop for every objective: exact, interruptible, resumable, on one process or many.

All randomness of a step is a function of (seed, step, process), and everything that outlives a step is in the
checkpoint, so that k steps, a stop and a resume give bit for bit what an uninterrupted training gives. Losses are sums
divided by counts over all processes, so that two processes on half batches do what one does on the whole.

What is not known here: captions, contrast, pairs. The objective knows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import nn

from tellapart.data.batches import Batch, BatchSource
from tellapart.engine import checkpoint
from tellapart.engine.interrupt import finishing_the_step
from tellapart.engine.journal import Journal
from tellapart.engine.processes import FabricProcesses, on_first, open_fabric
from tellapart.engine.schedule import learning_rate, make_optimiser
from tellapart.engine.settings import TrainingSettings
from tellapart.errors import RecipeError, RunError
from tellapart.files import write_json
from tellapart.models import load_model
from tellapart.objectives.base import Epoch, Objective, Progress, Total, frozen_models
from tellapart.progress import ProgressLine

# What randomness is drawn for, beside the step's own.
FOR_EPOCH, FOR_VALIDATION = 1, 2

Measure = Callable[[], dict[str, float]]


class Interrupted(RunError):
    """The training was stopped by the user after a whole step; its state is saved."""


def train(
    objective: Objective,
    batches: BatchSource,
    validation: BatchSource,
    settings: TrainingSettings,
    seed: int,
    folder: Path,
    label: str,
    fabric: Fabric | None = None,
    measure: Measure | None = None,
) -> None:
    """Train an objective to the end of its schedule, continuing from the folder's last checkpoint if it has one.

    Args:
        objective: what is minimised.
        batches: the training split, this process's share.
        validation: the validation split, this process's share.
        settings: the recipe's `training` section.
        seed: all randomness is drawn from it and the step.
        folder: the run folder; gets `metrics.jsonl` and `checkpoints/`.
        label: what the progress line calls this training.
        fabric: device, precision and processes; by default what `settings.precision` and the machine give.
        measure: gives further validation figures, e.g. CIDEr of generated captions; called by the first process.
    """
    trainer = Trainer(
        objective, batches, validation, settings, seed, folder, fabric or open_fabric(settings.precision), measure
    )
    with finishing_the_step() as stop_asked:
        trainer.run(label, stop_asked)


@dataclass
class Phase:
    """One phase of a step: its modules and optimiser as Fabric wrapped them, and what it may change."""

    name: str
    module: Any
    optimiser: Any
    plain_optimiser: torch.optim.Optimizer
    parameters: list[nn.Parameter]
    losses: dict[str, float]


@dataclass
class Memory:
    """What the loop must remember from one session to the next."""

    step: int = 0
    seconds: float = 0.0
    best: float | None = None
    waited: int = 0  # validations since the best one


class Trainer:
    """A training under way. See `train` for the arguments."""

    def __init__(
        self,
        objective: Objective,
        batches: BatchSource,
        validation: BatchSource,
        settings: TrainingSettings,
        seed: int,
        folder: Path,
        fabric: Fabric,
        measure: Measure | None = None,
    ) -> None:
        self.objective = objective.to(fabric.device)
        for model in frozen_models(objective):
            model.to(fabric.device)
        self.batches, self.validation = batches, validation
        self.settings, self.seed, self.folder = settings, seed, folder
        self.fabric, self.measure = fabric, measure
        self.processes = FabricProcesses(fabric)
        objective.join(self.processes)
        self.steps = settings.steps or (settings.epochs or 0) * len(batches)
        self.phases = self._make_phases()
        self.memory = Memory()
        self.window: dict[str, Total] = {}
        self._saved = -1

    # --- the loop ---------------------------------------------------------------------------------------------

    def run(self, label: str, stop_asked: Callable[[], bool] = lambda: False) -> None:
        """All steps that are left; leaves the `kept` pointer."""
        self._resume()
        self._check_monitor()
        settings, memory, first = self.settings, self.memory, self.processes.rank == 0
        journal = Journal(self.folder, self._saved) if first else None
        line = ProgressLine(label, " steps") if first else None
        every = settings.validate_every or len(self.batches)
        began = time.monotonic() - memory.seconds
        if self.steps == 0 and self._saved < 0:  # nothing to train: the model is measured and kept as it comes
            self._validate_and_save(journal)
        while memory.step < self.steps and not self._lost_patience():
            if memory.step % len(self.batches) == 0:
                self._epoch_start(memory.step // len(self.batches))
            rate = learning_rate(settings, memory.step, self.steps, len(self.batches))
            stop = self._step(memory.step, rate, stop_asked)
            if self.processes.world == 1:  # with others, a wish that came too late to agree on waits for the next step
                stop |= stop_asked()
            memory.step += 1
            memory.seconds = time.monotonic() - began
            if memory.step % settings.log_every == 0 or memory.step == self.steps:
                figures = self._close_window()
                elapsed = {"learning_rate": rate, "seconds": round(memory.seconds, 2)}
                self._write_down(journal, "train", {**figures, **elapsed})
                if line:
                    line.update(memory.step, self.steps, self._shown(figures))
            if memory.step % every == 0 or memory.step == self.steps:
                self._validate_and_save(journal)
            if stop and memory.step < self.steps:
                self._save()
                raise Interrupted(
                    f"{self.folder}: stopped after step {memory.step} of {self.steps} and saved; "
                    f"the same command continues, or: tellapart train --resume {self.folder}"
                )
        for phase in self.phases:
            _require_gradients(phase.parameters, True)
        on_first(self.fabric, self._keep)

    def _step(self, step: int, rate: float, stop_asked: Callable[[], bool]) -> bool:
        """One step through all phases; tells whether any process was asked to stop."""
        self.objective.train()
        parts = [self.batches.at(step, part).to(self.fabric.device) for part in range(self.settings.accumulate)]
        progress = Progress(step, self.steps)
        stop = False
        for number, phase in enumerate(self.phases):
            for other in self.phases if len(self.phases) > 1 else ():
                _require_gradients(other.parameters, other is phase)
            own_rate = self.settings.phase_learning_rates.get(phase.name)
            factor = 1.0 if own_rate is None else own_rate / self.settings.learning_rate
            stop |= self._update(phase, number, parts, progress, rate * factor, stop_asked)
        self.objective.after_step()
        return stop

    def _update(
        self,
        phase: Phase,
        number: int,
        parts: list[Batch],
        progress: Progress,
        rate: float,
        stop_asked: Callable[[], bool],
    ) -> bool:
        """One optimiser step on the parts of a batch.

        Each loss is divided by its count over all parts and processes. The counts of later parts are not known when
        the first goes backward: for one loss a likely count is used and the gradient corrected at the end; several
        losses cannot be told apart in one gradient, so their items are counted ahead.
        """
        phase.optimiser.zero_grad(set_to_none=True)
        ahead = len(parts) > 1 and len(phase.losses) > 1
        likely: dict[str, float] = self._count(phase, parts, progress) if ahead else {}
        counted = dict.fromkeys(phase.losses, 0.0)
        stop = False
        for part, batch in enumerate(parts):
            batch.forget()
            self._seed(progress.step, self.processes.rank, number, part)
            last = part == len(parts) - 1
            alone = self.processes.world == 1 or last
            with nullcontext() if alone else self.fabric.no_backward_sync(phase.module):
                totals = self._forward(phase, batch, progress)
                counts, failed, asked = self._agree(phase, totals, stop_asked())
                stop |= asked
                if failed:
                    self._fail(phase, totals, parts, progress)
                likely = likely or {name: max(1.0, count * len(parts)) for name, count in counts.items()}
                counted = {name: before + counts[name] for name, before in counted.items()}
                # Gradients are averaged over processes, a sum over them is meant.
                scale = {name: weight * self.processes.world / likely[name] for name, weight in phase.losses.items()}
                loss = torch.stack([totals[name].sum * factor for name, factor in scale.items()]).sum()
                self.fabric.backward(loss, model=phase.module)
            self._note(phase, totals)
        if not any(counted.values()):
            return stop
        correction = next(likely[name] / max(1.0, count) for name, count in counted.items())
        if correction != 1.0:
            torch._foreach_mul_([p.grad for p in phase.parameters if p.grad is not None], correction)
        norm = self._clip(phase)
        if self.settings.precision != "fp16" and not torch.isfinite(norm):  # fp16's scaler deals with its overflows
            self._fail(phase, {"gradient_norm": Total(norm, 1)}, parts, progress)
        self._note(phase, {"gradient_norm": Total(norm, 1)})
        for group in phase.plain_optimiser.param_groups:
            group["lr"] = rate
        phase.optimiser.step()
        return stop

    @torch.no_grad()
    def _count(self, phase: Phase, parts: list[Batch], progress: Progress) -> dict[str, float]:
        """The items of each loss over all parts and processes."""
        self.objective.eval()
        totals = _sum_up(self._forward(phase, batch, progress) for batch in parts)
        self.objective.train()
        counts = self.processes.sum([float(totals[name].count) for name in phase.losses])
        return {name: max(1.0, count) for name, count in zip(phase.losses, counts, strict=True)}

    def _forward(self, phase: Phase, batch: Batch, progress: Progress) -> dict[str, Total]:
        counts: dict[str, int] = {}

        def compute() -> dict[str, torch.Tensor]:
            totals = self.objective(batch, progress, phase.name)
            counts.update({name: total.count for name, total in totals.items()})
            sums = {name: total.sum for name, total in totals.items()}
            if torch.is_grad_enabled() and not any(sums[name].requires_grad for name in phase.losses):
                # An empty share takes part in the exchange of gradients all the same, with zeros.
                name = next(iter(phase.losses))
                sums[name] = sums[name] + 0 * phase.parameters[0].sum()
            return sums

        sums: dict[str, torch.Tensor] = phase.module(compute)
        return {name: Total(value, counts[name]) for name, value in sums.items()}

    def _agree(self, phase: Phase, totals: dict[str, Total], stop: bool) -> tuple[dict[str, float], bool, bool]:
        """The counts of the losses over all processes; whether one failed; whether one was asked to stop."""
        finite = torch.stack([totals[name].sum.detach() for name in phase.losses]).isfinite().all()
        own = [*(float(totals[name].count) for name in phase.losses), float(not finite), float(stop)]
        *counts, failed, stopped = self.processes.sum(own)
        return dict(zip(phase.losses, counts, strict=True)), failed > 0, stopped > 0

    def _clip(self, phase: Phase) -> torch.Tensor:
        """Clip gradients to `clip_norm`; gives their norm before."""
        if self.settings.clip_norm is None:
            return torch.nn.utils.get_total_norm([p.grad for p in phase.parameters if p.grad is not None])
        norm = self.fabric.clip_gradients(
            phase.module, phase.optimiser, max_norm=self.settings.clip_norm, error_if_nonfinite=False
        )
        assert norm is not None
        return norm

    def _fail(self, phase: Phase, totals: dict[str, Total], parts: list[Batch], progress: Progress) -> None:
        """Stop at a loss that is no number: the state is saved apart, the last checkpoint stays what it was."""
        wrong = [self._name(phase, name) for name, total in totals.items() if not torch.isfinite(total.sum).all()]
        told = self._everyones({"losses": wrong, "images": [id for batch in parts for id in batch.ids]})
        wrong = sorted({name for one in told for name in one["losses"]})
        images = [id for one in told for id in one["images"]]
        place = f"failed-step-{progress.step + 1}"
        report = {"step": progress.step + 1, "phase": phase.name, "not_finite": wrong, "images": images}
        state = self._state()
        self._tell_history(None)

        def write() -> None:
            checkpoint.save_checkpoint(self.folder, place, self.objective.target, state)
            write_json(self.folder / "checkpoints" / place / "failure.json", report)

        on_first(self.fabric, write)
        raise RunError(
            f"step {progress.step + 1}: {', '.join(wrong)} is not a finite number, on the images {', '.join(images)}; "
            f"the state is in {self.folder / 'checkpoints' / place}; "
            "lower training.learning_rate or training.clip_norm and train again"
        )

    # --- validation -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """The objective's figures over the validation split, in record order and eval mode, and the measured ones."""
        figures = self._figures(_sum_up(self._validation_totals()))
        if self.measure is not None:
            self.objective.eval()
            figures |= on_first(self.fabric, self.measure)
        self.objective.train()
        return figures

    def _validation_totals(self) -> Iterator[dict[str, Total]]:
        progress = Progress(self.memory.step, self.steps)
        self.objective.eval()
        self._seed(FOR_VALIDATION, self.processes.rank)
        for batch in self.validation.epoch():
            here = batch.to(self.fabric.device)
            for phase in self.phases:
                here.forget()
                totals = self._forward(phase, here, progress)
                yield {self._name(phase, name): total for name, total in totals.items()}

    def _validate_and_save(self, journal: Journal | None) -> None:
        memory, settings = self.memory, self.settings
        figures = self.validate()
        figure = self._monitored(figures)
        self._write_down(journal, "val", figures)
        sign = -1 if settings.monitor_best == "highest" else 1
        # The first one is the best so far whatever it is, so that there is one.
        improved = memory.best is None or (math.isfinite(figure) and not sign * figure >= sign * memory.best)
        memory.best = figure if improved else memory.best
        memory.waited = 0 if improved else memory.waited + 1
        self._save(figures, best=improved)
        on_first(self.fabric, lambda: checkpoint.remove_old_checkpoints(self.folder, settings.keep_last))

    def _write_down(self, journal: Journal | None, split: str, figures: dict[str, float]) -> None:
        def write() -> None:
            assert journal is not None
            journal.add(self.memory.step, split, figures)

        on_first(self.fabric, write)

    def _lost_patience(self) -> bool:
        return self.settings.patience is not None and self.memory.waited >= self.settings.patience

    @torch.no_grad()
    def _check_monitor(self) -> None:
        """A misspelt figure is told now, not after the first epoch."""
        if self.settings.monitor == "loss" or self.memory.step > 0 or self.steps == 0:
            return
        known = self._figures(_sum_up(islice(self._validation_totals(), len(self.phases))))
        if self.measure is not None:
            known |= on_first(self.fabric, self.measure)
        self._monitored(known)

    def _monitored(self, figures: dict[str, float]) -> float:
        """The figure that says which checkpoint is best."""
        if self.settings.monitor not in figures:
            raise RecipeError(
                f"training.monitor: there is no validation figure '{self.settings.monitor}'; there are: "
                f"{', '.join(figures)} (caption metrics need training.validate_captions, R@sum needs "
                "training.validate_retrieval)"
            )
        return figures[self.settings.monitor]

    # --- epochs, phases, figures ------------------------------------------------------------------------------

    @torch.no_grad()
    def _epoch_start(self, epoch: int) -> None:
        device = self.fabric.device
        self.objective.eval()
        self._seed(FOR_EPOCH, epoch)  # the same in all processes: what they compute from gathered data is equal

        def moved(batches: Iterator[Batch]) -> Iterator[Batch]:
            return (batch.to(device) for batch in batches)

        whole = Epoch(epoch, lambda: moved(self.batches.epoch()), lambda: moved(self.batches.positives()))
        self.objective.epoch_start(whole)
        self.objective.train()

    def _make_phases(self) -> list[Phase]:
        phases = []
        modules = self.objective.phases()
        unknown = set(self.settings.phase_learning_rates) - set(modules)
        if unknown:
            raise RecipeError(
                f"training.phase_learning_rates: there is no phase '{min(unknown)}'; phases: {', '.join(modules)}"
            )
        for name, module in modules.items():
            parameters = [p for p in module.parameters() if p.requires_grad]
            optimiser = make_optimiser(self.settings, parameters)
            wrapped, wrapped_optimiser = self.fabric.setup(_Compute(module), optimiser)
            phases.append(Phase(name, wrapped, wrapped_optimiser, optimiser, parameters, self.objective.losses(name)))
        return phases

    def _seed(self, *what: int) -> None:
        state = np.random.SeedSequence([self.seed, *what]).generate_state(1, np.uint64)
        torch.manual_seed(int(state[0] >> np.uint64(1)))

    def _name(self, phase: Phase, total: str) -> str:
        return total if len(self.phases) == 1 else f"{phase.name}/{total}"

    def _note(self, phase: Phase, totals: dict[str, Total]) -> None:
        for name, total in totals.items():
            key = self._name(phase, name)
            self.window[key] = _plus(self.window.get(key), Total(total.sum.detach(), total.count))

    def _figures(self, totals: dict[str, Total]) -> dict[str, float]:
        """Means over all processes, and `loss`, the weighted sum of what is minimised."""
        means = {name: total / max(1.0, count) for name, (total, count) in self._over_processes(totals).items()}
        weights = {self._name(phase, name): w for phase in self.phases for name, w in phase.losses.items()}
        return {"loss": sum(weight * means[name] for name, weight in weights.items()), **means}

    def _over_processes(self, totals: dict[str, Total]) -> dict[str, tuple[float, float]]:
        """Sums and counts over all processes."""
        own = [float(value) for total in totals.values() for value in (total.sum, total.count)]
        reduced = self.processes.sum(own)
        return dict(zip(totals, zip(reduced[::2], reduced[1::2], strict=True), strict=True))

    def _close_window(self) -> dict[str, float]:
        figures = self._figures(self.window)
        self.window = {}
        return figures

    def _shown(self, figures: dict[str, float]) -> dict[str, float]:
        """For the progress line: the loss, and its terms where there are several."""
        names = [self._name(phase, name) for phase in self.phases for name in phase.losses]
        return {name: figures[name] for name in ["loss", *names]}

    # --- saving and resuming ----------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        return {
            **vars(self.memory),
            "windows": self._everyones({name: [float(total.sum), total.count] for name, total in self.window.items()}),
            "objective": {name: value.detach() for name, value in _beside_the_target(self.objective).items()},
            "optimisers": {phase.name: phase.plain_optimiser.state_dict() for phase in self.phases},
            "precision": self.fabric.strategy.precision.state_dict(),
        }

    def _save(self, figures: dict[str, float] | None = None, best: bool = False) -> None:
        """Write the checkpoint of this step and point `last` to it; also `best`, if it is.

        Args:
            figures: what validation measured at this step, for the card.
            best: whether it is the best so far.
        """
        if self._saved == self.memory.step:
            return
        state, name = self._state(), f"step-{self.memory.step}"
        self._tell_history(figures)

        def write() -> None:
            checkpoint.save_checkpoint(self.folder, name, self.objective.target, state)
            # `last` flips at the end: whoever resumes from it has the best that its state remembers.
            if best:
                checkpoint.point(self.folder, "best", name)
            checkpoint.point(self.folder, "last", name)

        on_first(self.fabric, write)
        self._saved = self.memory.step

    def _tell_history(self, figures: dict[str, float] | None) -> None:
        """What the card says of these very weights."""
        history = {key: value for key, value in self.objective.target.history.items() if key != "measured"}
        measured = {} if figures is None else {"measured": {"validation": figures}}
        self.objective.target.history = {**history, "steps": self.memory.step, **measured}

    def _keep(self) -> None:
        checkpoint.point(self.folder, "kept", checkpoint.checkpoint_path(self.folder, self.settings.keep).name)
        checkpoint.remove_old_checkpoints(self.folder, self.settings.keep_last)

    def _resume(self) -> None:
        """Take up the last checkpoint, if there is one."""
        if not self.fabric.broadcast(checkpoint.has_checkpoint(self.folder)):
            return
        path = checkpoint.checkpoint_path(self.folder, "last")
        state = checkpoint.load_trainer_state(path)
        saved = load_model(path, self.objective.target.kind)
        self.objective.target.load_state_dict(saved.state_dict())
        self.objective.target.history = saved.history
        own = _beside_the_target(self.objective)
        with torch.no_grad():
            for name, value in state["objective"].items():
                own[name].copy_(value)
        for phase in self.phases:
            phase.plain_optimiser.load_state_dict(state["optimisers"][phase.name])
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        self.memory = Memory(**{key: state[key] for key in vars(Memory())})
        # Each process takes up its own; were there more of them before, the rest goes to the first.
        own_windows = state["windows"][self.processes.rank :: self.processes.world]
        self.window = _sum_up(
            {name: Total(torch.tensor(total), count) for name, (total, count) in window.items()}
            for window in own_windows
        )
        self._saved = self.memory.step

    def _everyones(self, value: Any) -> list[Any]:
        """A small plain value of each process."""
        if self.processes.world == 1:
            return [value]
        values: list[Any] = [None] * self.processes.world
        torch.distributed.all_gather_object(values, value)
        return values


class _Compute(nn.Module):
    """What gradient exchange and precision are wrapped around: one phase's modules, and whatever forward it is given.

    The forward is a function, so that Fabric does not look for tensors to convert in batches and totals.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, compute: Callable[[], dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return compute()


def _beside_the_target(objective: Objective) -> dict[str, torch.Tensor]:
    """The objective's own parameters and persistent buffers: what the model folder does not hold."""
    in_target = {id(value) for value in objective.target.state_dict(keep_vars=True).values()}
    whole = objective.state_dict(keep_vars=True)
    return {name: value for name, value in whole.items() if id(value) not in in_target}


def _require_gradients(parameters: list[nn.Parameter], wanted: bool) -> None:
    for parameter in parameters:
        parameter.requires_grad_(wanted)


def _plus(before: Total | None, total: Total) -> Total:
    return total if before is None else Total(before.sum + total.sum, before.count + total.count)


def _sum_up(batches: Iterable[dict[str, Total]]) -> dict[str, Total]:
    totals: dict[str, Total] = {}
    for batch in batches:
        for name, total in batch.items():
            totals[name] = _plus(totals.get(name), total)
    return totals
