"""Tokens that the decoding settings forbid."""

from __future__ import annotations

import torch

from tellapart.decoding.settings import DecodingSettings
from tellapart.errors import RunError
from tellapart.text import END, UNKNOWN


def forbid(log_probs: torch.Tensor, before: torch.Tensor, words: int, settings: DecodingSettings) -> torch.Tensor:
    """Set the log probabilities of forbidden tokens to -inf, in place.

    Args:
        log_probs: `[rows, vocabulary]`.
        before: the last token of each row, `[rows]`.
        words: number of words in each row so far.
        settings: `block_unknown`, `block_repeats`, `min_words`.

    Example:
        >>> rows = torch.zeros(1, 6)
        >>> forbid(rows, torch.tensor([5]), 1, DecodingSettings(min_words=2, block_repeats=True))
        tensor([[0., 0., -inf, -inf, 0., -inf]])
    """
    if words == 0 and bool(log_probs.isnan().any()):
        raise RunError(
            "the captioner gives NaN instead of probabilities: its training diverged; use another checkpoint"
        )
    if settings.block_unknown:
        log_probs[:, UNKNOWN] = -torch.inf
    if settings.block_repeats:
        log_probs.scatter_(1, before[:, None], -torch.inf)
    if words < settings.min_words:
        log_probs[:, END] = -torch.inf
    return log_probs
