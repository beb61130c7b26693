"""Run a study: plan, search rates, train, measure, compare, write. Interrupted, the same call goes on."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tellapart.cli import recipes_folder
from tellapart.data.prepare import open_dataset, prepare
from tellapart.engine.progress import duration
from tellapart.engine.run import Run, open_run, run_recipe
from tellapart.errors import RecipeError, did_you_mean
from tellapart.evaluation.compare import ranks_under
from tellapart.evaluation.evaluate import Evaluation, evaluate_run, retrieval_figures
from tellapart.files import write_json
from tellapart.metrics import PairedDifference, paired_bootstrap
from tellapart.recipe import DataSettings, Recipe
from tellapart.studies.base import Model, Study, find_study
from tellapart.studies.plan import seconds_per_update
from tellapart.studies.rates import MOST, SHARE, Search, search_rate, updates

# What is compared image by image: figure -> heading, how it is printed.
COMPARED = {
    "self_retrieval_R@1": "R@1",
    "under_judge_R@1": "R@1 under MLE",
    "CIDEr": "CIDEr",
}


@dataclass(frozen=True)
class Measured:
    """A model trained with one seed, and its figures.

    Attributes:
        run: the training.
        evaluation: its captions, scored and ranked by itself.
        figures: everything by name, what the judge says included.
        per_image: figure -> one value per image, for paired comparisons.
    """

    run: Run
    evaluation: Evaluation
    figures: dict[str, float]
    per_image: dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Row:
    """One row of the table: a model with all its seeds."""

    model: Model
    seeds: list[Measured]

    def values(self, figure: str) -> list[float]:
        return [one.figures[figure] for one in self.seeds if figure in one.figures]

    def mean(self, figure: str) -> float | None:
        values = self.values(figure)
        return float(np.mean(values)) if values else None

    def deviation(self, figure: str) -> float | None:
        """The standard deviation over seeds; `None` with one."""
        values = self.values(figure)
        return float(np.std(values, ddof=1)) if len(values) > 1 else None


@dataclass(frozen=True)
class Result:
    """A finished study.

    Attributes:
        study: what was asked.
        data: the data's name.
        budget: how large the trainings were.
        images: how many images of the split were captioned, and how many were ranked.
        rows: in table order.
        differences: key of a row -> figure -> difference from its control.
        searches: key of a model -> rates that were tried, of the first seed.
        correlation: Pearson's of self-retrieval R@1 with CIDEr over all models and seeds; `None` if it has no meaning.
    """

    study: Study
    data: str
    budget: str
    images: tuple[int, int]
    rows: list[Row]
    differences: dict[str, dict[str, PairedDifference]]
    searches: dict[str, Search]
    correlation: float | None

    def row(self, key: str) -> Row:
        return next(row for row in self.rows if row.model.key == key)

    def to_json(self) -> dict[str, Any]:
        return {
            "study": self.study.name,
            "data": self.data,
            "budget": self.budget,
            "split": self.study.split,
            "images": {"captioned": self.images[0], "ranked": self.images[1]},
            "rows": {
                row.model.key: {
                    "label": row.model.label,
                    "runs": [str(one.run.folder) for one in row.seeds],
                    "learning_rate": [one.run.recipe.training.learning_rate for one in row.seeds],
                    "figures": [one.figures for one in row.seeds],
                    "quoted": dict(row.model.quoted),
                }
                for row in self.rows
            },
            "differences": {
                key: {figure: asdict(found) for figure, found in figures.items()}
                for key, figures in self.differences.items()
            },
            "searches": {
                key: {f"{rate:g}": loss for rate, loss in search.losses.items()}
                for key, search in self.searches.items()
            },
            "correlation": self.correlation,
        }


def run_study(
    name: str,
    data: str,
    budget: str = "laptop",
    seeds: int = 1,
    captioner: str = "adaptive",
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
        name: such as `cl-table4`.
        data: `scenes`, a folder of pictures, or a data set.
        budget: `smoke`, `laptop` or `paper`.
        seeds: trainings of each model; all begin with a likelihood model of their own.
        captioner: whom the study is about: the first word of a recipe's file.
        search: search learning rates on the validation split; by default except at `smoke`.
        retrieval_images: rank only the first so many images.
        use: key of a model -> a finished run to take instead of training one (first seed).
        out: folder for `study.json`, `table.md` and `study.html`; by default `studies/NAME-DATA-CAPTIONER-BUDGET`.
        runs: where run folders go.
        prepared: where rendered scenes and features are.
        overrides: changes to every recipe, such as `training.steps=100`.

    Example:
        >>> result = run_study("cl-table4", "scenes", "smoke")       # doctest: +SKIP
        >>> result.row("adaptive-cl").mean("self_retrieval_R@1")     # doctest: +SKIP
        0.65
    """
    study = find_study(name)
    models = study.models(captioner)
    known = [model.key for model in models]
    for key in use or {}:
        if key not in known:
            raise RecipeError(f"--use {key}: {name} has no such model{did_you_mean(key, known)}")
    settings = DataSettings(source=data, prepared=str(prepared))
    trainer = _Trainer(study, data, budget, runs, use or {}, overrides, prepared, recipe_family(settings))
    search = budget != "smoke" if search is None else search
    _say(f"{name}: {study.title}", f"{len(models)} models, {seeds} seed{'s' if seeds > 1 else ''}, budget {budget}")
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
    rows = []
    for model in models:
        root = _root(model, models)
        measured = [_measure(of[model.key], of[root], split, retrieval_images, f"{model.label}") for of in trained]
        rows.append(Row(model, measured))
    folder = out or Path("studies") / f"{name}-{trainer.family}-{captioner}-{budget}"
    if name == "cl-table2":
        from tellapart.studies.server import add_server_figures

        add_server_figures(rows, split, folder)
    dataset = prepare(trained[0][known[0]].recipe.data).dataset
    records = dataset.split(split)
    families = np.unique([record.family or record.id for record in records], return_inverse=True)[1]
    by_key = {row.model.key: row for row in rows}
    result = Result(
        study,
        dataset.name,
        budget,
        (len(records), len(rows[0].seeds[0].per_image["self_retrieval_R@1"])),
        rows,
        {row.model.key: _differences(by_key[row.model.control], row, families) for row in rows if row.model.control},
        searches,
        _correlation(rows),
    )
    from tellapart.studies.page import write_study

    write_json(folder / "study.json", result.to_json())
    write_study(result, folder)
    _say(f"written to {folder}")
    return result


