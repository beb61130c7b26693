"""Recipe files: find them, read them, and fill in what they extend, their budget and what they inherit, as plain data.

`recipe` checks the result. Names in a recipe are relative to it, to the current folder or to the shipped recipes; here
they become paths.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tellapart.data.settings import OWN
from tellapart.errors import DataError, RecipeError, did_you_mean, quote
from tellapart.files import read_json, read_text
from tellapart.settings import load_yaml, set_override
from tellapart.shipped import SHIPPED, find_model, is_shipped

BUDGETS = ("smoke", "laptop", "paper")
# What a recipe can train; it has exactly one of these sections.
TRAINED = ("captioner", "retriever")
# Sections whose other keys depend on their `name`.
COMPONENTS = (*TRAINED, "objective")
# Keys of `data` that are paths.
DATA_PATHS = ("source", "prepared")

Content = dict[str, Any]


def recipes_folder() -> Path:
    """The shipped recipes: inside an installed package, or at the root of a checkout."""
    package = Path(__file__).parent
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parents[1] / "recipes"


def shipped_recipes() -> list[Path]:
    """All shipped recipes that can be trained; those in `base/`, which others extend, are left out."""
    folder = recipes_folder()
    return [path for path in sorted(folder.rglob("*.yaml")) if path.relative_to(folder).parts[0] != "base"]


def find_recipe(named: str | Path) -> Path:
    """A recipe file or run folder as given, or a shipped recipe by its name in the list."""
    named = Path(named)
    shipped = recipes_folder() / named
    return shipped if not named.exists() and shipped.is_file() else named


def read_yaml(path: Path) -> Content:
    if not path.exists():
        raise RecipeError(f"{path}: this recipe does not exist; 'tellapart recipes' lists those that do")
    if path.is_dir():
        raise RecipeError(f"{path}: this is a folder; name a recipe file in it")
    try:
        content = load_yaml(read_text(path, "recipe"))
    except DataError as error:
        raise RecipeError(str(error)) from None
    except ValueError as error:
        raise RecipeError(f"{path}: not valid YAML ({error}); fix it") from None
    if not isinstance(content, dict):
        raise RecipeError(f"{path}: a recipe must be a mapping of keys; see 'tellapart recipes'")
    return content


def read_recipe(path: Path) -> Content:
    """The keys of a recipe file and of the files it extends, without budget and defaults."""
    return RecipeFiles().extended(path)


class RecipeFiles:
    """Recipe files read during one load, each only once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, str | None], Content] = {}

    def content(
        self, path: Path, overrides: tuple[str, ...] = (), budget: str | None = None, above: tuple[Path, ...] = ()
    ) -> Content:
        """A recipe's plain data with extended files, budget, overrides and the keys inherited from its upstreams."""
        if is_model_folder(path):
            return _content_of_model(path)
        path = path / "recipe.yaml" if (path / "recipe.yaml").is_file() else path
        key = (path.resolve(), budget)
        if key[0] in above:
            raise RecipeError(f"{path}: this recipe starts from itself; change its start.from or roles")
        if not overrides and key in self._known:
            return self._known[key]
        content = self.extended(path)
        _find_data(content, path)
        _apply_budget(content, budget, path)
        for override in overrides:
            set_override(content, override)
        _check_budget(content, path)
        _drop_empty_roles(content)
        _find_models(content)
        # A target has the architecture of the model it starts from; a role may have another.
        for name, section in _upstreams(content).items():
            if is_run_recipe(path) and not all(os.path.exists(one) or is_shipped(one) for one in _places(section)):
                continue  # all keys are in the run's recipe; only training needs the upstream
            places = _upstream_paths(section["from"], path, f"{path}: {name}.from")
            section["from"] = [str(place) for place in places] if isinstance(section["from"], list) else str(places[0])
            inherited = self.content(places[0], (), content["budget"], (*above, key[0]))
            for part in ("data", *TRAINED) if name == "start" else ("data",):
                own, given = content.get(part, {}), inherited.get(part)
                if isinstance(own, dict) and isinstance(given, dict):
                    left = ("captions", "entropy") if name == "start" else OWN
                    kept = {key: value for key, value in given.items() if key not in left}
                    content[part] = merge(own, kept)
        if not overrides:
            self._known[key] = content
        return content

    def extended(self, path: Path, above: tuple[Path, ...] = ()) -> Content:
        """The keys of a recipe file and of the files it extends."""
        if path.resolve() in above:
            raise RecipeError(f"{path}: this recipe extends itself; change its extends")
        content = read_yaml(path)
        if is_run_recipe(path):
            _resolve_in_run(content, path.parent)
        for section in _upstreams(content).values():
            section["from"] = _beside(section["from"], (*above, path.resolve()))
        named = content.pop("extends", None)
        if named is None:
            return content
        if not isinstance(named, str):
            raise RecipeError(f"{path}: extends: give the name of one recipe file")
        base = _upstream_path(named, path, f"{path}: extends")
        return merge_recipes(content, self.extended(base, (*above, path.resolve())))


