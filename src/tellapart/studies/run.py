"""Run a study: plan, search learning rates, train, measure, compare, write. The same call continues after a stop."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tellapart.data.prepare import open_dataset
from tellapart.data.settings import DataSettings
from tellapart.errors import MissingExtraError, RecipeError, did_you_mean
from tellapart.files import write_json
from tellapart.progress import duration
from tellapart.recipe import Recipe
from tellapart.recipe_files import recipes_folder
from tellapart.run import Run, open_run, read_state
from tellapart.studies.base import Arm, Study, cross, find_study
from tellapart.studies.choice import choose
from tellapart.studies.measure import Measure, measure_of
from tellapart.studies.page import check_study_folder, write_study
from tellapart.studies.plan import training_seconds
from tellapart.studies.rates import FACTORS, MOST, SHARE, Search, search_rates, updates
from tellapart.studies.result import ArmResult, Result
from tellapart.studies.treatment import RATE, Difference, check_treatment, describe
from tellapart.training import run_recipe


def run_study(
    name: str,
    data: str,
    *,
    budget: str = "laptop",
    seeds: int = 1,
    captioner: str | None = None,
    search: bool | None = None,
    factors: Mapping[str, Sequence[str]] | None = None,
    retrieval_images: int | None = None,
    listener: Run | str | Path | None = None,
    diversity_images: int | None = None,
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
            `adaptive`, in studies of UNKT `transformer`.
        search: search the learning rates of all arms on the validation split; by default as the study says, and never
            at `smoke`. Without a search, arms have the rates of their recipes.
        factors: dotted key -> values to cross with every arm that is trained further, such as
            `{"captioner.dropout": ["0", "0.3"]}`.
        retrieval_images: rank only the first N images (studies of captioners only).
        listener: run of a retriever with no part in training or selection, which also ranks the images for captions
            (studies of captioners only). By default the recipe `listener` for the data is trained, if its encoder is
            installed.
        diversity_images: write n captions for only the first N images (studies of UNKT only).
        use: arm key -> finished run to use instead of training (first seed).
        out: folder for `study.json`, `table.md` and `study.html`; by default `studies/NAME-DATA-CAPTIONER-BUDGET`,
            for retrievers `studies/NAME-DATA-BUDGET`.
        runs: folder for run folders.
        prepared: folder for rendered scenes and features.
        overrides: changes to every recipe, such as `training.steps=100`, or to that of one arm, such as
            `adaptive-mle:training.steps=100`.

    Example:
        >>> result = run_study("cl-table4", "scenes", budget="smoke")     # doctest: +SKIP
        >>> result.row("adaptive-cl").mean("self_retrieval_R@1")          # doctest: +SKIP
        0.65
    """
    study, use = find_study(name), use or {}
    measure = measure_of(study, retrieval_images=retrieval_images, listener=listener, diversity_images=diversity_images)
    if diversity_images is not None and not measure.many_captions:
        raise RecipeError(f"--diversity-images: {name} measures one caption of each image; remove the option")
    if measure.trains != "captioner":
        options = {"--captioner": captioner, "--retrieval-images": retrieval_images, "--listener": listener}
        for option, value in options.items():
            if value is not None:
                raise RecipeError(f"{option}: {name} is about retrievers, not captioners; remove the option")
    captioner = captioner or study.captioner
    arms = cross(study.arms(captioner), factors) if factors else study.arms(captioner)
    _check_used(use, study, arms, measure)
    for key in filter(None, map(arm_of, overrides)):
        _check_known("--set", key, study, arms)
    arms, left_out = trainable(arms, use)
    settings = DataSettings(source=data, prepared=str(prepared))
    recipes = recipes_folder() / recipe_family(settings)
    trainer = ArmTrainer(
        study=study, recipes=recipes, data=settings, budget=budget, runs=runs, use=use, overrides=overrides
    )
    captioner_part = f"-{captioner}" if measure.trains == "captioner" else ""
    folder = out or Path("studies") / f"{name}-{recipes.name}{captioner_part}-{budget}"
    check_study_folder(folder, name)
    search = study.search and budget != "smoke" if search is None else search
    _say(
        f"{name}: {study.title}",
        f"{len(arms)} arms, {seeds} seed{'s' if seeds > 1 else ''}, budget {budget}, recipes of {recipes.name}",
    )
    _say(*(f"left out: {line}" for line in left_out))
    treatments = trainer.treatments(arms)
    if listener is not None:
        _check_listener(listener, trainer.recipe(arms[0], 0, {}, {}, plan=True).data)
    for key, differences in treatments.items():
        _say(f"{key} differs from its control in {describe(differences)}")
    _say(*trainer.plan(arms, seeds, search))
    if measure.trains == "captioner" and listener is None:
        try:
            measure.listener = trainer.train_listener()
        except MissingExtraError as error:
            left_out.append(f"the independent retriever: {error}")
    trainer = replace(trainer, listener=_retriever_folder(measure.listener))
    trained, searches = trainer.train_all(arms, seeds, search)
    treatments = trainer.treatments(arms, searches)
    rows = [ArmResult(arm, [measure.measure(arm, arms, of_seed) for of_seed in trained]) for arm in arms]
    people = measure.people(rows)
    more = measure.finish(rows, folder) | ({"left_out": left_out} if left_out else {})
    if study.choice is not None:
        more["chosen"] = choose(study, study.choice, arms, trained, measure).to_json()
    used_data = rows[0].seeds[0].run.data
    result = Result(
        study=study,
        data=used_data.dataset.name,
        budget=budget,
        images=measure.images(rows, used_data),
        rows=rows,
        differences=measure.all_differences(rows, people, used_data),
        people=people,
        searches=searches,
        treatments={key: [str(difference) for difference in found] for key, found in treatments.items()},
        more=more,
    )
    write_json(folder / "study.json", result.to_json())
    write_study(result, folder)
    _say(f"written to {folder}")
    return result


