"""Model folders: `model.safetensors`, `model.json` (what to build), `vocabulary.json` and a card, `README.md`.

Captioners from Hugging Face keep their configuration, tokenizer and vision tower in a folder `huggingface` beside them.

A model folder alone captions a photograph. Loading one never unpickles anything.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tellapart import registry
from tellapart.captioners.base import Captioner
from tellapart.encoders.images import EncoderIdentity
from tellapart.errors import RunError
from tellapart.files import digest_of_file, read_json, write_json, write_text

FORMAT = 1
FILES = {"model.safetensors", "model.json", "vocabulary.json", "README.md", "huggingface"}


def write_model(captioner: Captioner, folder: Path) -> None:
    """Write a model folder's files into an existing folder."""
    weights = {name: tensor.contiguous() for name, tensor in captioner.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    captioner.write_parts(folder)
    _write_description(
        folder,
        {
            "format": FORMAT,
            "captioner": {"name": captioner.name, **captioner.settings.model_dump(mode="json")},
            "encoder": asdict(captioner.encoder),
            "history": captioner.history,
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


def load_captioner(folder: str | Path, overrides: dict[str, Any] | None = None) -> Captioner:
    """A captioner from a model folder, a checkpoint or a run folder, in eval mode.

    Args:
        folder: where it is.
        overrides: settings that differ from the saved ones and change no weight's shape, such as `dropout`.
    """
    folder = model_folder(Path(folder))
    description = _read_description(folder)
    try:
        section = dict(description["captioner"])
        cls = registry.find("captioner", section.pop("name"))
        settings = cls.Settings(**{**section, **(overrides or {})})
        captioner: Captioner = cls.from_parts(settings, EncoderIdentity(**description["encoder"]), folder)
        captioner.load_state_dict(load_file(folder / "model.safetensors"))
    except (SafetensorError, FileNotFoundError) as error:
        raise RunError(f"{folder}: model.safetensors cannot be read ({error}); take another checkpoint") from None
    except (KeyError, TypeError) as error:
        raise RunError(f"{folder}: model.json is damaged ({error}); take another checkpoint") from None
    except (RuntimeError, ValidationError) as error:
        reason = " ".join(str(error).splitlines()[:2])
        raise RunError(
            f"{folder}: the weights do not fit these settings ({reason}); use the settings it was trained with"
        ) from None
    captioner.history = description.get("history", {})
    return captioner.eval()


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
    captioner, encoder = description["captioner"], description["encoder"]
    history = dict(description.get("history", {}))
    measured = history.pop("measured", {})
    lines = [
        f"# {history.get('recipe', captioner['name'])}",
        "",
        "An image captioner made with tellapart. It captions pictures without anything else:",
        "",
        "```sh",
        "tellapart caption photo.jpg --model THIS_FOLDER",
        "```",
        "",
        f"- captioner: {captioner['name']}",
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
        lines += ["Nothing was measured yet; `tellapart evaluate RUN` does.", ""]
    return "\n".join(lines)


def _read_description(folder: Path) -> dict[str, Any]:
    description: dict[str, Any] = read_json(folder / "model.json", "model description")
    if description.get("format") != FORMAT:
        raise RunError(f"{folder}: model format {description.get('format')!r} is unknown; this version reads {FORMAT}")
    return description


def _write_description(folder: Path, description: dict[str, Any]) -> None:
    write_json(folder / "model.json", description)
    write_text(folder / "README.md", model_card(description))
