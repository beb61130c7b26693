"""Tokens that the decoding settings forbid."""

from __future__ import annotations

import torch

from tellapart.decoding.settings import DecodingSettings
from tellapart.errors import RunError
from tellapart.text import END, UNKNOWN


def forbid(
    log_probs: torch.Tensor, before: torch.Tensor, said: torch.Tensor, settings: DecodingSettings
) -> torch.Tensor:
    """Set the log probabilities of forbidden tokens to -inf, in place.

    Args:
        log_probs: `[rows, vocabulary]`.
        before: the last token of each row, `[rows]`.
        said: the words of each row so far, `[rows, words]`.
        settings: `block_unknown`, `block_repeats`, `block_pairs`, `min_words`.

    Example:
        >>> rows, said = torch.zeros(1, 6), torch.tensor([[5]])
        >>> forbid(rows, said[:, -1], said, DecodingSettings(min_words=2, block_repeats=True))
        tensor([[0., 0., -inf, -inf, 0., -inf]])
    """
    words = said.shape[1]
    if words == 0 and bool(log_probs.isnan().any()):
        raise RunError(
            "the captioner gives NaN instead of probabilities: its training diverged; use another checkpoint"
        )
    if settings.block_unknown:
        log_probs[:, UNKNOWN] = -torch.inf
    if settings.block_repeats:
        log_probs.scatter_(1, before[:, None], -torch.inf)
    if settings.block_pairs and words > 1:
        row, place = (said[:, :-1] == before[:, None]).nonzero(as_tuple=True)
        log_probs[row, said[row, place + 1]] = -torch.inf
    if words < settings.min_words:
        log_probs[:, END] = -torch.inf
    return log_probs
