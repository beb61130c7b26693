"""Base of captioners whose next word is chosen by other scores than their own probabilities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from pydantic import BaseModel

from tellapart.captioners.base import Traces, words_before
from tellapart.encoders.base import EncoderIdentity, ImageEncoder
from tellapart.text import PAD, Vocabulary

if TYPE_CHECKING:
    from tellapart.decoding.base import Decodable


class Reweighted(ABC):
    """A captioner with other probabilities of the next word.

    It can replace a captioner in decoding; `log_prob` is that of the new probabilities, and `own_log_prob` that of the
    captioner.

    Args:
        captioner: any captioner or `Ensemble`, in eval mode.
    """

    name: str

    def __init__(self, captioner: Decodable) -> None:
        self.captioner = captioner

    @abstractmethod
    def encode(self, features: torch.Tensor) -> Any:
        """The memory of these images, and of what they are compared with."""

    @abstractmethod
    def own_memory(self, memory: Any) -> Any:
        """The captioner's own memory of the images; more images may follow in it."""

    @abstractmethod
    def start(self, memory: Any, image_of_row: torch.Tensor) -> Any: ...

    @abstractmethod
    def step(self, state: Any, token: torch.Tensor) -> tuple[torch.Tensor, Any]: ...

    @abstractmethod
    def select(self, state: Any, rows: torch.Tensor) -> Any: ...

    def log_prob(
        self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor, per_token: bool = False
    ) -> torch.Tensor:
        """The new ln p(caption | image), word by word: teacher forcing does not give all words' probabilities."""
        state, columns = self.start(memory, image_of_row), []
        for token, word in zip(words_before(tokens).unbind(dim=1), tokens.unbind(dim=1), strict=True):
            log_probs, state = self.step(state, token)
            columns.append(log_probs.gather(1, word[:, None]).squeeze(1))
        scores = torch.stack(columns, dim=1).masked_fill(tokens == PAD, 0.0)
        return scores if per_token else scores.sum(dim=1)

    def own_log_prob(self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        """The captioner's own ln p(caption | image)."""
        return self.captioner.log_prob(self.own_memory(memory), tokens, image_of_row)

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
