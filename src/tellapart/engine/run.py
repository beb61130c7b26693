"""From a recipe to a finished run folder: find or train what it starts from, prepare its data, train, keep.

A run's *key* names everything that decides its weights: the recipe, the content of the data and the keys of the
models it starts from. A finished run with the same key is found again instead of trained again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning_fabric import Fabric

from tellapart.captioners.base import Captioner
from tellapart.data.batches import BatchSource
from tellapart.data.prepare import OnProgress, Prepared, prepare
from tellapart.encoders.images import accelerator
from tellapart.engine import loop
from tellapart.engine.processes import on_first, open_fabric
from tellapart.engine.progress import ProgressLine
from tellapart.engine.validation import measure_captions, measure_retrieval
from tellapart.errors import RecipeError, RunError
from tellapart.evaluation.hard_negatives import likely_captions
from tellapart.files import digest_of, digest_of_file, read_json, write_json, write_text
from tellapart.models import load_captioner, load_model, load_retriever, model_digest
from tellapart.objectives.base import Objective
from tellapart.recipe import ROLES, Recipe, Upstream
from tellapart.retrievers.base import Retriever

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """A finished training."""

    folder: Path
    recipe: Recipe

    def captioner(self) -> Captioner:
        """The kept checkpoint's captioner, in eval mode on the best device."""
        return load_captioner(self.folder).to(accelerator() or "cpu")

    def retriever(self) -> Retriever:
        """The kept checkpoint's retriever, in eval mode on the best device."""
        return load_retriever(self.folder).to(accelerator() or "cpu")


def open_run(folder: str | Path) -> Run:
    """A finished run folder as `run_recipe` leaves it."""
    folder = Path(folder)
    _check_run_folder(folder)
    if not read_json(folder / "run.json", "run state")["finished"]:
        raise RunError(f"{folder}: this training is not finished; continue it: tellapart train --resume {folder}")
    return Run(folder, Recipe.load(folder / "recipe.yaml"))


def train(
    recipe: str | Path,
    *overrides: str,
    budget: str | None = None,
    runs: str | Path = "runs",
    out: str | Path | None = None,
) -> Run:
    """Train a recipe file, or continue or find its run.

    Args:
        recipe: a recipe file.
        overrides: dotted keys and values, such as `"training.steps=100"`.
        budget: `smoke` (seconds), `laptop` (minutes) or `paper` (the published sizes); by default what the file says.
        runs: where run folders go, as `NAME-KEY`.
        out: a folder of your choice instead.

    Example:
        >>> run = train("recipes/scenes/adaptive-mle.yaml", "training.epochs=2")   # doctest: +SKIP
    """
    return run_recipe(Recipe.load(Path(recipe), overrides, budget), Path(runs), None if out is None else Path(out))


def resume(folder: str | Path) -> Run:
    """Continue the training in a run folder; a finished one is left as it is.

    Example:
        >>> run = resume("runs/scenes-cl-1a2b3c4d")   # doctest: +SKIP
    """
    folder = Path(folder)
    _check_run_folder(folder)
    return run_recipe(Recipe.load(folder / "recipe.yaml"), folder.parent, folder)


def _check_run_folder(folder: Path) -> None:
    if not (folder / "recipe.yaml").exists():
        raise RunError(f"{folder}: this is no run folder (recipe.yaml is missing); 'tellapart train' makes one")


def run_recipe(
    recipe: Recipe,
    runs: Path = Path("runs"),
    out: Path | None = None,
    on_progress: OnProgress | None = None,
) -> Run:
    """Train a recipe, or continue or find its run.

    Args:
        recipe: what to train.
        runs: where run folders go, as `NAME-KEY`.
        out: a folder of your choice instead.
        on_progress: for rendering and encoding; by default lines on the standard error stream.
    """
    fabric = open_fabric(recipe.training.precision)
    first = fabric.global_rank == 0
    prepared = _first_alone(fabric, lambda: prepare(recipe.data, on_progress or show_progress() if first else None))
    upstreams = {
        role: _upstream(upstream, recipe, runs, on_progress)
        for role in ROLES
        if (upstream := getattr(recipe, role)) is not None
    }
    described: dict[str, Any] = {
        "recipe": recipe.digest,
        "data": prepared.dataset.digest,
        "upstreams": {role: model_digest(run.folder) for role, run in upstreams.items()},
    }
    encoder = prepared.store.encoder
    if ":" in encoder.name:  # a model in a folder of the user's, which may hold another one tomorrow
        described["encoder"] = encoder.digest
    model, settings = recipe.component(recipe.trains)
    if files := model.files(settings):
        described["files"] = {name: _digest_of_named(path, name) for name, path in files.items()}
    key = digest_of(described)
    folder = out or runs / f"{recipe.name}-{key[:8]}"
    state_path = folder / "run.json"
    fabric.barrier()
    if state_path.exists():
        state = read_json(state_path, "run state")
        # A folder in which nothing was trained yet may hold a mistaken recipe; it is replaced.
        if state["key"] != key and (folder / "checkpoints").exists():
            changed = [part for part in described if state["made_from"].get(part) != described[part]]
            raise RunError(
                f"{folder}: holds a run of something else (changed: {', '.join(changed)}); "
                "choose another --out or remove the folder"
            )
        if state["finished"]:
            on_first(fabric, lambda: _write_recipe(recipe, upstreams, folder))  # decoding may be chosen anew
            return Run(folder, recipe)
    elif folder.is_dir() and any(folder.iterdir()):
        raise RunError(f"{folder}: this folder holds something else than a run; choose an empty or a new one")
    objective, sources = _build(recipe, prepared, upstreams, fabric)
    fabric.barrier()  # nobody writes before all have looked
    state = {"key": key, "made_from": described, "finished": False}

    def begin() -> None:
        _write_recipe(recipe, upstreams, folder)
        write_json(state_path, state)

    on_first(fabric, begin)
    began = time.monotonic()
    with _only_one(folder) if first else nullcontext():
        loop.train(
            objective,
            sources["train"],
            sources["val"],
            recipe.training,
            recipe.seed,
            folder,
            f"training {recipe.name}",
            fabric,
            _measure(recipe, objective, prepared),
        )
    seconds = round(time.monotonic() - began, 1)
    finished = {**state, "finished": True, "seconds_of_last_session": seconds}
    on_first(fabric, lambda: write_json(state_path, finished))
    return Run(folder, recipe)


