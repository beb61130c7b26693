"""What a study is: models that are trained from one another, and the rows of a paper's table they belong to.

A study only says what is compared. `studies.run` trains and writes it, and its `measured` names who measures its models
(`studies.captioning`, `studies.retrieval`); the models are runs like any others, so that studies share them and an
interrupted study goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module

from tellapart.errors import RecipeError, did_you_mean

# A study's name -> the module that has it in its STUDIES.
TABLE = {f"cl-table{number}": "tellapart.studies.cl" for number in range(1, 7)} | {
    f"coder-{name}": "tellapart.studies.coder"
    for name in ("table1", "table2", "table3", "table4", "batchsize", "speed")
}


@dataclass(frozen=True)
class Model:
    """One model of a study: a row of its table.

    Attributes:
        key: its name inside the study.
        label: what the table calls it.
        recipe: the recipe it is trained by, without folder and ending; the data's folder of recipes has it.
        start: key of the model whose weights it begins with.
        roles: role -> key of the frozen model that training uses in it, such as `reference`.
        changes: what differs from the recipe, such as `"objective.negative=false"`.
        scaled: dotted key -> factor of what the recipe has there at its budget, so that a sweep fits any data;
            what the recipe leaves open (null) stays open.
        control: key of the row it is compared with by paired bootstrap.
        searched: its learning rate is searched on the validation split (`studies.rates`).
        rate_of: key of the model whose learning rate it takes, where they must be alike to be compared.
        quoted: the paper's own figures of this row, by our figures' names.
        line: in a study with an axis, the curve that it is a point of.
        needs: an optional package, as the module's name and our extra that brings it; without it the row is left out.
    """

    key: str
    label: str
    recipe: str
    start: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    scaled: Mapping[str, float] = field(default_factory=dict)
    control: str | None = None
    searched: bool = False
    rate_of: str | None = None
    quoted: Mapping[str, float] = field(default_factory=dict)
    line: str = ""
    needs: tuple[str, str] | None = None


@dataclass(frozen=True)
class Column:
    """A figure of a study's table: its name, heading, how it is printed, and whether more of it is better."""

    figure: str
    heading: str
    kind: str = "figure"
    more_is_better: bool = True


@dataclass(frozen=True)
class Axis:
    """What a study's figures are drawn against.

    Attributes:
        key: a recipe's dotted key (a sweep, drawn as curves), or the name of a figure (drawn as points).
        heading: what the axis is called.
        drawn: the figures, a panel each.
        logarithmic: whether steps along it are factors.
    """

    key: str
    heading: str
    drawn: tuple[str, ...]
    logarithmic: bool = False


@dataclass(frozen=True)
class Study:
    """A paper's table.

    Attributes:
        name: as the command line knows it.
        title: what it asks.
        models: captioner (the recipes' first word, such as `adaptive`) -> the models in table order. Studies of
            retrievers are about theirs, whatever the captioner.
        columns: the table's figures.
        split: the images it is measured on, as in the paper.
        source: where the quoted figures are from.
        remark: what a reader of the table should know.
        more_quoted: rows of the paper's table that are not trained here: label -> figures.
        measured: who measures its models: `captioning`, `retrieval`, or `speed` (retrieval, and how fast it is).
        axis: what its figures are drawn against, if they are.
    """

    name: str
    title: str
    models: Callable[[str], tuple[Model, ...]]
    columns: tuple[Column, ...]
    split: str
    source: str
    remark: str = ""
    more_quoted: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    measured: str = "captioning"
    axis: Axis | None = None


def find_study(name: str) -> Study:
    """The study of this name.

    >>> find_study("cl-table4").split
    'val'
    """
    if name not in TABLE:
        raise RecipeError(f"there is no study '{name}'{did_you_mean(name, TABLE)}; 'tellapart study' lists them")
    study: Study = import_module(TABLE[name]).STUDIES[name]
    return study
