"""The loop: exact resume, interruption, schedules, clear stops."""

from __future__ import annotations

import itertools
import json
import math
import os
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support import stand_ins
from support.close import assert_close
from support.shapes_worker import HARDLY_MOVING, record_gradients
from support.shapes_worker import train as worker_train
from tellapart.captioners.adaptive import AdaptiveAttention
from tellapart.captioners.base import load_captioner
from tellapart.data.batches import Batch, BatchSource
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset
from tellapart.engine import checkpoint, loop
from tellapart.engine.checkpoint import checkpoint_path, load_trainer_state
from tellapart.engine.interrupt import STOPPING
from tellapart.engine.schedule import learning_rate
from tellapart.engine.settings import TrainingSettings
from tellapart.errors import DataError, RecipeError, RunError
from tellapart.models import model_folder
from tellapart.objectives.base import Objective, Progress, Roles, Total
from tellapart.objectives.composed import Composed, ComposedSettings
from tellapart.objectives.contrastive import Contrastive, ContrastiveSettings
from tellapart.objectives.likelihood import Likelihood, LikelihoodSettings
from tellapart.progress import ProgressLine

Make = Callable[..., AdaptiveAttention]
Data = tuple[Dataset, FeatureStore]


def objective_of(kind: str, make: Make) -> Objective:
    target = make(seed=1, dropout=0.3)
    if kind == "likelihood":
        return Likelihood(LikelihoodSettings(), Roles(target))
    return Contrastive(ContrastiveSettings(negatives=2), Roles(target, reference=make(seed=2)))


def train(
    objective: Objective,
    data: Data,
    folder: Path,
    measure: Callable[[], dict[str, float]] | None = None,
    negatives: int | None = None,
    **settings: object,
) -> None:
    folder.mkdir(exist_ok=True)
    negatives = negatives if negatives is not None else 2 if isinstance(objective, Contrastive) else 0
    sources = [BatchSource(*data, split, 4, None, negatives, seed=7) for split in ("train", "val")]
    chosen = TrainingSettings(**{"steps": 7, "learning_rate": 0.01, "log_every": 1, "validate_every": 3, **settings})
    loop.Trainer(objective, *sources, chosen, 7, folder, measure=measure).run("test")


def rows_of(run: Path, split: str) -> list[dict[str, Any]]:
    return [row for row in map(json.loads, (run / "metrics.jsonl").open()) if row["split"] == split]


