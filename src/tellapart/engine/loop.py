"""The training loop: one for all objectives, on one process or many; it can be interrupted and resumed exactly.

All randomness of a step is a function of (seed, step, process), and everything that outlives a step is in the
checkpoint. So k steps, a stop and a resume give bit for bit the same as a training without a stop. Losses are sums
divided by counts over all processes, so two processes on half batches do the same as one on whole batches.

The loop does not depend on what is trained; captions, pairs and contrast are up to the objective.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric

from tellapart.data.batches import Batch, BatchSource
from tellapart.data.read_ahead import ReadAhead
from tellapart.engine import checkpoint
from tellapart.engine.average import WeightAverage
from tellapart.engine.interrupt import catch_stop_signals
from tellapart.engine.journal import Journal
from tellapart.engine.phases import Phase, add_totals, make_phases
from tellapart.engine.processes import FabricProcesses, on_first, open_fabric
from tellapart.engine.schedule import learning_rate
from tellapart.engine.settings import TrainingSettings
from tellapart.errors import RecipeError, RunError, shorten, some
from tellapart.files import write_json
from tellapart.models import load_model
from tellapart.objectives.base import Epoch, Objective, Progress, Total, frozen_models
from tellapart.progress import ProgressLine

# Seeds of what is drawn outside the steps.
FOR_EPOCH, FOR_VALIDATION = 1, 2

Measure = Callable[[], dict[str, float]]


class Interrupted(RunError):
    """The training was stopped by the user after a whole step; its state is saved."""


@dataclass
class LoopState:
    """The part of a checkpoint that is the loop's own."""

    step: int = 0
    seconds: float = 0.0
    best: float | None = None
    validations_since_best: int = 0
    cuts: int = 0  # of the learning rate, by the plateau schedule
    validations_since_cut: int = 0  # or since the best one, if that is later