def _measure(recipe: Recipe, objective: Objective, prepared: Prepared) -> loop.Measure | None:
    """What validation measures beside the objective's own figures, as the recipe asks."""
    target: Any = objective.target
    if images := recipe.training.validate_captions:
        return lambda: measure_captions(target, prepared, images, recipe.decoding)
    if recipe.training.validate_retrieval:
        return lambda: measure_retrieval(target, prepared)
    return None


def _write_recipe(recipe: Recipe, upstreams: dict[str, Run], folder: Path) -> None:
    """Write `recipe.yaml`, unless it is there as it should be."""
    path, text = folder / "recipe.yaml", _portable(recipe, upstreams, folder).to_yaml()
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Refuse to train where another process trains; its lock goes with it, however it ends."""
    with open(folder / ".lock", "w") as lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(f"{folder}: another process trains here; wait for it or choose another --out") from None
        yield


def _first_alone(fabric: Fabric, work: Callable[[], T]) -> T:
    """The first process works, then the others find what it made."""
    if fabric.global_rank == 0:
        made = work()
        fabric.barrier()
        return made
    fabric.barrier()
    return work()


def _upstream(upstream: Upstream, recipe: Recipe, runs: Path, on_progress: OnProgress | None) -> Run:
    """A run folder as it is, or the run of a recipe, on the same data."""
    path = Path(upstream.from_)
    if path.is_dir():
        return open_run(path)
    found = Recipe.load(path, budget=recipe.budget).model_copy(update={"data": recipe.data})
    return run_recipe(found, runs, on_progress=on_progress)


def _digest_of_named(path: Path, name: str) -> str:
    """The digest of a file that a recipe names."""
    if not path.is_file():
        raise RecipeError(f"{name}: '{path}' is no file in this folder; give the path of one")
    return digest_of_file(path)


def _portable(recipe: Recipe, upstreams: dict[str, Run], folder: Path) -> Recipe:
    """The recipe with its upstream recipes replaced by the runs they became; paths relative to this run's folder."""
    named = {role: os.path.relpath(run.folder, folder) for role, run in upstreams.items()}
    places = {key: os.path.relpath(getattr(recipe.data, key), folder) for key in ("source", "prepared")}
    if not Path(recipe.data.source).exists():  # 'scenes'
        del places["source"]
    data = recipe.data.model_copy(update=places)
    roles = {role: Upstream.model_validate({"from": path}) for role, path in named.items()}
    return recipe.model_copy(update={"data": data, **roles})


def _build(
    recipe: Recipe, prepared: Prepared, upstreams: dict[str, Run], fabric: Fabric
) -> tuple[Objective, dict[str, BatchSource]]:
    """The objective with its models, and the batches of both splits; what cannot be built leaves no folder behind."""
    torch.manual_seed(recipe.seed)
    model_class, model_settings = recipe.component(recipe.trains)
    if "start" in upstreams:
        target = load_model(upstreams["start"].folder, recipe.trains, model_settings.model_dump())
    else:
        captions = [caption for record in prepared.dataset.split("train") for caption in record.captions]
        target = model_class.make(model_settings, captions, recipe.data, prepared.store.encoder)
    prepared.store.check(prepared.dataset, target.encoder)
    target.history = {"recipe": recipe.name}
    if recipe.training.steps != 0:  # else nothing here trained it
        target.history |= {
            "objective": recipe.objective["name"],
            "trained_on": f"{prepared.dataset.name} ({prepared.dataset.digest[:8]})",
            "seed": recipe.seed,
        }
    reference = load_captioner(upstreams["reference"].folder) if "reference" in upstreams else None
    objective_class, objective_settings = recipe.component("objective")
    objective: Objective = objective_class(objective_settings, target, reference)
    needs = objective_class.needs(objective_settings)
    likely = None
    if needs.negatives and recipe.negatives.hard and recipe.negatives.by == "retriever":
        retriever = load_retriever(upstreams["frozen_retriever"].folder).to(fabric.device)
        likely = likely_captions(retriever, prepared, "train", recipe.negatives.top)
    sources = {
        split: BatchSource(
            prepared.dataset,
            prepared.store,
            split,
            recipe.training.images_per_batch,
            recipe.training.captions_per_image,
            needs.negatives,
            # Validation keeps uniform negatives, so that its losses compare across recipes and epochs.
            recipe.negatives if split == "train" else None,
            recipe.training.bucket_batches,
            recipe.seed,
            fabric.global_rank,
            fabric.world_size,
            recipe.training.accumulate if split == "train" else 1,
            likely if split == "train" else None,
        )
        for split in ("train", "val")
    }
    return objective, sources


def show_progress() -> OnProgress:
    lines: dict[str, ProgressLine] = {}

    def show(what: str, done: int, of: int) -> None:
        lines.setdefault(what, ProgressLine(what)).update(done, of)

    return show