def portable_content(path: Path) -> Content:
    """As `read_recipe`, with names of data and of other recipes that are found from any folder."""
    content = read_recipe(path)
    _find_data(content, path.resolve())
    _drop_empty_roles(content)
    for name, section in _upstreams(content).items():
        section["from"] = _portable_name(section["from"], path, f"{path}: {name}.from")
    return content


def _portable_name(named: Any, recipe: Path, where: str) -> Any:
    """Names of upstream recipes that are found from any folder: relative to the shipped recipes, or absolute."""
    if isinstance(named, list):
        return [_portable_name(one, recipe, where) for one in named]
    if named in SHIPPED:
        return named
    found, folder = _upstream_path(named, recipe, where).resolve(), recipes_folder().resolve()
    return found.relative_to(folder).as_posix() if found.is_relative_to(folder) else str(found)


# --- merging ----------------------------------------------------------------------------------------------------------


def merge(own: Content, inherited: Content) -> Content:
    """Add the keys of another mapping that are missing in this one, also in nested mappings."""
    merged = {**inherited, **own}
    for key, value in own.items():
        if isinstance(value, dict) and isinstance(inherited.get(key), dict):
            merged[key] = merge(value, inherited[key])
    return merged


def merge_recipes(own: Content, base: Content) -> Content:
    """As `merge`, but a component with another name than the base's inherits none of its settings, at any budget."""
    for kind in COMPONENTS:
        mine, its = own.get(kind), base.get(kind)
        if isinstance(mine, dict) and isinstance(its, dict) and mine.get("name", its.get("name")) != its.get("name"):
            base = {key: value for key, value in base.items() if key != kind}
            budgets = base.get("budgets")
            if isinstance(budgets, dict):
                base["budgets"] = {budget: _without(part, kind) for budget, part in budgets.items()}
    return merge(own, base)


def _without(part: Any, key: str) -> Any:
    return {name: value for name, value in part.items() if name != key} if isinstance(part, dict) else part


# --- budgets ----------------------------------------------------------------------------------------------------------


def _apply_budget(content: Content, budget: str | None, path: Path) -> None:
    """Apply the changes of the chosen budget."""
    resolved = "budget" in content  # in a run's recipe the budget is already applied
    content["budget"] = budget or content.get("budget", "laptop")
    _check_budget(content, path)
    budgets = content.pop("budgets", {})
    if not isinstance(budgets, dict) or not all(isinstance(changes, dict) for changes in budgets.values()):
        raise RecipeError(f"{path}: budgets: give each budget a mapping of what it changes")
    unknown = [name for name in budgets if name not in BUDGETS]
    if unknown:
        raise RecipeError(f"{path}: budgets.{unknown[0]}: there is no such budget{did_you_mean(unknown[0], BUDGETS)}")
    if budget not in (None, "laptop", *budgets) and not resolved:
        raise RecipeError(f"{path}: has no budget '{budget}'; it has: {', '.join(['laptop', *budgets])}")
    for section, changes in budgets.get(content["budget"], {}).items():
        own = content.get(section)
        content[section] = merge(changes, own) if isinstance(own, dict) and isinstance(changes, dict) else changes


def _check_budget(content: Content, path: Path) -> None:
    if content["budget"] not in BUDGETS:
        known = ", ".join(BUDGETS)
        raise RecipeError(f"{path}: budget: it is {quote(content['budget'])}; it must be one of {known}")


# --- folders of models and runs ---------------------------------------------------------------------------------------


def is_model_folder(path: Path) -> bool:
    """Whether this is a model folder by itself: exported, saved or shipped, with no recipe beside it."""
    return (path / "model.json").is_file() and not (path / "recipe.yaml").exists()


def _content_of_model(folder: Path) -> Content:
    """What a recipe inherits from a model folder: the architecture and the encoder. Loading it checks the rest."""
    try:
        described = read_json(folder / "model.json", "model description")
    except DataError as error:
        raise RecipeError(str(error)) from None
    found = described if isinstance(described, dict) else {}
    content: Content = {kind: found[kind] for kind in TRAINED if isinstance(found.get(kind), dict)}
    encoder = found.get("encoder")
    if not content or not isinstance(encoder, dict) or not isinstance(encoder.get("name"), str):
        raise RecipeError(f"{folder / 'model.json'}: is damaged (it describes no model); use another model")
    return {**content, "data": {"encoder": encoder["name"]}}


