"""Base of captioners and retrievers: how a model is made, saved to a model folder and loaded again.

A model folder holds `model.safetensors`, `model.json` (what to build), `vocabulary.json` and a model card, `README.md`.
The key `captioner` or `retriever` of `model.json` says which kind of model it is. Models from Hugging Face keep their
configuration, tokenizer and vision tower in a subfolder `huggingface`.

A model folder needs no other file to caption or rank images. Loading one never unpickles anything. Its weights may be
kept in fewer bytes (`tellapart.weights`); the model that is loaded always has float32 weights.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from abc import ABC
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from tellapart import registry
from tellapart.encoders import open_encoder
from tellapart.encoders.base import EncoderIdentity, ImageEncoder, accelerator
from tellapart.errors import DataError, RecipeError, RunError, StoreError, out_of_memory, shorten, some
from tellapart.files import (
    Stored,
    check_folder,
    check_regular,
    digest_of_file,
    is_result,
    new_folder,
    read_json,
    read_model,
    read_text,
    write_json,
    write_text,
)
from tellapart.shipped import find_model, shipped_name
from tellapart.text import SPECIALS, Vocabulary
from tellapart.weights import WeightType, pack, unpack

if TYPE_CHECKING:
    from tellapart.data.settings import DataSettings

FORMAT = 1
FILES = {"model.safetensors", "model.json", "vocabulary.json", "README.md", "concepts.json", "huggingface"}
# Kind of model -> the command that evaluates it.
EVALUATED_BY = {"captioner": "evaluate", "retriever": "evaluate-retrieval"}
ABOUT = {
    "captioner": (
        "An image captioner made with tellapart. To caption a picture:",
        ["```sh", "tellapart caption photo.jpg --model THIS_FOLDER", "```"],
    ),
    "retriever": (
        "An image–text retriever made with tellapart: it scores how well a picture and a sentence match. From Python:",
        ["```python", 'retriever = tellapart.load_retriever("THIS_FOLDER")', "```"],
    ),
}


class _History(Stored):
    """`history` in `model.json`: its other keys are only shown."""

    measured: dict[str, dict[str, float]] = Field({})


class _Section(Stored):
    """`captioner` or `retriever` in `model.json`: the settings are checked by the class of this name."""

    model_config = ConfigDict(extra="allow")

    name: str


class _Description(Stored):
    """`model.json`."""

    format: int
    captioner: _Section | None = None
    retriever: _Section | None = None
    encoder: EncoderIdentity
    history: _History = _History()
    decoding: dict[str, Any] | None = None


class Model(nn.Module, ABC):
    """Base of captioners and retrievers.

    Args:
        settings: settings of the architecture (an instance of `Settings`).
        vocabulary: the words it can read or write.
        encoder: identity of the image features it takes as input.

    Attributes:
        kind: `captioner` or `retriever`: its key in a recipe and in `model.json`.
        history: recipe, data and evaluation results; saved with the model and shown in its card.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    Settings: ClassVar[type[BaseModel]]

    def __init__(self, settings: BaseModel, vocabulary: Vocabulary, encoder: EncoderIdentity) -> None:
        super().__init__()
        self.settings = settings
        self.vocabulary = vocabulary
        self.encoder = encoder
        self.history: dict[str, Any] = {}

    # --- making, saving and loading; models with their own tokenizer override these -----------------------------------

    @classmethod
    def make(cls, settings: BaseModel, captions: Iterable[str], data: DataSettings, encoder: EncoderIdentity) -> Self:
        """A new model for a recipe; its vocabulary is built from the training captions."""
        return cls(settings, cls.make_vocabulary(captions, data), encoder)

    @classmethod
    def from_pretrained(cls, folder: str | Path, overrides: dict[str, Any] | None = None) -> Self:
        """Load a model from a model folder, a checkpoint or a run folder, in eval mode.

        Args:
            folder: where it is; `shipped` or `shipped/retriever` is the one that comes with tellapart.
            overrides: settings to change that keep the shape of all weights, such as `dropout` or `reading`.

        Example:
            >>> captioner = Captioner.from_pretrained("runs/scenes-cl-1a2b3c4d")   # doctest: +SKIP
            >>> captioner.save_pretrained("my-model")                              # doctest: +SKIP
        """
        model = load_model(folder, cls.kind, overrides)
        if not isinstance(model, cls):
            raise RunError(f"{folder}: holds the {cls.kind} '{model.name}', not a {cls.__name__}; give another folder")
        return model

    @staticmethod
    def make_vocabulary(captions: Iterable[str], data: DataSettings) -> Vocabulary:
        """The words that occur at least `data.min_count` times in the training captions."""
        vocabulary = Vocabulary.build(captions, data.min_count, data.normaliser, data.max_words)
        if len(vocabulary) == len(SPECIALS):
            raise DataError(f"no word occurs {data.min_count} times in the training captions; lower data.min_count")
        return vocabulary

    @classmethod
    def files(cls, settings: BaseModel) -> dict[str, Path]:
        """The files that `make` reads: setting -> path. Their content is part of a run's key."""
        return {}

    def write_parts(self, folder: Path) -> None:
        """Write the files that `from_parts` reads into a model folder."""
        self.vocabulary.save(folder / "vocabulary.json")

    @classmethod
    def from_parts(cls, settings: BaseModel, encoder: EncoderIdentity, folder: Path) -> Self:
        """Build the model of a model folder, without loading its weights."""
        return cls(settings, Vocabulary.load(folder / "vocabulary.json"), encoder)

    def write_encoder(self, folder: Path) -> None:
        """Write the files that `open_encoder` reads into a model folder; by default none."""

    def open_encoder(self, device: str | None = None) -> ImageEncoder:
        """The encoder of its image features. Compare `identity` with `self.encoder` to make sure it is the same."""
        return open_encoder(self.encoder.name, device=device)

    # --- shared -----------------------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | Path, weights: WeightType = "float32") -> None:
        """Write a model folder: weights, description, vocabulary and card.

        Args:
            folder: a new folder, or an existing model folder, which is replaced.
            weights: how they are kept; float16 takes half of the disk, int8 a quarter.
        """
        check_replaceable(Path(folder))
        try:
            with new_folder(Path(folder)) as new:
                write_model(self, new, weights)
                self.write_encoder(new)
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise RunError(
                f"{folder}: the model could not be written ({reason}); make room or choose another folder"
            ) from None

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


