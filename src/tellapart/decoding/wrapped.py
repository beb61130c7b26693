"""What stands in for a captioner in decoding and scoring, and is the captioner in everything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from pydantic import BaseModel

from tellapart.captioners.base import Traces
from tellapart.encoders.base import EncoderIdentity, ImageEncoder
from tellapart.text import Vocabulary

if TYPE_CHECKING:
    from tellapart.decoding.base import Decodable


class Wrapped:
    """Base of `Guided` and `BothViews`; a memory is a pair, and the first of it is the captioner's own.

    Args:
        captioner: any captioner or `Ensemble`, in eval mode.
    """

    def __init__(self, captioner: Decodable) -> None:
        self.captioner = captioner

    def select(self, state: tuple[Any, Any], rows: torch.Tensor) -> tuple[Any, Any]:
        return self.captioner.select(state[0], rows), self.captioner.select(state[1], rows)

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

    def traces(self, memory: tuple[Any, Any], tokens: torch.Tensor, image_of_row: torch.Tensor) -> Traces:
        return self.captioner.traces(memory[0], tokens, image_of_row)
