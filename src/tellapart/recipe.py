"""What an experiment is: pydantic models <-> YAML, with dotted overrides such as `objective.negatives=5`.

Loading a recipe reports every mistake at once, each with the key it is in and, for a misspelt key, the likely one.
The resolved recipe (every default written out) is saved with the run.

A recipe says what its `laptop` budget is (minutes on two cores); its section `budgets` says what `smoke` (seconds, for
tests) and `paper` (the published sizes) change in it. What a recipe starts from is trained at the same budget.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tellapart import registry
from tellapart.errors import RecipeError, did_you_mean
from tellapart.files import digest_of

BUDGETS = ("smoke", "laptop", "paper")
# What a recipe can train: the sections of which it has exactly one.
TRAINED = ("captioner", "retriever")
# Keys that came after runs were named by their recipes: left out of the name while they have their default.
ADDED_LATER: dict[str, Any] = {
    "retriever": None,
    "training.validate_retrieval": False,
    "negatives.by": "images",
    "objective.hardest_after": 0.0,
}
# Models that a recipe begins with or is given.
ROLES = ("start", "reference", "frozen_retriever")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ScenesSettings(Section):
    """How many embedded scenes are rendered."""

    train: int = Field(1600, ge=1)
    val: int = Field(200, ge=1)
    test: int = Field(240, ge=1)
    seed: int = 0


class DataSettings(Section):
    """Where the pictures and captions are, and how words are made from captions."""

    source: str = Field(description="'scenes', a folder of pictures, or a data set (docs/data.md)")
    scenes: ScenesSettings = ScenesSettings()
    encoder: str = "efficientnet-lite0"
    prepared: str = Field("prepared", description="folder for rendered scenes and feature stores")
    max_skipped: float = Field(0.01, ge=0, le=1, description="fail when more of the pictures cannot be read")
    normaliser: Literal["plain", "alphabetic"] = "plain"
    min_count: int = Field(5, ge=1, description="rarer words become <unk>")
    max_words: int = Field(18, ge=1, description="longer training captions are cut")


class NegativeSettings(Section):
    """Where an objective's negatives come from: all other images' captions alike, or those that nearly fit (hard)."""

    by: Literal["images", "retriever"] = Field(
        "images", description="hard ones are captions of images alike, or those that frozen_retriever ranks high"
    )
    hard: float = Field(0.0, ge=0, le=1, description="share of negatives that are hard, once the ramp is over")
    top: float = Field(0.01, gt=0, le=1, description="hard ones come from this share of nearest images or captions")
    ramp_epochs: float = Field(1.0, ge=0, description="epochs in which the share rises from 0")


class Upstream(Section):
    """A model that a recipe begins with: a run folder, or a recipe that is trained first if need be."""

    from_: str = Field(alias="from", description="a run folder or a recipe file, relative to this recipe")


class TrainingSettings(Section):
    """The loop's settings. Give `epochs` or `steps`."""

    epochs: int | None = Field(None, ge=1)
    steps: int | None = Field(None, ge=0, description="0: nothing is trained, the model is measured as it comes")
    images_per_batch: int = Field(16, ge=1)
    captions_per_image: int | None = Field(None, ge=1, description="drawn anew each time; null takes all")
    accumulate: int = Field(1, ge=1, description="a batch goes through the model in so many parts, to save memory")
    bucket_batches: int = Field(1, ge=1, description="so many batches are sorted by caption length together; 1: none")
    precision: Literal["full", "bf16", "fp16"] = Field("full", description="bf16 and fp16: mixed, where the device can")
    optimiser: Literal["adam", "adamw"] = "adamw"
    learning_rate: float = Field(1e-3, gt=0)
    phase_learning_rates: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {}, description="for objectives of several phases: a phase's own rate"
    )
    schedule: Literal["constant", "step", "cosine"] = "cosine"
    decay_epochs: int = Field(1, ge=1, description="the step schedule cuts the rate every so many epochs")
    decay_factor: float = Field(0.8, gt=0, le=1, description="by this factor")
    warmup_steps: int = Field(0, ge=0)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    epsilon: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    clip_norm: float | None = Field(5.0, gt=0)
    keep: Literal["best", "last"] = Field("last", description="which checkpoint to use")
    keep_last: int = Field(1, ge=1, description="so many of the newest checkpoints stay on the disk")
    validate_every: int | None = Field(None, ge=1, description="steps; null: every epoch")
    validate_captions: int = Field(0, ge=0, description="so many validation images are captioned and scored each time")
    validate_retrieval: bool = Field(False, description="a retriever ranks the validation split each time: R@k, R@sum")
    monitor: str = Field("loss", description="the validation figure that says which checkpoint is best, e.g. CIDEr")
    monitor_best: Literal["lowest", "highest"] | None = Field(None, description="which is best; null: the lowest loss")
    patience: int | None = Field(None, ge=1, description="stop after so many validations without a better figure")
    log_every: int = Field(20, ge=1, description="steps")

    @model_validator(mode="after")
    def _length(self) -> TrainingSettings:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps, and set the other to null")
        return self

    @model_validator(mode="after")
    def _direction(self) -> TrainingSettings:
        if self.monitor != "loss" and self.monitor_best is None:
            raise ValueError(f"say with monitor_best whether the lowest or the highest {self.monitor} is best")
        return self


