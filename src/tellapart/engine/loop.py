"""One loop for every objective: exact, interruptible, resumable.

All randomness of a step is a function of (seed, step), so that k steps, a stop and a resume give bit for bit what an
uninterrupted training gives. What is not known here: captions, contrast, pairs. The objective knows.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from tellapart.captioners.base import Captioner
from tellapart.data.batches import Batch, BatchSource
from tellapart.engine import checkpoint
from tellapart.engine.progress import ProgressLine
from tellapart.errors import RunError
from tellapart.files import read_jsonl, write_jsonl
from tellapart.objectives.base import Objective, Progress, Total
from tellapart.recipe import TrainingSettings


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
) -> None:
    """Train `objective.target` to the end of the schedule, continuing from the folder's last checkpoint if it has one.

    Args:
        objective: what is minimised.
        batches: the training split.
        validation: the validation split.
        settings: the recipe's `training` section.
        seed: all randomness is drawn from it and the step.
        folder: the run folder; gets `metrics.jsonl` and `checkpoints/`.
        label: what the progress line calls this training.
    """
    steps = settings.steps or (settings.epochs or 0) * len(batches)
    optimisers = {
        phase: torch.optim.AdamW(
            module.parameters(), lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
        )
        for phase, module in objective.phases().items()
    }
    journal = Journal(folder / "metrics.jsonl")
    done, seconds, best = _resume(objective.target, optimisers, folder, journal)
    every = settings.validate_every or len(batches)
    line = ProgressLine(label, " steps")
    window: dict[str, Total] = {}
    began = time.monotonic() - seconds

    def save(step: int) -> None:
        state = {
            "optimisers": {phase: optimiser.state_dict() for phase, optimiser in optimisers.items()},
            "step": step,
            "seconds": time.monotonic() - began,
            "best": best,
        }
        checkpoint.save_checkpoint(folder, objective.target, step, state)

    with _finishing_the_step() as stop_asked:
        for step in range(done, steps):
            if step % len(batches) == 0:
                objective.epoch_start(step // len(batches))
            rate = learning_rate(settings, step, steps)
            totals = _update(objective, optimisers, batches.at(step), Progress(step, steps), rate, settings, seed)
            _add(window, totals)
            done = step + 1
            if done % settings.log_every == 0 or done == steps:
                figures = _means(window)
                window = {}
                elapsed = round(time.monotonic() - began, 2)
                journal.add({"step": done, "split": "train", **figures, "learning_rate": rate, "seconds": elapsed})
                line.update(done, steps, {"loss": figures["loss"]})
            if done % every == 0 or done == steps:
                figures = validate(objective, validation, Progress(done, steps))
                journal.add({"step": done, "split": "val", **figures})
                improved = best is None or figures["loss"] < best
                best = figures["loss"] if improved else best
                save(done)
                if improved:
                    checkpoint.point(folder, "best", f"step-{done}")
                checkpoint.remove_old_checkpoints(folder)
            if stop_asked() and done < steps:
                save(done)
                raise Interrupted(f"{folder}: stopped after step {done} of {steps}; saved, the same command continues")
    kept = checkpoint.checkpoint_path(folder, settings.keep).name
    checkpoint.point(folder, "kept", kept)
    checkpoint.remove_old_checkpoints(folder)


@torch.no_grad()
def validate(objective: Objective, batches: BatchSource, progress: Progress) -> dict[str, float]:
    """The objective's own figures over a whole split, in record order and eval mode."""
    objective.eval()
    totals: dict[str, Total] = {}
    for batch in batches.epoch():
        _add(totals, objective(batch.to(objective.target.device), progress))
    objective.train()
    return _means(totals)


def learning_rate(settings: TrainingSettings, step: int, steps: int) -> float:
    """The rate of a step: linear warm-up, then constant or a half cosine to zero."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.learning_rate
    way = (step - settings.warmup_steps) / max(1, steps - settings.warmup_steps)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * way))


def _update(
    objective: Objective,
    optimisers: dict[str, torch.optim.AdamW],
    batch: Batch,
    progress: Progress,
    rate: float,
    settings: TrainingSettings,
    seed: int,
) -> dict[str, Total]:
    """One step through all phases; gives the totals of all of them, without gradients."""
    objective.train()
    torch.manual_seed(seed * 1_000_003 + progress.step)
    batch = batch.to(objective.target.device)
    everything: dict[str, Total] = {}
    for phase, optimiser in optimisers.items():
        totals = objective(batch, progress, phase)
        loss = totals["loss"].sum / totals["loss"].count
        if not torch.isfinite(loss):
            raise RunError(
                f"step {progress.step}: the loss is {loss.item()} on the images {', '.join(batch.ids)}; "
                "lower training.learning_rate or training.clip_norm; the last checkpoint is kept"
            )
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if settings.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(objective.phases()[phase].parameters(), settings.clip_norm)
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.step()
        everything.update({name: Total(total.sum.detach(), total.count) for name, total in totals.items()})
    objective.after_step()
    return everything


def _add(window: dict[str, Total], totals: dict[str, Total]) -> None:
    for name, total in totals.items():
        before = window.get(name)
        window[name] = total if before is None else Total(before.sum + total.sum, before.count + total.count)


def _means(window: dict[str, Total]) -> dict[str, float]:
    return {name: float(total.sum) / max(1, total.count) for name, total in window.items()}


def _resume(
    target: Captioner, optimisers: dict[str, torch.optim.AdamW], folder: Path, journal: Journal
) -> tuple[int, float, float | None]:
    """Load the last checkpoint, if there is one: steps done, seconds spent, best validation loss."""
    if not (folder / "checkpoints" / "last").exists():
        journal.forget_after(0)
        return 0, 0.0, None
    state = checkpoint.load_trainer_state(folder)
    saved = checkpoint.load_captioner(checkpoint.checkpoint_path(folder, "last"))
    target.load_state_dict(saved.state_dict())
    for phase, optimiser in optimisers.items():
        optimiser.load_state_dict(state["optimisers"][phase])
    journal.forget_after(state["step"])
    return state["step"], state["seconds"], state["best"]


class Journal:
    """`metrics.jsonl`: one line per logged step, always."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, row: dict[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as handle:
            handle.write(json.dumps(row) + "\n")

    def forget_after(self, step: int) -> None:
        """Drop lines a resumed training will write again."""
        if self.path.exists():
            write_jsonl(self.path, [row for row in read_jsonl(self.path) if row["step"] <= step])


@contextmanager
def _finishing_the_step() -> Iterator[Any]:
    """Turn Ctrl-C and a polite kill into a question asked after each step; a second Ctrl-C stops at once."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, ask)
    except ValueError:  # signals can be handled in the main thread only
        pass
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
