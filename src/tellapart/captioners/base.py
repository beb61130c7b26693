"""The captioner contract: a module that gives p(caption | image). Everything else is built on it.

- Captions are strings; a captioner owns its tokens. Token rows hold the words, then the end token, then padding;
  the start token is implicit.
- An image is encoded once (`encode`), however many captions are scored against it: rows point to it by `image_of_row`.
- Teacher forcing (`forward`, `log_prob`) and stepping (`start`, `step`, `select`) give the same probabilities.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tellapart.models import Model, load_model
from tellapart.text import PAD, START, Vocabulary


@dataclass
class Traces:
    """What a captioner looked at and thought, for each token (zero at padding).

    Attributes:
        layers: hidden states of each layer, first to last, `[rows, tokens, width]` each.
        attention: `[rows, tokens, regions]`, weights over the image's regions; `None` for models that do not attend.
        sentinel: `[rows, tokens]`, β: the weight on language instead of the image; `None` for models without one.
    """

    layers: tuple[torch.Tensor, ...]
    attention: torch.Tensor | None
    sentinel: torch.Tensor | None = None

    @property
    def hidden(self) -> torch.Tensor:
        """The states the words were chosen from: those of the last layer."""
        return self.layers[-1]


class Captioner(Model):
    """Base of all captioners; see `Model` for the arguments, and how one is made, saved and loaded."""

    kind = "captioner"

    # --- what an architecture gives ---------------------------------------------------------------------------

    @abstractmethod
    def encode(self, features: torch.Tensor) -> Any:
        """Region features `[images, regions, width]` -> the memory all captions of these images share."""

    @abstractmethod
    def hidden(self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        """Teacher-forced states `[real tokens, width]`, row by row, padding left out; input of `output`."""

    @abstractmethod
    def output(self, hidden: torch.Tensor) -> torch.Tensor:
        """States -> logits over the vocabulary; `<pad>` and `<start>` are impossible (-inf)."""

    @abstractmethod
    def start(self, memory: Any, image_of_row: torch.Tensor) -> Any:
        """The state before the first word. The first `step` is given the start token."""

    @abstractmethod
    def step(self, state: Any, token: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Say `token` in every row: log probabilities of the next one `[rows, vocabulary]`, and the new state.

        The log probabilities belong to the caller, who may write into them.
        """

    @abstractmethod
    def select(self, state: Any, rows: torch.Tensor) -> Any:
        """The state with these rows, in this order; the memory is shared, not copied."""

    @abstractmethod
    def traces(self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor) -> Traces:
        """Hidden states and attention maps of teacher-forced captions."""

    # --- what all share ---------------------------------------------------------------------------------------

    @staticmethod
    def from_pretrained(folder: str | Path) -> Captioner:
        """The captioner in a model folder, a checkpoint or a run folder, in eval mode.

        Example:
            >>> captioner = Captioner.from_pretrained("runs/scenes-cl-1a2b3c4d")   # doctest: +SKIP
            >>> captioner.save_pretrained("my-model")                              # doctest: +SKIP
        """
        return load_captioner(folder)

    def tokenize(self, captions: Sequence[str]) -> torch.Tensor:
        """Token rows `[captions, longest]`: words, end token, padding."""
        if not captions:
            return torch.zeros(0, 1, dtype=torch.long, device=self.device)
        rows = [torch.tensor(self.vocabulary.encode(caption)) for caption in captions]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD).to(self.device)

    def detokenize(self, tokens: torch.Tensor) -> list[str]:
        return [self.vocabulary.decode(row) for row in tokens.tolist()]

    def forward(self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        """Teacher-forced logits `[rows, tokens, vocabulary]`; zero at padding."""
        return at_tokens(self.output(self.hidden(memory, tokens, image_of_row)), tokens != PAD)

    def log_prob(
        self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor, per_token: bool = False
    ) -> torch.Tensor:
        """ln p(caption | image): the sum over the caption's tokens and its end token, in float32.

        Args:
            memory: from `encode`.
            tokens: from `tokenize`, `[rows, tokens]`.
            image_of_row: the image each row is scored against, `[rows]`.
            per_token: give `[rows, tokens]` (zero at padding) instead of the sum `[rows]`.
        """
        if not len(tokens):  # an empty share of a batch
            return torch.zeros(tokens.shape if per_token else 0, device=tokens.device)
        real = tokens != PAD
        logits = self.output(self.hidden(memory, tokens, image_of_row))
        scores = at_tokens(-functional.cross_entropy(logits.float(), tokens[real], reduction="none"), real)
        return scores if per_token else scores.sum(dim=1)


def words_before(tokens: torch.Tensor) -> torch.Tensor:
    """What was said before each token: the start token, then the tokens themselves, the last one left out."""
    return functional.pad(tokens[:, :-1], (1, 0), value=START)


def at_tokens(values: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Values of real tokens `[M, ...]` at their places `[rows, tokens, ...]`; zero at padding."""
    full = values.new_zeros(*real.shape, *values.shape[1:])
    full[real] = values
    return full


class WordLogits(nn.Linear):
    """States -> logits over the vocabulary; `<pad>` and `<start>`, which are never said, are ruled out.

    They are ruled out in the bias, which costs no pass over the logits.
    """

    def __init__(self, width: int, vocabulary: Vocabulary) -> None:
        super().__init__(width, len(vocabulary))
        impossible = torch.zeros(len(vocabulary))
        impossible[[PAD, START]] = -torch.inf
        self.register_buffer("impossible", impossible, persistent=False)
        self.impossible: torch.Tensor

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return functional.linear(input, self.weight, self.bias + self.impossible)


def group_by_image(image_of_item: torch.Tensor, images: int) -> tuple[torch.Tensor, int]:
    """Lay items out as `[images, widest group]`: the flat position of each item, and the widest group.

    Attention over an image's regions is then one batched product per image, and regions are never copied per item.
    """
    order = torch.argsort(image_of_item, stable=True)
    counts = torch.bincount(image_of_item, minlength=images)
    starts = counts.cumsum(0) - counts
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device) - starts[image_of_item[order]]
    width = int(counts.max()) if len(order) else 0
    return image_of_item * width + place, width


def load_captioner(folder: str | Path, overrides: dict[str, Any] | None = None) -> Captioner:
    """A captioner from a model folder, a checkpoint or a run folder, in eval mode.

    Args:
        folder: where it is.
        overrides: settings that differ from the saved ones and change no weight's shape, such as `dropout`.
    """
    captioner: Captioner = load_model(folder, "captioner", overrides)
    return captioner