def recipe_family(settings: DataSettings) -> str:
    """The folder of recipes for a data set: its own where there is one, that of Flickr8k for all others."""
    if settings.source == "scenes":
        return "scenes"
    name = open_dataset(settings).name
    families = sorted(path.name for path in recipes_folder().iterdir() if path.is_dir())
    return next((family for family in families if name.startswith(family)), "flickr8k")


def in_training_order(models: Sequence[Model]) -> list[Model]:
    """The models so that each comes after those it starts from, is compared with or takes its rate from."""
    ordered: list[Model] = []
    while len(ordered) < len(models):
        done = {model.key for model in ordered}
        waiting = [model for model in models if model.key not in done]
        ready = [m for m in waiting if {m.start, m.reference, m.rate_of} - {None} <= done]
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
        upstreams = {"start": model.start, "reference": model.reference}
        if model.start is None:
            overrides += self.data_overrides
        for role, key in upstreams.items():
            if key is not None:
                place = self._first_recipe(key) if plan else trained[key].folder.resolve()
                overrides.append(f"{role}.from={place}")
        rate = searches.get(model.rate_of or model.key)
        if rate is not None:
            overrides.append(f"training.learning_rate={rate.best}")
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
            other = None
            if model.reference is not None and model.reference.split("-")[0] != model.key.split("-")[0]:
                other = Recipe.load(self._first_recipe(model.reference), self.data_overrides, self.budget)
            steps = updates(recipe)
            seconds = steps * seconds_per_update(recipe, other)
            trials = f", search {duration(3 * SHARE * seconds)}" if search and model.searched else ""
            lines.append(f"{model.label}: {steps} updates, {duration(seconds)}{trials}")
            total += seeds * seconds + (3 * SHARE * seconds if trials else 0)
        rest = f" (up to {MOST} rates where an end is the best)" if search else ""
        return [*lines, f"planned: {duration(total)} of training{rest}; validating and measuring come on top"]

    def _first_recipe(self, key: str) -> Path:
        """The likelihood recipe of the captioner that a key begins with."""
        return (recipes_folder() / self.family / f"{key.split('-')[0]}-mle.yaml").resolve()


def _root(model: Model, models: Sequence[Model]) -> str:
    """Key of the likelihood model that a model goes back to: the judge of its captions."""
    by_key = {other.key: other for other in models}
    while model.start is not None:
        model = by_key[model.start]
    return model.key


def _measure(run: Run, judge: Run, split: str, retrieval_images: int | None, label: str) -> Measured:
    evaluation = evaluate_run(run, split, retrieval_images)
    prepared = prepare(run.recipe.data)
    under = ranks_under(judge, run, prepared, evaluation, f"{label} under MLE")
    judged = retrieval_figures(under, len(under))
    figures = {
        **evaluation.corpus,
        "under_judge_R@1": judged["self_retrieval_R@1"],
        "under_judge_mean_rank": judged["self_retrieval_mean_rank"],
    }
    per_image = {
        "self_retrieval_R@1": (evaluation.values("rank") == 1).astype(np.float64),
        "under_judge_R@1": (under == 1).astype(np.float64),
        "CIDEr": evaluation.values("CIDEr"),
    }
    return Measured(run, evaluation, figures, per_image)


def _differences(control: Row, row: Row, families: NDArray[np.int64]) -> dict[str, PairedDifference]:
    """Paired over images, whose values are means over seeds."""
    found = {}
    for figure in COMPARED:
        a, b = (np.mean([one.per_image[figure] for one in of.seeds], axis=0) for of in (control, row))
        found[figure] = paired_bootstrap(a, b, groups=families[: len(a)])
    return found


def _correlation(rows: Sequence[Row]) -> float | None:
    recalls, ciders = ([v for row in rows for v in row.values(name)] for name in ("self_retrieval_R@1", "CIDEr"))
    if len(recalls) < 3 or np.std(recalls) == 0 or np.std(ciders) == 0:
        return None
    return float(np.corrcoef(recalls, ciders)[0, 1])


def _say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)