class DecodingSettings(Section):
    """How captions are generated: by beam search (a beam of 1 is greedy), diverse beam search, or sampling."""

    method: Literal["beam", "diverse", "sample"] = "beam"
    beam: int = Field(3, ge=1, description="captions kept at every word; with diverse: in all groups together")
    groups: int | None = Field(None, ge=1, description="diverse: groups that keep apart; null: as many as the beam")
    diversity: float = Field(0.5, ge=0, description="diverse: taken off for each time an earlier group said the word")
    length_penalty: float = Field(0.0, ge=0, description="captions compare by ln p / tokens^this; 0: ln p, 1: its mean")
    temperature: float = Field(1.0, gt=0, description="sample: below 1 sharper, above 1 flatter")
    top_k: int | None = Field(None, ge=1, description="sample: only from so many likeliest words")
    top_p: float | None = Field(None, gt=0, le=1, description="sample: only from the likeliest words of this mass")
    samples: int = Field(1, ge=1, description="captions for each image")
    min_words: int = Field(0, ge=0)
    max_words: int = Field(18, ge=1)
    block_unknown: bool = Field(True, description="never say <unk>")
    block_repeats: bool = Field(False, description="never say a word twice running")
    remove_repeats: bool = Field(False, description="drop a word that equals the one before it, afterwards")
    seed: int = Field(0, ge=0, description="sample: the same seed draws the same captions of an image in any batch")

    @property
    def group_count(self) -> int:
        """Groups of beams that are searched side by side."""
        return (self.groups or self.beam) if self.method == "diverse" else 1

    @property
    def rows_per_image(self) -> int:
        """Captions of an image that are under way at once."""
        return self.samples if self.method == "sample" else self.beam

    @model_validator(mode="after")
    def _possible(self) -> DecodingSettings:
        owners = {"groups": "diverse", "diversity": "diverse"}
        owners |= dict.fromkeys(("temperature", "top_k", "top_p", "seed"), "sample")
        for key, method in owners.items():
            if method != self.method and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key} is for method '{method}', not for '{self.method}'; change one of them")
        if self.method == "sample" and self.length_penalty:
            raise ValueError("length_penalty compares captions of a beam, and samples are not compared; set it to 0")
        if self.beam % self.group_count:
            raise ValueError(f"groups share the beam equally: {self.group_count} does not divide a beam of {self.beam}")
        if self.method != "sample" and self.samples > self.beam:
            raise ValueError(f"a beam of {self.beam} cannot give {self.samples} samples; widen it or ask for fewer")
        if self.min_words > self.max_words:
            raise ValueError(f"min_words ({self.min_words}) is over max_words ({self.max_words}); change one of them")
        if self.remove_repeats and self.min_words:
            raise ValueError("remove_repeats would shorten captions below min_words; use block_repeats instead")
        return self

    @classmethod
    def parse(cls, content: dict[str, Any], overrides: Sequence[str] = ()) -> DecodingSettings:
        """Check plain data, with overrides such as `groups=3` applied; every mistake is reported at once."""
        content = dict(content)
        for override in overrides:
            _set(content, override)
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise RecipeError("\n".join(_explain(error, cls, "decoding."))) from None


