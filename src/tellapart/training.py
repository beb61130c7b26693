"""From a recipe to a finished run folder: prepare the data, train the models it needs first, then train it.

The *key* of a run is a digest of all that decides its weights: the recipe, the content of the data and the weights of
the models it uses. A finished run with the same key is reused, not trained again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tellapart.assembling import (
    SCORES,
    Upstreams,
    folder_for_scores,
    load_and_assemble,
    specificity_guard,
    validation_measure,
)
from tellapart.data.batches import BatchSource
from tellapart.data.prepare import Prepared, prepare
from tellapart.data.settings import OWN, DataSettings
from tellapart.data.unlabelled import has_training_split
from tellapart.engine.checkpoint import checkpoint_path, has_checkpoint
from tellapart.engine.loop import Interrupted, Trainer
from tellapart.engine.processes import first_then_others, on_first, open_fabric
from tellapart.errors import RecipeError, RunError
from tellapart.evaluation.specificity_guard import START, SpecificityGuard
from tellapart.files import (
    check_folder,
    digest_of,
    digest_of_file,
    is_temporary,
    lock,
    read_text,
    remove_old_temporary_files,
    write_json,
    write_text,
)
from tellapart.models import model_digest
from tellapart.objectives.base import Start
from tellapart.progress import OnProgress, show_progress
from tellapart.recipe import ENTROPY, Recipe, Upstream
from tellapart.recipe_files import DATA_PATHS, is_model_folder, read_recipe
from tellapart.run import Run, check_data_exists, check_run_folder, open_run, read_state
from tellapart.shipped import find_model, is_shipped, shipped_name


def train(
    recipe: str | Path,
    *overrides: str,
    budget: str | None = None,
    runs: str | Path = "runs",
    out: str | Path | None = None,
) -> Run:
    """Train a recipe; an unfinished run of it is continued, a finished one is reused.

    Args:
        recipe: a recipe file, or the name of a shipped one, such as `scenes/adaptive-mle.yaml`.
        overrides: dotted keys and values, such as `"training.steps=100"`.
        budget: `smoke` (seconds), `laptop` (minutes, on COCO hours) or `paper` (the published sizes); by default the
            file's own.
        runs: folder for run folders, named `NAME-KEY`.
        out: this run folder instead.

    Example:
        >>> run = train("scenes/adaptive-mle.yaml", "training.epochs=2")   # doctest: +SKIP
    """
    return run_recipe(Recipe.load(recipe, overrides, budget), Path(runs), None if out is None else Path(out))


def resume(folder: str | Path) -> Run:
    """Continue the training in a run folder; a finished one is returned unchanged.

    Example:
        >>> run = resume("runs/scenes-cl-1a2b3c4d")   # doctest: +SKIP
    """
    folder = Path(folder)
    check_run_folder(folder)
    recipe = Recipe.load(folder / "recipe.yaml")
    check_data_exists(folder, recipe)
    return run_recipe(recipe, folder.parent, folder)


def train_in_rounds(recipe: Recipe, rounds: int, runs: Path = Path("runs")) -> list[Run]:
    """Reference replacement (CL, sec. 4.3 and Table 6): each round starts from the last target, also its reference.

    The first round is the recipe unchanged. Every round has its own run folder, so an interrupted call continues in
    the round it stopped in. With `training.patience` a round ends when its target no longer improves.

    Args:
        recipe: one with a reference.
        rounds: number of trainings.
        runs: folder for run folders.

    Example:
        >>> recipe = Recipe.load("scenes/adaptive-cl.yaml")   # doctest: +SKIP
        >>> first, second = train_in_rounds(recipe, 2)        # doctest: +SKIP
    """
    if "reference" not in recipe.roles:
        raise RecipeError(
            f"{recipe.name}: rounds replace the reference, and this recipe has none; train it without --rounds"
        )
    finished = [run_recipe(recipe, runs)]
    for number in range(2, rounds + 1):
        before = Upstream.model_validate({"from": str(finished[-1].folder)})
        changes = {
            "name": f"{recipe.name}-round-{number}",
            "start": before,
            "roles": {**recipe.roles, "reference": before},
        }
        finished.append(run_recipe(recipe.model_copy(update=changes), runs))
    return finished


def run_recipe(
    recipe: Recipe,
    runs: Path = Path("runs"),
    out: Path | None = None,
    on_progress: OnProgress | None = None,
) -> Run:
    """Train a recipe; an unfinished run of it is continued, a finished one is reused.

    Args:
        recipe: what to train.
        runs: folder for run folders, named `NAME-KEY`.
        out: this run folder instead.
        on_progress: called while rendering and encoding; by default progress goes to the standard error stream.
    """
    fabric = open_fabric(recipe.training.precision)
    first = fabric.global_rank == 0
    shown = (on_progress or show_progress()) if first else None
    if out is not None:
        on_first(fabric, lambda: _check_run_folder(out, finished=(out / "run.json").exists()))
    prepared = first_then_others(fabric, lambda: prepare(recipe.data, shown))
    upstreams = _upstreams(recipe, runs, on_progress)
    made_from = _made_from(recipe, prepared, upstreams)
    key = digest_of(made_from)
    folder = out or runs / f"{recipe.name}-{key[:8]}"
    fabric.barrier()
    if _is_finished(folder, key, made_from):
        on_first(fabric, lambda: _write_recipe(recipe, upstreams, folder))  # its decoding may have changed
        return Run(folder, recipe)
    on_first(fabric, lambda: _check_run_folder(folder))
    state_path, state = folder / "run.json", {"key": key, "made_from": made_from, "finished": False}
    with ExitStack() as held:

        @cache
        def begin() -> bool:
            """Lock the folder and describe the run in it; false if another process has just finished this run."""
            held.enter_context(_lock(folder))
            remove_old_temporary_files(folder)
            if _is_finished(folder, key, made_from):
                return False
            write_json(state_path, state)  # first: paths in a recipe beside it are relative to the folder
            _write_recipe(recipe, upstreams, folder)
            return True

        def own_scores() -> Path:
            """The run begins before this long work: a folder that holds only scores would not be taken for a run's."""
            fabric.barrier()  # all processes have read the folder before one writes to it
            on_first(fabric, begin)
            return folder / SCORES

        last: Path | None = None
        if on_first(fabric, lambda: _continues(recipe, upstreams, folder)):
            fabric.barrier()  # as above
            if not on_first(fabric, begin):  # it is locked: no other process replaces the checkpoint while it is read
                return Run(folder, recipe)
            last = on_first(fabric, lambda: checkpoint_path(folder, "last"))
        objective, sources, judges = load_and_assemble(recipe, prepared, upstreams, fabric, own_scores, shown, last)
        guard = specificity_guard(recipe, prepared, objective, sources["val"], judges, upstreams, folder)
        fabric.barrier()  # as above
        if not on_first(fabric, begin):
            return Run(folder, recipe)
        began = time.monotonic()
        trainer = Trainer(
            objective,
            sources["train"],
            sources["val"],
            recipe.training,
            seed=recipe.seed,
            folder=folder,
            fabric=fabric,
            measure=validation_measure(recipe, objective, prepared, guard),
        )
        _before_training(trainer, sources, upstreams, guard, shown)
        trainer.run(f"training {recipe.name}")
        seconds = round(time.monotonic() - began, 1)
        finished = {**state, "finished": True, "seconds_of_last_session": seconds}
        on_first(fabric, lambda: write_json(state_path, finished))
    return Run(folder, recipe)


