"""From a recipe to a finished run folder: prepare the data, train the models it needs first, then train it.

The *key* of a run is a digest of all that decides its weights: the recipe, the content of the data and the weights of
the models it uses. A finished run with the same key is reused, not trained again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray

from tellapart.data.batches import BatchSource
from tellapart.data.features import FeatureStore
from tellapart.data.prepare import Prepared, prepare
from tellapart.data.selection import highest, keep_captions
from tellapart.data.settings import OWN, DataSettings, EntropySettings
from tellapart.data.unlabelled import has_training_split, with_training_split
from tellapart.decoding.ensemble import Ensemble
from tellapart.encoders.base import accelerator
from tellapart.engine.loop import Interrupted, Measure, Trainer
from tellapart.engine.processes import on_first, open_fabric
from tellapart.errors import DataError, RecipeError, RunError
from tellapart.evaluation.hard_negatives import likely_captions
from tellapart.evaluation.retrieval_entropy import RetrievalEntropy, retrieval_entropy
from tellapart.evaluation.specificity_guard import SpecificityGuard
from tellapart.evaluation.validation import FEW, ValidationMeasure, measure_captions, measure_retrieval, together
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
from tellapart.models import Model, enough_memory, load_model, model_digest
from tellapart.objectives.base import Objective, Roles, Start
from tellapart.progress import OnProgress, show_progress, show_slow
from tellapart.recipe import ENTROPY, Recipe, Upstream
from tellapart.recipe_files import DATA_PATHS, is_model_folder, read_recipe
from tellapart.retrievers.base import Retriever
from tellapart.run import Run, check_data_exists, check_run_folder, open_run, read_state
from tellapart.shipped import find_model, is_shipped, shipped_name

T = TypeVar("T")

# The run or model folders named by `start` and by each role; several are an ensemble.
Upstreams = dict[str, list[Path]]

# A retriever that judges captions, and the features that it reads.
Judging = tuple[Retriever, FeatureStore]


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
    prepared = _first_then_others(fabric, lambda: prepare(recipe.data, shown))
    upstreams = _upstreams(recipe, runs, on_progress)
    made_from = _made_from(recipe, prepared, upstreams)
    key = digest_of(made_from)
    folder = out or runs / f"{recipe.name}-{key[:8]}"
    fabric.barrier()
    if _is_finished(folder, key, made_from):
        on_first(fabric, lambda: _write_recipe(recipe, upstreams, folder))  # its decoding may have changed
        return Run(folder, recipe)
    on_first(fabric, lambda: _check_run_folder(folder))
    objective, sources, judges = _build(recipe, prepared, upstreams, fabric, shown)
    guard = _guard(recipe, objective, sources["val"], judges, folder)
    fabric.barrier()  # all processes have read the folder before one writes to it
    state_path, state = folder / "run.json", {"key": key, "made_from": made_from, "finished": False}
    began = time.monotonic()
    with ExitStack() as held:

        def begin() -> bool:
            """Lock the folder and describe the run in it; false if another process has just finished this run."""
            held.enter_context(_lock(folder))
            remove_old_temporary_files(folder)
            if _is_finished(folder, key, made_from):
                return False
            write_json(state_path, state)  # first: paths in a recipe beside it are relative to the folder
            _write_recipe(recipe, upstreams, folder)
            return True

        if not on_first(fabric, begin):
            return Run(folder, recipe)
        trainer = Trainer(
            objective,
            sources["train"],
            sources["val"],
            recipe.training,
            seed=recipe.seed,
            folder=folder,
            fabric=fabric,
            measure=_measure(recipe, objective, prepared, guard),
        )
        _before_training(trainer, sources, upstreams, guard, shown)
        trainer.run(f"training {recipe.name}")
        seconds = round(time.monotonic() - began, 1)
        finished = {**state, "finished": True, "seconds_of_last_session": seconds}
        on_first(fabric, lambda: write_json(state_path, finished))
    return Run(folder, recipe)


def _before_training(
    trainer: Trainer,
    sources: dict[str, BatchSource],
    upstreams: Upstreams,
    guard: SpecificityGuard | None,
    on_progress: OnProgress | None,
) -> None:
    """The objective's long work before the first step; what is finished of it is kept when it is interrupted."""
    objective, fabric = trainer.objective, trainer.fabric
    own = trainer.folder / "scores"
    folders = {role: _folder_for_scores(upstreams[role][0], own) or own for role in objective.frozen}
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


def _folder_for_scores(upstream: Path, otherwise: Path | None) -> Path | None:
    """Where scores by the model of another run are kept: in its folder, or elsewhere if that cannot be written.

    Nothing is written into a model folder: it may be part of an installed package.
    """
    if is_model_folder(upstream):
        return otherwise
    try:
        check_folder(upstream)
    except DataError:
        return otherwise
    return upstream / "scores"


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


# --- what is trained --------------------------------------------------------------------------------------------------


