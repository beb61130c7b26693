"""A run folder: the recipe, data and model of a finished training, each loaded once.

Results of a run (captions, scores, ranks) are cached in its folder by `find_or_make`, with what they were made from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from tellapart.captioners.base import Captioner
from tellapart.data.prepare import Prepared, open_dataset, prepare
from tellapart.encoders.base import accelerator
from tellapart.errors import RunError
from tellapart.files import Stored, find_or_make, read_model
from tellapart.models import load_model, model_digest
from tellapart.recipe import Recipe
from tellapart.retrievers.base import Retriever

T = TypeVar("T")


class RunState(Stored):
    """`run.json`: the key of the run, what it was made from, and whether it is finished."""

    key: str
    made_from: dict[str, Any]
    finished: bool


@dataclass(frozen=True)
class Run:
    """A finished training.

    Attributes:
        folder: has `recipe.yaml`, `run.json`, `metrics.jsonl`, `checkpoints/` and measured results.
        recipe: the recipe that was trained.

    Example:
        >>> run = open_run("runs/scenes-cl-1a2b3c4d")                            # doctest: +SKIP
        >>> run.data.dataset.split("test")[0].captions, run.model.name           # doctest: +SKIP
    """

    folder: Path
    recipe: Recipe

    @cached_property
    def data(self) -> Prepared:
        """Records and features; features that are missing, or of changed pictures, are encoded now.

        A `RunError` is raised if the captions, splits or image names are not those of the training.
        """
        check_data_exists(self.folder, self.recipe)
        dataset = open_dataset(self.recipe.data)
        trained_on = read_state(self.folder).made_from["data"]
        if dataset.digest != trained_on:
            raise RunError(
                f"{self.folder}: the data set {dataset.name} ({self.recipe.data.source}) is not the one this run was "
                "trained on: its captions, splits or image names have changed; restore it, write the place of the "
                f"right one into {self.folder / 'recipe.yaml'} (data.source), or train again"
            )
        return prepare(self.recipe.data, dataset=dataset)

    @cached_property
    def model(self) -> Any:
        """The captioner or retriever of the kept checkpoint, in eval mode on the best device."""
        return load_model(self.folder, self.recipe.trains).to(accelerator() or "cpu")

    @property
    def captioner(self) -> Captioner:
        """The model of a run that trained a captioner."""
        captioner: Captioner = self._model_of_kind("captioner")
        return captioner

    @property
    def retriever(self) -> Retriever:
        """The model of a run that trained a retriever."""
        retriever: Retriever = self._model_of_kind("retriever")
        return retriever

    def _model_of_kind(self, kind: str) -> Any:
        return self.model if self.recipe.trains == kind else load_model(self.folder, kind)  # raises

    @cached_property
    def model_digest(self) -> str:
        """Digest of the weights."""
        return model_digest(self.folder)

    def derived(self, name: str, made_from: Any, make: Callable[[], dict[str, Any]], schema: type[T]) -> T:
        """Content of a JSON file in the run folder, computed now unless it was made from the same.

        Args:
            name: file name.
            made_from: plain data that decides the content, besides the model's weights and the data.
            make: computes the content.
            schema: what the file must hold.
        """
        data = [self.data.dataset.digest, self.data.pictures_digest()]
        basis = {"model": self.model_digest, "data": data, "made_from": made_from}
        return find_or_make(self.folder / name, basis, make, schema)


def open_run(folder: str | Path) -> Run:
    """Open the folder of a finished run."""
    folder = Path(folder)
    check_run_folder(folder)
    if not read_state(folder).finished:
        raise RunError(f"{folder}: this training is not finished; continue it: tellapart train --resume {folder}")
    return Run(folder, Recipe.load(folder / "recipe.yaml"))


def read_state(folder: Path) -> RunState:
    """Read `run.json` of a run folder."""
    remedy = "train again in another folder"
    return read_model(folder / "run.json", RunState, "run state", remedy, RunError)


def check_run_folder(folder: Path) -> None:
    if not (folder / "recipe.yaml").exists():
        raise RunError(f"{folder}: this is not a run folder (recipe.yaml is missing); 'tellapart train' makes one")


def check_data_exists(folder: Path, recipe: Recipe) -> None:
    """Raise if the data set of a run is not where its recipe says."""
    source = recipe.data.source
    if source != "scenes" and not Path(source).exists():
        raise RunError(
            f"{folder / 'recipe.yaml'}: data.source: '{source}' does not exist; if the data has moved, write its new "
            "place there (absolute, or relative to the run folder)"
        )