def write_model(model: Model, folder: Path, weights: WeightType = "float32") -> None:
    """Write the files of a model into an existing folder."""
    save_file(pack(model.state_dict(), weights), folder / "model.safetensors")
    model.write_parts(folder)
    _write_description(folder, model_description(model))
    # safetensors lets only the owner read its files; whoever is given the folder needs them all.
    shutil.copymode(folder / "model.json", folder / "model.safetensors")


def model_description(model: Model) -> dict[str, Any]:
    """The content of `model.json`."""
    return {
        "format": FORMAT,
        model.kind: {"name": model.name, **model.settings.model_dump(mode="json")},
        "encoder": model.encoder.as_dict(),
        "history": model.history,
    }


def check_replaceable(folder: Path) -> None:
    """Raise an error unless the folder is new, empty or a model folder, and can be written."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder}: this is a file; choose a new folder")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    others = sorted(names - FILES)
    if names and not others and not is_result(folder / "model.json", "format", "encoder", "|".join(EVALUATED_BY)):
        others = sorted(names)
    if others:
        raise RunError(f"{folder}: is not a model folder (it holds {others[0]}); choose a new folder")
    check_folder(folder.parent)


def load_model(folder: str | Path, kind: str, overrides: dict[str, Any] | None = None) -> Any:
    """Load a model of this kind, `captioner` or `retriever`; see `Model.from_pretrained`."""
    folder = model_folder(folder)
    description = read_description(folder)
    found = model_kind(description)
    if found != kind and found is not None:
        evaluate = f"to evaluate a {found}, use 'tellapart {EVALUATED_BY[found]}'"
        remedy = evaluate if shipped_name(folder) is None else f"use shipped/{kind}"
        raise RunError(f"{folder}: holds a {found} ({_name(description)}), and a {kind} is needed here; {remedy}")
    if found is None:
        raise RunError(f"{folder}: model.json is damaged (it names no {kind}); use another checkpoint")
    check_regular(folder / "model.safetensors", "weights")
    section = dict(description[kind])
    try:
        cls = registry.find(kind, section.pop("name"))
        settings = cls.Settings(**{**section, **(overrides or {})})
        with enough_memory(kind, settings):
            model: Model = cls.from_parts(settings, EncoderIdentity(**description["encoder"]), folder)
        model.load_state_dict(unpack(load_file(folder / "model.safetensors")))
    except (SafetensorError, OSError) as error:
        reason = shorten(str(error))
        raise RunError(f"{folder}: model.safetensors cannot be read ({reason}); use another checkpoint") from None
    except (RuntimeError, ValueError, AssertionError) as error:  # pydantic's are ValueErrors
        reason = shorten(str(error))
        raise RunError(
            f"{folder}: the weights do not fit these settings ({reason}); use the settings it was trained with"
        ) from None
    except RecipeError as error:
        raise RunError(f"{folder}: {error}") from None
    check_finite(model, folder)
    model.history = description.get("history", {})
    return model.eval()


def check_finite(model: nn.Module, folder: Path) -> None:
    """Raise an error if a weight is NaN or infinite."""
    wrong = [name for name, weight in model.named_parameters() if not bool(weight.isfinite().all())]
    if wrong:
        raise RunError(
            f"{folder}: the model has diverged (NaN or infinite weights: {some(wrong)}); use an earlier checkpoint, or "
            "train again with a lower training.learning_rate"
        )


@contextmanager
def enough_memory(kind: str, settings: BaseModel) -> Iterator[None]:
    """Turn running out of memory while a model is built into an error that names its largest setting."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not out_of_memory(error):
            raise
        sizes = {name: value for name, value in settings if isinstance(value, int)}
        largest = max(sizes, key=lambda name: sizes[name], default="name")
        raise RecipeError(
            f"{kind}.{largest}: this model is too large for the memory of this machine; choose a smaller one"
        ) from None


