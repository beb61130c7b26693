"""The captioner interface: a module that computes p(caption | image).

- Captions are strings; each captioner has its own tokens. A token row holds the words, the end token, then padding.
  The start token is implicit.
- An image is encoded once (`encode`) for all captions scored against it; `image_of_row` gives the image of each row.
- Teacher forcing (`forward`, `log_prob`) and stepping (`start`, `step`, `select`) give the same probabilities.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional

from tellapart.models import Model
from tellapart.settings import ADDED, Section
from tellapart.text import PAD, START


class CaptionerSettings(Section):
    """Settings that our own captioners share."""

    picture_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the pictures that training replaces by none, for guidance (about 0.1)",
        json_schema_extra=ADDED,
    )


@dataclass
class Traces:
    """Hidden states and attention of each token (zero at padding).

    Attributes:
        layers: hidden states of each layer, first to last, `[rows, tokens, width]` each.
        attention: weights over the image regions, `[rows, tokens, regions]`; `None` for models without attention.
        sentinel: β, the weight on language instead of the image, `[rows, tokens]`; `None` for models without one.
        self_attention: of Transformers, ln of the weights of each layer over the words so far, -inf for later ones:
            `[real tokens, heads, tokens]` each, row by row, without padding.
        cross_attention: the same over the image regions: `[real tokens, heads, regions]`. A layer that attends to
            several encoder layers has the heads of each.
    """

    layers: tuple[torch.Tensor, ...]
    attention: torch.Tensor | None
    sentinel: torch.Tensor | None = None
    self_attention: tuple[torch.Tensor, ...] = ()
    cross_attention: tuple[torch.Tensor, ...] = ()

    @property
    def hidden(self) -> torch.Tensor:
        """The hidden states of the last layer, from which the words are predicted."""
        return self.layers[-1]


class Captioner(Model):
    """Base of all captioners; see `Model` for the arguments, and for making, saving and loading one.

    Example:
        >>> captioner = Captioner.from_pretrained("runs/scenes-cl-1a2b3c4d")                    # doctest: +SKIP
        >>> memory = captioner.encode(features)                                                 # doctest: +SKIP
        >>> captioner.log_prob(memory, captioner.tokenize(["a red house"]), torch.tensor([0]))  # doctest: +SKIP
    """

    kind = "captioner"

    # --- implemented by each architecture ---------------------------------------------------------------------

    @abstractmethod
    def encode(self, features: torch.Tensor) -> Any:
        """Region features `[images, regions, width]` -> the memory that all captions of these images share."""

    @abstractmethod
    def hidden(self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        """Teacher-forced hidden states `[real tokens, width]`, row by row, without padding; the input of `output`.

        The state of a token depends on the tokens before it, not on the token itself.
        """

    @abstractmethod
    def output(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states -> logits over the vocabulary; those of `<pad>` and `<start>` are -inf."""

    @abstractmethod
    def start(self, memory: Any, image_of_row: torch.Tensor) -> Any:
        """The state before the first word. Give the start token to the first `step`."""

    @abstractmethod
    def step(self, state: Any, token: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Append one token to each row.

        Returns the log probabilities of the next token `[rows, vocabulary]`, which the caller may overwrite, and the
        new state.
        """

    @abstractmethod
    def select(self, state: Any, rows: torch.Tensor) -> Any:
        """The state of these rows, in this order; they share the memory of their images."""

    @abstractmethod
    def traces(self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor) -> Traces:
        """Hidden states and attention maps of teacher-forced captions, with gradient unless it is turned off."""

    # --- shared -----------------------------------------------------------------------------------------------

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

    def word_log_prob(self, hidden: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """ln p of one word for each hidden state, `[rows]` in float32."""
        return -functional.cross_entropy(self.output(hidden).float(), words, reduction="none")

    def log_prob(
        self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor, per_token: bool = False
    ) -> torch.Tensor:
        """ln p(caption | image): the sum over the caption's tokens and its end token, in float32.

        Args:
            memory: from `encode`.
            tokens: from `tokenize`, `[rows, tokens]`.
            image_of_row: the image each row is scored against, `[rows]`.
            per_token: return `[rows, tokens]` (zero at padding) instead of the sum `[rows]`.
        """
        if not len(tokens):  # an empty part of a batch
            return torch.zeros(tokens.shape if per_token else 0, device=tokens.device)
        real = tokens != PAD
        scores = at_tokens(self.word_log_prob(self.hidden(memory, tokens, image_of_row), tokens[real]), real)
        return scores if per_token else scores.sum(dim=1)


def load_captioner(folder: str | Path, overrides: dict[str, Any] | None = None) -> Captioner:
    """Load a captioner from a model folder, a checkpoint or a run folder; see `Model.from_pretrained`."""
    return Captioner.from_pretrained(folder, overrides)


def words_before(tokens: torch.Tensor) -> torch.Tensor:
    """The token before each token: the start token, then the tokens without the last one."""
    return functional.pad(tokens[:, :-1], (1, 0), value=START)


def at_tokens(values: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Put values of real tokens `[M, ...]` at their positions `[rows, tokens, ...]`; zero at padding."""
    full = values.new_zeros(*real.shape, *values.shape[1:])
    full[real] = values
    return full


class PictureNorm(nn.LayerNorm):
    """Layer normalisation of region features, which in training now and then sees no picture.

    So the captioner learns p(caption | no picture) too, which guidance needs (Kornblith et al. 2023, "Guiding image
    captioning models toward more specific captions"). No picture is features of zeros, as in
    `tellapart.decoding.guidance`.

    Args:
        width: of the features.
        picture_dropout: probability that a picture is replaced.
    """

    def __init__(self, width: int, picture_dropout: float) -> None:
        super().__init__(width)
        self.picture_dropout = picture_dropout

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self.training and self.picture_dropout > 0:
            kept = torch.rand(len(input), 1, 1, device=input.device) >= self.picture_dropout
            input = input * kept.to(input.dtype)
        return super().forward(input)


def images_left(image_of_row: torch.Tensor, images: int) -> torch.Tensor | None:
    """The images that still have rows, if a quarter or more have none; else `None`: copying a memory has its cost too.

    >>> images_left(torch.tensor([2, 2, 0]), images=4)
    tensor([0, 2])
    """
    left = torch.bincount(image_of_row, minlength=images).nonzero().squeeze(1)
    return left if 0 < len(left) <= 0.75 * images else None


@dataclass(frozen=True)
class Grouping:
    """Rows grouped by image, so that attention is one batched product per image and regions are never copied.

    Attributes:
        place: position of each row in the flattened `[images, size]`.
        images: number of images.
        size: number of rows in the largest group.
    """

    place: torch.Tensor
    images: int
    size: int

    @classmethod
    def of(cls, image_of_row: torch.Tensor, images: int) -> Grouping:
        order = torch.argsort(image_of_row, stable=True)
        counts = torch.bincount(image_of_row, minlength=images)
        starts = counts.cumsum(0) - counts
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device) - starts[image_of_row[order]]
        size = max(1, int(counts.max())) if len(order) else 1
        return cls(image_of_row * size + place, images, size)

    def group(self, rows: torch.Tensor) -> torch.Tensor:
        """`[rows, n, width]` -> `[images, size * n, width]`; zero where a group has fewer rows."""
        _, length, width = rows.shape
        grid = rows.new_zeros(self.images * self.size, length, width).index_copy(0, self.place, rows)
        return grid.view(self.images, self.size * length, width)

    def ungroup(self, grouped: torch.Tensor) -> torch.Tensor:
        """`[images, size * n, width]` -> `[rows, n, width]`."""
        length = grouped.shape[1] // self.size
        return grouped.reshape(self.images * self.size, length, grouped.shape[-1]).index_select(0, self.place)
