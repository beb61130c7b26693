"""A captioner's own captions in a training step: generated word by word, without dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from tellapart.decoding.base import Decodable
from tellapart.decoding.settings import DecodingSettings
from tellapart.text import END, PAD, START

PLAIN_SAMPLING = DecodingSettings()  # words are drawn from p itself

# (ln p of the next word `[rows, words]`, rows, length so far) -> the next word of each row.
Choose = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


@torch.no_grad()
def sample_tokens(
    captioner: Decodable, memory: Any, images: int, samples: int, choose: Choose
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generate captions word by word: tokens `[images, samples, time]`, and which of them were chosen.

    All captions advance together, one `step` for each word; captions that have ended leave the batch. A caption of
    `max_words` words is over: its end token is there, as in any token row, but it was not chosen.

    Args:
        captioner: in eval mode.
        memory: of the images, from `encode`.
        images: number of images.
        samples: captions of each image.
        choose: gives the next word of each row.
    """
    limit, device = captioner.vocabulary.max_words, captioner.device
    image = torch.arange(images, device=device)
    tokens = torch.full((images * samples, limit + 1), PAD, device=device)
    # The captions of an image share its first step.
    token = torch.full((images,), START, device=device)
    log_probs, state = captioner.step(captioner.start(memory, image), token)
    image = image.repeat_interleave(samples)
    log_probs, state = log_probs[image], captioner.select(state, image)
    running = torch.arange(len(image), device=device)
    for length in range(limit):
        if length > 0:
            log_probs, state = captioner.step(state, token)
        token = choose(log_probs, running, length)
        tokens[running, length] = token
        still = (token != END).nonzero().squeeze(1)
        running, token, state = running[still], token[still], captioner.select(state, still)
        if not len(running):
            break
    tokens[running, limit] = END
    scored = tokens != PAD
    scored[:, limit] = False
    return tokens.view(images, samples, -1), scored.view(images, samples, -1)


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """The model in eval mode, for a forward pass that may need gradients."""
    training = model.training
    model.eval()
    try:
        with backward_in_eval_mode(model):
            yield
    finally:
        model.train(training)


@contextmanager
def backward_in_eval_mode(model: nn.Module) -> Iterator[None]:
    """For a forward pass in eval mode with gradients: cuDNN's LSTM has no backward pass in this mode."""
    cuda = any(parameter.is_cuda for parameter in model.parameters())
    with torch.backends.cudnn.flags(enabled=False) if cuda and torch.is_grad_enabled() else nullcontext():
        yield
