"""Model folders and checkpoints: safetensors and JSON, written whole or not at all.

A *model folder* holds `model.safetensors`, `model.json` (what to build) and `vocabulary.json`; it alone captions a
photograph. A *checkpoint* `checkpoints/step-N/` is a model folder with the trainer's state beside it. Files named
`last` and `best` say which checkpoint they mean; they flip only after a checkpoint is complete.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tellapart import registry
from tellapart.captioners.base import Captioner
from tellapart.encoders.images import EncoderIdentity
from tellapart.errors import RunError
from tellapart.files import digest_of_file, new_folder, read_json, write_json, write_text
from tellapart.text import Vocabulary

FORMAT = 1


def save_captioner(captioner: Captioner, folder: Path) -> None:
    """Write a model folder's files into an existing folder."""
    weights = {name: tensor.contiguous() for name, tensor in captioner.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    captioner.vocabulary.save(folder / "vocabulary.json")
    description = {
        "format": FORMAT,
        "captioner": {"name": captioner.name, **captioner.settings.model_dump(mode="json")},
        "encoder": asdict(captioner.encoder),
    }
    write_json(folder / "model.json", description)


def load_captioner(folder: str | Path, overrides: dict[str, Any] | None = None) -> Captioner:
    """A captioner from a model folder, a checkpoint or a run folder, in eval mode.

    Args:
        folder: where it is.
        overrides: settings that differ from the saved ones and change no weight's shape, such as `dropout`.
    """
    folder = model_folder(Path(folder))
    description = read_json(folder / "model.json", "model description")
    if description.get("format") != FORMAT:
        raise RunError(f"{folder}: model format {description.get('format')!r} is unknown; this version reads {FORMAT}")
    section = dict(description["captioner"])
    cls = registry.find("captioner", section.pop("name"))
    vocabulary = Vocabulary.load(folder / "vocabulary.json")
    try:
        settings = cls.Settings(**{**section, **(overrides or {})})
        captioner: Captioner = cls(settings, vocabulary, EncoderIdentity(**description["encoder"]))
        captioner.load_state_dict(load_file(folder / "model.safetensors"))
    except (SafetensorError, FileNotFoundError) as error:
        raise RunError(f"{folder}: model.safetensors cannot be read ({error}); take another checkpoint") from None
    except (RuntimeError, ValidationError) as error:
        reason = " ".join(str(error).splitlines()[:2])
        raise RunError(
            f"{folder}: the weights do not fit these settings ({reason}); use the settings it was trained with"
        ) from None
    return captioner.eval()


def model_folder(folder: Path) -> Path:
    """The model folder meant by a model folder, a checkpoint or a run folder (its kept checkpoint)."""
    if (folder / "model.json").exists():
        return folder
    for pointer in ("kept", "last"):
        if (folder / "checkpoints" / pointer).exists():
            return checkpoint_path(folder, pointer)
    raise RunError(f"{folder}: no model is here; give a run folder or a model folder")


def checkpoint_path(run: Path, pointer: str) -> Path:
    return run / "checkpoints" / (run / "checkpoints" / pointer).read_text(encoding="utf-8").strip()


def model_digest(folder: Path) -> str:
    """Names a model's weights."""
    return digest_of_file(model_folder(folder) / "model.safetensors")


def save_checkpoint(run: Path, captioner: Captioner, step: int, trainer: dict[str, Any]) -> None:
    """Write `checkpoints/step-N/`, then point `last` to it."""
    name = f"step-{step}"
    try:
        with new_folder(run / "checkpoints" / name) as folder:
            save_captioner(captioner, folder)
            torch.save(trainer, folder / "trainer.pt")
        point(run, "last", name)
    except OSError as error:
        raise RunError(
            f"{run}: the checkpoint of step {step} could not be written ({error}); earlier ones are kept"
        ) from None


def point(run: Path, pointer: str, name: str) -> None:
    write_text(run / "checkpoints" / pointer, name + "\n")


def remove_old_checkpoints(run: Path) -> None:
    """Keep what `last`, `best` and `kept` point to."""
    folder = run / "checkpoints"
    wanted = {checkpoint_path(run, p).name for p in ("last", "best", "kept") if (folder / p).exists()}
    for old in folder.glob("step-*"):
        if old.name not in wanted:
            shutil.rmtree(old)


def load_trainer_state(run: Path) -> dict[str, Any]:
    """The trainer's state beside the last checkpoint; never unpickles arbitrary objects."""
    state: dict[str, Any] = torch.load(checkpoint_path(run, "last") / "trainer.pt", weights_only=True)
    return state
