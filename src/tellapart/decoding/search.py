"""Batched beam search. Greedy decoding is a beam of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tellapart.captioners.base import Captioner
from tellapart.data.features import FeatureStore
from tellapart.recipe import DecodingSettings
from tellapart.text import END, START, UNKNOWN

# Images decoded at once.
BLOCK = 64


@dataclass(frozen=True)
class Caption:
    """One generated caption.

    Attributes:
        caption: the words.
        log_prob: ln p(caption | image), with the end token if it ended.
        ended: whether the model itself ended it; otherwise it ran into the length limit.
    """

    caption: str
    log_prob: float
    ended: bool


@torch.no_grad()
def beam_search(captioner: Captioner, features: torch.Tensor, settings: DecodingSettings) -> list[Caption]:
    """The best caption found for each image, by ln p(caption | image).

    All images and beams advance together, one `step` a word; the prefix is never run again. A caption ends when its
    end token is among the image's `beam` best continuations. An image is finished when none of its running captions
    can beat its best ended one (log probabilities only fall).

    Args:
        captioner: any captioner, in eval mode.
        features: `[images, regions, width]`.
        settings: `beam`, `max_words`, `block_unknown`.
    """
    memory = captioner.encode(features)
    images, beam, device = len(features), settings.beam, features.device
    longest = min(settings.max_words, captioner.vocabulary.max_words)  # nothing longer could be scored again
    every = torch.arange(images, device=device)
    state = captioner.start(memory, every.repeat_interleave(beam))
    token = torch.full((images * beam,), START, device=device)
    said = torch.zeros(images, beam, longest, dtype=torch.long, device=device)
    # Beams start equal: all but the first are ruled out until they differ.
    running = torch.full((images, beam), -torch.inf, device=device)
    running[:, 0] = 0.0
    best = torch.full((images,), -torch.inf, device=device)
    best_said = torch.zeros(images, longest, dtype=torch.long, device=device)

    for length in range(longest + 1):
        log_probs, state = captioner.step(state, token)
        if settings.block_unknown:
            log_probs[:, UNKNOWN] = -torch.inf
        scores = (running[:, :, None] + log_probs.view(images, beam, -1)).flatten(1)
        # Each beam has one end token, so 2 * beam candidates always hold `beam` that go on.
        score, chosen = scores.topk(min(2 * beam, scores.shape[1]), dim=1)
        from_beam, word = chosen // log_probs.shape[1], chosen % log_probs.shape[1]

        ending = score[:, :beam].masked_fill(word[:, :beam] != END, -torch.inf)
        ending_score, candidate = ending.max(dim=1)
        better = ending_score > best
        best = torch.where(better, ending_score, best)
        best_said = torch.where(better[:, None], said[every, from_beam[every, candidate]], best_said)
        if length == longest:
            break

        running, going_on = score.masked_fill(word == END, -torch.inf).topk(beam, dim=1)
        from_beam, word = from_beam.gather(1, going_on), word.gather(1, going_on)
        said = said.gather(1, from_beam[:, :, None].expand(-1, -1, longest))
        said[:, :, length] = word
        if bool((best >= running[:, 0]).all()):
            break
        state = captioner.select(state, (every[:, None] * beam + from_beam).flatten())
        token = word.flatten()

    ended = best > -torch.inf
    captions = captioner.detokenize(torch.where(ended[:, None], best_said, said[:, 0]))
    log_prob = torch.where(ended, best, running[:, 0])
    return [Caption(*row) for row in zip(captions, log_prob.tolist(), ended.tolist(), strict=True)]


def decode_rows(
    captioner: Captioner,
    store: FeatureStore,
    rows: Sequence[int],
    settings: DecodingSettings,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Caption]:
    """Captions of these rows of a feature store, a block of images at a time."""
    captions: list[Caption] = []
    for start in range(0, len(rows), BLOCK):
        features = torch.from_numpy(store.grid(rows[start : start + BLOCK])).to(captioner.device)
        captions += beam_search(captioner, features, settings)
        if on_progress is not None:
            on_progress(len(captions), len(rows))
    return captions