class Recipe(Section):
    """One experiment.

    Example:
        >>> recipe = Recipe.load(Path("recipes/scenes/adaptive-mle.yaml"), ["training.steps=10"])   # doctest: +SKIP
    """

    name: str = Field(pattern=r"^[\w.-]+$")
    description: str = ""
    budget: Literal["smoke", "laptop", "paper"] = "laptop"
    seed: int = Field(0, ge=0)
    data: DataSettings
    captioner: dict[str, Any] | None = None
    retriever: dict[str, Any] | None = None
    objective: dict[str, Any]
    start: Upstream | None = Field(None, description="the target's first weights")
    reference: Upstream | None = Field(None, description="the frozen captioner the target is compared with")
    frozen_retriever: Upstream | None = Field(None, description="a retriever that finds hard negatives")
    negatives: NegativeSettings = NegativeSettings()
    training: TrainingSettings
    decoding: DecodingSettings = DecodingSettings()

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = (), budget: str | None = None) -> Recipe:
        """Read a recipe file, apply its budget and overrides; every mistake is reported at once.

        A recipe that starts from another takes that one's `data` and `captioner` or `retriever` for what it does not
        say itself; a reference gives its `data`.

        Args:
            path: a recipe file or a run folder.
            overrides: dotted keys and values, such as `"training.steps=100"`.
            budget: `smoke`, `laptop` or `paper`; by default what the file says, or `laptop`.
        """
        if budget is not None and budget not in BUDGETS:
            raise RecipeError(f"there is no budget '{budget}'{did_you_mean(budget, BUDGETS)}")
        return cls.parse(_content(Path(path), overrides, budget, ()), where=str(path))

    @classmethod
    def parse(cls, content: dict[str, Any], where: str = "recipe") -> Recipe:
        """Check plain data; every mistake is reported at once."""
        recipe, problems = None, []
        try:
            recipe = cls.model_validate(content)
        except ValidationError as error:
            problems += _explain(error, cls, "")
        problems += _what_is_trained(content)
        resolved = {}
        for kind in (*TRAINED, "objective"):
            section = content.get(kind)
            if isinstance(section, dict):
                try:
                    resolved[kind] = _component(kind, section)
                except RecipeError as error:
                    problems += str(error).split("\n")
        if recipe is not None and "objective" in resolved:
            objective, settings = recipe.model_copy(update=resolved).component("objective")
            if objective.needs(settings).reference and recipe.reference is None:
                problems.append(f"reference.from: the {objective.name} objective needs a run or a recipe here")
            if recipe.negatives.by == "retriever" and recipe.frozen_retriever is None:
                problems.append("frozen_retriever.from: negatives.by 'retriever' needs a run or a recipe here")
            if getattr(recipe, objective.trains) is None and getattr(recipe, recipe.trains) is not None:
                problems.append(
                    f"objective.name: {objective.name} trains a {objective.trains}, and this recipe has a "
                    f"{recipe.trains}; choose another objective, or give a section '{objective.trains}' instead"
                )
        if problems or recipe is None:
            listed = "".join(f"\n  - {problem}" for problem in problems)
            raise RecipeError(f"{where}: {len(problems)} mistake{'s' if len(problems) > 1 else ''} to mend:{listed}")
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

    def resolved(self) -> dict[str, Any]:
        """Plain data with every default written out."""
        content: dict[str, Any] = self.model_dump(mode="json", by_alias=True)
        return content

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.resolved(), sort_keys=False, allow_unicode=True)

    @property
    def digest(self) -> str:
        """Names what is trained, apart from the content of its data and of the models it starts from.

        The name, the description, how captions are decoded and where files lie do not matter to it.
        """
        content = self.resolved()
        for key in ("name", "description", "budget", *ROLES):
            del content[key]
        if not self.training.validate_captions:  # otherwise how captions are decoded may choose the checkpoint
            del content["decoding"]
        for key in ("prepared", "source", "max_skipped"):
            del content["data"][key]
        for dotted, default in ADDED_LATER.items():
            *sections, key = dotted.split(".")
            place = content
            for section in sections:
                place = place[section]
            if key in place and place[key] == default:
                del place[key]
        return digest_of(content)


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"{path}: this recipe does not exist; 'tellapart recipes' lists those that do") from None
    except IsADirectoryError:
        raise RecipeError(f"{path}: this is a folder; name a recipe file in it") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of keys; see 'tellapart recipes'")
    return content


