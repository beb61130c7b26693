"""Recipes: experiments as YAML files and pydantic models, with dotted overrides such as `objective.negatives=5`.

Each package defines its own settings; this module combines them. A recipe with `extends: OTHER.yaml` has only the keys
that differ. The file itself is the `laptop` budget (minutes on two cores, on COCO hours); `budgets` lists the changes
for `smoke` (seconds, for tests) and `paper` (the published sizes). Models that a recipe uses are trained at the same
budget.

Loading a recipe reports all mistakes at once, each with its key and, for a misspelt key, the likely one. The resolved
recipe, with all defaults, is saved with the run. `recipe_files` finds and reads the files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from tellapart import registry
from tellapart.data.settings import DataSettings, NegativeSettings
from tellapart.decoding.settings import DecodingSettings
from tellapart.engine.settings import TrainingSettings
from tellapart.errors import RecipeError, did_you_mean
from tellapart.files import digest_of
from tellapart.recipe_files import BUDGETS, COMPONENTS, TRAINED, Content, RecipeFiles, find_recipe, portable_content
from tellapart.settings import Section, explain, for_key

# The role of retrievers that tell generic from specific captions. They are not given to the objective.
ENTROPY = "entropy"


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
        files = RecipeFiles()
        content = files.content(find_recipe(path), tuple(overrides), budget)
        return cls._parse(content, str(path), files)

    @classmethod
    def parse(cls, content: Content, where: str = "recipe") -> Recipe:
        """Check plain data; all mistakes are reported at once."""
        return cls._parse(content, where, RecipeFiles())

    @classmethod
    def _parse(cls, content: Content, where: str, files: RecipeFiles) -> Recipe:
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


def copy_recipe(named: str | Path) -> str:
    """A recipe as one YAML text to edit, for any folder: what it extends is filled in, defaults are not written out."""
    content = portable_content(find_recipe(named))
    ordered = {key: content[key] for key in (*Recipe.model_fields, "budgets") if key in content}
    text = yaml.safe_dump(ordered | content, sort_keys=False, allow_unicode=True, width=120)
    return f"# Copied from {named}\n{text}"


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


def _objective_problems(recipe: Recipe, files: RecipeFiles) -> list[str]:
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