def _continues(recipe: Recipe, upstreams: Upstreams, folder: Path) -> bool:
    """Whether the target is loaded from the last checkpoint, instead of made as before the first step.

    The one that it starts from is loaded as quickly. Figures of the start that are missing are measured with the
    weights of the start.
    """
    needs_start = bool(recipe.training.validate_specificity) and not (folder / START).exists()
    return "start" not in upstreams and not needs_start and has_checkpoint(folder)


def _before_training(
    trainer: Trainer,
    sources: dict[str, BatchSource],
    upstreams: Upstreams,
    guard: SpecificityGuard | None,
    on_progress: OnProgress | None,
) -> None:
    """The objective's long work before the first step; what is finished of it is kept when it is interrupted."""
    objective, fabric = trainer.objective, trainer.fabric
    folders = {role: folder_for_scores(upstreams[role][0]) or trainer.folder / SCORES for role in objective.frozen}
    objective.eval()
    try:
        with torch.no_grad(), fabric.autocast():  # in the precision of the steps
            objective.before_training(Start(sources, trainer.steps, folders, on_progress))
            if guard is not None:
                on_first(fabric, guard.begin)
    except KeyboardInterrupt:
        raise Interrupted(
            f"{trainer.folder}: stopped before the first step; finished scores are kept; "
            f"the same command continues, or: tellapart train --resume {trainer.folder}"
        ) from None
    objective.train()


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Fail if another process is training in this folder; the lock is released when the process ends."""
    with lock(folder / ".lock", wait=False) as locked:
        if not locked:
            raise RunError(f"{folder}: another process is training here; wait for it or choose another --out")
        yield


# --- the run folder ---------------------------------------------------------------------------------------------------


def _is_finished(folder: Path, key: str, made_from: Mapping[str, Any]) -> bool:
    """Whether the folder holds this run, finished; another run in it is an error."""
    if not (folder / "run.json").exists():
        return False
    state = read_state(folder)
    # Without a checkpoint the folder's recipe may be a mistake; it is replaced.
    if state.key != key and (folder / "checkpoints").exists():
        changed = [part for part in made_from if state.made_from.get(part) != made_from[part]]
        raise RunError(
            f"{folder}: holds another run (changed: {', '.join(changed)}); choose another --out or remove the folder"
        )
    return state.finished


def _check_run_folder(folder: Path, finished: bool = False) -> None:
    """Raise unless a training can be written to this folder: it is new, empty or a run folder.

    Args:
        folder: the folder.
        finished: whether the run in it may be finished, so that nothing is written.
    """
    # Another process may begin at the same time; it makes `.lock` first and `run.json` next.
    names = {path.name for path in folder.iterdir() if not is_temporary(path)} if folder.is_dir() else set()
    if names - {".lock"} and "run.json" not in names:
        raise RunError(f"{folder}: this folder is not empty and is not a run folder; choose an empty or new one")
    if not finished:
        check_folder(folder)


def _write_recipe(recipe: Recipe, upstreams: Upstreams, folder: Path) -> None:
    """Write `recipe.yaml`, unless it is there and unchanged."""
    path, text = folder / "recipe.yaml", _portable(recipe, upstreams, folder).to_yaml()
    if not path.exists() or read_text(path, "recipe") != text:
        write_text(path, text)


def _portable(recipe: Recipe, upstreams: Upstreams, folder: Path) -> Recipe:
    """The recipe with its upstream recipes replaced by their runs; paths relative to this run's folder."""
    named: dict[str, Upstream] = {}
    for role, found in upstreams.items():
        places = [shipped_name(one) or _relative_place(one, folder) for one in found]
        named[role] = Upstream.model_validate({"from": places[0] if len(places) == 1 else places})
    places_of_data = {key: _relative_place(getattr(recipe.data, key), folder) for key in DATA_PATHS}
    if recipe.data.source == "scenes":
        del places_of_data["source"]
    data = recipe.data.model_copy(update=places_of_data)
    start = named.pop("start", None)
    return recipe.model_copy(update={"data": data, "start": start, "roles": named})


