"""A sentence as the states of its words."""

from __future__ import annotations

import torch
from torch import nn


def bigru_states(gru: nn.GRU, vectors: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The states of all words, the mean of both directions, `[rows, words, width]`; zero beyond a sentence's length.

    Args:
        gru: bidirectional, batch first.
        vectors: of the words, `[rows, words, input width]`.
        lengths: words in each row; may be 0.
    """
    rows = lengths.nonzero().squeeze(1)
    items = 0 * vectors[..., :1].expand(*vectors.shape[:2], gru.hidden_size)
    if not len(rows):  # torch's GRU wants at least one word
        return items
    packed = nn.utils.rnn.pack_padded_sequence(
        vectors[rows], lengths[rows].cpu(), batch_first=True, enforce_sorted=False
    )
    states, _ = nn.utils.rnn.pad_packed_sequence(gru(packed)[0], batch_first=True, total_length=vectors.shape[1])
    forwards, backwards = states.chunk(2, dim=-1)
    return items.to(states.dtype).index_copy(0, rows, (forwards + backwards) / 2)
