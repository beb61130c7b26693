"""Linear layers whose weights are laid out for the processor, where no gradient is asked for."""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Self
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn import functional

# Rows that are looked at to see whether weights have changed.
ROWS = 16


class Linear(nn.Linear):
    """`nn.Linear` with the same weights, faster in eval mode where no gradient is asked for; see `product`."""

    def train(self, mode: bool = True) -> Self:
        if mode:  # the weights may change from now on
            _KEPT.pop(self, None)
        return super().train(mode)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return product(self, input, self.bias)


def product(layer: nn.Linear, inputs: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The layer's weights times `[..., in]`, plus a bias.

    In eval mode without a gradient, in single precision on a processor, oneDNN multiplies with weights that are laid
    out in blocks. That takes 0.75 to 0.85 of the time of a plain product for hundreds of rows, and half of it for a
    few. To lay them out takes as long as a product with about 100 rows, so they are kept until the weights change, and
    take as much memory once more.
    """
    weight = layer.weight
    blocks = (
        not (layer.training or torch.is_grad_enabled())
        and inputs.dtype == weight.dtype == torch.float32
        and inputs.device.type == weight.device.type == "cpu"
        and inputs.numel() > 0
        and not weight.is_inference()  # then nothing tells whether it has changed
        and not torch.is_autocast_enabled("cpu")
        and _have_blocks()
    )
    if not blocks:
        return functional.linear(inputs, weight, bias)
    return _multiply(inputs, _in_blocks(layer), bias)


@contextmanager
def unchanging_weights() -> Iterator[None]:
    """Within it no weights change, so a layer looks for changes once, not at each product.

    With few rows that look is a tenth of the time of a step. Also a decorator: `@unchanging_weights()`.
    """
    outer = _SCOPE.get()
    token = _SCOPE.set(outer if outer is not None else object())
    try:
        yield
    finally:
        _SCOPE.reset(token)


# The scope of `unchanging_weights` that is open, if any; each thread has its own.
_SCOPE: ContextVar[object | None] = ContextVar("unchanging_weights", default=None)


@dataclass
class _Blocks:
    """Weights in blocks, and what they were made from.

    It holds on to the weights that it was made from, so that no other tensor can get their address.

    Attributes:
        seen_in: the scope of `unchanging_weights` in which they were last found to be the same.
    """

    blocks: torch.Tensor
    weight: torch.Tensor
    version: int
    sample: torch.Tensor
    seen_in: object | None = None

    def are_of(self, weight: torch.Tensor) -> bool:
        """Whether the weights are the same.

        Fused optimisers and writing to `weight.data` do not change the version, so a sample is compared too.
        """
        same = self.version == weight._version and self.weight.data_ptr() == weight.data_ptr()
        return same and torch.equal(self.sample, _sample(weight))


def _sample(weight: torch.Tensor) -> torch.Tensor:
    """Rows at equal distances, the last one among them.

    The first rows alone would not do: in an output layer they are those of `<pad>` and `<start>`, which never change.
    """
    step = max(1, len(weight) // ROWS)
    return weight.detach()[(len(weight) - 1) % step :: step]


# Beside the layers, so that copying and saving a model does not see them.
_KEPT: WeakKeyDictionary[nn.Module, _Blocks] = WeakKeyDictionary()


def _in_blocks(layer: nn.Linear) -> torch.Tensor:
    kept, scope = _KEPT.get(layer), _SCOPE.get()
    if kept is not None and scope is not None and kept.seen_in is scope:
        return kept.blocks
    weight = layer.weight
    if kept is None or not kept.are_of(weight):
        kept = _Blocks(_lay_out(weight.detach()), weight.detach(), weight._version, _sample(weight).clone())
        _KEPT[layer] = kept
    kept.seen_in = scope
    return kept.blocks


def _lay_out(weight: torch.Tensor) -> torch.Tensor:
    blocks: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return blocks


def _multiply(inputs: torch.Tensor, blocks: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, blocks, bias, "none", [], "")
    return found


@functools.cache
def _have_blocks() -> bool:
    """Whether torch has these operators, which are its own, and they do what is expected."""
    have = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not have or platform.machine() not in ("x86_64", "AMD64"):
        return False
    inputs, weight, bias = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3), torch.arange(4.0)
    try:
        found = _multiply(inputs, _lay_out(weight), bias)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.equal(found, functional.linear(inputs, weight, bias))
