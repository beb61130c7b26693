"""Shared by captioners with an LSTM: batches without padding, image memory, initial weights, output layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from tellapart.captioners.base import Captioner, images_left
from tellapart.captioners.words import WordLogits
from tellapart.text import PAD


@dataclass(frozen=True)
class Packing:
    """Rows sorted by length, longest first, so that the rows still running at a time step are the first ones.

    Attributes:
        order: row numbers, longest row first.
        running: `[time, rows]`, whether a row (in that order) has a token at a time step.
        back: position in time order of each real token in row order.
    """

    order: torch.Tensor
    running: torch.Tensor
    back: torch.Tensor

    @classmethod
    def of(cls, tokens: torch.Tensor) -> Packing:
        """The packing of token rows `[rows, longest]`."""
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
        """Number of running rows at each time step."""
        sizes: list[int] = self.running.sum(dim=1).tolist()
        return sizes

    def by_time(self, values: torch.Tensor) -> torch.Tensor:
        """`[rows, time]` -> values of the real tokens in time order `[M]`."""
        return values[self.order].t()[self.running]

    def of_row(self, values: torch.Tensor) -> torch.Tensor:
        """One value per row `[rows]` -> one value per real token in time order `[M]`."""
        return values[self.order].expand(self.running.shape)[self.running]

    def by_row(self, values: torch.Tensor) -> torch.Tensor:
        """Values of real tokens, from time order to row order."""
        return values.index_select(0, self.back)


@dataclass(frozen=True)
class RegionMemory:
    """What all captions of an image share.

    Attributes:
        regions: `[images, regions, hidden]`.
        keys: attention keys of the regions, `[images, regions, attention]`.
        gates: the image's part of the LSTM gate inputs, `[images, gates * hidden]`.
    """

    regions: torch.Tensor
    keys: torch.Tensor
    gates: torch.Tensor

    def of_rows(self, image_of_row: torch.Tensor) -> tuple[RegionMemory, torch.Tensor]:
        """The memory without images that have no row left, which would cost time, and the image of each row in it."""
        left = images_left(image_of_row, len(self.regions))
        if left is None:
            return self, image_of_row
        memory = RegionMemory(self.regions[left], self.keys[left], self.gates[left])
        return memory, torch.searchsorted(left, image_of_row)


class RecurrentCaptioner(Captioner):
    """Base of captioners with an LSTM; the output layer reads the hidden state after dropout."""

    dropout: nn.Dropout
    predict: WordLogits

    def of_words(self, compute: Callable[[torch.Tensor], torch.Tensor], words: torch.Tensor) -> torch.Tensor:
        """What `compute` gives for words `[M]`: once for each different word, if there is no dropout."""
        if self.training and self.dropout.p > 0:
            return compute(words)
        different, place = torch.unique(words, return_inverse=True)
        return compute(different).index_select(0, place)

    def output(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.predict(self.dropout(hidden))
        return logits

    def word_log_prob(self, hidden: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return self.predict.log_prob(self.dropout(hidden), words)

    def log_probs(self, hidden: torch.Tensor) -> torch.Tensor:
        """ln p of all words for each hidden state, `[rows, words]` in float32."""
        return self.predict.log_softmax(self.dropout(hidden))


@torch.no_grad()
def initialise_gates(recurrent: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]) -> None:
    """Make the recurrence of each gate orthogonal, set biases to 0 and those of forget gates to 1.

    Args:
        recurrent: weights from the previous hidden state to the gates, `[gates * width, width]` each.
        biases: gate biases, `[gates * width]` each; the forget gate is the second one.
    """
    width = recurrent[0].shape[1]
    for gate in range(len(recurrent[0]) // width):
        for weight in recurrent:
            nn.init.orthogonal_(weight[gate * width : (gate + 1) * width])
    for bias in biases:
        bias.zero_()
        bias[width : 2 * width] = 1.0
