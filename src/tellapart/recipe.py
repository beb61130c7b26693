"""Recipes: experiments as YAML files and pydantic models, with dotted overrides such as `objective.negatives=5`.

Each package defines its own settings; this module combines them. A recipe with `extends: OTHER.yaml` has only the keys
that differ. The file itself is the `laptop` budget (minutes on two cores, on COCO hours); `budgets` lists the changes
for `smoke` (seconds, for tests) and `paper` (the published sizes). Models that a recipe uses are trained at the same
budget.

Loading a recipe reports all mistakes at once, each with its key and, for a misspelt key, the likely one. The resolved
recipe, with all defaults, is saved with the run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from tellapart import registry
from tellapart.data.settings import OWN, DataSettings, NegativeSettings
from tellapart.decoding.settings import DecodingSettings
from tellapart.engine.settings import TrainingSettings
from tellapart.errors import DataError, RecipeError, did_you_mean, quote
from tellapart.files import digest_of, read_json, read_text
from tellapart.settings import Section, explain, for_key, load_yaml, set_override
from tellapart.shipped import SHIPPED, find_model, is_shipped

BUDGETS = ("smoke", "laptop", "paper")
# What a recipe can train; it has exactly one of these sections.
TRAINED = ("captioner", "retriever")
# The role of retrievers that tell generic from specific captions. They are not given to the objective.
ENTROPY = "entropy"
# Sections whose other keys depend on their `name`.
COMPONENTS = (*TRAINED, "objective")

# Keys of `data` that are paths.
DATA_PATHS = ("source", "prepared")

Content = dict[str, Any]


class Upstream(Section):
    """A model that a recipe uses: a run or model folder, a shipped model, or a recipe that is trained first."""

    from_: str | tuple[str, ...] = Field(
        alias="from",
        description="a run or model folder or a recipe, relative to this recipe, or shipped; in a role, a list is an "
        "ensemble",
    )

    @property
    def places(self) -> tuple[str, ...]:
        """The run folders or recipes; more than one is an ensemble."""
        return (self.from_,) if isinstance(self.from_, str) else self.from_


class Recipe(Section):
    """One experiment.

    Example:
        >>> recipe = Recipe.load("scenes/adaptive-cl.yaml", ["training.steps=10"])
        >>> recipe.captioner["name"], recipe.budget
        ('adaptive-attention', 'laptop')
    """

    name: str = Field(pattern=r"^[\w.-]+$")
    description: str = ""
    budget: Literal["smoke", "laptop", "paper"] = "laptop"
    seed: int = Field(0, ge=0)
    data: DataSettings
    captioner: Content | None = None
    retriever: Content | None = None
    objective: Content
    start: Upstream | None = Field(None, description="model with the initial weights of the target")
    roles: dict[str, Upstream] = Field({}, description="frozen models that the objective uses, such as reference")
    negatives: NegativeSettings = NegativeSettings()
    training: TrainingSettings
    decoding: DecodingSettings = DecodingSettings()

    @model_validator(mode="after")
    def _one_start(self) -> Recipe:
        if self.start is not None and len(self.start.places) != 1:
            raise ValueError("start.from: a target starts from one model; give one run or recipe")
        return self

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = (), budget: str | None = None) -> Recipe:
        """Read a recipe and apply its budget and overrides; all mistakes are reported at once.

        A recipe inherits the keys it does not set in `data` and `captioner` or `retriever` from the recipe it starts
        from, and those in `data`, except the encoder and the half, from the recipes of its roles.

        Args:
            path: a recipe file, a run folder, or the name of a shipped recipe, such as `scenes/adaptive-cl.yaml`.
            overrides: dotted keys and values, such as `"training.steps=100"`.
            budget: `smoke`, `laptop` or `paper`; by default the file's own, or `laptop`.
        """
        if budget is not None and budget not in BUDGETS:
            raise RecipeError(f"there is no budget '{budget}'{did_you_mean(budget, BUDGETS)}")
        files = _Files()
        content = files.content(find_recipe(path), tuple(overrides), budget)
        return cls._parse(content, str(path), files)

    @classmethod
    def parse(cls, content: Content, where: str = "recipe") -> Recipe:
        """Check plain data; all mistakes are reported at once."""
        return cls._parse(content, where, _Files())

    @classmethod
    def _parse(cls, content: Content, where: str, files: _Files) -> Recipe:
        recipe, problems = None, []
        try:
            recipe = cls.model_validate(content)
        except ValidationError as error:
            problems += explain(error, cls, "")
        problems += _trained_problems(content)
        resolved = {}
        for kind in COMPONENTS:
            section = content.get(kind)
            if isinstance(section, dict):
                try:
                    resolved[kind] = _component(kind, section)
                except RecipeError as error:
                    problems += str(error).split("\n")
        if recipe is not None and "objective" in resolved:
            problems += _objective_problems(recipe.model_copy(update=resolved), files)
        if problems or recipe is None:
            listed = "".join(f"\n  - {problem}" for problem in problems)
            raise RecipeError(f"{where}: {len(problems)} mistake{'s' if len(problems) > 1 else ''}:{listed}")
        return recipe.model_copy(update=resolved)

    @property
    def trains(self) -> str:
        """What is trained: `captioner` or `retriever`."""
        return "captioner" if self.retriever is None else "retriever"

    def component(self, kind: str) -> tuple[Any, Any]:
        """The class and the settings of the captioner, the retriever or the objective."""
        section = dict(getattr(self, kind))
        cls = registry.find(kind, section.pop("name"))
        return cls, cls.Settings(**section)

    def needed_roles(self) -> dict[str, str]:
        """The roles this recipe must fill, each with its kind of model."""
        objective, settings = self.component("objective")
        needed = dict(objective.needs(settings).roles)
        if self.negatives.by == "retriever" or self.training.validate_specificity:
            needed["retriever"] = "retriever"
        if self.training.validate_specificity and "listener" in self.roles:
            needed["listener"] = "retriever"
        if self.divides_captions:
            needed[ENTROPY] = "retriever"
        return needed

    @property
    def divides_captions(self) -> bool:
        """Whether generic captions are told from specific ones, by the role `entropy`."""
        return self.data.captions != "all" or self.negatives.by in ("generic", "specific")

    def resolved(self) -> Content:
        """Plain data with all defaults."""
        content: Content = self.model_dump(mode="json", by_alias=True)
        return content

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.resolved(), sort_keys=False, allow_unicode=True)

    @property
    def digest(self) -> str:
        """Digest of what is trained, without the content of the data and of the models it uses.

        Name, description, decoding, file paths, and newer settings at their defaults (`Section.for_key`) are left out.
        """
        content = self.for_key()
        for kind in COMPONENTS:
            if content[kind] is not None:
                _, settings = self.component(kind)
                content[kind] = {"name": content[kind]["name"], **for_key(settings)}
        for key in ("name", "description", "budget", "start", "roles"):
            del content[key]
        if not self.training.validate_captions:  # otherwise decoding may decide which checkpoint is best
            del content["decoding"]
        unused = () if self.data.source == "scenes" else ("scenes",)
        for key in ("prepared", "source", "max_skipped", *unused):
            del content["data"][key]
        return digest_of(content)


# --- shipped recipes --------------------------------------------------------------------------------------------------


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


def copy_recipe(named: str | Path) -> str:
    """A recipe as one YAML text to edit, for any folder: what it extends is filled in, defaults are not written out."""
    path = find_recipe(named)
    content = read_recipe(path)
    _find_data(content, path.resolve())
    _drop_empty_roles(content)
    for name, section in _upstreams(content).items():
        section["from"] = _portable_name(section["from"], path, f"{path}: {name}.from")
    ordered = {key: content[key] for key in (*Recipe.model_fields, "budgets") if key in content}
    text = yaml.safe_dump(ordered | content, sort_keys=False, allow_unicode=True, width=120)
    return f"# Copied from {named}\n{text}"


def _portable_name(named: Any, recipe: Path, where: str) -> Any:
    """Names of upstream recipes that are found from any folder: relative to the shipped recipes, or absolute."""
    if isinstance(named, list):
        return [_portable_name(one, recipe, where) for one in named]
    if named in SHIPPED:
        return named
    found, folder = _upstream_path(named, recipe, where).resolve(), recipes_folder().resolve()
    return found.relative_to(folder).as_posix() if found.is_relative_to(folder) else str(found)


# --- reading ----------------------------------------------------------------------------------------------------------


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
    return _Files().extended(path)


class _Files:
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


def _beside(named: Any, chain: tuple[Path, ...]) -> Any:
    """An upstream name as it is, or its path if it is only beside a file that the recipe extends, the nearest first."""
    if isinstance(named, list):
        return [_beside(one, chain) for one in named]
    if named in SHIPPED:
        return named
    found = [file for file in chain if (file.parent / named).exists()]
    return named if not found or found[0] == chain[0] else str(found[0].parent / named)


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


def _drop_empty_roles(content: Content) -> None:
    """Remove roles set to null, such as `roles: {reference: null}` for a role of the extended recipe."""
    roles = content.get("roles")
    if isinstance(roles, dict):
        content["roles"] = {name: section for name, section in roles.items() if section is not None}


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


# --- checking ---------------------------------------------------------------------------------------------------------


def _trained_problems(content: Content) -> list[str]:
    """Mistakes in the choice of what is trained, and keys that are only for the other kind."""
    given = [kind for kind in TRAINED if content.get(kind) is not None]
    if not given:
        return ["captioner: this key is missing; a recipe trains a captioner or, with the key 'retriever', a retriever"]
    if len(given) > 1:
        return ["captioner, retriever: a recipe trains one of them, from a start of the same kind; leave the other out"]
    training = content.get("training")
    foreign = {"captioner": ("validate_retrieval",), "retriever": ("validate_captions", "validate_specificity")}
    return [
        f"training.{key}: not available when training a {given[0]}; leave it out"
        for key in foreign[given[0]]
        if isinstance(training, dict) and training.get(key)
    ]


def _objective_problems(recipe: Recipe, files: _Files) -> list[str]:
    """Combinations of objective, roles, target and encoders that do not work."""
    problems = []
    objective, _ = recipe.component("objective")
    needed = recipe.needed_roles()
    for role, kind in needed.items():
        if role not in recipe.roles:
            user = "negatives.by 'retriever'" if recipe.negatives.by == "retriever" else "training.validate_specificity"
            if role == ENTROPY:
                user = "data.captions" if recipe.data.captions != "all" else f"negatives.by '{recipe.negatives.by}'"
            user = f"the {objective.name} objective" if role in _own_roles(recipe) else user
            problems.append(f"roles.{role}.from: {user} needs a {kind} here, a run or a recipe")
    for role, upstream in recipe.roles.items():
        if role not in needed:
            known = did_you_mean(role, needed) if needed else "; it uses none"
            problems.append(f"roles.{role}: the {objective.name} objective has no such role{known}")
            continue
        for place in upstream.places:
            if not Path(place).exists():
                continue  # of a finished run; training it again fails with an error
            found = files.content(Path(place), (), recipe.budget)
            kind = "captioner" if found.get("retriever") is None else "retriever"
            if kind != needed[role]:
                problems.append(f"roles.{role}.from: {place} trains a {kind}, and a {needed[role]} is needed here")
            problems += _encoder_problems(found.get("data"), f"roles.{role}: {place}: ")
    problems += _encoder_problems(recipe.data.model_dump(), "")
    if recipe.divides_captions and recipe.data.half is not None:
        problems.append("data.half: not available with data.captions or generic negatives; set it to null")
    if recipe.data.captions != "all" and recipe.negatives.by in ("retriever", "generic", "specific"):
        problems.append("negatives.by: set it to images where data.captions is not all")
    if getattr(recipe, objective.trains) is None and getattr(recipe, recipe.trains) is not None:
        problems.append(
            f"objective.name: {objective.name} trains a {objective.trains}, and this recipe has a {recipe.trains}; "
            f"choose another objective, or give a section '{objective.trains}' instead"
        )
    return problems


def _own_roles(recipe: Recipe) -> dict[str, str]:
    objective, settings = recipe.component("objective")
    return dict(objective.needs(settings).roles)


def _encoder_problems(data: Any, where: str) -> list[str]:
    """An unknown family of encoders."""
    name = data.get("encoder") if isinstance(data, dict) else None
    if not isinstance(name, str):
        return []
    family = re.split("[@:]", name, maxsplit=1)[0]
    if family in registry.names("encoder"):
        return []
    return [f"{where}data.encoder: there is no encoder '{name}'{did_you_mean(family, registry.names('encoder'))}"]


def _component(kind: str, section: Content) -> Content:
    """The section of a captioner, retriever or objective with all defaults."""
    if not isinstance(section.get("name"), str):
        raise RecipeError(f"{kind}.name is missing; choose one of: {', '.join(registry.names(kind))}")
    try:
        cls = registry.find(kind, section["name"])
    except RecipeError as error:
        raise RecipeError(f"{kind}.name: {error}") from None
    try:
        settings = cls.Settings(**{key: value for key, value in section.items() if key != "name"})
    except ValidationError as error:
        raise RecipeError("\n".join(explain(error, cls.Settings, f"{kind}."))) from None
    return {"name": section["name"], **settings.model_dump(mode="json")}
