"""Captions laid out by time, for recurrences that touch real tokens only."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tellapart.text import PAD


@dataclass(frozen=True)
class Packing:
    """Rows sorted longest first, so that at each time the rows still running are the first ones.

    Attributes:
        order: the rows, longest first.
        running: `[time, rows]`, whether a row (in that order) has a token at a time.
        back: for each real token in row order, its position in time order.
    """

    order: torch.Tensor
    running: torch.Tensor
    back: torch.Tensor

    @classmethod
    def of(cls, tokens: torch.Tensor) -> Packing:
        """The layout of token rows `[rows, longest]`."""
        rows, longest = tokens.shape
        real = tokens != PAD
        lengths = real.sum(dim=1)
        order = torch.argsort(lengths, descending=True, stable=True)
        running = torch.arange(longest, device=tokens.device)[:, None] < lengths[order][None, :]
        position = torch.zeros(longest, rows, dtype=torch.long, device=tokens.device)
        position[running] = torch.arange(int(lengths.sum()), device=tokens.device)
        back = torch.empty_like(position).index_copy_(1, order, position).t()[real]
        return cls(order, running, back)

    def sizes(self) -> list[int]:
        """How many rows run at each time."""
        sizes: list[int] = self.running.sum(dim=1).tolist()
        return sizes

    def by_time(self, values: torch.Tensor) -> torch.Tensor:
        """`[rows, time]` -> the real tokens' values in time order `[M]`."""
        return values[self.order].t()[self.running]

    def of_row(self, values: torch.Tensor) -> torch.Tensor:
        """A value of each row `[rows]` -> that of every real token in time order `[M]`."""
        return values[self.order].expand(self.running.shape)[self.running]

    def by_row(self, values: torch.Tensor) -> torch.Tensor:
        """Values of real tokens from time order to row order."""
        return values[self.back]
