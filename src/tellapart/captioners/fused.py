"""Parts of recurrent captioners that torch's own operators do in several passes: the same values and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

# Numbers worked on at once; they stay in the cache of a core.
CACHED = 2**18

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
    if keys.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return torch.tanh(keys[:, None] + queries[:, :, None]) @ score
    kept = torch.is_grad_enabled() and any(one.requires_grad for one in (keys, queries, score))
    found: torch.Tensor = _AdditiveScores.apply(keys, queries, score, kept)  # type: ignore[no-untyped-call]
    return found


class _AdditiveScores(torch.autograd.Function):
    """The table `[images, rows, regions, attention]` of tanh is passed over while a part of it is in the cache.

    It is kept for the gradient, and is the only one of its size; without a gradient there is none.
    """

    @staticmethod
    def forward(ctx: Any, keys: torch.Tensor, queries: torch.Tensor, score: torch.Tensor, kept: bool) -> torch.Tensor:
        images, rows, attention = queries.shape
        regions = keys.shape[1]
        found = keys.new_empty(images, rows, regions)
        table = keys.new_empty((images, rows, regions, attention) if kept else 0)
        for one, some in _blocks(images, rows, regions * attention):
            place = table[one, some] if kept else None
            seen = torch.add(keys[one, None], queries[one, some, None], out=place)
            found[one, some] = seen.tanh_() @ score
        if kept:
            ctx.save_for_backward(table, score)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # d tanh(x) = 1 - tanh(x)²; the 1 is summed apart, so that only the square runs over the table.
        table, score = ctx.saved_tensors
        images, rows, regions, attention = table.shape
        of_keys = gradient.sum(dim=1)[..., None].repeat(1, 1, attention)
        of_queries = gradient.sum(dim=2)[..., None].repeat(1, 1, attention)
        of_score = torch.zeros_like(score)
        for one, some in _blocks(images, rows, regions * attention):
            seen, given = table[one, some], gradient[one, some].contiguous()
            of_score.addmv_(seen.view(-1, attention).t(), given.view(-1))
            squares = torch.square(seen).mul_(given[..., None])
            of_keys[one] -= squares.sum(dim=1)
            of_queries[one, some] -= squares.sum(dim=2)
        return of_keys.mul_(score), of_queries.mul_(score), of_score, None


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
        weight: W, `[out, in]`.
        sizes: rows of each step, in order.

    Example:
        >>> weight = torch.ones(1, 2, requires_grad=True)
        >>> layer = Recurrence(torch.zeros(3, 1), weight, [2, 1])
        >>> (layer(torch.ones(2, 2)).sum() + layer(torch.full((1, 2), 5.0)).sum()).backward()
        >>> weight.grad
        tensor([[7., 7.]])
    """

    def __init__(self, biases: torch.Tensor, weight: torch.Tensor, sizes: list[int]) -> None:
        self.inputs: list[torch.Tensor] = []
        late: torch.Tensor = _LateGradient.apply(biases, weight, self.inputs)  # type: ignore[no-untyped-call]
        self.steps = iter(torch.split(late, sizes))
        self.weight = weight.detach().t()
        self.kept = torch.is_grad_enabled() and weight.requires_grad

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """z of the next step from x, `[rows, in]`."""
        if self.kept:
            self.inputs.append(inputs.detach())
        return torch.addmm(next(self.steps), inputs, self.weight)


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