def _build(
    recipe: Recipe, prepared: Prepared, upstreams: Upstreams, fabric: Fabric, on_progress: OnProgress | None
) -> tuple[Objective, dict[str, BatchSource], dict[str, Judging]]:
    """The objective with its models, the batches of both splits, and the retrievers that judge captions in validation.

    If this fails, no folder was made.
    """
    torch.manual_seed(recipe.seed)
    target = _target(recipe, prepared, upstreams, on_progress)
    frozen = {
        role: role_model(upstreams[role], kind) for role, kind in recipe.needed_roles().items() if role != ENTROPY
    }
    stores = _first_then_others(fabric, lambda: _stores_of_roles(recipe, prepared, frozen, on_progress))
    trained_on, likely = prepared, None
    if _draws_ranked_captions(recipe):
        retriever = frozen["retriever"].to(fabric.device)
        folder = _folder_for_scores(upstreams["retriever"][0], None)
        ranked = stores.get(retriever.encoder.name, prepared)
        likely = _first_then_others(
            fabric, lambda: likely_captions(retriever, ranked, "train", recipe.negatives.top, folder, on_progress)
        )
    if recipe.divides_captions:
        found = _first_then_others(fabric, lambda: _entropies(recipe, upstreams[ENTROPY], on_progress))
        if recipe.data.captions == "all":
            likely = np.flatnonzero(_chosen(found, recipe.negatives.by, recipe.data.entropy)).astype(np.int32)
        else:
            trained_on = _with_chosen_captions(recipe, prepared, found)
    judges = _judges(recipe, trained_on, frozen, stores, fabric.device)
    objective, sources = show_slow(
        on_progress,
        "preparing batches of captions",
        lambda: assemble(recipe, trained_on, target, frozen, stores, fabric.global_rank, fabric.world_size, likely),
        lambda made: sum(len(source.pool.captions) for source in made[1].values()),
    )
    return objective, sources, judges


def _target(recipe: Recipe, prepared: Prepared, upstreams: Upstreams, on_progress: OnProgress | None) -> Model:
    """The model to train: the one it starts from, or a new one; with what its card says about this training."""
    model_class, settings = recipe.component(recipe.trains)
    if "start" in upstreams:
        target: Model = load_model(upstreams["start"][0], recipe.trains, settings.model_dump())
    else:
        captions = [caption for record in prepared.dataset.split("train") for caption in record.captions]
        with enough_memory(recipe.trains, settings):
            target = show_slow(
                on_progress,
                "making the vocabulary",
                lambda: model_class.make(settings, captions, recipe.data, prepared.store.encoder),
                lambda made: len(made.vocabulary),
            )
    prepared.store.check(prepared.dataset, target.encoder)
    target.history = {"recipe": recipe.name}
    if recipe.training.steps != 0:  # otherwise the model is not trained here
        which = "" if recipe.data.captions == "all" else f", the {recipe.data.captions} captions"
        target.history |= {
            "objective": recipe.objective["name"],
            "trained_on": f"{prepared.dataset.name} ({prepared.dataset.digest[:8]}){which}",
            "seed": recipe.seed,
        }
    return target


def _judges(
    recipe: Recipe, prepared: Prepared, frozen: Mapping[str, Any], stores: Mapping[str, Prepared], device: torch.device
) -> dict[str, Judging]:
    """The retrievers that judge captions in validation, if the recipe asks for it."""
    judges: dict[str, Judging] = {}
    for role in ("retriever", "listener") if recipe.training.validate_specificity else ():
        if role in frozen:
            judge = frozen[role].to(device).eval().requires_grad_(False)
            judges[role] = (judge, stores.get(judge.encoder.name, prepared).store)
    return judges


def assemble(
    recipe: Recipe,
    prepared: Prepared,
    target: Model,
    frozen: Mapping[str, Any],
    stores: Mapping[str, Prepared] | None = None,
    rank: int = 0,
    world: int = 1,
    likely: NDArray[np.int32] | None = None,
) -> tuple[Objective, dict[str, BatchSource]]:
    """The recipe's objective with these models, and the batches of the training and the validation split.

    Args:
        recipe: the objective, negatives and batches to use.
        prepared: data with the target's features.
        target: the model to train.
        frozen: role -> model, for all needed roles.
        stores: encoder name -> data with its features, for roles with other encoders; by default prepared here.
        rank: number of this process.
        world: number of processes that share each batch.
        likely: captions of the training split that hard negatives are drawn from, see `BatchSource`; by default those
            that the retriever ranks high, if the recipe says so, are found here.
    """
    stores = _stores_of_roles(recipe, prepared, frozen, None) if stores is None else stores
    objective_class, settings = recipe.component("objective")
    needs = objective_class.needs(settings)
    roles = Roles(target, **{role: frozen[role] for role in needs.roles})
    objective: Objective = objective_class(settings, roles)
    if likely is None and _draws_ranked_captions(recipe):
        ranked = stores.get(frozen["retriever"].encoder.name, prepared)
        likely = likely_captions(frozen["retriever"], ranked, "train", recipe.negatives.top)
    read = {model.encoder.name for model in objective.frozen.values()}
    training = recipe.training
    dataset = prepared.dataset if needs.captions else with_training_split(prepared.dataset)
    sources = {
        split: BatchSource(
            dataset,
            prepared.store,
            split,
            images_per_batch=training.images_per_batch,
            captions_per_image=training.captions_per_image,
            negatives=needs.negatives,
            # Validation uses uniform negatives, so that its losses compare across recipes and epochs.
            negative_settings=recipe.negatives if split == "train" else None,
            bucket_batches=training.bucket_batches,
            seed=recipe.seed,
            rank=rank,
            world=world,
            parts=training.accumulate if split == "train" else 1,
            likely_captions=likely if split == "train" else None,
            more_stores=[stores[name].store for name in sorted(read) if name in stores],
            image_negatives=needs.image_negatives,
            captioned_only=needs.captions,
            most=training.validate_images if split == "val" else None,
            mirrored=recipe.data.mirrored and split == "train",
        )
        for split in ("train", "val")
    }
    return objective, sources