def model_folder(folder: str | Path) -> Path:
    """Find the model folder: the folder itself, the kept checkpoint of a run folder, or that of a shipped model."""
    folder = find_model(folder)
    if (folder / "model.json").exists():
        return folder
    for pointer in ("kept", "last"):
        if (folder / "checkpoints" / pointer).exists():
            return pointed_checkpoint(folder, pointer)
    raise RunError(f"{folder}: no model is here; give a run folder or a model folder")


def pointed_checkpoint(run: Path, pointer: str) -> Path:
    """The checkpoint that `last`, `best` or `kept` names."""
    path = run / "checkpoints" / pointer
    remedy = "write the name of a checkpoint into it, such as step-100"
    try:
        name = read_text(path, "pointer").strip()
    except DataError as error:
        raise RunError(f"{error}; {remedy}") from None
    if not re.fullmatch(r"step-[0-9]{1,18}", name):
        raise RunError(f"{path}: does not name a checkpoint; {remedy}")
    if not (path.parent / name).is_dir():
        raise RunError(f"{path}: the checkpoint '{name}' is not there; {remedy}")
    return path.parent / name


def open_own_encoder(model: Model, named: str | Path) -> ImageEncoder:
    """The encoder of a model's image features; an error if it is another one now than in the training."""
    encoder = model.open_encoder(accelerator())
    if encoder.identity != model.encoder:
        raise StoreError(
            f"{named}: was trained on features of another {model.encoder.name}; install the version it used"
        )
    return encoder


def model_digest(folder: Path) -> str:
    """A digest of a model's weights."""
    return digest_of_file(model_folder(folder) / "model.safetensors")


def weights_digest(state: Mapping[str, torch.Tensor]) -> str:
    """A digest of the weights of a model in memory, from its `state_dict`."""
    weights = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        weights.update(name.encode())
        weights.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return weights.hexdigest()


def add_measured(folder: Path, split: str, figures: dict[str, float]) -> None:
    """Add evaluation results to a model's description and card."""
    folder = model_folder(folder)
    description = read_description(folder)
    history = description.setdefault("history", {})
    history.setdefault("measured", {})[split] = figures
    _write_description(folder, description)


def model_card(description: dict[str, Any]) -> str:
    """A model card in Markdown: architecture, training data and evaluation results."""
    lines = card_opening(description)
    measured = description.get("history", {}).get("measured", {})
    for split, figures in measured.items():
        lines += [f"## Measured on the {split} split", "", "| figure | value |", "|---|---|"]
        lines += [f"| {name} | {value:.4f} |" for name, value in figures.items()]
        lines.append("")
    if not measured:
        kind = model_kind(description) or "captioner"
        lines += [f"Not evaluated yet; run `tellapart {EVALUATED_BY[kind]} RUN`.", ""]
    return "\n".join(lines)


def card_opening(description: dict[str, Any]) -> list[str]:
    """The first lines of a model card: what the model is, how it is used, and what it was made from."""
    kind, encoder = model_kind(description) or "captioner", description["encoder"]
    about, use = ABOUT[kind]
    history = dict(description.get("history", {}))
    history.pop("measured", None)
    return [
        f"# {history.get('recipe', _name(description))}",
        "",
        about,
        "",
        *use,
        "",
        f"- {kind}: {_name(description)}",
        f"- image features: {encoder['name']} ({encoder['regions']} regions of {encoder['width']} numbers)",
        *(f"- {key.replace('_', ' ')}: {value}" for key, value in history.items() if key != "recipe"),
        "",
        "The training pictures and captions have their own licences, which also apply to the use of these weights.",
        "",
    ]


def model_kind(description: dict[str, Any]) -> str | None:
    """The kind of model described; `None` if the description is damaged."""
    return next((kind for kind in EVALUATED_BY if description.get(kind) is not None), None)


def _name(description: dict[str, Any]) -> str:
    section = description.get(model_kind(description) or "")
    return str(section.get("name")) if isinstance(section, dict) else "?"


def read_description(folder: Path) -> dict[str, Any]:
    """The checked content of `model.json`."""
    path, remedy = folder / "model.json", "use another checkpoint"
    checked = read_model(path, _Description, "model description", remedy, RunError)
    if checked.format != FORMAT:
        raise RunError(f"{folder}: model format {checked.format} is unknown; this version reads {FORMAT}")
    description: dict[str, Any] = read_json(path)
    return description


def _write_description(folder: Path, description: dict[str, Any]) -> None:
    write_json(folder / "model.json", description)
    write_text(folder / "README.md", model_card(description))
