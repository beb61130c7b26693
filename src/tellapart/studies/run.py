"""Run a study: plan, search learning rates, train, measure, compare, write. The same call continues after a stop."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from tellapart.studies.base import Arm, Study, find_study
from tellapart.studies.measure import Measure, measure_of
from tellapart.studies.page import check_study_folder, write_study
from tellapart.studies.plan import training_seconds
from tellapart.studies.rates import MOST, SHARE, Search, search_rate, updates
from tellapart.studies.result import ArmResult, Result
from tellapart.training import run_recipe

CAPTIONER = "adaptive"


def run_study(
    name: str,
    data: str,
    *,
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
    """Train and measure the arms of a study, or find those of an earlier call; write the table and the page.

    Args:
        name: such as `cl-table4` or `coder-table2`.
        data: `scenes`, a folder of images, or a data set.
        budget: `smoke`, `laptop` or `paper`.
        seeds: trainings of each arm. Each seed has its own MLE model.
        captioner: base captioner, the first word of its recipe's file name (studies of captioners only); by default
            `adaptive`.
        search: search learning rates on the validation split; by default except at `smoke`.
        retrieval_images: rank only the first N images (studies of captioners only).
        use: arm key -> finished run to use instead of training (first seed).
        out: folder for `study.json`, `table.md` and `study.html`; by default `studies/NAME-DATA-CAPTIONER-BUDGET`,
            for retrievers `studies/NAME-DATA-BUDGET`.
        runs: folder for run folders.
        prepared: folder for rendered scenes and features.
        overrides: changes to every recipe, such as `training.steps=100`.

    Example:
        >>> result = run_study("cl-table4", "scenes", budget="smoke")     # doctest: +SKIP
        >>> result.row("adaptive-cl").mean("self_retrieval_R@1")          # doctest: +SKIP
        0.65
    """
    study, use = find_study(name), use or {}
    measure = measure_of(study, retrieval_images)
    if measure.trains != "captioner":
        for option, value in (("--captioner", captioner), ("--retrieval-images", retrieval_images)):
            if value is not None:
                raise RecipeError(f"{option}: {name} is about retrievers, not captioners; remove the option")
    arms = study.arms(captioner or CAPTIONER)
    _check_used(use, study, arms, measure)
    arms, left_out = trainable(arms, use)
    settings = DataSettings(source=data, prepared=str(prepared))
    recipes = recipes_folder() / recipe_family(settings)
    trainer = ArmTrainer(
        study=study, recipes=recipes, data=settings, budget=budget, runs=runs, use=use, overrides=overrides
    )
    captioner_part = f"-{captioner or CAPTIONER}" if measure.trains == "captioner" else ""
    folder = out or Path("studies") / f"{name}-{recipes.name}{captioner_part}-{budget}"
    check_study_folder(folder, name)
    search = budget != "smoke" if search is None else search
    _say(f"{name}: {study.title}", f"{len(arms)} arms, {seeds} seed{'s' if seeds > 1 else ''}, budget {budget}")
    _say(*(f"left out: {line}" for line in left_out), *trainer.plan(arms, seeds, search))
    trained, searches = trainer.train_all(arms, seeds, search)
    rows = [ArmResult(arm, [measure.measure(arm, arms, of_seed) for of_seed in trained]) for arm in arms]
    more = measure.finish(rows, folder) | ({"left_out": left_out} if left_out else {})
    used_data = rows[0].seeds[0].run.data
    by_key = {row.arm.key: row for row in rows}
    result = Result(
        study=study,
        data=used_data.dataset.name,
        budget=budget,
        images=measure.images(rows, used_data),
        rows=rows,
        differences={
            row.arm.key: measure.differences(by_key[row.arm.control], row, used_data)
            for row in rows
            if row.arm.control is not None
        },
        searches=searches,
        more=more,
    )
    write_json(folder / "study.json", result.to_json())
    write_study(result, folder)
    _say(f"written to {folder}")
    return result


def _check_used(use: Mapping[str, Path], study: Study, arms: Sequence[Arm], measure: Measure) -> None:
    """Check the runs of `--use` before anything is trained."""
    known = [arm.key for arm in arms]
    for key, folder in use.items():
        if key not in known:
            raise RecipeError(f"--use {key}: {study.name} has no such arm{did_you_mean(key, known)}")
        if (trains := open_run(folder).recipe.trains) != measure.trains:
            raise RecipeError(f"--use {key}: {folder} trained a {trains}, but {study.name} compares {measure.trains}s")


def recipe_family(settings: DataSettings) -> str:
    """Folder of the recipes for a data set: the one named like the data, or `flickr8k` if there is none."""
    if settings.source == "scenes":
        return "scenes"
    name = open_dataset(settings).name
    families = sorted(path.name for path in recipes_folder().iterdir() if path.is_dir())
    return next((family for family in families if name.startswith(family)), "flickr8k")


def trainable(arms: Sequence[Arm], use: Mapping[str, Path]) -> tuple[tuple[Arm, ...], list[str]]:
    """The arms whose optional packages are installed or that are in `use`, and a message for each of the others."""
    missing = {
        arm.key: f"{arm.label}: {MissingExtraError(arm.needs[0].replace('_', '-'), arm.needs[1])}"
        for arm in arms
        if arm.needs is not None and arm.key not in use and find_spec(arm.needs[0]) is None
    }
    return tuple(arm for arm in arms if arm.key not in missing), list(missing.values())


def in_training_order(arms: Sequence[Arm]) -> list[Arm]:
    """The arms sorted so that each comes after those whose weights or learning rate it uses."""
    ordered: list[Arm] = []
    while len(ordered) < len(arms):
        done = {arm.key for arm in ordered}
        waiting = [arm for arm in arms if arm.key not in done]
        ready = [arm for arm in waiting if {arm.start, *arm.roles.values(), arm.rate_of} - {None} <= done]
        if not ready:
            raise RecipeError(f"these arms of a study depend on each other: {', '.join(arm.key for arm in waiting)}")
        ordered += ready
    return ordered


@dataclass(frozen=True, kw_only=True)
class ArmTrainer:
    """Makes the recipes of a study's arms and trains them.

    Attributes:
        study: the study.
        recipes: folder of the recipes for the data.
        data: the data.
        budget: `smoke`, `laptop` or `paper`.
        runs: folder for run folders.
        use: arm key -> finished run to use (first seed).
        overrides: changes to every recipe.
    """

    study: Study
    recipes: Path
    data: DataSettings
    budget: str
    runs: Path
    use: Mapping[str, Path]
    overrides: Sequence[str]

    def recipe(
        self, arm: Arm, seed: int, trained: Mapping[str, Run], searches: Mapping[str, Search], *, plan: bool = False
    ) -> Recipe:
        """The recipe of an arm. For a plan it starts from recipes, because the runs do not exist yet."""
        path = self.recipes / f"{arm.recipe}.yaml"
        if not path.exists():
            raise RecipeError(
                f"{self.study.name}: there is no recipe '{self.recipes.name}/{path.name}'; "
                "this study does not support this captioner or this data"
            )
        data = [f"data.source={self.data.source}", f"data.prepared={self.data.prepared}"]
        overrides = [*self.overrides, *arm.changes, f"seed={seed}"]
        if arm.start is None:
            overrides += data
        for section, key in {"start": arm.start, **{f"roles.{role}": key for role, key in arm.roles.items()}}.items():
            if key is not None:
                place = self._mle_recipe(key) if plan else trained[key].folder.resolve()
                overrides.append(f"{section}.from={place}")
        rate = searches.get(arm.rate_of or arm.key)
        if rate is not None:
            overrides.append(f"training.learning_rate={rate.best}")
        if arm.scaled:
            overrides += _scaled(Recipe.load(path, overrides, self.budget), arm.scaled)
        if plan and arm.start is not None:
            overrides += data
        recipe = Recipe.load(path, overrides, self.budget)
        return recipe.model_copy(update={"name": f"{self.recipes.name}-{arm.key}"})

    def train_all(
        self, arms: Sequence[Arm], seeds: int, search: bool
    ) -> tuple[list[dict[str, Run]], dict[str, Search]]:
        """Train all arms: the runs of each seed by arm key, and the searches by arm key (first seed)."""
        trained: list[dict[str, Run]] = []
        searches: dict[str, Search] = {}
        for seed in range(seeds):
            runs: dict[str, Run] = {}
            trained.append(runs)
            for arm in in_training_order(arms):
                if seed == 0 and arm.key in self.use:
                    runs[arm.key] = open_run(self.use[arm.key])
                    continue
                if seed == 0 and search and arm.searched:
                    searches[arm.key] = search_rate(self.recipe(arm, seed, runs, {}), self.runs)
                runs[arm.key] = run_recipe(self.recipe(arm, seed, runs, searches), self.runs)
        return trained, searches

    def plan(self, arms: Sequence[Arm], seeds: int, search: bool) -> list[str]:
        """What will be trained, and for how long, estimated from a few timed updates."""
        lines, total = [], 0.0
        for arm in arms:
            if arm.key in self.use and seeds == 1:
                lines.append(f"{arm.label}: {self.use[arm.key]}")
                continue
            recipe = self.recipe(arm, 0, {}, {}, plan=True)
            seconds = training_seconds(recipe)
            trials = 3 * SHARE * seconds if search and arm.searched else 0.0
            also = f", search {duration(trials)}" if trials else ""
            lines.append(f"{arm.label}: {updates(recipe)} updates, {duration(seconds)}{also}")
            total += seeds * seconds + trials
        more = f" (a search may try up to {MOST} rates)" if search else ""
        return [*lines, f"planned: {duration(total)} of training{more}, plus time to validate and measure"]

    def _mle_recipe(self, key: str) -> Path:
        """The MLE recipe of an arm's captioner, which is the first word of the arm's key."""
        return (self.recipes / f"{key.split('-')[0]}-mle.yaml").resolve()


def _scaled(recipe: Recipe, factors: Mapping[str, float]) -> list[str]:
    """Overrides that multiply values of a recipe. Integers stay positive integers; null stays null."""
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