def _relative_place(path: str | Path, folder: Path) -> str:
    """A path relative to a run folder, so that both can be moved together.

    It is absolute if they have no common parent, or if a link would lead elsewhere.
    """
    real = os.path.realpath(folder)
    for target, base in ((os.path.abspath(path), os.path.abspath(folder)), (os.path.realpath(path), real)):
        with suppress(ValueError):  # on different drives
            common = os.path.commonpath([target, base])
            relative = os.path.relpath(target, base)
            same = os.path.realpath(os.path.join(real, relative)) == os.path.realpath(path)
            if same and common != os.path.dirname(common):
                return relative
    return os.path.abspath(path)


# --- what decides a run -----------------------------------------------------------------------------------------------


def _made_from(recipe: Recipe, prepared: Prepared, upstreams: Upstreams) -> dict[str, Any]:
    """Plain data that decides the weights of a run."""
    digests = {role: [model_digest(folder) for folder in found] for role, found in upstreams.items()}
    described: dict[str, Any] = {
        "recipe": recipe.digest,
        "data": prepared.dataset.digest,
        "upstreams": {role: found[0] if len(found) == 1 else found for role, found in digests.items()},
    }
    if recipe.data.source != "scenes":  # the captions of scenes decide their pictures
        splits = ("train", "val") if has_training_split(prepared.dataset) else ()
        described["pictures"] = prepared.pictures_digest(*splits)
    encoder = prepared.store.encoder
    if ":" in encoder.name:  # a model in a local folder, whose content may change
        described["encoder"] = encoder.digest
    model, settings = recipe.component(recipe.trains)
    if files := model.files(settings):
        described["files"] = {name: _digest_of_named(path, name) for name, path in files.items()}
    return described


