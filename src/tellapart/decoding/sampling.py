"""Ancestral sampling: each word is drawn from p(word | words before, image)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tellapart.captioners.packed import unchanging_weights
from tellapart.decoding.base import Caption, Decodable, Decoded, length_limit, make_captions
from tellapart.decoding.constraints import forbid
from tellapart.decoding.guidance import guide
from tellapart.decoding.settings import DecodingSettings
from tellapart.errors import RecipeError
from tellapart.text import END, PAD, START


@torch.no_grad()
@unchanging_weights()
def sample(
    captioner: Decodable, features: torch.Tensor, settings: DecodingSettings, numbers: Sequence[int] | None = None
) -> list[list[Caption]]:
    """Draw `settings.samples` independent captions of each image.

    All captions of all images advance together, one `step` for each word; captions that have ended leave the batch.
    `log_prob` is the model's ln p, without temperature, `top_k`, `top_p` and guidance. After `max_words` words a
    caption may still end; otherwise it is cut.

    Each image has its own random generator, seeded by (seed, number), so its samples are independent of batch
    composition.

    Args:
        captioner: any captioner or `Ensemble`, in eval mode.
        features: `[images, regions, width]`.
        settings: `samples`, `temperature`, `top_k`, `top_p`, `seed`, `guidance` and the limits on words.
        numbers: seed of each image; by default its index in `features`.
    """
    captioner = guide(captioner, settings.guidance)
    images, longest, device = len(features), length_limit(captioner, settings), features.device
    numbers = range(images) if numbers is None else numbers
    chance = torch.from_numpy(_uniform(settings, numbers, longest + 1)).to(device)
    memory = captioner.encode(features)
    image = torch.arange(images, device=device).repeat_interleave(settings.samples)
    words = torch.full((len(image), longest), PAD, device=device)
    log_prob = torch.zeros(len(image), device=device)
    ended = torch.zeros(len(image), dtype=torch.bool, device=device)

    # The captions of an image share its first step.
    token = torch.full((images,), START, device=device)
    log_probs, state = captioner.step(captioner.start(memory, torch.arange(images, device=device)), token)
    log_probs, state, token = log_probs[image], captioner.select(state, image), token[image]
    running = torch.arange(len(image), device=device)
    for length in range(longest + 1):
        if length > 0:
            log_probs, state = captioner.step(state, token)
        forbid(log_probs, token, words[running, :length], settings)
        token = draw(log_probs, chance[running, length], settings)
        gained = log_probs.gather(1, token[:, None]).squeeze(1)
        if not bool(gained.isfinite().all()):
            raise RecipeError(
                f"decoding: no word may follow the first {length}; lower min_words or allow repeats and unknown words"
            )
        ends = token == END
        ended[running] = ends
        if length == longest:
            gained = gained * ends  # a word beyond the limit does not count
        log_prob[running] += gained
        running, unfinished = running[~ends], (~ends).nonzero().squeeze(1)
        if length == longest or not len(running):
            break
        token = token[unfinished]
        words[running, length] = token
        state = captioner.select(state, unfinished)
    rank = torch.arange(settings.samples, device=device).repeat(images)
    return make_captions(captioner, memory, images, Decoded(image, rank, words, log_prob, ended), settings)


def draw(log_probs: torch.Tensor, chance: torch.Tensor, settings: DecodingSettings) -> torch.Tensor:
    """Draw a word for each row: the one at which the cumulative distribution passes `chance`.

    The distribution is p^(1 / temperature), normalised. `top_k` keeps its likeliest words; `top_p` keeps the fewest
    likeliest words whose normalised mass reaches it (nucleus sampling, Holtzman et al. 2020).

    Args:
        log_probs: `[rows, vocabulary]`, -inf for forbidden words.
        chance: `[rows]`, uniform in [0, 1).
        settings: `temperature`, `top_k`, `top_p`.

    Example:
        >>> rows = torch.tensor([[0.1, 0.6, 0.3]]).log().expand(3, 3)
        >>> draw(rows, torch.tensor([0.05, 0.69, 0.71]), DecodingSettings())
        tensor([0, 1, 2])
        >>> draw(rows, torch.tensor([0.05, 0.66, 0.67]), DecodingSettings(method="sample", top_p=0.7))
        tensor([1, 1, 2])
    """
    if settings.temperature != 1:
        log_probs = log_probs / settings.temperature
    weights = log_probs.softmax(dim=1)
    word = None
    if settings.top_k is not None or settings.top_p is not None:
        weights, word = weights.topk(min(settings.top_k or weights.shape[1], weights.shape[1]), dim=1)
    reached = weights.cumsum(dim=1)
    if settings.top_p is not None:
        # A word is kept if the likelier ones do not reach the mass; the first is always kept.
        weights = weights * (reached - weights < settings.top_p * reached[:, -1:])
        reached = weights.cumsum(dim=1)
    # Rounding must not move the goal past the last word with weight.
    goal = chance.clamp(max=1 - torch.finfo(reached.dtype).eps) * reached[:, -1]
    place = torch.searchsorted(reached, goal[:, None], right=True).clamp(max=weights.shape[1] - 1)
    return (place if word is None else word.gather(1, place)).squeeze(1)


def _uniform(settings: DecodingSettings, numbers: Sequence[int], steps: int) -> np.ndarray:
    """Uniform random numbers `[images * samples, steps]`, from one generator for each image."""
    drawn = [
        np.random.default_rng((settings.seed, number)).random((settings.samples, steps), dtype=np.float32)
        for number in numbers
    ]
    return np.concatenate(drawn) if drawn else np.zeros((0, steps), dtype=np.float32)
