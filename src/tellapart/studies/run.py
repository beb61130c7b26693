"""Run a study: plan, search rates, train, measure, compare, write. Interrupted, the same call goes on."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tellapart.data.prepare import open_dataset
from tellapart.data.settings import DataSettings
from tellapart.errors import MissingExtraError, RecipeError, did_you_mean
from tellapart.files import write_json
from tellapart.progress import duration
from tellapart.recipe import Recipe, recipes_folder
from tellapart.run import Run, open_run
from tellapart.studies.base import Model, Study, find_study
from tellapart.studies.plan import training_seconds
from tellapart.studies.rates import MOST, SHARE, Search, search_rate, updates
from tellapart.studies.result import Measuring, Result, Row, measuring_of
from tellapart.training import run_recipe

CAPTIONER = "adaptive"


def run_study(
    name: str,
    data: str,
    budget: str = "laptop",
    seeds: int = 1,
    captioner: str | None = None,
    search: bool | None = None,
    retrieval_images: int | None = None,
    use: Mapping[str, Path] | None = None,
    out: Path | None = None,
    runs: Path = Path("runs"),
    prepared: Path = Path("prepared"),
    overrides: Sequence[str] = (),
) -> Result:
    """Train and measure what a study compares, or find what an earlier call has made; write its table and page.

    Args:
        name: such as `cl-table4` or `coder-table2`.
        data: `scenes`, a folder of pictures, or a data set.
        budget: `smoke`, `laptop` or `paper`.
        seeds: trainings of each model; all begin with a likelihood model of their own.
        captioner: whom a study of captioners is about: the first word of a recipe's file; by default `adaptive`.
        search: search learning rates on the validation split; by default except at `smoke`.
        retrieval_images: rank only the first so many images (studies of captioners).
        use: key of a model -> a finished run to take instead of training one (first seed).
        out: folder for `study.json`, `table.md` and `study.html`; by default `studies/NAME-DATA-CAPTIONER-BUDGET`,
            of retrievers `studies/NAME-DATA-BUDGET`.
        runs: where run folders go.
        prepared: where rendered scenes and features are.
        overrides: changes to every recipe, such as `training.steps=100`.

    Example:
        >>> result = run_study("cl-table4", "scenes", "smoke")       # doctest: +SKIP
        >>> result.row("adaptive-cl").mean("self_retrieval_R@1")     # doctest: +SKIP
        0.65
    """
    study = find_study(name)
    measuring = measuring_of(study)
    _check_options(study, measuring, captioner, retrieval_images)
    models = study.models(captioner or CAPTIONER)
    known = [model.key for model in models]
    for key, used in (use or {}).items():
        if key not in known:
            raise RecipeError(f"--use {key}: {name} has no such model{did_you_mean(key, known)}")
        # Before hours of training, not after them.
        if (trained_there := open_run(used).recipe.trains) != measuring.trains:
            raise RecipeError(f"--use {key}: {used} trained a {trained_there}, and {name} compares {measuring.trains}s")
    models, left_out = trainable(models, use or {})
    settings = DataSettings(source=data, prepared=str(prepared))
    trainer = _Trainer(study, data, budget, runs, use or {}, overrides, prepared, recipe_family(settings))
    search = budget != "smoke" if search is None else search
    _say(f"{name}: {study.title}", f"{len(models)} models, {seeds} seed{'s' if seeds > 1 else ''}, budget {budget}")
    _say(*(f"left out: {line}" for line in left_out))
    _say(*trainer.plan(models, seeds, search))
    searches: dict[str, Search] = {}
    trained: list[dict[str, Run]] = []
    for seed in range(seeds):
        trained.append({})
        for model in in_training_order(models):
            if seed == 0 and search and model.searched and model.key not in trainer.use:
                searches[model.key] = search_rate(trainer.recipe(model, seed, trained[seed], {}), runs)
            trained[seed][model.key] = trainer.train(model, seed, trained[seed], searches)
    split = study.split
    rows = [
        Row(model, [measuring.measure(model, models, of, split, retrieval_images) for of in trained])
        for model in models
    ]
    about = f"-{captioner or CAPTIONER}" if measuring.trains == "captioner" else ""
    folder = out or Path("studies") / f"{name}-{trainer.family}{about}-{budget}"
    more = measuring.finish(study, rows, folder)
    if left_out:
        more = {**more, "left_out": left_out}
    of_data = trained[0][models[0].key].data
    by_key = {row.model.key: row for row in rows}
    result = Result(
        study,
        of_data.dataset.name,
        budget,
        measuring.images(rows, of_data, split),
        rows,
        {
            row.model.key: measuring.differences(by_key[row.model.control], row, of_data, split)
            for row in rows
            if row.model.control is not None
        },
        searches,
        more,
    )
    from tellapart.studies.page import write_study

    write_json(folder / "study.json", result.to_json())
    write_study(result, folder)
    _say(f"written to {folder}")
    return result


def _check_options(study: Study, measuring: Measuring, captioner: str | None, retrieval_images: int | None) -> None:
    """Options that are for captioners are refused, not ignored, where there are none."""
    if measuring.trains == "captioner":
        return
    for option, value in (("--captioner", captioner), ("--retrieval-images", retrieval_images)):
        if value is not None:
            raise RecipeError(f"{option}: {study.name} is about retrievers, which this is not for; leave it out")


def recipe_family(settings: DataSettings) -> str:
    """The folder of recipes for a data set: its own where there is one, that of Flickr8k for all others."""
    if settings.source == "scenes":
        return "scenes"
    name = open_dataset(settings).name
    families = sorted(path.name for path in recipes_folder().iterdir() if path.is_dir())
    return next((family for family in families if name.startswith(family)), "flickr8k")


def trainable(models: Sequence[Model], use: Mapping[str, Path]) -> tuple[tuple[Model, ...], list[str]]:
    """The models whose optional packages are here, or that are trained already; and a line for each of the others."""
    missing = {
        model.key: f"{model.label}: {MissingExtraError(model.needs[0].replace('_', '-'), model.needs[1])}"
        for model in models
        if model.needs is not None and model.key not in use and find_spec(model.needs[0]) is None
    }
    return tuple(model for model in models if model.key not in missing), list(missing.values())


def in_training_order(models: Sequence[Model]) -> list[Model]:
    """The models so that each comes after those it starts from, is compared with or takes its rate from."""
    ordered: list[Model] = []
    while len(ordered) < len(models):
        done = {model.key for model in ordered}
        waiting = [model for model in models if model.key not in done]
        ready = [m for m in waiting if {m.start, *m.roles.values(), m.rate_of} - {None} <= done]
        if not ready:
            raise RecipeError(f"these models of a study wait for one another: {', '.join(m.key for m in waiting)}")
        ordered += ready
    return ordered


class _Trainer:
    """Makes the recipes of a study's models and trains them."""

    def __init__(
        self,
        study: Study,
        data: str,
        budget: str,
        runs: Path,
        use: Mapping[str, Path],
        overrides: Sequence[str],
        prepared: Path,
        family: str,
    ) -> None:
        self.study, self.data, self.budget, self.runs = study, data, budget, runs
        self.use, self.overrides, self.family = use, overrides, family
        self.data_overrides = [f"data.source={data}", f"data.prepared={prepared}"]

    def recipe(
        self, model: Model, seed: int, trained: Mapping[str, Run], searches: Mapping[str, Search], plan: bool = False
    ) -> Recipe:
        """A model's recipe; for a plan it starts from recipes instead of runs that are not there yet."""
        path = recipes_folder() / self.family / f"{model.recipe}.yaml"
        if not path.exists():
            raise RecipeError(
                f"{self.study.name}: there is no recipe '{self.family}/{path.name}'; "
                "this study is not for this captioner or this data"
            )
        overrides = [*self.overrides, *model.changes, f"seed={seed}"]
        upstreams = {"start": model.start, **{f"roles.{role}": key for role, key in model.roles.items()}}
        if model.start is None:
            overrides += self.data_overrides
        for section, key in upstreams.items():
            if key is not None:
                place = self._first_recipe(key) if plan else trained[key].folder.resolve()
                overrides.append(f"{section}.from={place}")
        rate = searches.get(model.rate_of or model.key)
        if rate is not None:
            overrides.append(f"training.learning_rate={rate.best}")
        if model.scaled:
            overrides += _scaled(Recipe.load(path, overrides, self.budget), model.scaled)
        recipe = Recipe.load(path, overrides, self.budget)
        if plan and model.start is not None:
            recipe = Recipe.load(path, [*overrides, *self.data_overrides], self.budget)
        return recipe.model_copy(update={"name": f"{self.family}-{model.key}"})

    def train(self, model: Model, seed: int, trained: Mapping[str, Run], searches: Mapping[str, Search]) -> Run:
        if seed == 0 and model.key in self.use:
            return open_run(self.use[model.key])
        recipe = self.recipe(model, seed, trained, searches)
        return run_recipe(recipe, self.runs)

    def plan(self, models: Sequence[Model], seeds: int, search: bool) -> list[str]:
        """What will be trained, with the time it takes as measured on a few updates."""
        lines, total = [], 0.0
        for model in models:
            if model.key in self.use and seeds == 1:
                lines.append(f"{model.label}: {self.use[model.key]}")
                continue
            recipe = self.recipe(model, 0, {}, {}, plan=True)
            steps = updates(recipe)
            seconds = training_seconds(recipe)
            trials = f", search {duration(3 * SHARE * seconds)}" if search and model.searched else ""
            lines.append(f"{model.label}: {steps} updates, {duration(seconds)}{trials}")
            total += seeds * seconds + (3 * SHARE * seconds if trials else 0)
        rest = f" (up to {MOST} rates where an end is the best)" if search else ""
        return [*lines, f"planned: {duration(total)} of training{rest}; validating and measuring come on top"]

    def _first_recipe(self, key: str) -> Path:
        """The likelihood recipe of the captioner that a key begins with."""
        return (recipes_folder() / self.family / f"{key.split('-')[0]}-mle.yaml").resolve()


def _scaled(recipe: Recipe, factors: Mapping[str, float]) -> list[str]:
    """Overrides that multiply what a recipe has; whole numbers stay whole and positive, null stays null."""
    content: Any = recipe.resolved()
    overrides = []
    for dotted, factor in factors.items():
        value = reduce(lambda place, key: place[key], dotted.split("."), content)
        if value is not None:
            scaled = max(1, round(factor * value)) if isinstance(value, int) and value else factor * value
            overrides.append(f"{dotted}={scaled}")
    return overrides


def _say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)
