"""Parts of recurrent captioners that torch's own operators do in several passes: the same values and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from tellapart.captioners.packed import product

# Numbers worked on at once; they stay in the cache of a core.
CACHED = 2**18
# Keys of attention up to here have a tanh by way of exp, without overflow: exp(2k) is a normal number, and tanh(q + k)
# is 1 or -1 for any query beyond twice as much.
LARGEST_KEY = 20.0

# Where a block is in [images, rows]: two slices.
Block = tuple[slice, slice]


def additive_scores(keys: torch.Tensor, queries: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
    """Additive attention before the softmax: scoreᵀ tanh(key + query) for all rows and regions of each image.

    Args:
        keys: `[images, regions, attention]`.
        queries: `[images, rows, attention]`.
        score: `[attention]`.

    Returns:
        `[images, rows, regions]`.
    """
    plain = keys.dtype in (torch.float32, torch.float64) and keys.device.type == "cpu"
    if not plain or torch.is_autocast_enabled("cpu") or not _are_small(keys.detach()):
        return torch.tanh(keys[:, None] + queries[:, :, None]) @ score
    found: torch.Tensor = _AdditiveScores.apply(keys, queries, score)  # type: ignore[no-untyped-call]
    return found


class _AdditiveScores(torch.autograd.Function):
    """tanh(k + q) = 1 - 2u with u = 1 / (1 + exp(2k) exp(2q)): a division for each row and region instead of a tanh.

    Keys and queries have their exp apart, and they are few. The table of u, `[images, rows, regions, attention]`, is
    only ever there in parts that fit in the cache: to compute it again for the gradient costs less than to keep it.

    Several threads each work on some rows of a part. Where a sum can be written so that a thread only reads the rows
    that it wrote, it is: `sum` and `bmm` by rows, not `mv`, since numbers in the cache of another core come slowly.
    """

    @staticmethod
    def forward(ctx: Any, keys: torch.Tensor, queries: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
        grown_keys = (2 * keys).exp_()
        grown_queries = (2 * queries).clamp_(-4 * LARGEST_KEY, 4 * LARGEST_KEY).exp_()
        found = keys.new_empty(*queries.shape[:2], keys.shape[1])
        for image, some, shares in _shares(grown_keys, grown_queries):
            torch.sum(shares.mul_(score), dim=3, out=found[image, some])
        ctx.save_for_backward(grown_keys, grown_queries, score)
        return found.mul_(-2).add_(score.sum())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # d tanh = 1 - tanh² = 4 (u - u²)
        grown_keys, grown_queries, score = ctx.saved_tensors
        of_keys, of_queries = torch.zeros_like(grown_keys), torch.empty_like(grown_queries)
        of_score = gradient.sum().repeat(len(score))
        for image, some, shares in _shares(grown_keys, grown_queries):
            given = gradient[image, some].contiguous()
            by_row = torch.bmm(given.view(-1, 1, shares.shape[2]), shares.flatten(0, 1))
            of_score.sub_(by_row.sum(dim=(0, 1)), alpha=2)
            slopes = shares.addcmul_(shares, shares, value=-1).mul_(given[..., None])
            of_keys[image] += slopes.sum(dim=1)
            torch.sum(slopes, dim=2, out=of_queries[image, some])
        return of_keys.mul_(4 * score), of_queries.mul_(4 * score), of_score


def _shares(grown_keys: torch.Tensor, grown_queries: torch.Tensor) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """u in blocks: which images, which rows, and `[images, rows, regions, attention]`, overwritten by the next."""
    (images, rows, attention), regions = grown_queries.shape, grown_keys.shape[1]
    one, scratch = grown_keys.new_ones(()), grown_keys.new_empty(0)
    for image, some in _blocks(images, rows, regions * attention):
        keys, queries = grown_keys[image, None], grown_queries[image, some, None]
        if not scratch.numel():
            scratch = grown_keys.new_empty(len(queries), queries.shape[1], regions, attention)
        sums = torch.addcmul(one, keys, queries, out=scratch[: len(queries), : queries.shape[1]])
        yield image, some, sums.reciprocal_()


def _are_small(keys: torch.Tensor) -> bool:
    """Whether no key is larger than `LARGEST_KEY`, or NaN."""
    return not keys.numel() or bool(max(-keys.min(), keys.max()) <= LARGEST_KEY)


def _blocks(images: int, rows: int, size: int) -> Iterator[Block]:
    """Blocks of whole images, or of rows of one image, of about `CACHED` numbers; a row has `size` of them."""
    rows_at_once = max(1, CACHED // max(1, size))
    images_at_once = max(1, rows_at_once // max(1, rows))
    for image in range(0, images, images_at_once):
        for row in range(0, rows, rows_at_once):
            yield slice(image, image + images_at_once), slice(row, row + rows_at_once)


class Recurrence:
    """A linear layer inside a recurrence, whose weight gets its gradient for all steps at once.

    Step t computes z_t = b_t + W x_t, where x_t depends on the steps before. The gradient of W is Σ_t ∂z_t x_tᵀ. Summed
    step by step it is one thin product and one pass over W for each step; here it is one product after the last step.
    That needs b_t of all steps beforehand, since its gradient is ∂z_t.

    Args:
        biases: b of all steps, `[all rows, out]`.
        layer: has W as its weight, `[out, in]`; its bias is not used.
        sizes: rows of each step, in order.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> steps = Recurrence(torch.zeros(3, 1), layer, [2, 1])
        >>> (steps(torch.ones(2, 2)).sum() + steps(torch.full((1, 2), 5.0)).sum()).backward()
        >>> layer.weight.grad
        tensor([[7., 7.]])
    """

    def __init__(self, biases: torch.Tensor, layer: nn.Linear, sizes: list[int]) -> None:
        self.inputs: list[torch.Tensor] = []
        late: torch.Tensor = _LateGradient.apply(biases, layer.weight, self.inputs)  # type: ignore[no-untyped-call]
        self.steps = iter(torch.split(late, sizes))
        self.layer = layer
        self.weight = layer.weight.detach()
        if torch.is_autocast_enabled(late.device.type):  # otherwise it is rounded again at each step
            self.weight = self.weight.to(torch.get_autocast_dtype(late.device.type))

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """z of the next step from x, `[rows, in]`."""
        if not torch.is_grad_enabled():
            return product(self.layer, inputs).add_(next(self.steps))
        if self.layer.weight.requires_grad:
            self.inputs.append(inputs.detach())
        return torch.addmm(next(self.steps), inputs, self.weight.t())


class _LateGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, biases: torch.Tensor, weight: torch.Tensor, inputs: list[torch.Tensor]) -> torch.Tensor:
        ctx.inputs = inputs
        return biases.view_as(biases)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of_weight = None
        if ctx.needs_input_grad[1]:
            of_weight = gradient.t() @ torch.cat(ctx.inputs).to(gradient.dtype)
        return gradient, of_weight, None