def test_batches_are_read_ahead_and_none_after_the_last_step(
    tiny_data: Data, make_captioner: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of 5 steps is in the middle of an epoch; steps are read in a thread, in order, once."""
    read: list[int] = []
    real = BatchSource.at

    def at(source: BatchSource, step: int, part: int = 0, shuffle: bool = True) -> Batch:
        if shuffle:
            assert threading.current_thread() is not threading.main_thread()
            read.append(step)
        return real(source, step, part, shuffle)

    monkeypatch.setattr(BatchSource, "at", at)
    train(objective_of("likelihood", make_captioner), tiny_data, tmp_path / "run", steps=5)
    assert read == [0, 1, 2, 3, 4]
    assert all(0 <= row["waiting"] <= 1 for row in rows_of(tmp_path / "run", "train"))


def test_an_error_of_reading_ahead_comes_at_its_step(
    tiny_data: Data, make_captioner: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = BatchSource.at

    def at(source: BatchSource, step: int, part: int = 0, shuffle: bool = True) -> Batch:
        if shuffle and step == 4:
            raise DataError("features.npy: cannot be read")
        return real(source, step, part, shuffle)

    monkeypatch.setattr(BatchSource, "at", at)
    with pytest.raises(DataError, match=r"features\.npy: cannot be read"):
        train(objective_of("likelihood", make_captioner), tiny_data, tmp_path / "run")
    assert [row["step"] for row in rows_of(tmp_path / "run", "train")] == [1, 2, 3, 4], "earlier steps are trained"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("read-ahead")]


def test_a_long_validation_shows_its_progress_and_a_request_to_stop_is_answered(
    tiny_data: Data,
    make_captioner: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    train(objective_of("likelihood", make_captioner), tiny_data, tmp_path / "short")
    told = capfd.readouterr().err
    assert "validating" not in told
    assert "stopping" not in told

    monkeypatch.setattr(ProgressLine.__init__, "__defaults__", ("", 0.0))  # each update is a line
    objective = objective_of("likelihood", make_captioner)
    forward = objective.forward

    def ctrl_c(batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        if not objective.training and progress.step == 3:  # in the first validation
            os.kill(os.getpid(), signal.SIGINT)
        return forward(batch, progress, phase)

    monkeypatch.setattr(objective, "forward", ctrl_c)
    with pytest.raises(loop.Interrupted, match="after step 3 of 7"):
        train(objective, tiny_data, tmp_path / "long")
    lines = capfd.readouterr().err.splitlines()
    shown = [line for line in lines if line.startswith("validating")]
    assert len(shown) >= 2
    assert " (100 %)" in shown[-1]
    assert lines.count(STOPPING.decode().strip()) == 1


@pytest.mark.parametrize("kind", ["likelihood", "contrastive"])
@pytest.mark.parametrize("stop", [0, 2, 4])
def test_stopping_and_resuming_is_bit_equal(
    kind: str, stop: int, tiny_data: Data, make_captioner: Make, tmp_path: Path
) -> None:
    train(objective_of(kind, make_captioner), tiny_data, tmp_path / "straight")

    stopping = objective_of(kind, make_captioner)
    steps = itertools.count()

    def ctrl_c() -> None:
        if next(steps) == stop:
            os.kill(os.getpid(), signal.SIGINT)

    stopping.after_step = ctrl_c  # type: ignore[method-assign]
    with pytest.raises(loop.Interrupted, match=f"after step {stop + 1} of 7"):
        train(stopping, tiny_data, tmp_path / "resumed")
    train(objective_of(kind, make_captioner), tiny_data, tmp_path / "resumed")

    one, other = (load_captioner(tmp_path / name).state_dict() for name in ("straight", "resumed"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    states = [load_trainer_state(checkpoint_path(tmp_path / name, "last")) for name in ("straight", "resumed")]
    for moments, others in zip(*(state["optimisers"]["train"]["state"].values() for state in states), strict=True):
        assert all(torch.equal(moments[key], others[key]) for key in moments)
    journals = [
        [
            {k: v for k, v in json.loads(line).items() if k not in ("seconds", "waiting")}
            for line in (tmp_path / n / "metrics.jsonl").open()
        ]
        for n in ("straight", "resumed")
    ]
    assert journals[0] == journals[1]


def test_a_journal_ahead_of_its_checkpoint_is_cut(tiny_data: Data, make_captioner: Make, tmp_path: Path) -> None:
    """A killed process has logged steps after its last checkpoint; they are trained and logged again, once."""
    train(objective_of("likelihood", make_captioner), tiny_data, tmp_path / "run", steps=3)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as journal:
        journal.write('{"step": 4, "split": "train", "loss": 9.0}\n')
    train(objective_of("likelihood", make_captioner), tiny_data, tmp_path / "run", steps=5)
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").open() if '"train"' in line]
    assert steps == [1, 2, 3, 4, 5]


def test_training_lowers_the_loss(tiny_data: Data, make_captioner: Make, tmp_path: Path) -> None:
    train(objective_of("likelihood", make_captioner), tiny_data, tmp_path / "run", steps=100, learning_rate=0.03)
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").open() if '"train"' in line]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_kept_checkpoint_and_only_what_is_needed_remain(
    keep: str, tiny_data: Data, make_captioner: Make, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(objective_of("likelihood", make_captioner), tiny_data, run, steps=9, learning_rate=0.3, keep=keep)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    validation = {row["step"]: row["loss"] for row in rows if row["split"] == "val"}
    assert sorted(validation) == [3, 6, 9]
    best = min(validation, key=lambda step: validation[step])
    expected = best if keep == "best" else 9
    assert model_folder(run).name == f"step-{expected}"
    folders = {path.name for path in (run / "checkpoints").glob("step-*")}
    assert folders == {f"step-{best}", "step-9"}


def test_a_loss_that_is_not_a_number_stops_with_step_name_and_images(
    tiny_data: Data, make_captioner: Make, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(objective_of("likelihood", make_captioner), tiny_data, run, steps=3)
    objective = objective_of("likelihood", make_captioner)
    calls = itertools.count()
    forward = objective.forward

    def fails_in_the_second_step(batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        totals = forward(batch, progress, phase)
        return totals if next(calls) < 1 else {**totals, "loss": Total(totals["loss"].sum * torch.inf, 1)}

    objective.forward = fails_in_the_second_step  # type: ignore[method-assign]
    with pytest.raises(RunError, match=r"step 5: loss is not a finite number, on the images \d+, \d+") as stopped:
        train(objective, tiny_data, run, steps=7)
    failed = run / "checkpoints" / "failed-step-5"
    assert str(failed) in str(stopped.value)
    report = json.loads((failed / "failure.json").read_text())
    assert report["not_finite"] == ["loss"]
    assert sorted(report["images"]) == sorted(BatchSource(*tiny_data, "train", 4, seed=7).at(4).ids)
    # The state saved is that before the bad step, complete; the last checkpoint is what it was.
    assert load_trainer_state(failed)["step"] == 4
    for name, value in load_captioner(failed).state_dict().items():
        assert torch.equal(value, objective.target.state_dict()[name])
    assert checkpoint_path(run, "last").name == "step-3"


def test_a_gradient_that_is_not_a_number_stops_before_the_update(
    tiny_data: Data, make_captioner: Make, tmp_path: Path
) -> None:
    objective = objective_of("likelihood", make_captioner)
    before = {name: value.clone() for name, value in objective.target.state_dict().items()}
    forward = objective.forward

    def infinite_slope(batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        totals = forward(batch, progress, phase)
        zero = next(objective.target.parameters()).sum() * 0
        return {"loss": Total(totals["loss"].sum + zero.abs().sqrt(), totals["loss"].count)}

    objective.forward = infinite_slope  # type: ignore[method-assign]
    for clip in (5.0, None):
        with pytest.raises(RunError, match="step 1: gradient_norm is not a finite number"):
            train(objective, tiny_data, tmp_path / f"run-{clip}", clip_norm=clip)
        assert all(torch.equal(before[name], value) for name, value in objective.target.state_dict().items())


@pytest.mark.parametrize("room", [1500, 7000, 9000])
def test_a_full_disk_leaves_the_last_checkpoint(
    room: int, tiny_data: Data, make_captioner: Make, tmp_path: Path
) -> None:
    """Files may not grow beyond `room` bytes: the model (some 8 kB) does not fit, or the optimiser beside it."""
    run = tmp_path / "run"
    chosen = {"schedule": "constant"}
    train(objective_of("likelihood", make_captioner), tiny_data, run, steps=3, **chosen)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, unlimited[1]))
    try:
        with pytest.raises(RunError, match="make room"):
            train(objective_of("likelihood", make_captioner), tiny_data, run, steps=6, **chosen)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert checkpoint_path(run, "last").name == "step-3"
    assert not list((run / "checkpoints").glob(".tellapart-*"))
    train(objective_of("likelihood", make_captioner), tiny_data, run, steps=6, **chosen)
    train(objective_of("likelihood", make_captioner), tiny_data, tmp_path / "straight", steps=6, **chosen)
    one, other = (load_captioner(folder).state_dict() for folder in (run, tmp_path / "straight"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_journal_with_half_a_line_is_mended(tiny_data: Data, make_captioner: Make, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(objective_of("likelihood", make_captioner), tiny_data, run, steps=3)
    with (run / "metrics.jsonl").open("a") as journal:
        journal.write('{"step": 4, "split": "tr')
    train(objective_of("likelihood", make_captioner), tiny_data, run, steps=5)
    assert [row["step"] for row in rows_of(run, "train")] == [1, 2, 3, 4, 5]


# --- best, patience, kept checkpoints -------------------------------------------------------------------------------


def measured(figures: list[float]) -> Callable[[], dict[str, float]]:
    """Stands for the CIDEr of generated captions: these figures, one after another."""
    given = iter(figures)
    return lambda: {"CIDEr": next(given)}


def test_best_by_any_figure_and_early_stopping(tiny_data: Data, make_captioner: Make, tmp_path: Path) -> None:
    run = tmp_path / "run"
    chosen = {"monitor": "CIDEr", "monitor_best": "highest", "patience": 2, "keep": "best", "validate_every": 1}
    # The first figure is asked for before the training, to know the name.
    figures = measured([0.0, 0.3, 0.5, 0.4, 0.45, 9.0])
    train(objective_of("likelihood", make_captioner), tiny_data, run, measure=figures, **chosen)
    assert [row["CIDEr"] for row in rows_of(run, "val")] == [0.3, 0.5, 0.4, 0.45]
    assert model_folder(run).name == "step-2"
    # Patience is remembered: the run is over, another call adds nothing.
    train(objective_of("likelihood", make_captioner), tiny_data, run, measure=figures, **chosen)
    assert len(rows_of(run, "val")) == 4


def test_patience_is_remembered_over_a_stop(tiny_data: Data, make_captioner: Make, tmp_path: Path) -> None:
    def lengths(folder: str, *steps: int) -> int:
        chosen = {"patience": 2, "validate_every": 1, "learning_rate": 0.3, "schedule": "constant"}
        for until in steps:
            train(objective_of("likelihood", make_captioner), tiny_data, tmp_path / folder, steps=until, **chosen)
        return len(rows_of(tmp_path / folder, "val"))

    straight = lengths("straight", 30)
    assert 3 < straight < 30
    assert lengths("resumed", straight - 1, 30) == straight


def test_unknown_monitor(tiny_data: Data, make_captioner: Make, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"there is no validation figure 'CIDER'; there are: loss"):
        train(
            objective_of("likelihood", make_captioner),
            tiny_data,
            tmp_path / "run",
            monitor="CIDER",
            monitor_best="highest",
        )
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_figure_of_one_phase(tiny_data: Data, tmp_path: Path) -> None:
    chosen = {"monitor": "generator/loss", "monitor_best": "lowest", "validate_every": 1, "steps": 3}
    train(stand_ins.make("two-phases"), tiny_data, tmp_path / "run", **chosen)
    figures = [row["generator/loss"] for row in rows_of(tmp_path / "run", "val")]
    assert load_trainer_state(checkpoint_path(tmp_path / "run", "last"))["best"] == min(figures)


def test_a_figure_that_is_no_number_is_never_the_best(tiny_data: Data, make_captioner: Make, tmp_path: Path) -> None:
    run = tmp_path / "run"
    chosen = {"monitor": "CIDEr", "monitor_best": "highest", "keep": "best", "validate_every": 1, "steps": 4}
    figures = measured([0.0, math.nan, 0.2, math.nan, 0.1])
    train(objective_of("likelihood", make_captioner), tiny_data, run, measure=figures, **chosen)
    assert model_folder(run).name == "step-2"


def test_a_process_killed_before_last_flips_keeps_its_best(
    tiny_data: Data, make_captioner: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it dies between a checkpoint and its pointers, the end is the same."""
    chosen = {"keep": "best", "validate_every": 1, "learning_rate": 0.3, "schedule": "constant", "steps": 8}
    train(objective_of("likelihood", make_captioner), tiny_data, tmp_path / "straight", **chosen)
    best = model_folder(tmp_path / "straight").name
    for dies_at in ("best", "last"):
        run = tmp_path / dies_at
        point = checkpoint.point

        def dying(folder: Path, pointer: str, name: str, dies_at: str = dies_at, point: Any = point) -> None:
            if (pointer, name) == (dies_at, best):
                raise KeyboardInterrupt
            point(folder, pointer, name)

        monkeypatch.setattr(checkpoint, "point", dying)
        with pytest.raises(KeyboardInterrupt):
            train(objective_of("likelihood", make_captioner), tiny_data, run, **chosen)
        monkeypatch.undo()
        train(objective_of("likelihood", make_captioner), tiny_data, run, **chosen)
        assert model_folder(run).name == best


def test_a_stopped_checkpoint_does_not_claim_older_figures(
    tiny_data: Data, make_captioner: Make, tmp_path: Path
) -> None:
    objective = objective_of("likelihood", make_captioner)
    steps = itertools.count(1)
    objective.after_step = lambda: os.kill(os.getpid(), signal.SIGINT) if next(steps) == 4 else None  # type: ignore[method-assign,func-returns-value]
    with pytest.raises(loop.Interrupted):
        train(objective, tiny_data, tmp_path / "run")
    assert load_captioner(checkpoint_path(tmp_path / "run", "last")).history == {"steps": 4}


def test_the_newest_checkpoints_stay(tiny_data: Data, make_captioner: Make, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(objective_of("likelihood", make_captioner), tiny_data, run, steps=12, validate_every=1, keep_last=3)
    assert {path.name for path in (run / "checkpoints").glob("step-*")} >= {"step-10", "step-11", "step-12"}
    assert len(list((run / "checkpoints").glob("step-*"))) <= 4, "three, and the best"


# --- optimisers, schedules, precision -------------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_the_loop_does_what_a_bare_loop_does(
    optimiser: str, tiny_data: Data, make_captioner: Make, tmp_path: Path
) -> None:
    """Against plain torch: clipping, weight decay, epsilon, warm-up and schedule included, bit for bit."""
    chosen = {"optimiser": optimiser, "weight_decay": 0.1, "epsilon": 1e-3, "clip_norm": 0.5, "warmup_steps": 2}
    objective = Likelihood(LikelihoodSettings(), Roles(make_captioner(seed=1)))
    train(objective, tiny_data, tmp_path / "run", **chosen)

    bare = Likelihood(LikelihoodSettings(), Roles(make_captioner(seed=1))).train()
    kind = torch.optim.Adam if optimiser == "adam" else torch.optim.AdamW
    plain = kind(bare.parameters(), lr=0.01, weight_decay=0.1, eps=1e-3)
    source = BatchSource(*tiny_data, "train", 4, seed=7)
    settings = TrainingSettings(steps=7, learning_rate=0.01, **chosen)
    for step in range(7):
        total = bare(source.at(step), Progress(step, 7))["loss"]
        plain.zero_grad()
        (total.sum / total.count).backward()
        torch.nn.utils.clip_grad_norm_(bare.parameters(), 0.5)
        plain.param_groups[0]["lr"] = learning_rate(settings, step, 7, len(source))
        plain.step()
    for one, other in zip(objective.parameters(), bare.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-7)


def test_mixed_precision_keeps_weights_and_losses_full(tiny_data: Data, make_captioner: Make, tmp_path: Path) -> None:
    objective = objective_of("likelihood", make_captioner)
    seen: list[torch.dtype] = []
    region = objective.target.region
    region.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    train(objective, tiny_data, tmp_path / "half", precision="bf16", learning_rate=0.03, steps=40)
    assert set(seen) == {torch.bfloat16}
    assert {p.dtype for p in objective.parameters()} == {torch.float32}
    losses = [row["loss"] for row in rows_of(tmp_path / "half", "train")]
    assert losses[-1] < 0.9 * losses[0]
    if not torch.cuda.is_available():
        with pytest.raises(RecipeError, match="fp16 needs a CUDA device"):
            train(objective, tiny_data, tmp_path / "other", precision="fp16")


def test_each_phase_has_its_rate_and_changes_its_own(tiny_data: Data, tmp_path: Path) -> None:
    objective = stand_ins.make("two-phases")
    before = {name: value.clone() for name, value in objective.named_parameters()}
    rates = {"generator": 1e-12}
    train(objective, tiny_data, tmp_path / "run", phase_learning_rates=rates, steps=2)
    moved = {name: (value - before[name]).abs().max().item() for name, value in objective.named_parameters()}
    assert all(moved[name] > 1e-3 for name in moved if name.startswith("evaluator"))
    assert all(moved[name] < 1e-9 for name in moved if name.startswith("target"))
    assert all(p.requires_grad for p in objective.parameters()), "left as it was found"
    with pytest.raises(RecipeError, match="no phase 'generater'; phases: evaluator, generator"):
        train(objective, tiny_data, tmp_path / "other", phase_learning_rates={"generater": 1.0})


# --- accumulation, epochs, composed objectives ----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [shape for shape in stand_ins.SHAPES if shape != "whole-batch"])
def test_parts_of_a_batch_add_up_to_the_whole(shape: str, tiny_data: Data, tmp_path: Path) -> None:
    """Four parts of batches of five and of one; only a contrast over the whole batch is another thing in parts."""
    steps, states = [], []
    for parts in (1, 4):
        objective = stand_ins.make(shape)
        steps.append(record_gradients(objective))
        worker_train(objective, tmp_path / str(parts), accumulate=parts, **HARDLY_MOVING)
        states.append(load_trainer_state(checkpoint_path(tmp_path / str(parts), "last"))["objective"])
    assert len(steps[0]) == 7
    for whole, added in zip(*steps, strict=True):
        assert_close(added, whole)
    assert_close(states[1], states[0])
    for one, other in zip(*(rows_of(tmp_path / str(parts), "train") for parts in (1, 4)), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


def test_composed_objectives_share_the_forward_pass(tiny_data: Data, tmp_path: Path) -> None:
    objective = stand_ins.make("composed")
    calls = itertools.count()
    hidden = objective.target.hidden

    def counted(*arguments: object) -> torch.Tensor:
        next(calls)
        return hidden(*arguments)

    objective.target.hidden = counted  # type: ignore[method-assign]
    train(objective, tiny_data, tmp_path / "run", steps=3, validate_every=3, negatives=2)
    batches_of_validation = len(BatchSource(*tiny_data, "val", 4))
    assert next(calls) == 3 + batches_of_validation


def test_a_composed_loss_is_the_weighted_sum_of_its_parts(
    tiny_data: Data, make_captioner: Make, tmp_path: Path
) -> None:
    batch = BatchSource(*tiny_data, "train", 4, None, 3, seed=7).at(0)
    target, reference = make_captioner(seed=1), make_captioner(seed=2)
    settings = ComposedSettings(parts={"likelihood": {"weight": 0.5}, "contrastive": {"weight": 2, "negatives": 2}})
    composed = Composed(settings, Roles(target, reference=reference))
    totals = composed(batch, Progress(0, 1))
    alone = Likelihood(LikelihoodSettings(), Roles(target))(batch, Progress(0, 1))["loss"]
    assert torch.equal(totals["likelihood/loss"].sum, alone.sum)
    assert composed.losses() == {"likelihood/loss": 0.5, "contrastive/loss": 2.0}
    train(composed, tiny_data, tmp_path / "run", steps=1, negatives=3, learning_rate=1e-9)
    row = rows_of(tmp_path / "run", "train")[0]
    assert row["loss"] == pytest.approx(0.5 * row["likelihood/loss"] + 2 * row["contrastive/loss"])
    assert row["likelihood/loss"] == pytest.approx(alone.sum.item() / alone.count, rel=1e-5)


def test_epochs_begin_once_each_also_over_a_stop(tiny_data: Data, make_captioner: Make, tmp_path: Path) -> None:
    begun = []
    for steps in (3, 7):  # six images, batches of four: an epoch has two steps
        objective = objective_of("likelihood", make_captioner)
        objective.epoch_start = lambda epoch: begun.append(  # type: ignore[method-assign]
            (epoch.number, sum(len(batch.ids) for batch in epoch.batches()))
        )
        train(objective, tiny_data, tmp_path / "run", steps=steps, schedule="constant")
    assert begun == [(0, 6), (1, 6), (2, 6), (3, 6)]


def test_tensorboard_gets_what_the_journal_gets(tiny_data: Data, make_captioner: Make, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    train(objective_of("likelihood", make_captioner), tiny_data, run)
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    told = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert told == [(row["step"], pytest.approx(row["loss"])) for row in rows_of(run, "train")]


def test_learning_rate_schedules() -> None:
    cosine = TrainingSettings(steps=110, learning_rate=2.0, warmup_steps=10)
    assert learning_rate(cosine, 0, 110, 10) == pytest.approx(0.2)
    assert learning_rate(cosine, 9, 110, 10) == pytest.approx(2.0)
    assert learning_rate(cosine, 10, 110, 10) == pytest.approx(2.0)
    assert learning_rate(cosine, 60, 110, 10) == pytest.approx(1.0)
    assert learning_rate(cosine, 109, 110, 10) == pytest.approx(1 + math.cos(math.pi * 0.99))
    constant = TrainingSettings(steps=5, learning_rate=2.0, schedule="constant")
    assert learning_rate(constant, 4, 5, 10) == 2.0


def test_a_plateau_cuts_the_rate(tiny_data: Data, make_captioner: Make, tmp_path: Path) -> None:
    """The figure is best at the first and the fifth validation: cuts follow two validations without a better one."""
    chosen: dict[str, Any] = {"schedule": "plateau", "plateau_patience": 2, "decay_factor": 0.5, "learning_rate": 0.8}
    figures = [0.0, 0.5, 0.4, 0.3, 0.3, 0.6, 0.6, 0.2, 0.2, 0.2]  # the first one is of the check before the training
    train(
        objective_of("likelihood", make_captioner),
        tiny_data,
        tmp_path / "run",
        measured(figures),
        **chosen,
        **{"steps": 9, "validate_every": 1, "monitor": "CIDEr", "monitor_best": "highest"},
    )
    rates = [row["learning_rate"] for row in rows_of(tmp_path / "run", "train")]
    assert rates == [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.4, 0.2, 0.2]


def test_a_checkpoint_of_an_earlier_version_is_continued(tiny_data: Data, make_captioner: Make, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(objective_of("likelihood", make_captioner), tiny_data, run, steps=3, schedule="constant")
    path = checkpoint_path(run, "last")
    state = load_trainer_state(path)
    del state["cuts"], state["validations_since_cut"]
    torch.save(state, path / "trainer.pt")
    train(objective_of("likelihood", make_captioner), tiny_data, run, steps=5, schedule="constant")
    train(objective_of("likelihood", make_captioner), tiny_data, tmp_path / "straight", steps=5, schedule="constant")
    one, other = (load_captioner(folder).state_dict() for folder in (run, tmp_path / "straight"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("keep", ["best", "last"])
def test_zero_steps_measures_and_keeps_the_initial_model(
    keep: str, tiny_data: Data, make_captioner: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, measure = tmp_path / "run", lambda: {"CIDEr": 0.5}
    settings: dict[str, Any] = {"steps": 0, "keep": keep, "monitor": "CIDEr", "monitor_best": "highest"}

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):  # after the journal was written
            train(objective_of("contrastive", make_captioner), tiny_data, run, measure, **settings)
    for _ in range(2):  # and found again
        train(objective_of("contrastive", make_captioner), tiny_data, run, measure, **settings)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    assert [(row["step"], row["split"], row["CIDEr"]) for row in rows] == [(0, "val", 0.5)]
    assert model_folder(run).name == "step-0"
    came, kept = make_captioner(seed=1).state_dict(), load_captioner(run)
    assert all(torch.equal(came[name], value) for name, value in kept.state_dict().items())
    assert kept.history["measured"]["validation"]["CIDEr"] == 0.5
    with pytest.raises(RecipeError, match=r"there is no validation figure 'CIDEr'; there are: loss"):
        train(objective_of("contrastive", make_captioner), tiny_data, tmp_path / "wrong", **settings)
