"""What a study is: the arms (trained models) it compares and the table they fill.

A study is data. `studies.run` trains its arms, and the class named by `Study.measure` measures them. Arms are ordinary
runs, so studies share them and an interrupted study continues. To add a study, add a module to `studies/papers/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from importlib import import_module
from itertools import product
from pkgutil import iter_modules

from tellapart.errors import RecipeError, did_you_mean
from tellapart.studies import papers
from tellapart.studies.columns import Column

# Sections of a recipe that are the treatment in a comparison of objectives.
TREATMENT = ("objective", "roles", "negatives")


@dataclass(frozen=True)
class Arm:
    """One trained model of a study: a row of its table.

    Attributes:
        key: name inside the study.
        label: name in the table.
        recipe: file name of its recipe, without folder and suffix, in the recipe folder of the data.
        start: key of the arm whose weights it starts from.
        roles: role -> key of the arm used as the frozen model in that role, such as `reference`.
        changes: overrides of the recipe, such as `"objective.negative=false"`.
        scaled: dotted key -> factor applied to the recipe's value at the budget, so that a sweep fits any data; null
            stays null.
        control: key of the arm it is compared with by paired bootstrap.
        treatment: sections or dotted keys of the recipe in which it may differ from its control.
        deviations: other keys in which it differs -> why. The table lists them; any other difference is an error.
        rate_of: key of the arm whose searched learning rate it uses.
        validations: validate so many times at equal distances, so that a training can stop at every budget.
        quoted: the paper's figures for this row, by figure name.
        line: in a study with a swept axis, the curve it is a point of.
        needs: an optional package, as (module, extra of tellapart); without it the arm is skipped.
    """

    key: str
    label: str
    recipe: str
    _: KW_ONLY
    start: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    scaled: Mapping[str, float] = field(default_factory=dict)
    control: str | None = None
    treatment: tuple[str, ...] = TREATMENT
    deviations: Mapping[str, str] = field(default_factory=dict)
    rate_of: str | None = None
    validations: int | None = None
    quoted: Mapping[str, float] = field(default_factory=dict)
    line: str = ""
    needs: tuple[str, str] | None = None


@dataclass(frozen=True)
class Axis:
    """The horizontal axis of a study's plot.

    Attributes:
        key: a dotted recipe key (a sweep, drawn as curves), or a figure's name (drawn as points).
        heading: axis label.
        drawn: figures to plot, one panel each.
        logarithmic: use a logarithmic scale.
    """

    key: str
    heading: str
    drawn: tuple[str, ...]
    logarithmic: bool = False


@dataclass(frozen=True)
class Choice:
    """How the best arm of a study is chosen (`studies.choice`).

    Attributes:
        split: split to choose on, another than the study's own.
        figures: the highest mean over seeds of the first of these that was measured decides.
        keeps: figure -> share of its control's that an arm must keep to be a candidate.
    """

    split: str
    figures: tuple[str, ...]
    keeps: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A table of a paper.

    Attributes:
        name: name on the command line.
        title: the question it answers.
        arms: base captioner (first word of its recipes, such as `adaptive`) -> arms in table order. Studies of
            retrievers ignore the captioner.
        columns: figures in the table.
        split: split it is measured on, as in the paper.
        source: where the quoted figures come from.
        remark: note below the table.
        more_quoted: rows of the paper's table that are not trained here: label -> figures.
        measure: `module:class` of its `studies.measure.Measure`.
        axis: horizontal axis of its plot, if it has one.
        search: search the learning rates of all arms by default (`studies.rates`). Otherwise arms have those of their
            recipes, which are equal where only the objective differs.
        captioner: base captioner if none is chosen.
        paper: recipe -> recipe in `recipes/paper/` that replaces it at the budget `paper`, on photographs.
        choice: how the best arm is chosen, if one is.
    """

    name: str
    title: str
    arms: Callable[[str], tuple[Arm, ...]]
    _: KW_ONLY
    columns: tuple[Column, ...]
    split: str
    source: str
    remark: str = ""
    more_quoted: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    measure: str = "tellapart.studies.measure_captions:CaptionMeasure"
    axis: Axis | None = None
    search: bool = False
    captioner: str = "adaptive"
    paper: Mapping[str, str] = field(default_factory=dict)
    choice: Choice | None = None


def quote(figures: Mapping[str, Mapping[str, float]], *arms: Arm) -> tuple[Arm, ...]:
    """The arms with the paper's figures, given by arm key."""
    return tuple(replace(arm, quoted=figures.get(arm.key, {})) for arm in arms)


def cross(arms: Sequence[Arm], factors: Mapping[str, Sequence[str]]) -> tuple[Arm, ...]:
    """The arms with each combination of other settings; arms that are not trained further stay as they are.

    A control has the same combination as the arms compared with it.

    Args:
        arms: of a study.
        factors: dotted key -> values, such as `{"captioner.dropout": ("0", "0.3")}`.

    Example:
        >>> arms = (Arm("mle", "MLE", "m"), Arm("cl", "CL", "c", start="mle"))
        >>> [arm.label for arm in cross(arms, {"training.steps": ("100", "300")})]
        ['MLE', 'CL, training.steps=100', 'CL, training.steps=300']
    """
    crossed = {arm.key for arm in arms if arm.start is not None}
    found = [arm for arm in arms if arm.key not in crossed]
    for values in product(*factors.values()):
        changes = tuple(f"{key}={value}" for key, value in zip(factors, values, strict=True))
        end = "".join(f"-{value}" for value in values)

        def named(key: str | None, end: str = end) -> str | None:
            return f"{key}{end}" if key in crossed else key

        found += [
            replace(
                arm,
                key=f"{arm.key}{end}",
                label=", ".join((arm.label, *changes)),
                changes=(*arm.changes, *changes),
                start=named(arm.start),
                roles={role: named(key) or key for role, key in arm.roles.items()},
                control=named(arm.control),
                rate_of=named(arm.rate_of),
                quoted={},
            )
            for arm in arms
            if arm.key in crossed
        ]
    return tuple(found)


def all_studies() -> dict[str, Study]:
    """Name -> study, from `STUDIES` of every module in `studies/papers/`."""
    modules = (import_module(f"{papers.__name__}.{found.name}") for found in iter_modules(papers.__path__))
    return {study.name: study for module in modules for study in module.STUDIES}


def find_study(name: str) -> Study:
    """The study of this name.

    >>> find_study("cl-table4").split
    'val'
    """
    studies = all_studies()
    if name not in studies:
        raise RecipeError(f"there is no study '{name}'{did_you_mean(name, studies)}")
    return studies[name]
