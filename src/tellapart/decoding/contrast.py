"""Contrast while decoding: a word counts by how much likelier it is for this picture than for its distractors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tellapart.decoding.reweighted import Reweighted

if TYPE_CHECKING:
    from tellapart.decoding.base import Decodable

# Taken from the score of an implausible word. It stays possible, since the settings may forbid all others.
IMPLAUSIBLE = 100.0


@dataclass(frozen=True)
class ContrastMemory:
    """The captioner's memory of the images and then of all distractors.

    Attributes:
        own: the captioner's memory.
        pictures: `[images, 1 + distractors]`, places in it: of the image itself, then of its distractors.
        log_weights: `[images, distractors]`, ln (1 / number of distractors); -inf for empty places.
    """

    own: Any
    pictures: torch.Tensor
    log_weights: torch.Tensor


@dataclass(frozen=True)
class ContrastState:
    """The captioner's state of all rows, with the image of each row first and then its distractors."""

    own: Any
    log_weights: torch.Tensor


class Contrasted(Reweighted):
    """A captioner whose next word is likely for this picture and unlikely for similar ones.

    The emitter–suppressor beam search of Vedantam et al. (2017), "Context-aware captions from context-agnostic
    supervision". With the distractors I_1…I_D of an image I::

        s(w) = ln p(w | w_1…w_t₋₁, I) − λ ln (1/D Σ_j p(w | w_1…w_t₋₁, I_j))
        ln p_λ(w | …) = s(w) − ln Σ_v exp s(v)

    A word that is very unlikely for all pictures would gain most. So only plausible words take part (Li et al. 2023,
    "Contrastive decoding"): those with p(w | …, I) ≥ α max_v p(v | …, I). With λ = 0, or for an image without
    distractors, this is the captioner itself. Training is not needed.

    The image and all its distractors are rows of one batch: a step costs 1 + D rows for each caption.

    It can replace a captioner in decoding; see `Reweighted`.

    Args:
        captioner: any captioner, `Ensemble` or `Guided`, in eval mode.
        context: features of the distractors, `[pictures, regions, width]`.
        distractors: of each image that is decoded, the places of its distractors in `context`; may be empty.
        strength: λ.
        plausibility: α.

    Example:
        >>> contrasted = Contrasted(captioner, features, [[1, 2], [0, 2], [0, 1]], 0.5)   # doctest: +SKIP
        >>> n_best(contrasted, features, DecodingSettings(beam=5, samples=5))             # doctest: +SKIP
    """

    name = "contrasted"

    def __init__(
        self,
        captioner: Decodable,
        context: torch.Tensor,
        distractors: Sequence[Sequence[int]],
        strength: float,
        plausibility: float = 0.1,
    ) -> None:
        super().__init__(captioner)
        self.context = context
        self.distractors = distractors
        self.strength = strength
        self.plausibility = plausibility

    def encode(self, features: torch.Tensor) -> ContrastMemory:
        images, most = len(features), max(map(len, self.distractors), default=0)
        if images != len(self.distractors):
            raise ValueError(f"{images} images and distractors of {len(self.distractors)}: they must be as many")
        # Empty places hold the image itself, with no weight.
        rows = [[image, *(images + place for place in own)] for image, own in enumerate(self.distractors)]
        pictures = [row + [row[0]] * (1 + most - len(row)) for row in rows]
        weights = [[-math.log(len(own) or 1)] * len(own) + [-math.inf] * (most - len(own)) for own in self.distractors]
        both = torch.cat([features, self.context.to(features)]) if most else features
        return ContrastMemory(
            self.captioner.encode(both),
            torch.tensor(pictures, dtype=torch.long, device=features.device).view(images, 1 + most),
            torch.tensor(weights, device=features.device).view(images, most),
        )

    def own_memory(self, memory: ContrastMemory) -> Any:
        return memory.own

    def start(self, memory: ContrastMemory, image_of_row: torch.Tensor) -> ContrastState:
        rows = self.captioner.start(memory.own, memory.pictures[image_of_row].flatten())
        return ContrastState(rows, memory.log_weights[image_of_row])

    def step(self, state: ContrastState, token: torch.Tensor) -> tuple[torch.Tensor, ContrastState]:
        rows, most = state.log_weights.shape
        log_probs, own = self.captioner.step(state.own, token.repeat_interleave(1 + most))
        log_probs = log_probs.view(rows, 1 + most, -1)
        scores = self._contrast(log_probs[:, 0], log_probs[:, 1:], state.log_weights)
        return scores, ContrastState(own, state.log_weights)

    def _contrast(self, own: torch.Tensor, others: torch.Tensor, log_weights: torch.Tensor) -> torch.Tensor:
        """ln p_λ of all words, from those of the image `[rows, words]` and of its distractors `[rows, D, words]`."""
        if self.strength == 0 or not others.shape[1]:
            return own.clone()
        suppressor = (others + log_weights[..., None]).logsumexp(dim=1)
        scores = own - self.strength * suppressor
        if self.plausibility > 0:
            least = own.amax(dim=1, keepdim=True) + math.log(self.plausibility)
            scores = torch.where(own < least, own - IMPLAUSIBLE, scores)
        # What the captioner never says, such as padding, has -inf for every picture.
        scores = scores.masked_fill(own.isneginf(), -torch.inf).log_softmax(dim=1)
        alone = log_weights.isneginf().all(dim=1, keepdim=True)
        return torch.where(alone, own, scores)

    def select(self, state: ContrastState, rows: torch.Tensor) -> ContrastState:
        places = 1 + state.log_weights.shape[1]
        each = (rows[:, None] * places + torch.arange(places, device=rows.device)).flatten()
        return ContrastState(self.captioner.select(state.own, each), state.log_weights[rows])
