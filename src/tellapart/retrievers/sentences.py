"""Recurrent networks over padded rows."""

from __future__ import annotations

import torch
from torch import nn


def run_rnn(rnn: nn.GRU | nn.LSTM, vectors: torch.Tensor, lengths: torch.Tensor, padding: float = 0.0) -> torch.Tensor:
    """States of a batch-first GRU or LSTM, `[rows, items, width]`; `padding` beyond each row's length.

    Args:
        rnn: the network.
        vectors: inputs, `[rows, items, input width]`.
        lengths: number of items in each row, at least 1.
        padding: value to fill in.
    """
    packed = nn.utils.rnn.pack_padded_sequence(vectors, lengths.cpu(), batch_first=True, enforce_sorted=False)
    states, _ = nn.utils.rnn.pad_packed_sequence(
        rnn(packed)[0], batch_first=True, padding_value=padding, total_length=vectors.shape[1]
    )
    return states


def mean_of_directions(states: torch.Tensor) -> torch.Tensor:
    """The mean of both directions of a bidirectional network, `[..., 2 width]` -> `[..., width]`."""
    forwards, backwards = states.chunk(2, dim=-1)
    return (forwards + backwards) / 2


def bigru_states(gru: nn.GRU, vectors: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """States of all words, mean of both directions, `[rows, words, width]`; zero beyond each sentence's length.

    Args:
        gru: bidirectional, batch first.
        vectors: word vectors, `[rows, words, input width]`.
        lengths: number of words in each row; may be 0.
    """
    rows = lengths.nonzero().squeeze(1)
    items = 0 * vectors[..., :1].expand(*vectors.shape[:2], gru.hidden_size)
    if not len(rows):  # torch's GRU needs at least one word
        return items
    states = mean_of_directions(run_rnn(gru, vectors[rows], lengths[rows]))
    return items.to(states.dtype).index_copy(0, rows, states)
