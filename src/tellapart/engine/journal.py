"""The log of a training: `metrics.jsonl`, and TensorBoard files if tensorboard is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from tellapart.errors import RunError
from tellapart.files import write_jsonl


class Journal:
    """The figures of a run, one row for each logged step: `{"step", "split", figures…}`.

    Args:
        run: the run folder.
        step: the step the training continues from; rows of later steps are removed.
    """

    def __init__(self, run: Path, step: int) -> None:
        self.path = run / "metrics.jsonl"
        if self.path.exists():
            write_jsonl(self.path, [row for row in self._rows() if row["step"] <= step])
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

    def _rows(self) -> list[dict[str, Any]]:
        """All complete rows; a killed process may leave an incomplete one."""
        rows = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return rows
