"""Pool region or word vectors to one vector: mean, maximum, and generalized pooling (GPO, Chen et al. 2021).

A mask `[rows, items]` marks the items that count, in any order. Masked items and other rows never change a result. A
row without items gives zeros.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from tellapart.retrievers.sentences import mean_of_directions, run_rnn
from tellapart.text import END, PAD, SPECIALS, START, UNKNOWN


def mean_pool(items: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean of each row's items, `[rows, width]`.

    >>> mean_pool(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]]))
    tensor([[2.]])
    """
    total = items.masked_fill(~mask[..., None], 0.0).sum(dim=1)
    return total / mask.sum(dim=1, keepdim=True).clamp(min=1)


def max_pool(items: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Maximum of each row's items in every dimension, `[rows, width]`.

    >>> max_pool(torch.tensor([[[-1.0], [-3.0], [9.0]]]), torch.tensor([[True, True, False]]))
    tensor([[-1.]])
    """
    if not items.shape[1]:  # torch cannot take the maximum of no items
        return items.sum(dim=1)
    largest = items.masked_fill(~mask[..., None], -torch.inf).amax(dim=1)
    return largest.masked_fill(~mask.any(dim=1, keepdim=True), 0.0)


def position_encodings(count: int, width: int, device: torch.device | None = None) -> torch.Tensor:
    """Sine and cosine encodings of positions 0, 1, …, `[count, width]`, as in the Transformer; `width` is even.

    >>> position_encodings(2, 2)
    tensor([[0.0000, 1.0000],
            [0.8415, 0.5403]])
    """
    position = torch.arange(count, dtype=torch.float32, device=device)[:, None]
    pairs = torch.arange(0, width, 2, dtype=torch.float32, device=device)
    angle = position * torch.exp(pairs * (-math.log(10000.0) / width))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


def sort_items(items: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sort the values of each dimension, largest first, `[rows, items, width]`; zero beyond a row's items.

    >>> sort_items(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]])).flatten()
    tensor([3., 1., 0.])
    """
    # Masked twice: −∞ for the sort, then zero, since −∞ times a weight of zero is not zero.
    ordered = items.masked_fill(~mask[..., None], -torch.inf).sort(dim=1, descending=True).values
    absent = torch.arange(items.shape[1], device=items.device) >= mask.sum(dim=1)[:, None]
    return ordered.masked_fill(absent[..., None], 0.0)


class GeneralizedPooling(nn.Module):
    """Generalized pooling (GPO): in every dimension, the k-th largest value has a learned weight θ_k.

    Use it instead of mean or maximum pooling, which are special cases (all θ equal; θ_1 = 1)::

        v_d = Σ_k θ_k · max_k({o_ld}),   θ = softmax(W · BiGRU(p_1 … p_L) / τ),   p_k the encoding of position k

    The weights depend only on the number L of items. They are computed once for each number that occurs in a batch.
    Both directions of the GRU are averaged.

    Args:
        position_width: width of the position encodings; even.
        hidden: width of the GRU, in each direction.
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
        """θ of each row, `[rows, longest]`, in float32; zero beyond a row's items.

        Args:
            counts: number of items in each row, from 0 to `longest`.
            longest: number of columns.
        """
        distinct, row = torch.unique(counts, return_inverse=True)
        sizes = distinct.clamp(min=1)  # a GRU needs at least one position
        positions = position_encodings(longest, self.position_width, counts.device).to(self.score.weight.dtype)
        states = mean_of_directions(run_rnn(self.gru, positions.expand(len(sizes), -1, -1), sizes))
        score = self.score(states).squeeze(-1).float() / self.temperature
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
        """Pool items that are already sorted, so that several poolings share one sort.

        Args:
            ordered: from `sort_items`, `[rows, items, width]`.
            counts: number of items in each row, `[rows]`.
        """
        if not ordered.shape[:2].numel():  # an empty part of a batch
            return ordered.sum(dim=1)
        theta = self.weights(counts, ordered.shape[1]).to(ordered.dtype)
        return torch.einsum("rk,rkd->rd", theta, ordered)


def drop_regions(mask: torch.Tensor, share: float = 0.2, generator: torch.Generator | None = None) -> torch.Tensor:
    """Drop each item with probability `share`, keeping at least one per row; returns the new mask.

    Training on sets of different sizes teaches GPO weights for all of them.

    Args:
        mask: which items are there, `[rows, items]`.
        share: probability, from 0 to 1.
        generator: random numbers; torch's default generator if not given.

    Example:
        >>> drop_regions(torch.ones(1, 100, dtype=torch.bool), share=0.0).all()
        tensor(True)
    """
    chance = torch.rand(mask.shape, generator=generator, device=mask.device)
    kept = mask & (chance >= share)
    # If all would be dropped, keep the one with the highest random number.
    saved = torch.zeros_like(mask)
    if mask.numel():
        highest = chance.masked_fill(~mask, -1.0).argmax(dim=1, keepdim=True)
        saved.scatter_(1, highest, ~kept.any(dim=1, keepdim=True))
    return kept | (saved & mask)


def pack_items(items: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Move each row's items to the front, keep their order, cut to the largest set; returns items and their mask.

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
    """Change each word with probability `share`, as GPO's code does.

    Half of the changed words become `<unk>` (or a mask token), a tenth become a random word, and the others are
    dropped. A row keeps at least one word and its end token; dropped words become padding.

    Args:
        tokens: words, end token, padding, `[rows, tokens]`, as from `tokenize`; a start token may come first.
        vocabulary_size: number of tokens, including special tokens.
        share: probability, from 0 to 1.
        generator: random numbers; torch's default generator if not given.
        replaced_by: the token for hidden words.

    Example:
        >>> disturb_words(torch.tensor([[4, 5, 2, 0]]), vocabulary_size=9, share=0.0)
        tensor([[4, 5, 2, 0]])
    """
    if vocabulary_size <= len(SPECIALS):
        raise ValueError(f"vocabulary_size is {vocabulary_size}; it must exceed the {len(SPECIALS)} special tokens")
    is_word = (tokens != PAD) & (tokens != START) & (tokens != END)
    chance = torch.rand(tokens.shape, generator=generator, device=tokens.device)
    others = torch.randint(len(SPECIALS), vocabulary_size, tokens.shape, generator=generator, device=tokens.device)
    said = torch.where(is_word & (chance < 0.5 * share), replaced_by, tokens)
    said = torch.where(is_word & (chance >= 0.5 * share) & (chance < 0.6 * share), others, said)
    left_out = is_word & (chance >= 0.6 * share) & (chance < share)
    # A caption that would lose all its words keeps them.
    left_out &= (is_word & ~left_out).any(dim=1, keepdim=True)
    order = torch.argsort(left_out.long(), dim=1, stable=True)
    return said.masked_fill(left_out, PAD).gather(1, order)
