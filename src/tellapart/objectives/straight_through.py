"""Straight-through decoding: whole captions of one-hot words whose gradient goes to the softmax over all words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tellapart.captioners.base import Captioner, at_tokens
from tellapart.objectives.own_captions import sample_tokens
from tellapart.text import END, PAD


@dataclass(frozen=True)
class SpokenCaptions:
    """One generated caption for each image; those without words are left out of `image`, `weights` and `lengths`.

    Attributes:
        tokens: words, end token, padding of all captions, `[images, time]`.
        image: the images whose caption has words, `[rows]`.
        weights: one-hot words `[rows, longest, vocabulary]`, zero at padding; gradients reach the captioner.
        lengths: number of words, `[rows]`.
    """

    tokens: torch.Tensor
    image: torch.Tensor
    weights: torch.Tensor
    lengths: torch.Tensor


class _OneHot(torch.autograd.Function):
    """One-hot words in the forward pass; the gradient goes on to the probabilities unchanged.

    This is one_hot + p − p.detach(), with ones that are exactly 1.
    """

    @staticmethod
    def forward(ctx: Any, probabilities: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(probabilities).scatter_(1, words[:, None], 1.0)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def straight_through(
    captioner: Captioner, memory: Any, images: int, noise: torch.Tensor | None = None, temperature: float = 1.0
) -> SpokenCaptions:
    """Generate a caption for each image, with the straight-through gradient (Bengio et al. 2013).

    ::

        w_t = argmax_w p(w | w_<t, I),    y_t = one_hot(w_t),    ∂L/∂p(·| w_<t, I) := ∂L/∂y_t

    With Gumbel noise g (Jang et al. 2017)::

        w_t = argmax_w (ln p(w | w_<t, I) + g_t),    ∂L/∂softmax((ln p + g_t) / τ) := ∂L/∂y_t

    The words that a caption goes on from are constants: no gradient goes through them. So the words are generated
    without gradient, and one pass of teacher forcing over them gives all probabilities. These equal those of stepping
    only without dropout (`without_dropout`). The end token and what follows it have no effect.

    Args:
        captioner: any captioner, without dropout.
        memory: of the images, from `encode`, with gradient.
        images: number of images.
        noise: g, `[images, max_words, vocabulary]`; by default none.
        temperature: τ, with noise.
    """

    def choose(log_probs: torch.Tensor, rows: torch.Tensor, length: int) -> torch.Tensor:
        return (log_probs if noise is None else log_probs + noise[rows, length]).argmax(dim=1)

    tokens = sample_tokens(captioner, memory, images, 1, choose)[0].squeeze(1)
    is_word = (tokens != PAD) & (tokens != END)
    lengths = is_word.sum(dim=1)
    image = lengths.nonzero().squeeze(1)
    longest = int(lengths.max()) if len(image) else 0
    # A state depends on the words before it, so the end token needs none.
    words = torch.where(is_word, tokens, PAD)[image, :longest]
    if not len(image):
        return SpokenCaptions(tokens, image, torch.zeros(0, 0, len(captioner.vocabulary)), lengths[image])
    scores = captioner.output(captioner.hidden(memory, words, image)).float()
    if noise is not None:
        scores = (scores.log_softmax(dim=1) + noise[image, :longest][words != PAD]) / temperature
    one_hot: torch.Tensor = _OneHot.apply(scores.softmax(dim=1), words[words != PAD])  # type: ignore[no-untyped-call]
    return SpokenCaptions(tokens, image, at_tokens(one_hot, words != PAD), lengths[image])


def gumbel_noise(uniform: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise −ln(−ln u) from uniform noise.

    >>> gumbel_noise(torch.tensor([0.5]))
    tensor([0.3665])
    """
    smallest, largest = torch.finfo(uniform.dtype).tiny, 1 - torch.finfo(uniform.dtype).eps / 2
    return -torch.log(-torch.log(uniform.clamp(smallest, largest)))
