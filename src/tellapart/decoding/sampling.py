"""Ancestral sampling: every word is drawn from p(word | words before, image)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tellapart.decoding.base import Caption, Decodable, Found, make_captions, most_words
from tellapart.decoding.constraints import forbid
from tellapart.decoding.settings import DecodingSettings
from tellapart.errors import RecipeError
from tellapart.text import END, PAD, START


@torch.no_grad()
def sample(
    captioner: Decodable, features: torch.Tensor, settings: DecodingSettings, numbers: Sequence[int] | None = None
) -> list[list[Caption]]:
    """Captions drawn from the model, `settings.samples` for each image, independent of each other.

    All captions of all images advance together, one `step` a word; those that have ended leave the batch. `log_prob`
    is the model's own ln p of what was drawn, not that of the sharpened or cut distribution it was drawn from. After
    `max_words` words a caption may still end; one that does not is cut.

    Chance comes as one number for each word, from a generator of the image's own, seeded by (seed, number): an image's
    samples depend neither on the other images nor on where it stands among them.

    Args:
        captioner: any captioner or `Ensemble`, in eval mode.
        features: `[images, regions, width]`.
        settings: `samples`, `temperature`, `top_k`, `top_p`, `seed` and the limits on what is said.
        numbers: what names each image; by default its place in `features`.
    """
    images, longest, device = len(features), most_words(captioner, settings), features.device
    numbers = range(images) if numbers is None else numbers
    chance = torch.from_numpy(_chance(settings, numbers, longest + 1)).to(device)
    memory = captioner.encode(features)
    image = torch.arange(images, device=device).repeat_interleave(settings.samples)
    said = torch.full((len(image), longest), PAD, device=device)
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
        forbid(log_probs, token, length, settings)
        token = draw(log_probs, chance[running, length], settings)
        gained = log_probs.gather(1, token[:, None]).squeeze(1)
        if not bool(gained.isfinite().all()):
            raise RecipeError(
                f"decoding: no word may follow the first {length}; lower min_words or allow repeats and unknown words"
            )
        ends = token == END
        ended[running] = ends
        if length == longest:
            gained = gained * ends  # a word beyond the limit is not said
        log_prob[running] += gained
        running, going_on = running[~ends], (~ends).nonzero().squeeze(1)
        if length == longest or not len(running):
            break
        token = token[going_on]
        said[running, length] = token
        state = captioner.select(state, going_on)
    rank = torch.arange(settings.samples, device=device).repeat(images)
    return make_captions(captioner, memory, images, Found(image, rank, said, log_prob, ended), settings)


def draw(log_probs: torch.Tensor, chance: torch.Tensor, settings: DecodingSettings) -> torch.Tensor:
    """A word for each row: the one at which the distribution's running sum passes `chance`.

    The distribution is p^(1 / temperature), normalised; of it the `top_k` likeliest words; of these, normalised, the
    fewest likeliest whose mass reaches `top_p` (nucleus sampling, Holtzman et al. 2020).

    Args:
        log_probs: `[rows, vocabulary]`, -inf for what is ruled out.
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
        # A word stays if those before it do not reach the mass yet; so the first one always does.
        weights = weights * (reached - weights < settings.top_p * reached[:, -1:])
        reached = weights.cumsum(dim=1)
    # Rounding must not carry the goal past the last word that has any weight.
    goal = chance.clamp(max=1 - torch.finfo(reached.dtype).eps) * reached[:, -1]
    place = torch.searchsorted(reached, goal[:, None], right=True).clamp(max=weights.shape[1] - 1)
    return (place if word is None else word.gather(1, place)).squeeze(1)


def _chance(settings: DecodingSettings, numbers: Sequence[int], steps: int) -> np.ndarray:
    """Uniform numbers `[images * samples, steps]`, each image's from its own generator."""
    drawn = [
        np.random.default_rng((settings.seed, number)).random((settings.samples, steps), dtype=np.float32)
        for number in numbers
    ]
    return np.concatenate(drawn) if drawn else np.zeros((0, steps), dtype=np.float32)
