"""From a recipe to what the loop is given: the objective with its models, the batches, the measures of validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray

from tellapart.data.batches import BatchSource
from tellapart.data.features import FeatureStore
from tellapart.data.prepare import Prepared, prepare
from tellapart.data.selection import highest, keep_captions
from tellapart.data.settings import EntropySettings
from tellapart.data.unlabelled import with_training_split
from tellapart.decoding.ensemble import Ensemble
from tellapart.encoders.base import accelerator
from tellapart.engine.loop import Measure
from tellapart.engine.processes import first_then_others, on_first
from tellapart.errors import DataError, RecipeError
from tellapart.evaluation.hard_negatives import likely_captions
from tellapart.evaluation.retrieval_entropy import RetrievalEntropy, retrieval_entropy
from tellapart.evaluation.specificity_guard import SpecificityGuard
from tellapart.evaluation.true_listener import open_true_listener
from tellapart.evaluation.validation import FEW, ValidationMeasure, measure_captions, measure_retrieval, together
from tellapart.files import check_folder
from tellapart.models import Model, enough_memory, load_model
from tellapart.objectives.base import Objective, Roles
from tellapart.progress import OnProgress, show_slow
from tellapart.recipe import ENTROPY, Recipe
from tellapart.recipe_files import is_model_folder
from tellapart.retrievers.base import Retriever

# The run or model folders named by `start` and by each role; several are an ensemble.
Upstreams = dict[str, list[Path]]

# The folder in a run folder for scores that take long.
SCORES = "scores"

# A retriever that judges captions, and the features that it reads.
Judging = tuple[Retriever, FeatureStore]


def load_and_assemble(
    recipe: Recipe,
    prepared: Prepared,
    upstreams: Upstreams,
    fabric: Fabric,
    own_scores: Callable[[], Path],
    on_progress: OnProgress | None,
    checkpoint: Path | None = None,
) -> tuple[Objective, dict[str, BatchSource], dict[str, Judging]]:
    """The objective with its models, the batches of both splits, and the retrievers that judge captions in validation.

    If this fails, no folder was made, unless `own_scores` was called.

    Args:
        recipe: what to train.
        prepared: its data.
        upstreams: the folders of its models.
        fabric: the processes.
        own_scores: begins the run and gives its own folder for scores, in all processes; called before long work whose
            results cannot be kept beside the model that gave them.
        on_progress: called with the name of the work, the number done and the total.
        checkpoint: the one that the training continues from: the target is loaded from it, and not made.
    """
    torch.manual_seed(recipe.seed)
    target = _target(recipe, prepared, upstreams, on_progress, checkpoint)
    frozen = {
        role: role_model(upstreams[role], kind) for role, kind in recipe.needed_roles().items() if role != ENTROPY
    }
    stores = first_then_others(fabric, lambda: _stores_of_roles(recipe, prepared, frozen, on_progress))
    trained_on, likely = prepared, None
    if draws_ranked_captions(recipe):
        retriever = frozen["retriever"].to(fabric.device)
        beside = upstreams["retriever"][0]
        folder = on_first(fabric, lambda: folder_for_scores(beside)) or own_scores()
        ranked = stores.get(retriever.encoder.name, prepared)
        likely = first_then_others(
            fabric, lambda: likely_captions(retriever, ranked, "train", recipe.negatives.top, folder, on_progress)
        )
    if recipe.divides_captions:
        found = first_then_others(fabric, lambda: _entropies(recipe, upstreams[ENTROPY], on_progress))
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


def _target(
    recipe: Recipe,
    prepared: Prepared,
    upstreams: Upstreams,
    on_progress: OnProgress | None,
    checkpoint: Path | None = None,
) -> Model:
    """The model to train: of the checkpoint, the one it starts from, or a new one; with what its card says about this.

    A new one has to read all training captions. The random numbers drawn for it are not needed after a checkpoint: that
    has all that outlives a step, and each step has a seed of its own.
    """
    model_class, settings = recipe.component(recipe.trains)
    saved = upstreams["start"][0] if checkpoint is None and "start" in upstreams else checkpoint
    if saved is not None:
        target: Model = load_model(saved, recipe.trains, settings.model_dump())
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


def role_model(folders: list[Path], kind: str) -> Any:
    """The frozen model of a role: a model, or an ensemble of captioners."""
    models = [load_model(folder, kind) for folder in folders]
    if len(models) > 1 and kind != "captioner":
        raise RecipeError(f"{folders[1]}: only captioners can be an ensemble; give one {kind}")
    return models[0] if len(models) == 1 else Ensemble(models)


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
    if likely is None and draws_ranked_captions(recipe):
        ranked = stores.get(frozen["retriever"].encoder.name, prepared)
        likely = likely_captions(frozen["retriever"], ranked, "train", recipe.negatives.top)
    read = {model.encoder.name for model in objective.frozen.values()}
    training = recipe.training
    dataset = prepared.dataset if needs.captions else with_training_split(prepared.dataset)
    if needs.captions and not any(record.captions for record in dataset):
        raise DataError(
            f"{dataset.name}: these pictures have no captions, which the {objective.name} objective learns from; "
            "give captions (photo.txt beside photo.jpg), or train without them: own/specificity.yaml"
        )
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


def folder_for_scores(upstream: Path) -> Path | None:
    """Where scores by the model of another run are kept: in its folder; `None` if that cannot be written.

    Nothing is written into a model folder: it may be part of an installed package.
    """
    if is_model_folder(upstream):
        return None
    try:
        check_folder(upstream)
    except DataError:
        return None
    return upstream / SCORES


# --- choosing captions ------------------------------------------------------------------------------------------------


def draws_ranked_captions(recipe: Recipe) -> bool:
    """Whether hard negatives are captions that a retriever ranks high."""
    objective_class, settings = recipe.component("objective")
    needs = objective_class.needs(settings)
    drawn = needs.negatives or needs.image_negatives
    return bool(drawn and recipe.negatives.hard and recipe.negatives.by == "retriever")


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


# --- validation -------------------------------------------------------------------------------------------------------


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


def specificity_guard(
    recipe: Recipe,
    prepared: Prepared,
    objective: Objective,
    validation: BatchSource,
    judges: Mapping[str, Judging],
    upstreams: Upstreams,
    folder: Path,
) -> SpecificityGuard | None:
    """What ranks the validation images for generated captions, if the recipe asks for it."""
    if not judges:
        return None
    rows = validation.rows[: recipe.training.validate_specificity]
    start = None
    if "start" in upstreams:
        device = objective.target.device
        start = load_model(upstreams["start"][0], "captioner").to(device).eval().requires_grad_(False)
    listener = open_true_listener(recipe.data, prepared.dataset, "val")
    true_listener = None if listener is None else listener.first(len(rows))
    return SpecificityGuard(objective.target, validation.store, rows, judges, folder, start, true_listener)


def validation_measure(
    recipe: Recipe, objective: Objective, prepared: Prepared, guard: SpecificityGuard | None
) -> Measure | None:
    """The further figures of a validation that the recipe asks for."""
    target: Any = objective.target
    measures = [] if guard is None else [ValidationMeasure(guard, guard.at_start)]
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