def _digest_of_named(path: Path, name: str) -> str:
    """The digest of a file named in a recipe."""
    if not path.is_file():
        raise RecipeError(f"{name}: '{path}' is not a file; give the path of one")
    return digest_of_file(path)


def _upstreams(recipe: Recipe, runs: Path, on_progress: OnProgress | None) -> Upstreams:
    """The folders of all models that a recipe uses; upstream recipes are trained now."""
    named = {"start": recipe.start} if recipe.start is not None else {}
    for role, upstream in {**named, **recipe.roles}.items():
        for place in upstream.places:
            if not Path(place).exists() and not is_shipped(place):
                key = "start.from" if role == "start" else f"roles.{role}.from"
                raise RecipeError(
                    f"{recipe.name}: {key}: '{place}' does not exist; if it has moved, write its new place into "
                    "the recipe"
                )
    return {
        role: [run for place in upstream.places for run in _upstream(place, role, recipe, runs, on_progress)]
        for role, upstream in {**named, **recipe.roles}.items()
    }


def _upstream(place: str, role: str, recipe: Recipe, runs: Path, on_progress: OnProgress | None) -> list[Path]:
    """A model folder, the folder of a finished run, or those of a recipe that is trained now on the same data.

    A recipe that sets an encoder or a half of the training images keeps it; others use the target's. One that judges
    training captions is trained on each half, unless it sets one, so that it judges captions it has not seen.
    """
    path = find_model(place)
    if is_model_folder(path):
        return [path]
    if path.is_dir():
        return [open_run(path).folder]
    found = Recipe.load(path, budget=recipe.budget)
    own = {key: getattr(found.data, key) for key in OWN if key in (read_recipe(path).get("data") or {})}
    # All captions: a model that a recipe uses has a selection of its own.
    whole = {key: DataSettings.model_fields[key].get_default() for key in ("captions", "entropy")}
    data = recipe.data.model_copy(update=whole | own)
    halves: tuple[Any, ...] = (1, 2) if role == ENTROPY and data.half is None else (data.half,)
    trained = [data.model_copy(update={"half": half}) for half in halves]
    return [run_recipe(found.model_copy(update={"data": one}), runs, on_progress=on_progress).folder for one in trained]