def _content(path: Path, overrides: Sequence[str], budget: str | None, above: tuple[Path, ...]) -> dict[str, Any]:
    """A recipe's plain data: budget and overrides applied, upstream paths made whole, inherited sections filled in."""
    path = path / "recipe.yaml" if (path / "recipe.yaml").is_file() else path
    if path.resolve() in above:
        raise RecipeError(f"{path}: this recipe starts from itself; change its start.from or reference.from")
    content = read_yaml(path)
    _find_data(content, path)
    _apply_budget(content, budget, path)
    for override in overrides:
        _set(content, override)
    # A target that starts from a model is that model's architecture; the reference may be any other.
    for role, sections in (("start", ("data", *TRAINED)), ("reference", ("data",)), ("frozen_retriever", ("data",))):
        section = content.get(role)
        if not isinstance(section, dict) or not isinstance(section.get("from"), str):
            continue
        section["from"] = str(_upstream_path(section["from"], path, f"{path}: {role}.from"))
        inherited = _content(Path(section["from"]), (), content["budget"], (*above, path.resolve()))
        for key in sections:
            own = content.get(key, {})
            if isinstance(own, dict) and isinstance(inherited.get(key), dict):
                content[key] = _filled(own, inherited[key])
    return content


def _find_data(content: dict[str, Any], path: Path) -> None:
    """Data beside the recipe (a run's are named relative to its folder), or relative to the current folder."""
    data = content.get("data")
    for key in ("source", "prepared"):
        named = data.get(key) if isinstance(data, dict) else None
        if isinstance(named, str) and named != "scenes" and (path.parent / named).exists():
            content["data"][key] = os.path.normpath(path.parent / named)


def _apply_budget(content: dict[str, Any], budget: str | None, path: Path) -> None:
    """Put what the section `budgets` says of the chosen budget into the recipe."""
    resolved = "budget" in content  # a run's recipe is what it became
    content["budget"] = budget or content.get("budget", "laptop")
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
        content[section] = _filled(changes, own) if isinstance(own, dict) and isinstance(changes, dict) else changes


def _filled(own: dict[str, Any], inherited: dict[str, Any]) -> dict[str, Any]:
    """A section with what it does not say itself, also in the sections inside it."""
    filled = {**inherited, **own}
    for key, value in own.items():
        if isinstance(value, dict) and isinstance(inherited.get(key), dict):
            filled[key] = _filled(value, inherited[key])
    return filled


def _upstream_path(named: str, recipe: Path, where: str) -> Path:
    """An upstream beside the recipe that names it, or relative to the current folder."""
    for candidate in (recipe.parent / named, Path(named)):
        if candidate.exists():
            return candidate
    raise RecipeError(f"{where}: '{named}' does not exist beside the recipe nor in this folder")


def _set(content: dict[str, Any], override: str) -> None:
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
    """YAML 1.1 reads `1e-4` as text; people mean the number."""
    try:
        return float(text)
    except ValueError:
        return text


def _what_is_trained(content: dict[str, Any]) -> list[str]:
    """Mistakes in the choice of what is trained, and in what belongs to the other kind."""
    given = [kind for kind in TRAINED if content.get(kind) is not None]
    if not given:
        return ["captioner: this key is missing; a recipe trains a captioner or, with the key 'retriever', a retriever"]
    if len(given) > 1:
        return ["captioner, retriever: a recipe trains one of them, from a start of the same kind; leave the other out"]
    training = content.get("training")
    foreign = {"captioner": "validate_retrieval", "retriever": "validate_captions"}[given[0]]
    if isinstance(training, dict) and training.get(foreign):
        return [f"training.{foreign}: a {given[0]} is trained, which this is not for; leave it out"]
    return []


def _component(kind: str, section: dict[str, Any]) -> dict[str, Any]:
    """A captioner's, retriever's or objective's section with its defaults written out."""
    if not isinstance(section.get("name"), str):
        raise RecipeError(f"{kind}.name is missing; choose one of: {', '.join(registry.names(kind))}")
    try:
        cls = registry.find(kind, section["name"])
    except RecipeError as error:
        raise RecipeError(f"{kind}.name: {error}") from None
    try:
        settings = cls.Settings(**{key: value for key, value in section.items() if key != "name"})
    except ValidationError as error:
        raise RecipeError("\n".join(_explain(error, cls.Settings, f"{kind}."))) from None
    return {"name": section["name"], **settings.model_dump(mode="json")}


def _explain(error: ValidationError, model: type[BaseModel], prefix: str) -> list[str]:
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
            lines.append(f"{key}: {message}{given}")
    return lines


def _keys(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The keys a section of the model takes."""
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
