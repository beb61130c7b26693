"""What differs between an arm of a study and its control: the treatment, and nothing else.

Two trainings that differ in the objective and in something else, such as dropout, say nothing about the objective. So a
study compares the recipes of each arm and its control before it trains them, prints every difference, and stops if one
is neither part of the treatment nor declared in `Arm.deviations`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tellapart.errors import RecipeError
from tellapart.recipe import Recipe
from tellapart.studies.base import Arm

# Keys of a recipe that cannot change what is trained or how it is measured.
_NAMES = ("name", "description", "budget")
RATE = "training.learning_rate"


@dataclass(frozen=True)
class Difference:
    """A setting in which an arm differs from its control.

    Attributes:
        key: dotted key of the recipe.
        own: value of the arm.
        control: value of the control.
        why: for a deviation, the reason; empty for the treatment itself.
    """

    key: str
    own: Any
    control: Any
    why: str = ""

    def __str__(self) -> str:
        reason = f" ({self.why})" if self.why else ""
        return f"{self.key}: {_shown(self.own)}, control {_shown(self.control)}{reason}"


def recipe_differences(arm: Arm, recipe: Recipe, control: Arm, control_recipe: Recipe) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> values of the arm and of its control, for all settings in which they differ.

    Models that they start from or use are compared by the keys of their arms, since runs have other paths each time.
    """
    own, other = (_flat(one, of) for one, of in ((arm, recipe), (control, control_recipe)))
    keys = [*own, *(key for key in other if key not in own)]
    return {key: (own.get(key), other.get(key)) for key in keys if own.get(key) != other.get(key)}


def check_treatment(arm: Arm, recipe: Recipe, control: Arm, control_recipe: Recipe) -> list[Difference]:
    """The differences of an arm from its control, the treatment first.

    Raises:
        RecipeError: a difference is neither part of `arm.treatment` nor declared in `arm.deviations`.
    """
    found = recipe_differences(arm, recipe, control, control_recipe)
    treated = [Difference(key, *values) for key, values in found.items() if _within(key, arm.treatment)]
    others = {key: values for key, values in found.items() if not _within(key, arm.treatment)}
    undeclared = [Difference(key, *values) for key, values in others.items() if not _within(key, arm.deviations)]
    if undeclared:
        listed = "".join(f"\n  - {difference}" for difference in undeclared)
        raise RecipeError(
            f"{arm.key} and its control {control.key} must differ in {', '.join(arm.treatment)} only, but there is "
            f"also:{listed}\nmake these settings equal, or declare them as deviations of the arm with a reason"
        )
    return [
        *treated,
        *(
            Difference(key, *values, next(why for declared, why in arm.deviations.items() if _within(key, (declared,))))
            for key, values in others.items()
        ),
    ]


def describe(differences: Sequence[Difference]) -> str:
    """The differences in one line.

    >>> describe([Difference("objective.name", "contrastive", "likelihood")])
    'objective.name: contrastive, control likelihood'
    """
    return "; ".join(map(str, differences)) or "nothing"


def _flat(arm: Arm, recipe: Recipe) -> dict[str, Any]:
    """A resolved recipe by dotted keys, with arm keys in place of the paths of runs."""
    content = {key: value for key, value in recipe.resolved().items() if key not in _NAMES}
    content["start"] = arm.start
    content["roles"] = {role: arm.roles.get(role, "recipe") for role in recipe.roles}
    return dict(_leaves("", content))


def _leaves(prefix: str, content: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from _leaves(f"{prefix}.{key}" if prefix else str(key), value)
    elif content not in (None, {}):
        yield prefix, content


def _within(key: str, sections: Sequence[str] | Mapping[str, str]) -> bool:
    """Whether a dotted key is one of these or inside one of them."""
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def _shown(value: Any) -> str:
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