def _entropies(recipe: Recipe, judges: list[Path], on_progress: OnProgress | None) -> RetrievalEntropy:
    """The retrieval entropies of the training captions; they are kept in the folders of the judges."""
    chosen = recipe.data.entropy
    return retrieval_entropy(
        judges, recipe.data, "train", temperature=chosen.temperature, pool=chosen.pool, on_progress=on_progress
    )


def _chosen(found: RetrievalEntropy, which: str, settings: EntropySettings) -> NDArray[np.bool_]:
    """Which captions are generic (or specific), each compared with those of the same judge."""
    percentiles = found.percentiles()
    return highest(percentiles if which == "generic" else -percentiles, settings.share)


def _with_chosen_captions(recipe: Recipe, prepared: Prepared, found: RetrievalEntropy) -> Prepared:
    """The data with only the generic, or only the specific, training captions."""
    chosen = _chosen(found, recipe.data.captions, recipe.data.entropy)
    gallery = found.gallery
    return replace(prepared, dataset=keep_captions(prepared.dataset, gallery.ids, gallery.image_of_caption, chosen))


def _draws_ranked_captions(recipe: Recipe) -> bool:
    """Whether hard negatives are captions that a retriever ranks high."""
    objective_class, settings = recipe.component("objective")
    needs = objective_class.needs(settings)
    drawn = needs.negatives or needs.image_negatives
    return bool(drawn and recipe.negatives.hard and recipe.negatives.by == "retriever")


def role_model(folders: list[Path], kind: str) -> Any:
    """The frozen model of a role: a model, or an ensemble of captioners."""
    models = [load_model(folder, kind) for folder in folders]
    if len(models) > 1 and kind != "captioner":
        raise RecipeError(f"{folders[1]}: only captioners can be an ensemble; give one {kind}")
    return models[0] if len(models) == 1 else Ensemble(models)


def _stores_of_roles(
    recipe: Recipe, prepared: Prepared, frozen: Mapping[str, Any], on_progress: OnProgress | None
) -> dict[str, Prepared]:
    """Encoder name -> data with its features, for roles with another encoder than the target's; encoded if missing."""
    found: dict[str, Prepared] = {}
    for model in frozen.values():
        name = model.encoder.name
        if name == prepared.store.encoder.name:
            prepared.store.check(prepared.dataset, model.encoder)
        elif name not in found:
            found[name] = prepare(recipe.data, on_progress, model.open_encoder(accelerator()))
            found[name].store.check(prepared.dataset, model.encoder)
    return found


def _guard(
    recipe: Recipe, objective: Objective, validation: BatchSource, judges: Mapping[str, Judging], folder: Path
) -> SpecificityGuard | None:
    """What ranks the validation images for generated captions, if the recipe asks for it."""
    if not judges:
        return None
    rows = validation.rows[: recipe.training.validate_specificity]
    return SpecificityGuard(objective.target, validation.store, rows, judges, folder)


def _measure(
    recipe: Recipe, objective: Objective, prepared: Prepared, guard: SpecificityGuard | None
) -> Measure | None:
    """The further figures of a validation that the recipe asks for."""
    target: Any = objective.target
    measures = [] if guard is None else [ValidationMeasure(guard, guard)]
    if images := recipe.training.validate_captions:
        measures.append(
            ValidationMeasure(
                lambda: measure_captions(target, prepared, images, recipe.decoding),
                lambda: measure_captions(target, prepared, min(FEW, images), recipe.decoding),
            )
        )
    if recipe.training.validate_retrieval:
        measures.append(
            ValidationMeasure(
                lambda: measure_retrieval(target, prepared), lambda: measure_retrieval(target, prepared, FEW)
            )
        )
    return together(measures) if measures else None


# --- processes --------------------------------------------------------------------------------------------------------


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Fail if another process is training in this folder; the lock is released when the process ends."""
    with lock(folder / ".lock", wait=False) as locked:
        if not locked:
            raise RunError(f"{folder}: another process is training here; wait for it or choose another --out")
        yield


def _first_then_others(fabric: Fabric, work: Callable[[], T]) -> T:
    """Run a function in the first process, then in the others, which find its files."""
    if fabric.global_rank == 0:
        made = work()
        fabric.barrier()
        return made
    fabric.barrier()
    return work()
