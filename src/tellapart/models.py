"""What captioners and retrievers share: how a model is made, saved in a folder of its own and loaded again.

A model folder holds `model.safetensors`, `model.json` (what to build), `vocabulary.json` and a card, `README.md`. The
section `captioner` or `retriever` of `model.json` says which kind of model it is. Models from Hugging Face keep their
configuration, tokenizer and vision tower in a folder `huggingface` beside them.

A model folder alone captions a photograph, or ranks photographs. Loading one never unpickles anything.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from tellapart import registry
from tellapart.encoders import open_encoder
from tellapart.encoders.base import EncoderIdentity, ImageEncoder
from tellapart.errors import DataError, RunError
from tellapart.files import digest_of_file, new_folder, read_json, write_json, write_text
from tellapart.text import SPECIALS, Vocabulary

if TYPE_CHECKING:
    from tellapart.data.settings import DataSettings

FORMAT = 1
FILES = {"model.safetensors", "model.json", "vocabulary.json", "README.md", "concepts.json", "huggingface"}
# The kinds of models, and the verb that measures each.
MEASURED_WITH = {"captioner": "evaluate", "retriever": "evaluate-retrieval"}
ABOUT = {
    "captioner": (
        "An image captioner made with tellapart. It captions pictures without anything else:",
        ["```sh", "tellapart caption photo.jpg --model THIS_FOLDER", "```"],
    ),
    "retriever": (
        "An image–text retriever made with tellapart: it says how well a picture and a sentence fit. From Python:",
        ["```python", 'retriever = tellapart.load_retriever("THIS_FOLDER")', "```"],
    ),
}


class Model(nn.Module, ABC):
    """Base of captioners and retrievers.

    Args:
        settings: the architecture's own settings (an instance of `Settings`).
        vocabulary: the words it knows.
        encoder: the identity of the features it reads.

    Attributes:
        kind: `captioner` or `retriever`: its section in a recipe and in `model.json`.
        history: what it was trained by and on, and what was measured; saved with it and told by its card.
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

    # --- how one is made, saved and loaded; a model that brings its own tokens says it in its own way -----------------

    @classmethod
    def make(cls, settings: BaseModel, captions: Iterable[str], data: DataSettings, encoder: EncoderIdentity) -> Model:
        """A new model for a recipe; its words are those of the training captions."""
        return cls(settings, cls.make_vocabulary(captions, data), encoder)

    @staticmethod
    def make_vocabulary(captions: Iterable[str], data: DataSettings) -> Vocabulary:
        """The words of the training captions that are frequent enough."""
        vocabulary = Vocabulary.build(captions, data.min_count, data.normaliser, data.max_words)
        if len(vocabulary) == len(SPECIALS):
            raise DataError(f"no word occurs {data.min_count} times in the training captions; lower data.min_count")
        return vocabulary

    @classmethod
    def files(cls, settings: BaseModel) -> dict[str, Path]:
        """The files that `make` reads, by the settings that name them: their content is part of a run's key."""
        return {}

    def write_parts(self, folder: Path) -> None:
        """Write what `from_parts` needs into a model folder, beside the weights."""
        self.vocabulary.save(folder / "vocabulary.json")

    @classmethod
    def from_parts(cls, settings: BaseModel, encoder: EncoderIdentity, folder: Path) -> Model:
        """The model that a model folder describes; its weights are loaded afterwards."""
        return cls(settings, Vocabulary.load(folder / "vocabulary.json"), encoder)

    def write_encoder(self, folder: Path) -> None:
        """Write what `open_encoder` needs into a model folder; nothing where the encoder comes with a package."""

    def open_encoder(self, device: str | None = None) -> ImageEncoder:
        """The encoder of the features it reads; whether it is the very same one, its identity says."""
        return open_encoder(self.encoder.name, device=device)

    # --- what all share ---------------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a model folder: weights, description, vocabulary and card. It needs nothing else.

        Args:
            folder: a new one, or a model folder that is replaced.
        """
        check_replaceable(Path(folder))
        with new_folder(Path(folder)) as new:
            write_model(self, new)
            self.write_encoder(new)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


def write_model(model: Model, folder: Path) -> None:
    """Write a model folder's files into an existing folder."""
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    model.write_parts(folder)
    _write_description(
        folder,
        {
            "format": FORMAT,
            model.kind: {"name": model.name, **model.settings.model_dump(mode="json")},
            "encoder": asdict(model.encoder),
            "history": model.history,
        },
    )


