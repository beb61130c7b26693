"""What stands in for a captioner in decoding and scoring, and is the captioner in everything else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from pydantic import BaseModel

from tellapart.captioners.base import Traces
from tellapart.encoders.base import EncoderIdentity, ImageEncoder
from tellapart.text import Vocabulary

if TYPE_CHECKING:
    from tellapart.decoding.base import Decodable


class Wrapped(ABC):
    """Base of `BothViews` and of `Reweighted`.

    A memory and a state are pairs, and the first of a memory is the captioner's own, unless a subclass has others.

    Args:
        captioner: any captioner or `Ensemble`, in eval mode.
    """

    name: str

    def __init__(self, captioner: Decodable) -> None:
        self.captioner = captioner

    @abstractmethod
    def encode(self, features: torch.Tensor) -> Any:
        """The memory of these images, and of what they are read or compared with."""

    def own_memory(self, memory: Any) -> Any:
        """The captioner's own memory of the images; more images may follow in it."""
        return memory[0]

    @abstractmethod
    def start(self, memory: Any, image_of_row: torch.Tensor) -> Any: ...

    @abstractmethod
    def step(self, state: Any, token: torch.Tensor) -> tuple[torch.Tensor, Any]: ...

    def select(self, state: Any, rows: torch.Tensor) -> Any:
        return self.captioner.select(state[0], rows), self.captioner.select(state[1], rows)

    @abstractmethod
    def log_prob(
        self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor, per_token: bool = False
    ) -> torch.Tensor:
        """ln p(caption | image) by the probabilities of `step`; see `Captioner.log_prob`."""

    # --- as the captioner ---------------------------------------------------------------------------------------------

    @property
    def settings(self) -> BaseModel:
        return self.captioner.settings

    @property
    def vocabulary(self) -> Vocabulary:
        return self.captioner.vocabulary

    @property
    def encoder(self) -> EncoderIdentity:
        return self.captioner.encoder

    @property
    def device(self) -> torch.device:
        return self.captioner.device

    def tokenize(self, captions: Sequence[str]) -> torch.Tensor:
        return self.captioner.tokenize(captions)

    def detokenize(self, tokens: torch.Tensor) -> list[str]:
        return self.captioner.detokenize(tokens)

    def state_dict(self) -> dict[str, Any]:
        return self.captioner.state_dict()

    def open_encoder(self, device: str | None = None) -> ImageEncoder:
        return self.captioner.open_encoder(device)

    def traces(self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor) -> Traces:
        return self.captioner.traces(self.own_memory(memory), tokens, image_of_row)
