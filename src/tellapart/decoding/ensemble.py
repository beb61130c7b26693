"""Ensembles of captioners: the mean of their word probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tellapart.captioners.base import Captioner, Traces
from tellapart.encoders.base import EncoderIdentity, ImageEncoder
from tellapart.errors import RecipeError
from tellapart.settings import Section
from tellapart.text import Vocabulary


class EnsembleSettings(Section):
    """The members of an ensemble with their settings."""

    members: tuple[dict[str, Any], ...]


class Ensemble(nn.Module):
    """The mean of several captioners' probabilities, word by word.

    It can replace a captioner in decoding, in scoring, as a frozen reference and as a judge.

    ::

        p(w | w_1…w_t₋₁, I) = 1/M Σ_m p_m(w | w_1…w_t₋₁, I)

    Args:
        captioners: at least one, with the same vocabulary and image features, in eval mode.

    Example:
        >>> both = Ensemble([load_captioner("runs/one"), load_captioner("runs/two")])   # doctest: +SKIP
        >>> beam_search(both, features, DecodingSettings(beam=5))                       # doctest: +SKIP
    """

    def __init__(self, captioners: Sequence[Captioner]) -> None:
        if not captioners:
            raise RecipeError("an ensemble needs at least one captioner; give a model")
        super().__init__()
        self.captioners: Sequence[Captioner] = nn.ModuleList(captioners)  # type: ignore[assignment]
        first = captioners[0]
        for number, other in enumerate(captioners[1:], start=2):
            _check_vocabulary(first.vocabulary, other.vocabulary, number)
            if other.encoder != first.encoder:
                raise RecipeError(
                    f"ensemble: captioner {number} reads features of {other.encoder.name}, the first reads "
                    f"{first.encoder.name} (or another version of it); use captioners trained on the same features"
                )

    kind = "captioner"
    name = "ensemble"

    @property
    def settings(self) -> EnsembleSettings:
        members = tuple({"name": one.name, **one.settings.model_dump(mode="json")} for one in self.captioners)
        return EnsembleSettings(members=members)

    @property
    def vocabulary(self) -> Vocabulary:
        return self.captioners[0].vocabulary

    @property
    def encoder(self) -> EncoderIdentity:
        return self.captioners[0].encoder

    @property
    def device(self) -> torch.device:
        return self.captioners[0].device

    def open_encoder(self, device: str | None = None) -> ImageEncoder:
        return self.captioners[0].open_encoder(device)

    def tokenize(self, captions: Sequence[str]) -> torch.Tensor:
        return self.captioners[0].tokenize(captions)

    def detokenize(self, tokens: torch.Tensor) -> list[str]:
        return self.captioners[0].detokenize(tokens)

    def encode(self, features: torch.Tensor) -> list[Any]:
        return [captioner.encode(features) for captioner in self.captioners]

    def start(self, memory: list[Any], image_of_row: torch.Tensor) -> list[Any]:
        return [one.start(own, image_of_row) for one, own in zip(self.captioners, memory, strict=True)]

    def step(self, state: list[Any], token: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
        log_probs, states = zip(
            *(one.step(own, token) for one, own in zip(self.captioners, state, strict=True)), strict=True
        )
        return mean_log_prob(log_probs), list(states)

    def select(self, state: list[Any], rows: torch.Tensor) -> list[Any]:
        return [one.select(own, rows) for one, own in zip(self.captioners, state, strict=True)]

    def log_prob(
        self, memory: list[Any], tokens: torch.Tensor, image_of_row: torch.Tensor, per_token: bool = False
    ) -> torch.Tensor:
        """ln p(caption | image) under the mean probability of each word; see `Captioner.log_prob`."""
        scores = mean_log_prob(
            [
                one.log_prob(own, tokens, image_of_row, per_token=True)
                for one, own in zip(self.captioners, memory, strict=True)
            ]
        )
        return scores if per_token else scores.sum(dim=1)

    def traces(self, memory: list[Any], tokens: torch.Tensor, image_of_row: torch.Tensor) -> Traces:
        """The layers of all members, and the mean of their attention maps, if any."""
        traces = [one.traces(own, tokens, image_of_row) for one, own in zip(self.captioners, memory, strict=True)]
        maps = [one.attention for one in traces if one.attention is not None]
        layers = tuple(layer for one in traces for layer in one.layers)
        return Traces(layers, torch.stack(maps).mean(dim=0) if maps else None)


def mean_log_prob(log_probs: Sequence[torch.Tensor]) -> torch.Tensor:
    """ln of the mean probability."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack(list(log_probs)).logsumexp(dim=0) - math.log(len(log_probs))


def _check_vocabulary(first: Vocabulary, other: Vocabulary, number: int) -> None:
    if other.tokens == first.tokens:
        if (other.normaliser, other.max_words) == (first.normaliser, first.max_words):
            return
        different = (
            f"splits sentences by '{other.normaliser}' up to {other.max_words} words, "
            f"the first by '{first.normaliser}' up to {first.max_words}"
        )
    else:
        places = range(min(len(first), len(other)))
        place = next((row for row in places if first.tokens[row] != other.tokens[row]), len(places))
        words = [vocabulary.tokens[place : place + 1] for vocabulary in (first, other)]
        shown = [repr(found[0]) if found else "nothing" for found in words]
        different = f"has {shown[1]} where the first has {shown[0]} (word {place} of {len(other)} and {len(first)})"
    raise RecipeError(
        f"ensemble: captioner {number} {different}; an ensemble needs one vocabulary; use captioners trained on the "
        "same data with the same text settings"
    )