def check_replaceable(folder: Path) -> None:
    """Refuse a folder that holds anything but a model."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder}: this is a file; choose a new folder")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    others = sorted(names - FILES) or sorted(names if "model.json" not in names else [])
    if others:
        raise RunError(f"{folder}: holds something else than a model ({others[0]}); choose a new folder")


def load_model(folder: str | Path, kind: str, overrides: dict[str, Any] | None = None) -> Any:
    """A model of this kind (`captioner` or `retriever`); one of the other kind is an error that says so."""
    folder = model_folder(Path(folder))
    description = _read_description(folder)
    found = _kind(description)
    if found != kind and found is not None:
        raise RunError(
            f"{folder}: holds a {found} ({_name(description)}), and a {kind} is needed here; "
            f"'tellapart {MEASURED_WITH[found]}' measures a {found}"
        )
    try:
        section = dict(description[kind])
        cls = registry.find(kind, section.pop("name"))
        settings = cls.Settings(**{**section, **(overrides or {})})
        model: Model = cls.from_parts(settings, EncoderIdentity(**description["encoder"]), folder)
        model.load_state_dict(load_file(folder / "model.safetensors"))
    except (SafetensorError, FileNotFoundError) as error:
        raise RunError(f"{folder}: model.safetensors cannot be read ({error}); take another checkpoint") from None
    except (KeyError, TypeError) as error:
        raise RunError(f"{folder}: model.json is damaged ({error}); take another checkpoint") from None
    except (RuntimeError, ValidationError) as error:
        reason = " ".join(str(error).splitlines()[:2])
        raise RunError(
            f"{folder}: the weights do not fit these settings ({reason}); use the settings it was trained with"
        ) from None
    model.history = description.get("history", {})
    return model.eval()


def model_folder(folder: Path) -> Path:
    """The model folder meant by a model folder, a checkpoint or a run folder (its kept checkpoint)."""
    if (folder / "model.json").exists():
        return folder
    for pointer in ("kept", "last"):
        path = folder / "checkpoints" / pointer
        if path.exists():
            return path.parent / path.read_text(encoding="utf-8").strip()
    raise RunError(f"{folder}: no model is here; give a run folder or a model folder")


def model_digest(folder: Path) -> str:
    """Names a model's weights."""
    return digest_of_file(model_folder(folder) / "model.safetensors")


def add_measured(folder: Path, split: str, figures: dict[str, float]) -> None:
    """Write measured figures into a model's description and its card."""
    folder = model_folder(folder)
    description = _read_description(folder)
    history = description.setdefault("history", {})
    history.setdefault("measured", {})[split] = figures
    _write_description(folder, description)


def model_card(description: dict[str, Any]) -> str:
    """A model's card in Markdown: what it is, what it was trained on, and what was measured, nothing else."""
    kind, encoder = _kind(description) or "captioner", description["encoder"]
    about, use = ABOUT[kind]
    history = dict(description.get("history", {}))
    measured = history.pop("measured", {})
    lines = [
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
        "The pictures and captions it was trained on have their own terms; these weights are used under them.",
        "",
    ]
    for split, figures in measured.items():
        lines += [f"## Measured on the {split} split", "", "| figure | value |", "|---|---|"]
        lines += [f"| {name} | {value:.4f} |" for name, value in figures.items()]
        lines.append("")
    if not measured:
        lines += [f"Nothing was measured yet; `tellapart {MEASURED_WITH[kind]} RUN` does.", ""]
    return "\n".join(lines)


def _kind(description: dict[str, Any]) -> str | None:
    """What kind of model a description is of; `None` where it is damaged."""
    return next((kind for kind in MEASURED_WITH if kind in description), None)


def _name(description: dict[str, Any]) -> str:
    section = description.get(_kind(description) or "")
    return str(section.get("name")) if isinstance(section, dict) else "?"


def _read_description(folder: Path) -> dict[str, Any]:
    description: dict[str, Any] = read_json(folder / "model.json", "model description")
    if description.get("format") != FORMAT:
        raise RunError(f"{folder}: model format {description.get('format')!r} is unknown; this version reads {FORMAT}")
    return description


def _write_description(folder: Path, description: dict[str, Any]) -> None:
    write_json(folder / "model.json", description)
    write_text(folder / "README.md", model_card(description))
