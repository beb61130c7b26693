"""The log of a training: `metrics.jsonl`, and TensorBoard files if tensorboard is installed."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from tellapart.errors import RunError
from tellapart.files import Stored, check_regular, read_models, write_jsonl


class _Row(Stored):
    """A row of `metrics.jsonl`; its other keys are figures."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float]

    step: int
    split: str
    loss: float


def read_journal(run: Path) -> list[dict[str, Any]]:
    """All rows of a run's `metrics.jsonl`."""
    rows = read_models(run / "metrics.jsonl", _Row, "log", "remove the damaged lines", RunError)
    return [row.model_dump() for row in rows]


class Journal:
    """The figures of a run, one row for each logged step: `{"step", "split", figures…}`.

    Args:
        run: the run folder.
        step: the step the training continues from; rows of later steps are removed.
    """

    def __init__(self, run: Path, step: int) -> None:
        self.path = run / "metrics.jsonl"
        if self.path.exists():
            self._drop_incomplete_row()
            write_jsonl(self.path, [row for row in read_journal(run) if row["step"] <= step])
        self._board: Any = None
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)

    def add(self, step: int, split: str, figures: dict[str, float]) -> None:
        try:
            with open(self.path, "a", encoding="utf-8") as handle:
                handle.write(json.dumps({"step": step, "split": split, **figures}) + "\n")
            if self._board is not None:
                for name, value in figures.items():
                    self._board.add_scalar(f"{split}/{name}", value, step)
                self._board.flush()
        except OSError as error:
            raise RunError(
                f"{self.path}: cannot be written ({error}); the last checkpoint is kept, make room and continue"
            ) from None

    def _drop_incomplete_row(self) -> None:
        """Remove what follows the last line end: a killed process may leave an incomplete row."""
        check_regular(self.path, "log")
        whole = self.path.read_bytes()
        complete = whole[: whole.rfind(b"\n") + 1]
        if len(complete) < len(whole):
            os.truncate(self.path, len(complete))