def _check_used(use: Mapping[str, Path], study: Study, arms: Sequence[Arm], measure: Measure) -> None:
    """Check the runs of `--use` before anything is trained."""
    for key, folder in use.items():
        _check_known("--use", key, study, arms)
        if (trains := open_run(folder).recipe.trains) != measure.trains:
            raise RecipeError(f"--use {key}: {folder} trained a {trains}, but {study.name} compares {measure.trains}s")


def _check_known(option: str, key: str, study: Study, arms: Sequence[Arm]) -> None:
    known = [arm.key for arm in arms]
    if key not in known:
        raise RecipeError(f"{option} {key}: {study.name} has no such arm{did_you_mean(key, known)}")


def arm_of(override: str) -> str | None:
    """The arm that `ARM:KEY=VALUE` changes; `None` if it changes all.

    >>> arm_of("adaptive-mle:training.steps=100"), arm_of("training.steps=100")
    ('adaptive-mle', None)
    """
    arm, colon, _ = override.partition("=")[0].partition(":")
    return arm if colon else None


def _check_listener(listener: Run | str | Path, data: DataSettings) -> None:
    """Check before anything is trained that the listener knows the images of the study."""
    run = listener if isinstance(listener, Run) else open_run(listener)
    if read_state(run.folder).made_from["data"] != open_dataset(data).digest:
        raise RecipeError(
            f"--listener: {run.folder} was trained on other data than {data.source}; make a run of it on these data: "
            f"tellapart train RECIPE start.from={run.folder} data.source={data.source} training.steps=0 "
            "training.epochs=null"
        )


def recipe_family(settings: DataSettings) -> str:
    """Folder of the recipes for a data set: the one named like the data, or `flickr8k` if there is none."""
    if settings.source == "scenes":
        return "scenes"
    name = open_dataset(settings).name
    families = sorted(path.parent.name for path in recipes_folder().glob("*/adaptive-mle.yaml"))
    return next((family for family in families if name.startswith(family)), "flickr8k")


