"""Checkpoints: written completely or not at all.

`checkpoints/step-N/` is a model folder with the trainer's state in `trainer.pt`: optimisers, the objective's own
modules and buffers, the state of the loop and, if the model folder holds averaged weights, the weights that are
trained. The files `last`, `best` and `kept` each name one checkpoint; they are changed only after it is complete.
Loading never unpickles arbitrary objects (`weights_only`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError

from tellapart.errors import RunError, shorten
from tellapart.files import check_regular, new_folder, remove_temporary_files, temporary_path, write_text
from tellapart.models import Model, pointed_checkpoint, write_model

POINTERS = ("last", "best", "kept")
# Other folders in `checkpoints/`, such as `step-2-backup`, are the user's.
_STEP = re.compile(r"step-(0|[1-9][0-9]*)")
# What to do about a checkpoint from which a training cannot continue.
OTHER_CHECKPOINT = "write the name of another checkpoint into checkpoints/last, or train again in another folder"


class _TrainerState(BaseModel):
    """`trainer.pt`. Whether its tensors fit is checked when they are loaded."""

    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True)

    step: int
    seconds: float
    best: float | None
    validations_since_best: int
    cuts: int = 0
    validations_since_cut: int = 0
    windows: list[dict[str, tuple[float, float] | list[float]]]
    objective: dict[str, torch.Tensor]
    optimisers: dict[str, dict[str, Any]]
    precision: dict[str, Any]
    own_weights: dict[str, torch.Tensor] | None = None


def checkpoint_path(run: Path, pointer: str) -> Path:
    return pointed_checkpoint(run, pointer)


def has_checkpoint(run: Path) -> bool:
    return (run / "checkpoints" / "last").exists()


def save_checkpoint(run: Path, name: str, model: Model, trainer: dict[str, Any]) -> None:
    """Write `checkpoints/NAME/`, completely or not at all."""
    try:
        with new_folder(run / "checkpoints" / name) as folder:
            write_model(model, folder)
            torch.save(trainer, folder / "trainer.pt")
    # On a full disk Python raises OSError, torch RuntimeError and safetensors SafetensorError.
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(
            f"{run}: the checkpoint '{name}' could not be written ({reason}); earlier ones are kept: "
            "make room or make the folder writable, then continue"
        ) from None


def point(run: Path, pointer: str, name: str) -> None:
    write_text(run / "checkpoints" / pointer, name + "\n")


def list_checkpoints(run: Path) -> list[Path]:
    """All folders `checkpoints/step-N`, the newest last."""
    steps = {path: _STEP.fullmatch(path.name) for path in (run / "checkpoints").iterdir() if path.is_dir()}
    found = {path: int(match[1]) for path, match in steps.items() if match}
    return sorted(found, key=found.__getitem__)


def remove_old_checkpoints(run: Path, keep_last: int = 1) -> None:
    """Keep the newest checkpoints and those with a pointer; also remove the unfinished files of a killed process.

    Call it only in the process that trains in this folder.
    """
    folder = run / "checkpoints"
    wanted = {checkpoint_path(run, pointer).name for pointer in POINTERS if (folder / pointer).exists()}
    checkpoints = list_checkpoints(run)
    wanted |= {path.name for path in checkpoints[-keep_last:]}
    for path in checkpoints:
        if path.name not in wanted:  # renamed first, so that a half-removed folder is not used as a checkpoint
            os.replace(path, temporary_path(path))
    remove_temporary_files(folder)


def load_trainer_state(checkpoint: Path) -> dict[str, Any]:
    """Load `trainer.pt` of a checkpoint; never unpickles arbitrary objects."""
    path = checkpoint / "trainer.pt"
    check_regular(path, "training state")
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch raises many kinds of errors for a broken file
        raise RunError(f"{path}: cannot be read ({shorten(str(error))}); {OTHER_CHECKPOINT}") from None
    try:
        _TrainerState.model_validate(state)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        reason = shorten(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
        raise RunError(f"{path}: this training state is damaged ({reason}); {OTHER_CHECKPOINT}") from None
    return state
