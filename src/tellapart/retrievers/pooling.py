"""From a set of region or word vectors to one vector: mean, maximum, and generalized pooling (GPO, Chen et al. 2021).

A mask `[rows, items]` says which items are there; it need not be a prefix. What is masked never changes a value, nor do
the other rows of a batch. A row without any item gives zeros.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from tellapart.text import END, PAD, SPECIALS, START, UNKNOWN


def mean_pool(items: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean of each row's items, `[rows, width]`.

    >>> mean_pool(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]]))
    tensor([[2.]])
    """
    total = items.masked_fill(~mask[..., None], 0.0).sum(dim=1)
    return total / mask.sum(dim=1, keepdim=True).clamp(min=1)


def max_pool(items: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The largest value of each row's items in every dimension, `[rows, width]`.

    >>> max_pool(torch.tensor([[[-1.0], [-3.0], [9.0]]]), torch.tensor([[True, True, False]]))
    tensor([[-1.]])
    """
    if not items.shape[1]:  # torch has no maximum of nothing
        return items.sum(dim=1)
    largest = items.masked_fill(~mask[..., None], -torch.inf).amax(dim=1)
    return largest.masked_fill(~mask.any(dim=1, keepdim=True), 0.0)


def position_encodings(count: int, width: int, device: torch.device | None = None) -> torch.Tensor:
    """Sines and cosines of positions 0, 1, …: `[count, width]`, as in the Transformer; `width` is even.

    >>> position_encodings(2, 2)
    tensor([[0.0000, 1.0000],
            [0.8415, 0.5403]])
    """
    position = torch.arange(count, dtype=torch.float32, device=device)[:, None]
    pairs = torch.arange(0, width, 2, dtype=torch.float32, device=device)
    angle = position * torch.exp(pairs * (-math.log(10000.0) / width))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


def sort_items(items: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Each dimension's values by themselves, largest first, `[rows, items, width]`; zero beyond a row's items.

    >>> sort_items(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]])).flatten()
    tensor([3., 1., 0.])
    """
    # Masked twice: below everything for the sort, then zero, for −∞ times a weight of zero is not zero.
    ordered = items.masked_fill(~mask[..., None], -torch.inf).sort(dim=1, descending=True).values
    absent = torch.arange(items.shape[1], device=items.device) >= mask.sum(dim=1)[:, None]
    return ordered.masked_fill(absent[..., None], 0.0)


class GeneralizedPooling(nn.Module):
    """Learned weights over sorted values (GPO): in every dimension, the k-th largest value has the weight θ_k.

    ::

        v_d = Σ_k θ_k · max_k({o_ld}),   θ = softmax(W · BiGRU(p_1 … p_L) / τ),   p_k the encoding of position k

    The mean (θ equal) and the maximum (θ_1 = 1) are cases of it. The weights depend on nothing but the number L of
    items: they are made once for each number that occurs in a batch. Both directions of the GRU are averaged.

    Args:
        position_width: of the position encodings; even.
        hidden: of the GRU, in each direction.
        temperature: τ of the softmax; 0.1 in the authors' code.

    Example:
        >>> pooling = GeneralizedPooling()
        >>> pooling(torch.randn(2, 3, 8), torch.tensor([[True, True, True], [True, False, True]])).shape
        torch.Size([2, 8])
    """

    def __init__(self, position_width: int = 32, hidden: int = 32, temperature: float = 0.1) -> None:
        super().__init__()
        if position_width % 2:
            raise ValueError(f"position_width is {position_width}; it must be even, half sines and half cosines")
        self.position_width = position_width
        self.temperature = temperature
        self.gru = nn.GRU(position_width, hidden, batch_first=True, bidirectional=True)
        self.score = nn.Linear(hidden, 1, bias=False)

    def weights(self, counts: torch.Tensor, longest: int) -> torch.Tensor:
        """θ for rows of these many items `[rows]`: `[rows, longest]`, zero beyond a row's items; in float32.

        Args:
            counts: from 0 to `longest`.
            longest: the number of columns.
        """
        distinct, row = torch.unique(counts, return_inverse=True)
        # A GRU needs at least one position; the weights of no items are zero in any case.
        sizes = distinct.clamp(min=1)
        positions = position_encodings(longest, self.position_width, counts.device).to(self.score.weight.dtype)
        packed = nn.utils.rnn.pack_padded_sequence(
            positions.expand(len(sizes), -1, -1), sizes.cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=longest)
        forwards, backwards = states.chunk(2, dim=-1)
        score = self.score((forwards + backwards) / 2).squeeze(-1).float() / self.temperature
        place = torch.arange(longest, device=counts.device)
        theta: torch.Tensor = score.masked_fill(place >= sizes[:, None], -torch.inf).softmax(dim=1)
        return theta.masked_fill(place >= distinct[:, None], 0.0)[row]

    def forward(self, items: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """One vector per row, `[rows, width]`.

        Args:
            items: `[rows, items, width]`.
            mask: which items are there, `[rows, items]`.
        """
        return self.combine(sort_items(items, mask), mask.sum(dim=1))

    def combine(self, ordered: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """The same from items that are sorted already, so that several poolings share one sort.

        Args:
            ordered: from `sort_items`, `[rows, items, width]`.
            counts: how many items each row has, `[rows]`.
        """
        if not ordered.shape[:2].numel():  # an empty share of a batch
            return ordered.sum(dim=1)
        theta = self.weights(counts, ordered.shape[1]).to(ordered.dtype)
        return torch.einsum("rk,rkd->rd", theta, ordered)


def drop_regions(mask: torch.Tensor, share: float = 0.2, generator: torch.Generator | None = None) -> torch.Tensor:
    """The mask of a training step: each item is left out with probability `share`; at least one of a row stays.

    Sets of many sizes teach GPO weights for all of them.

    Args:
        mask: which items are there, `[rows, items]`.
        share: from 0 to 1.
        generator: for the draw; torch's own by default.

    Example:
        >>> drop_regions(torch.ones(1, 100, dtype=torch.bool), share=0.0).all()
        tensor(True)
    """
    chance = torch.rand(mask.shape, generator=generator, device=mask.device)
    kept = mask & (chance >= share)
    # Where all would go, the one with the highest number stays.
    saved = torch.zeros_like(mask)
    if mask.numel():
        luckiest = chance.masked_fill(~mask, -1.0).argmax(dim=1, keepdim=True)
        saved.scatter_(1, luckiest, ~kept.any(dim=1, keepdim=True))
    return kept | (saved & mask)


def pack_items(items: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same sets, each row's items in front in their order, as long as the largest set; and the mask of that.

    Args:
        items: `[rows, items, width]`.
        mask: which items are there, `[rows, items]`.

    Example:
        >>> items, mask = torch.tensor([[[5.0], [6.0], [7.0]]]), torch.tensor([[False, True, False]])
        >>> pack_items(items, mask)
        (tensor([[[6.]]]), tensor([[True]]))
    """
    longest = int(mask.sum(dim=1).max()) if mask.numel() else 0
    order = torch.argsort(~mask, dim=1, stable=True)[:, :longest]
    rows = torch.arange(len(items), device=items.device)[:, None]
    return items[rows, order], mask.gather(1, order)


def disturb_words(
    tokens: torch.Tensor,
    vocabulary_size: int,
    share: float = 0.2,
    generator: torch.Generator | None = None,
    replaced_by: int = UNKNOWN,
) -> torch.Tensor:
    """Token rows of a training step: each word is disturbed with probability `share`.

    Of the disturbed words half become `<unk>` (or a mask token), a tenth become any word, and the others are left out,
    as in the code of GPO. A row keeps at least one word, its end token and its padding; it may have more padding than
    before.

    Args:
        tokens: words, end token, padding, `[rows, tokens]`, as from `tokenize`; a start token may be first.
        vocabulary_size: how many tokens there are, the specials included.
        share: from 0 to 1.
        generator: for the draw; torch's own by default.
        replaced_by: the token that stands for words that are hidden.

    Example:
        >>> disturb_words(torch.tensor([[4, 5, 2, 0]]), vocabulary_size=9, share=0.0)
        tensor([[4, 5, 2, 0]])
    """
    if vocabulary_size <= len(SPECIALS):
        raise ValueError(f"a vocabulary of {vocabulary_size} tokens has no words beside the {len(SPECIALS)} specials")
    is_word = (tokens != PAD) & (tokens != START) & (tokens != END)
    chance = torch.rand(tokens.shape, generator=generator, device=tokens.device)
    others = torch.randint(len(SPECIALS), vocabulary_size, tokens.shape, generator=generator, device=tokens.device)
    said = torch.where(is_word & (chance < 0.5 * share), replaced_by, tokens)
    said = torch.where(is_word & (chance >= 0.5 * share) & (chance < 0.6 * share), others, said)
    left_out = is_word & (chance >= 0.6 * share) & (chance < share)
    # A caption of which no word would stay keeps them all.
    left_out &= (is_word & ~left_out).any(dim=1, keepdim=True)
    order = torch.argsort(left_out.long(), dim=1, stable=True)
    return said.masked_fill(left_out, PAD).gather(1, order)