def is_run_recipe(path: Path) -> bool:
    """Whether this is the recipe of a run folder."""
    return path.name == "recipe.yaml" and (path.parent / "run.json").is_file()


def _resolve_in_run(content: Content, folder: Path) -> None:
    """Make the paths in a run's recipe absolute. They are relative to the run folder, never to the current one."""
    base = os.path.realpath(folder)

    def resolve(named: str) -> str:
        return named if named in SHIPPED else os.path.normpath(os.path.join(base, named))

    data = content.get("data")
    for key in DATA_PATHS:
        named = data.get(key) if isinstance(data, dict) else None
        if isinstance(named, str) and (key, named) != ("source", "scenes"):
            content["data"][key] = resolve(named)
    for section in _upstreams(content).values():
        named = section["from"]
        section["from"] = [resolve(one) for one in named] if isinstance(named, list) else resolve(named)


# --- paths of data and models -----------------------------------------------------------------------------------------


def _find_data(content: Content, path: Path) -> None:
    """Resolve data paths relative to the recipe if they exist there; others stay relative to the current folder."""
    data = content.get("data")
    for key in DATA_PATHS:
        named = data.get(key) if isinstance(data, dict) else None
        if isinstance(named, str) and named != "scenes" and (path.parent / named).exists():
            content["data"][key] = os.path.abspath(path.parent / named)


def _find_models(content: Content) -> None:
    """Make paths of model folders and files in the current folder absolute: a run finds them from any folder."""
    for section, key in (
        ("data", "encoder"),
        ("captioner", "model"),
        ("retriever", "text"),
        ("retriever", "word_vectors"),
    ):
        values = content.get(section)
        named = values.get(key) if isinstance(values, dict) else None
        if isinstance(named, str):
            before, place = _encoder_path(named) if key == "encoder" else ("", named)
            if place and os.path.exists(place):
                content[section][key] = f"{before}{os.path.abspath(place)}"


def _encoder_path(name: str) -> tuple[str, str]:
    """What comes before a path in an encoder's name, and the path; an empty one if the name has none.

    A model of timm is named, even if a folder is called the same, except after `timm:local-dir:`.

    >>> _encoder_path("siglip:models/base"), _encoder_path("timm:local-dir:models/a"), _encoder_path("timm:resnet50")
    (('siglip:', 'models/base'), ('timm:local-dir:', 'models/a'), ('timm:resnet50', ''))
    """
    family, colon, place = name.partition(":")
    if family != "timm":
        return family + colon, place
    source, second_colon, folder = place.partition(":")
    return (f"timm:{source}:", folder) if second_colon and source.lower() == "local-dir" else (name, "")


# --- upstream models --------------------------------------------------------------------------------------------------


def _upstreams(content: Content) -> dict[str, Content]:
    """The valid sections with upstream models: `start` and `roles.NAME`."""
    roles = content.get("roles")
    sections = {"start": content.get("start")}
    if isinstance(roles, dict):
        sections |= {f"roles.{name}": section for name, section in roles.items()}
    found = {}
    for name, section in sections.items():
        named = section.get("from") if isinstance(section, dict) else None
        whole = isinstance(named, list) and named and name != "start" and all(isinstance(one, str) for one in named)
        if isinstance(section, dict) and (isinstance(named, str) or whole):
            found[name] = section
    return found


def _drop_empty_roles(content: Content) -> None:
    """Remove roles set to null, such as `roles: {reference: null}` for a role of the extended recipe."""
    roles = content.get("roles")
    if isinstance(roles, dict):
        content["roles"] = {name: section for name, section in roles.items() if section is not None}


def _places(section: Content) -> list[str]:
    named = section["from"]
    return named if isinstance(named, list) else [named]


def _upstream_paths(named: str | list[str], recipe: Path, where: str) -> list[Path]:
    return [_upstream_path(one, recipe, where) for one in ([named] if isinstance(named, str) else named)]


def _upstream_path(named: str, recipe: Path, where: str) -> Path:
    """A shipped model; or a file or folder beside the recipe that names it, in this folder, or among the recipes."""
    if named in SHIPPED:
        return find_model(named)
    for candidate in (recipe.parent / named, Path(named), recipes_folder() / named):
        if candidate.exists():
            return candidate
    raise RecipeError(f"{where}: '{named}' does not exist beside the recipe, in this folder or among the recipes")


def _beside(named: Any, chain: tuple[Path, ...]) -> Any:
    """An upstream name as it is, or its path if it is only beside a file that the recipe extends, the nearest first."""
    if isinstance(named, list):
        return [_beside(one, chain) for one in named]
    if named in SHIPPED:
        return named
    found = [file for file in chain if (file.parent / named).exists()]
    return named if not found or found[0] == chain[0] else str(found[0].parent / named)