def trainable(arms: Sequence[Arm], use: Mapping[str, Path]) -> tuple[tuple[Arm, ...], list[str]]:
    """The arms whose optional packages are installed or that are in `use`, and a message for each of the others."""
    missing = {
        arm.key: f"{arm.label}: {MissingExtraError(arm.needs[0].replace('_', '-'), arm.needs[1])}"
        for arm in arms
        if arm.needs is not None and arm.key not in use and find_spec(arm.needs[0]) is None
    }
    return tuple(arm for arm in arms if arm.key not in missing), list(missing.values())


def in_training_order(arms: Sequence[Arm]) -> list[list[Arm]]:
    """The arms in levels: each arm comes after those whose weights or learning rate it uses."""
    levels: list[list[Arm]] = []
    done: set[str] = set()
    while len(done) < len(arms):
        waiting = [arm for arm in arms if arm.key not in done]
        ready = [arm for arm in waiting if {arm.start, *arm.roles.values(), arm.rate_of} - {None} <= done]
        if not ready:
            raise RecipeError(f"these arms of a study depend on each other: {', '.join(arm.key for arm in waiting)}")
        levels.append(ready)
        done |= {arm.key for arm in ready}
    return levels


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
        overrides: changes to every recipe, or `ARM:KEY=VALUE`.
        listener: run or model folder of the independent retriever. Arms that rank validation images for their captions
            log its ranks too, to warn of captions that please only the retriever that teaches.
    """

    study: Study
    recipes: Path
    data: DataSettings
    budget: str
    runs: Path
    use: Mapping[str, Path]
    overrides: Sequence[str]
    listener: Path | None = None

    def recipe(
        self, arm: Arm, seed: int, trained: Mapping[str, Run], searches: Mapping[str, Search], *, plan: bool = False
    ) -> Recipe:
        """The recipe of an arm. For a plan it starts from recipes, because the runs do not exist yet."""
        path = self.recipe_path(arm.recipe)
        if not path.exists():
            raise RecipeError(
                f"{self.study.name}: there is no recipe '{self.recipes.name}/{path.name}'; "
                "this study does not support this captioner or this data"
            )
        data = [f"data.source={self.data.source}", f"data.prepared={self.data.prepared}"]
        overrides = [*self._given(arm), *arm.changes, f"seed={seed}"]
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
        if arm.validations is not None:
            steps = Recipe.load(path, overrides, self.budget).training.steps
            if steps is not None:
                overrides.append(f"training.validate_every={max(1, steps // arm.validations)}")
        if plan and arm.start is not None:
            overrides += data
        recipe = Recipe.load(path, overrides, self.budget)
        if self.listener is not None and recipe.training.validate_specificity:
            recipe = Recipe.load(path, [*overrides, f"roles.listener.from={self.listener}"], self.budget)
        return recipe.model_copy(update={"name": f"{self.recipes.name}-{arm.key}"})

    def _given(self, arm: Arm) -> list[str]:
        """The changes to every recipe, then those to this arm's alone."""
        given = [(arm_of(override), override) for override in self.overrides]
        own = [override.removeprefix(f"{arm.key}:") for key, override in given if key == arm.key]
        return [*(override for key, override in given if key is None), *own]

    def recipe_path(self, name: str) -> Path:
        """The file of an arm's recipe; at the budget `paper` the paper's own, except on the embedded scenes."""
        literal = self.study.paper.get(name)
        if self.budget == "paper" and literal is not None and self.recipes.name != "scenes":
            return recipes_folder() / "paper" / f"{literal}.yaml"
        return self.recipes / f"{name}.yaml"

    def treatments(
        self, arms: Sequence[Arm], searches: Mapping[str, Search] | None = None
    ) -> dict[str, list[Difference]]:
        """Arm key -> its differences from its control; an error if there is one besides treatment and deviations.

        Args:
            arms: of the study.
            searches: learning rates found; a rate that differs is then a deviation.
        """
        by_key, found = {arm.key: arm for arm in arms}, {}
        for arm in arms:
            control = by_key.get(arm.control or "")
            if control is None or (control.start is None) != (arm.start is None):
                continue  # a start is compared as it is, with more training or less
            rate = _searched_rate(arm, searches or {})
            declared = replace(arm, deviations={**arm.deviations, **rate})
            recipes = [self.recipe(one, 0, {}, searches or {}, plan=True) for one in (arm, control)]
            found[arm.key] = check_treatment(declared, recipes[0], control, recipes[1])
        return found

    def train_all(
        self, arms: Sequence[Arm], seeds: int, search: bool
    ) -> tuple[list[dict[str, Run]], dict[str, Search]]:
        """Train all arms: the runs of each seed by arm key, and the searches by arm key (first seed)."""
        trained: list[dict[str, Run]] = []
        searches: dict[str, Search] = {}
        for seed in range(seeds):
            runs: dict[str, Run] = {}
            trained.append(runs)
            for level in in_training_order(arms):
                if seed == 0 and search:
                    searches |= self._search(level, runs)
                for arm in level:
                    if seed == 0 and arm.key in self.use:
                        runs[arm.key] = open_run(self.use[arm.key])
                    else:
                        runs[arm.key] = run_recipe(self.recipe(arm, seed, runs, searches), self.runs)
        return trained, searches

    def train_listener(self) -> Run | None:
        """The independent retriever for the data, if there is a recipe; changes to the arms do not reach it."""
        path = self.recipes / "listener.yaml"
        if not path.exists():
            return None
        data = [one for one in self.overrides if one.startswith("data.") and not one.startswith("data.encoder")]
        data += [f"data.source={self.data.source}", f"data.prepared={self.data.prepared}"]
        return run_recipe(Recipe.load(path, data, self.budget), self.runs)

    def _search(self, arms: Sequence[Arm], runs: Mapping[str, Run]) -> dict[str, Search]:
        """Search the rates of arms that can be trained now; those of one start try the same rates."""
        searches: dict[str, Search] = {}
        groups: dict[str | None, list[Arm]] = {}
        for arm in arms:
            if self._is_searched(arm):
                groups.setdefault(arm.start, []).append(arm)
        for group in groups.values():
            searches |= search_rates({arm.key: self.recipe(arm, 0, runs, {}) for arm in group}, self.runs)
        return searches

    def _is_searched(self, arm: Arm) -> bool:
        """Whether a search covers this arm: not a start of other arms, unless the study searches by itself."""
        return arm.rate_of is None and arm.key not in self.use and (arm.start is not None or self.study.search)

    def plan(self, arms: Sequence[Arm], seeds: int, search: bool) -> list[str]:
        """What will be trained, and for how long, estimated from a few timed updates."""
        lines, total = [], 0.0
        for arm in arms:
            if arm.key in self.use and seeds == 1:
                lines.append(f"{arm.label}: {self.use[arm.key]}")
                continue
            recipe = self.recipe(arm, 0, {}, {}, plan=True)
            seconds = training_seconds(recipe)
            trials = len(FACTORS) * SHARE * seconds if search and self._is_searched(arm) else 0.0
            also = f", search {duration(trials)}" if trials else ""
            lines.append(f"{arm.label}: {updates(recipe)} updates, {duration(seconds)}{also}")
            total += seeds * seconds + trials
        more = f" (a search may try up to {MOST} rates)" if search else ""
        return [*lines, f"planned: {duration(total)} of training{more}, plus time to validate and measure"]

    def _mle_recipe(self, key: str) -> Path:
        """The MLE recipe of an arm's captioner, which is the first word of the arm's key."""
        return self.recipe_path(f"{key.split('-')[0]}-mle").resolve()


def _retriever_folder(listener: Run | str | Path | None) -> Path | None:
    """The folder of a listener that is a retriever; a captioner cannot have that role in a training."""
    if listener is None:
        return None
    run = listener if isinstance(listener, Run) else open_run(listener)
    return run.folder.resolve() if run.recipe.trains == "retriever" else None


def _searched_rate(arm: Arm, searches: Mapping[str, Search]) -> dict[str, str]:
    """The deviation of a searched learning rate, if the arm has one."""
    search = searches.get(arm.rate_of or arm.key)
    if search is None:
        return {}
    tried = f"each arm's best of {len(search.tried)} by validation {search.figure}"
    return {RATE: f"{tried}, at the edge of those tried" if search.at_edge else tried}


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
