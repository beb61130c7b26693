"""Shared by all sections of a recipe: strict pydantic models, `key=value` overrides, errors that name the key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from tellapart.errors import RecipeError, did_you_mean


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def set_override(content: dict[str, Any], override: str) -> None:
    """Apply one `dotted.key=value`; the value is read as YAML."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise RecipeError(f"'{override}' is no override; write it as key=value, e.g. training.steps=100")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise RecipeError(f"'{override}': the value is not valid YAML; quote it") from None
    if isinstance(value, str):
        value = _number(value)
    *sections, last = key.split(".")
    place = content
    for section in sections:
        if place.get(section) is None:  # absent, or written as null
            place[section] = {}
        if not isinstance(place[section], dict):
            raise RecipeError(f"'{override}': {section} is a value, not a section")
        place = place[section]
    place[last] = value


def _number(text: str) -> str | float:
    """YAML 1.1 reads `1e-4` as text; convert it to a number."""
    try:
        return float(text)
    except ValueError:
        return text


def explain(error: ValidationError, model: type[BaseModel], prefix: str) -> list[str]:
    """One line per problem, with its full key."""
    lines = []
    for problem in error.errors():
        location = [str(part) for part in problem["loc"]]
        key = (prefix + ".".join(location)).rstrip(".")
        if problem["type"] == "extra_forbidden":
            known = _keys(model, location[:-1])
            lines.append(f"{key}: there is no such key{did_you_mean(location[-1], known)}")
        elif problem["type"] == "missing":
            lines.append(f"{key}: this key is missing")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            given = "" if isinstance(problem["input"], dict) else f" (it is {problem['input']!r})"
            lines.append(f"{key}: {message}{given}" if key else message)
    return lines


def _keys(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The known keys of a section."""
    for part in path:
        fields = {(field.alias or name): field for name, field in model.model_fields.items()}
        if part not in fields:
            return []
        annotation = fields[part].annotation
        options = [annotation, *getattr(annotation, "__args__", ())]
        models = [o for o in options if isinstance(o, type) and issubclass(o, BaseModel)]
        if not models:
            return []
        model = models[0]
    return [field.alias or name for name, field in model.model_fields.items()]
