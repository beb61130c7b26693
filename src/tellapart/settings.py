"""Shared by all sections of a recipe: strict pydantic models, safe YAML, `key=value` overrides, errors with the key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from tellapart.errors import RecipeError, did_you_mean, quote, shorten

# Limits of a YAML text: characters, values after its aliases are expanded, and depth.
MAX_CHARACTERS, MAX_VALUES, MAX_DEPTH = 100_000, 20_000, 40
# Mistakes listed in one message.
MAX_MISTAKES = 20
# Larger widths are more likely typing errors than models.
MAX_WIDTH = 16_384
# `Field(..., json_schema_extra=ADDED)` marks a setting that is newer than the first runs; see `Section.for_key`.
ADDED: dict[str, Any] = {"added": True}


class Section(BaseModel):
    """Base of all settings: unknown keys, infinities and numbers that are too large are errors; values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _in_range(cls, value: Any) -> Any:
        """Numbers that fit in 64-bit integers and 32-bit floats."""
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError("must be between -2**63 and 2**63")
        if isinstance(value, float) and abs(value) > 1e30:
            raise ValueError("must be between -1e30 and 1e30")
        return value

    def for_key(self) -> dict[str, Any]:
        """Plain data for the key of a run: all settings, except those marked `ADDED` that have their default.

        So a new setting does not rename the runs that were trained before it existed.
        """
        content = self.model_dump(mode="json", by_alias=True)
        for name, field in type(self).model_fields.items():
            value, key = getattr(self, name), field.alias or name
            if field.json_schema_extra == ADDED and value == field.get_default(call_default_factory=True):
                del content[key]
            elif isinstance(value, Section):
                content[key] = value.for_key()
        return content


SectionType = TypeVar("SectionType", bound=Section)


def parse_section(
    section: type[SectionType], content: dict[str, Any], overrides: Sequence[str] = (), prefix: str = ""
) -> SectionType:
    """Check plain data after applying overrides; all mistakes are reported at once.

    Args:
        section: what the data must be.
        content: the data; they are not changed.
        overrides: keys and values, such as `samples=50`.
        prefix: what comes before a key in messages, such as `decoding.`.
    """
    content = dict(content)
    example = next(f"{name}={field.default}" for name, field in section.model_fields.items() if not field.is_required())
    for override in overrides:
        set_override(content, override, example)
    try:
        return section.model_validate(content)
    except ValidationError as error:
        raise RecipeError("\n".join(explain(error, section, prefix))) from None


def for_key(settings: BaseModel) -> dict[str, Any]:
    """`Section.for_key`; the settings of a component of another package may be a plain pydantic model."""
    return settings.for_key() if isinstance(settings, Section) else settings.model_dump(mode="json")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with limits on size and depth that are checked before aliases are expanded."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            size, depth = _measure(node, {})
            if size > MAX_VALUES or depth > MAX_DEPTH:
                raise yaml.YAMLError(f"more than {MAX_VALUES:,} values or {MAX_DEPTH} levels, with aliases expanded")
        return node


def _measure(node: yaml.Node, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Number of values in a node and its depth, aliases expanded."""
    if id(node) not in known:
        known[id(node)] = (MAX_VALUES, MAX_DEPTH)  # while it is measured: an alias to itself is too large
        size, depth = 1, 0
        if isinstance(node, yaml.CollectionNode):
            for child in node.value:
                for part in child if isinstance(child, tuple) else (child,):
                    more, deeper = _measure(part, known)
                    size, depth = size + more, max(depth, deeper)
        known[id(node)] = (size, depth + 1)
    return known[id(node)]


def load_yaml(text: str) -> Any:
    """Parse YAML; every failure is a `ValueError` that says in one line what is wrong."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"longer than {MAX_CHARACTERS:,} characters")
    try:
        value = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise ValueError(line + shorten(error.problem or error.context or "")) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except Exception as error:  # for a tag with a value that does not fit, PyYAML raises many kinds
        raise ValueError(shorten(f"{error}")) from None
    _check_keys(value)
    return value


def _check_keys(value: Any) -> None:
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"the key {quote(key)} is not text; put it in quotes")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_keys(part)


def set_override(content: dict[str, Any], override: str, example: str = "training.steps=100") -> None:
    """Apply one `dotted.key=value`; the value is read as YAML. Errors name the example."""
    key, equals, text = override.partition("=")
    override = shorten(override)
    if not equals or not key or key.count(".") > MAX_DEPTH:
        raise RecipeError(f"'{override}' is no override; write it as key=value, e.g. {example}")
    try:
        value = load_yaml(text)
    except ValueError as error:
        raise RecipeError(f"'{override}': the value is not valid YAML ({error}); quote it") from None
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
    problems = error.errors(include_url=False)
    for problem in problems[:MAX_MISTAKES]:
        location = [shorten(str(part), 80) for part in problem["loc"]]
        key = (prefix + ".".join(location)).rstrip(".")
        if problem["type"] == "extra_forbidden":
            section = _section(model, location[:-1])
            known = [] if section is None else [field.alias or name for name, field in section.model_fields.items()]
            lines.append(f"{key}: there is no such key{did_you_mean(location[-1], known)}")
        elif problem["type"] == "missing":
            section = _section(model, location[:-1])
            field = None if section is None else section.model_fields.get(location[-1])
            about = None if field is None else field.description
            lines.append(f"{key}: this key is missing" + ("" if about is None else f"; give {key}=VALUE: {about}"))
        else:
            message = shorten(problem["msg"].removeprefix("Value error, "))
            given = "" if isinstance(problem["input"], dict) else f" (it is {quote(problem['input'])})"
            lines.append(f"{key}: {message}{given}" if key else message)
    if len(problems) > MAX_MISTAKES:
        lines.append(f"{len(problems) - MAX_MISTAKES:,} more mistakes")
    return lines


def _section(model: type[BaseModel], path: Sequence[str]) -> type[BaseModel] | None:
    """The model of a section; `None` if there is no such section."""
    for part in path:
        fields = {(field.alias or name): field for name, field in model.model_fields.items()}
        if part not in fields:
            return None
        annotation = fields[part].annotation
        options = [annotation, *getattr(annotation, "__args__", ())]
        models = [o for o in options if isinstance(o, type) and issubclass(o, BaseModel)]
        if not models:
            return None
        model = models[0]
    return model
