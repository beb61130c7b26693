"""What may not be said: one rule for all ways of decoding."""

from __future__ import annotations

import torch

from tellapart.decoding.settings import DecodingSettings
from tellapart.text import END, UNKNOWN


def forbid(log_probs: torch.Tensor, before: torch.Tensor, words: int, settings: DecodingSettings) -> torch.Tensor:
    """Set to -inf what the settings rule out; everything else stays the model's own ln p.

    The rows just came from `step` and belong to the caller, so they are written in place: a copy would be one more
    pass over the vocabulary for every word.

    Args:
        log_probs: `[rows, vocabulary]`, changed in place.
        before: the last token of each row, `[rows]`.
        words: how many words every row has said.
        settings: `block_unknown`, `block_repeats`, `min_words`.

    Example:
        >>> rows = torch.zeros(1, 6)
        >>> forbid(rows, torch.tensor([5]), 1, DecodingSettings(min_words=2, block_repeats=True))
        tensor([[0., 0., -inf, -inf, 0., -inf]])
    """
    if settings.block_unknown:
        log_probs[:, UNKNOWN] = -torch.inf
    if settings.block_repeats:
        log_probs.scatter_(1, before[:, None], -torch.inf)
    if words < settings.min_words:
        log_probs[:, END] = -torch.inf
    return log_probs