class Trainer:
    """Trains an objective to the end of its schedule, from the last checkpoint in the run folder if it has one.

    Args:
        objective: what is minimised.
        batches: the training split, this process's share.
        validation: the validation split, this process's share.
        settings: the recipe's `training` section.
        seed: all randomness is drawn from it and the step.
        folder: the run folder, for `metrics.jsonl` and `checkpoints/`.
        fabric: device, precision and processes; by default from `settings.precision` and the machine.
        measure: gives further validation figures, e.g. CIDEr of generated captions; called in the first process.

    Example:
        >>> Trainer(objective, batches, validation, settings, 0, folder).run("training")   # doctest: +SKIP
    """

    def __init__(
        self,
        objective: Objective,
        batches: BatchSource,
        validation: BatchSource,
        settings: TrainingSettings,
        seed: int,
        folder: Path,
        fabric: Fabric | None = None,
        measure: Measure | None = None,
    ) -> None:
        self.fabric = fabric or open_fabric(settings.precision)
        self.objective = objective.to(self.fabric.device)
        for model in frozen_models(objective):
            model.to(self.fabric.device)
        self.batches, self.validation = batches, validation
        self.settings, self.seed, self.folder = settings, seed, folder
        self.measure = measure
        self.processes = FabricProcesses(self.fabric)
        objective.join(self.processes)
        objective.prepare_for(batches)
        self.steps = settings.steps or (settings.epochs or 0) * len(batches)
        self.phases = make_phases(objective, settings, self.fabric)
        self.average = None if settings.ema is None else WeightAverage(objective.target, settings.ema)
        self.state = LoopState()
        self.window: dict[str, Total] = {}
        self._saved = -1
        self._seconds_of_steps = 0.0

    # --- the loop ---------------------------------------------------------------------------------------------

    def run(self, label: str) -> None:
        """Train all remaining steps and write the `kept` pointer; Ctrl-C raises `Interrupted` after a saved step.

        Args:
            label: the name of this training in its progress.
        """
        with catch_stop_signals(tell=self.processes.rank == 0) as stop_requested:
            self._resume()
            self._check_monitor()
            with ReadAhead(self._read, self.state.step, self.steps) as self._ahead:
                self._train(label, stop_requested)

    def _train(self, label: str, stop_requested: Callable[[], bool]) -> None:
        settings, state, first = self.settings, self.state, self.processes.rank == 0
        journal = Journal(self.folder, self._saved) if first else None
        line = ProgressLine(label, " steps") if first else None
        every = settings.validate_every or len(self.batches)
        began = time.monotonic() - state.seconds
        if self.steps == 0 and self._saved < 0:  # nothing to train: measure and keep the initial model
            self._validate_and_save(journal)
        while state.step < self.steps and not self._should_stop_early():
            if state.step % len(self.batches) == 0:
                self._epoch_start(state.step // len(self.batches))
            rate = learning_rate(settings, state.step, self.steps, len(self.batches), state.cuts)
            stop = self._step(state.step, rate, stop_requested)
            state.step += 1
            state.seconds = time.monotonic() - began
            if state.step % settings.log_every == 0 or state.step == self.steps:
                figures = self._close_window()
                elapsed = {"learning_rate": rate, "seconds": round(state.seconds, 2), "waiting": self._waiting()}
                self._log(journal, "train", {**figures, **elapsed})
                if line:
                    line.update(state.step, self.steps, self._progress_figures(figures))
            if state.step % every == 0 or state.step == self.steps:
                self._validate_and_save(journal)
            if self.processes.world == 1:  # several processes agree on a late request in the next step
                stop |= stop_requested()
            if stop and state.step < self.steps:
                self._save()
                raise Interrupted(
                    f"{self.folder}: stopped after step {state.step} of {self.steps} and saved; "
                    f"the same command continues, or: tellapart train --resume {self.folder}"
                )
        for phase in self.phases:
            phase.require_gradients(True)
        on_first(self.fabric, self._point_kept)

    def _step(self, step: int, rate: float, stop_requested: Callable[[], bool]) -> bool:
        """One step through all phases; returns whether any process was asked to stop."""
        began = time.monotonic()
        self.objective.train()
        parts = [batch.to(self.fabric.device) for batch in self._ahead.take(step)]
        progress = Progress(step, self.steps)
        stop = False
        for number, phase in enumerate(self.phases):
            for other in self.phases if len(self.phases) > 1 else ():
                other.require_gradients(other is phase)
            own_rate = self.settings.phase_learning_rates.get(phase.name)
            factor = 1.0 if own_rate is None else own_rate / self.settings.learning_rate
            stop |= self._update(phase, number, parts, progress, rate * factor, stop_requested)
        self.objective.after_step()
        if self.average is not None:
            self.average.update(step + 1)
        self._seconds_of_steps += time.monotonic() - began
        return stop

    def _read(self, step: int) -> list[Batch]:
        """The parts of a step's batch; called in a thread, a step ahead."""
        return [self.batches.at(step, part) for part in range(self.settings.accumulate)]

    def _waiting(self) -> float:
        """The share of the last steps' time in which this process waited for its batches."""
        share = self._ahead.waited / max(1e-9, self._seconds_of_steps)
        self._ahead.waited = self._seconds_of_steps = 0.0
        return round(share, 4)

    def _update(
        self,
        phase: Phase,
        number: int,
        parts: list[Batch],
        progress: Progress,
        rate: float,
        stop_requested: Callable[[], bool],
    ) -> bool:
        """One optimiser step on the parts of a batch; returns whether any process was asked to stop.

        Each loss is divided by its count over all parts and processes. The counts of later parts are not known at the
        first backward pass. With one loss, an estimated count is used and the gradient is corrected at the end. With
        several losses the gradient cannot be corrected, so their items are counted before.
        """
        phase.optimiser.zero_grad(set_to_none=True)
        count_first = len(parts) > 1 and len(phase.losses) > 1
        estimated: dict[str, float] = self._count(phase, parts, progress) if count_first else {}
        counted = dict.fromkeys(phase.losses, 0.0)
        stop = False
        for part, batch in enumerate(parts):
            batch.forget()
            self._seed(progress.step, self.processes.rank, number, part)
            synchronised = self.processes.world == 1 or part == len(parts) - 1
            with nullcontext() if synchronised else self.fabric.no_backward_sync(phase.module):
                totals = phase.forward(batch, progress)
                counts, failed, requested = self._reduce_counts(phase, totals, stop_requested())
                stop |= requested
                if failed:
                    self._stop_not_finite(phase, totals, parts, progress)
                estimated = estimated or {name: max(1.0, count * len(parts)) for name, count in counts.items()}
                counted = {name: before + counts[name] for name, before in counted.items()}
                # Fabric averages gradients over processes; their sum is needed.
                world = self.processes.world
                scale = {name: weight * world / estimated[name] for name, weight in phase.losses.items()}
                loss = torch.stack([totals[name].sum * factor for name, factor in scale.items()]).sum()
                self.fabric.backward(loss, model=phase.module)
            self._add_to_window(phase, totals)
        if not any(counted.values()):
            return stop
        phase.scale_gradients(next(estimated[name] / max(1.0, count) for name, count in counted.items()))
        norm = phase.clip_gradients(self.fabric, self.settings.clip_norm)
        if self.settings.precision != "fp16" and not torch.isfinite(norm):  # fp16's scaler handles overflows
            self._stop_not_finite(phase, {"gradient_norm": Total(norm, 1)}, parts, progress)
        self._add_to_window(phase, {"gradient_norm": Total(norm, 1)})
        phase.update(rate)
        return stop

    @torch.no_grad()
    def _count(self, phase: Phase, parts: list[Batch], progress: Progress) -> dict[str, float]:
        """The items of each loss over all parts and processes."""
        self.objective.eval()
        totals = add_totals(phase.forward(batch, progress) for batch in parts)
        self.objective.train()
        counts = self.processes.sum([float(totals[name].count) for name in phase.losses])
        return {name: max(1.0, count) for name, count in zip(phase.losses, counts, strict=True)}

    def _reduce_counts(self, phase: Phase, totals: dict[str, Total], stop: bool) -> tuple[dict[str, float], bool, bool]:
        """Over all processes: counts of the losses, whether one is not finite, whether one was asked to stop."""
        finite = torch.stack([totals[name].sum.detach() for name in phase.losses]).isfinite().all()
        own = [*(float(totals[name].count) for name in phase.losses), float(not finite), float(stop)]
        *counts, failed, stopped = self.processes.sum(own)
        return dict(zip(phase.losses, counts, strict=True)), failed > 0, stopped > 0

    def _stop_not_finite(self, phase: Phase, totals: dict[str, Total], parts: list[Batch], progress: Progress) -> None:
        """Stop at a loss or gradient that is not finite; the state is saved apart from the last checkpoint."""
        wrong = [name for name, total in phase.named(totals).items() if not torch.isfinite(total.sum).all()]
        gathered = self._all_gather({"losses": wrong, "images": [id for batch in parts for id in batch.ids]})
        wrong = sorted({name for one in gathered for name in one["losses"]})
        images = [id for one in gathered for id in one["images"]]
        place = f"failed-step-{progress.step + 1}"
        report = {"step": progress.step + 1, "phase": phase.name, "not_finite": wrong, "images": images}
        state = self._checkpoint_state()
        self._update_history(None)

        def write() -> None:
            with self._averaged():
                checkpoint.save_checkpoint(self.folder, place, self.objective.target, state)
            write_json(self.folder / "checkpoints" / place / "failure.json", report)

        on_first(self.fabric, write)
        raise RunError(
            f"step {progress.step + 1}: {', '.join(wrong)} is not a finite number, on the images {some(images)}; "
            f"the state is in {self.folder / 'checkpoints' / place}; "
            "lower training.learning_rate or training.clip_norm and train again"
        )

    # --- validation -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """The objective's figures on the validation split, in record order and eval mode, and those of `measure`.

        With `training.ema` they are those of the averaged weights.
        """
        with self._averaged():
            figures = self._figures(add_totals(self._validation_totals()))
            if self.measure is not None:
                self.objective.eval()
                figures |= on_first(self.fabric, self.measure)
        self.objective.train()
        return figures

    def _averaged(self) -> AbstractContextManager[None]:
        """A context in which the target has its averaged weights, if there are any."""
        return nullcontext() if self.average is None else self.average.applied()

    def _validation_totals(self) -> Iterator[dict[str, Total]]:
        progress = Progress(self.state.step, self.steps)
        self.objective.eval()
        self._seed(FOR_VALIDATION, self.processes.rank)
        line = ProgressLine("validating", " batches") if self.processes.rank == 0 else None
        for number, batch in enumerate(self.validation.epoch()):
            if line:
                line.update(number, len(self.validation))
            here = batch.to(self.fabric.device)
            for phase in self.phases:
                here.forget()
                yield phase.named(phase.forward(here, progress))
        if line and line.shown:  # a short validation shows nothing
            line.update(len(self.validation), len(self.validation))

    def _validate_and_save(self, journal: Journal | None) -> None:
        state, settings = self.state, self.settings
        figures = self.validate()
        figure = self._monitored(figures)
        self._log(journal, "val", figures)
        sign = -1 if settings.monitor_best == "highest" else 1
        # The first validation is always the best so far, even if its figure is not finite.
        improved = state.best is None or (math.isfinite(figure) and not sign * figure >= sign * state.best)
        state.best = figure if improved else state.best
        state.validations_since_best = 0 if improved else state.validations_since_best + 1
        state.validations_since_cut = 0 if improved else state.validations_since_cut + 1
        if settings.schedule == "plateau" and state.validations_since_cut == settings.plateau_patience:
            state.cuts, state.validations_since_cut = state.cuts + 1, 0
        self._save(figures, best=improved)
        on_first(self.fabric, lambda: checkpoint.remove_old_checkpoints(self.folder, settings.keep_last))

    def _log(self, journal: Journal | None, split: str, figures: dict[str, float]) -> None:
        def write() -> None:
            assert journal is not None
            journal.add(self.state.step, split, figures)

        on_first(self.fabric, write)

    def _should_stop_early(self) -> bool:
        return self.settings.patience is not None and self.state.validations_since_best >= self.settings.patience

    @torch.no_grad()
    def _check_monitor(self) -> None:
        """Fail fast on an unknown `training.monitor`, before the first epoch."""
        if self.settings.monitor == "loss" or self.state.step > 0 or self.steps == 0:
            return
        known = self._figures(add_totals(islice(self._validation_totals(), len(self.phases))))
        if self.measure is not None:
            known |= on_first(self.fabric, getattr(self.measure, "quick", self.measure))
        self._monitored(known)

    def _monitored(self, figures: dict[str, float]) -> float:
        """The figure that decides which checkpoint is best."""
        if self.settings.monitor not in figures:
            raise RecipeError(
                f"training.monitor: there is no validation figure '{self.settings.monitor}'; there are: "
                f"{', '.join(figures)} (caption metrics need training.validate_captions, R@sum needs "
                "training.validate_retrieval, mean_rank needs training.validate_specificity)"
            )
        return figures[self.settings.monitor]

    # --- epochs and figures -----------------------------------------------------------------------------------

    @torch.no_grad()
    def _epoch_start(self, epoch: int) -> None:
        device = self.fabric.device
        self.objective.eval()
        self._seed(FOR_EPOCH, epoch)  # the same in all processes: they compute the same from gathered data

        def moved(batches: Iterator[Batch]) -> Iterator[Batch]:
            return (batch.to(device) for batch in batches)

        whole = Epoch(epoch, lambda: moved(self.batches.epoch()), lambda: moved(self.batches.positives()))
        self.objective.epoch_start(whole)
        self.objective.train()

    def _seed(self, *what: int) -> None:
        state = np.random.SeedSequence([self.seed, *what]).generate_state(1, np.uint64)
        torch.manual_seed(int(state[0] >> np.uint64(1)))

    def _add_to_window(self, phase: Phase, totals: dict[str, Total]) -> None:
        detached = {name: Total(total.sum.detach(), total.count) for name, total in phase.named(totals).items()}
        self.window = add_totals([self.window, detached])

    def _figures(self, totals: dict[str, Total]) -> dict[str, float]:
        """Means over all processes, and `loss`, the weighted sum of what is minimised."""
        reduced = self.processes.sum([float(v) for total in totals.values() for v in (total.sum, total.count)])
        sums = zip(totals, reduced[::2], reduced[1::2], strict=True)
        means = {name: total / max(1.0, count) for name, total, count in sums}
        return {"loss": sum(weight * means[name] for name, weight in self._loss_weights().items()), **means}

    def _loss_weights(self) -> dict[str, float]:
        """The figures that are minimised, with their weights."""
        return {phase.prefix + name: w for phase in self.phases for name, w in phase.losses.items()}

    def _close_window(self) -> dict[str, float]:
        figures = self._figures(self.window)
        self.window = {}
        return figures

    def _progress_figures(self, figures: dict[str, float]) -> dict[str, float]:
        """The figures shown with the progress: the loss, and its terms if there are several."""
        return {name: figures[name] for name in ["loss", *self._loss_weights()]}

    # --- saving and resuming ----------------------------------------------------------------------------------

    def _checkpoint_state(self) -> dict[str, Any]:
        return {
            **asdict(self.state),
            "windows": self._all_gather({name: [float(total.sum), total.count] for name, total in self.window.items()}),
            "objective": {name: value.detach() for name, value in _state_outside_target(self.objective).items()},
            "optimisers": {phase.name: phase.plain_optimiser.state_dict() for phase in self.phases},
            "precision": self.fabric.strategy.precision.state_dict(),
            **({} if self.average is None else {"own_weights": self.average.own_weights()}),
        }

    def _save(self, figures: dict[str, float] | None = None, best: bool = False) -> None:
        """Write the checkpoint of this step and point `last` to it; `best` too, if it is the best so far.

        Args:
            figures: of the validation at this step, for the model card.
            best: whether it is the best so far.
        """
        if self._saved == self.state.step:
            return
        state, name = self._checkpoint_state(), f"step-{self.state.step}"
        self._update_history(figures)

        def write() -> None:
            with self._averaged():
                checkpoint.save_checkpoint(self.folder, name, self.objective.target, state)
            # `last` is written at the end: its state holds the best figure, so `best` must be there before it.
            if best:
                checkpoint.point(self.folder, "best", name)
            checkpoint.point(self.folder, "last", name)

        on_first(self.fabric, write)
        self._saved = self.state.step

    def _update_history(self, figures: dict[str, float] | None) -> None:
        """Set the history in the model card: steps and validation figures of these weights."""
        history = {key: value for key, value in self.objective.target.history.items() if key != "measured"}
        measured = {} if figures is None else {"measured": {"validation": figures}}
        self.objective.target.history = {**history, "steps": self.state.step, **measured}

    def _point_kept(self) -> None:
        checkpoint.point(self.folder, "kept", checkpoint.checkpoint_path(self.folder, self.settings.keep).name)
        checkpoint.remove_old_checkpoints(self.folder, self.settings.keep_last)

    def _resume(self) -> None:
        """Load the last checkpoint, if there is one."""
        if not self.fabric.broadcast(checkpoint.has_checkpoint(self.folder)):
            return
        path = checkpoint.checkpoint_path(self.folder, "last")
        state = checkpoint.load_trainer_state(path)
        saved = load_model(path, self.objective.target.kind)
        self.objective.target.load_state_dict(saved.state_dict())
        self.objective.target.history = saved.history
        try:
            self._load_trainer_state(state)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
            reason = shorten(f"{type(error).__name__}: {error}")
            raise RunError(
                f"{path / 'trainer.pt'}: does not fit this training ({reason}); {checkpoint.OTHER_CHECKPOINT}"
            ) from None
        self._saved = self.state.step

    def _load_trainer_state(self, state: dict[str, Any]) -> None:
        own = _state_outside_target(self.objective)
        with torch.no_grad():
            for name, value in state["objective"].items():
                own[name].copy_(value)
        for phase in self.phases:
            phase.load_optimiser(state["optimisers"][phase.name])
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        if self.average is not None:
            self.average.load(state["own_weights"])
        # Checkpoints of earlier versions have no plateaus.
        self.state = LoopState(**{key: state[key] for key in asdict(LoopState()) if key in state})
        # If there were more processes before, some take the windows of several.
        own_windows = state["windows"][self.processes.rank :: self.processes.world]
        self.window = add_totals(
            {name: Total(torch.tensor(total), count) for name, (total, count) in window.items()}
            for window in own_windows
        )

    def _all_gather(self, value: Any) -> list[Any]:
        """The small plain values of all processes."""
        if self.processes.world == 1:
            return [value]
        values: list[Any] = [None] * self.processes.world
        torch.distributed.all_gather_object(values, value)
        return values


def _state_outside_target(objective: Objective) -> dict[str, torch.Tensor]:
    """The objective's parameters and persistent buffers that are not in the model folder."""
    in_target = {id(value) for value in objective.target.state_dict(keep_vars=True).values()}
    whole = objective.state_dict(keep_vars=True)
    return {name: value for name, value in whole.items() if id(value) not in in_target}
