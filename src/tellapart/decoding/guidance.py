"""Guidance: at each word, what the picture adds counts more than what is likely without any picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tellapart.decoding.reweighted import Reweighted

if TYPE_CHECKING:
    from tellapart.decoding.base import Decodable


class Guided(Reweighted):
    """A captioner whose next word is chosen by what the picture adds to it.

    Captions that fit any picture are likely without one. Guidance lowers them, without any training: it is the
    classifier-free guidance of image generation (Ho and Salimans 2022), applied to words.

    ::

        s(w) = ln p(w | w_1…w_t₋₁, I) + γ (ln p(w | w_1…w_t₋₁, I) − ln p(w | w_1…w_t₋₁, no picture))
        ln p_γ(w | …) = s(w) − ln Σ_v exp s(v)

    No picture is features of zeros. The mean of the training images looks like a certain picture to a captioner, and
    gives worse captions (docs/decoding.md). With γ = 0 this is the captioner itself.

    It can replace a captioner in decoding; see `Reweighted`.

    Args:
        captioner: any captioner or `Ensemble`, in eval mode.
        guidance: γ.

    Example:
        >>> decode(captioner, features, DecodingSettings(guidance=0.5))   # doctest: +SKIP
    """

    name = "guided"

    def __init__(self, captioner: Decodable, guidance: float) -> None:
        super().__init__(captioner)
        self.guidance = guidance

    # A memory or a state is a pair: of the images, and of no picture.

    def encode(self, features: torch.Tensor) -> tuple[Any, Any]:
        no_picture = features.new_zeros(1, *features.shape[1:])
        return self.captioner.encode(features), self.captioner.encode(no_picture)

    def start(self, memory: tuple[Any, Any], image_of_row: torch.Tensor) -> tuple[Any, Any]:
        first = torch.zeros_like(image_of_row)
        return self.captioner.start(memory[0], image_of_row), self.captioner.start(memory[1], first)

    def step(self, state: tuple[Any, Any], token: torch.Tensor) -> tuple[torch.Tensor, tuple[Any, Any]]:
        (own, of_images), (without, of_none) = (self.captioner.step(part, token) for part in state)
        guided = own + self.guidance * (own - without)
        # What the captioner never says, such as padding, has -inf with and without a picture.
        return guided.masked_fill(own.isneginf(), -torch.inf).log_softmax(dim=1), (of_images, of_none)


def guide(captioner: Decodable, guidance: float) -> Decodable:
    """The captioner with guidance; itself if there is none."""
    return Guided(captioner, guidance) if guidance > 0 else captioner
