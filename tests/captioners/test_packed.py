"""Weights in blocks give the plain product, and are made anew when the weights change."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tellapart.captioners import packed
from tellapart.captioners.packed import Linear

pytestmark = pytest.mark.numerical


def exact(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    found = inputs.double() @ layer.weight.detach().double().t()
    return (found if layer.bias is None else found + layer.bias.detach().double()).float()


@pytest.mark.parametrize("shape", [(5,), (0, 5), (1, 5), (70, 5), (3, 4, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_the_plain_product(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    layer, inputs = Linear(5, 37, bias=bias).eval(), torch.randn(shape)
    with torch.no_grad():
        torch.testing.assert_close(layer(inputs), exact(layer, inputs))
        torch.testing.assert_close(
            layer(inputs.mT.contiguous().mT if inputs.ndim > 1 else inputs), exact(layer, inputs)
        )
    assert layer(inputs).requires_grad


def assign(layer: Linear) -> None:
    layer.weight = nn.Parameter(torch.randn_like(layer.weight))


def round_weights(layer: Linear) -> None:
    layer.half().float()


def train(layer: Linear, words: slice = slice(None), **how: bool) -> None:
    optimiser = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.0, **how)
    with torch.enable_grad():
        layer(torch.ones(2, 5))[:, words].sum().backward()
    optimiser.step()


def train_one_word(layer: Linear) -> None:
    """No row that is looked at changes, and a fused optimiser leaves no trace; but it was in training mode."""
    layer.train()
    train(layer, slice(1, 2), fused=True)
    layer.eval()


CHANGES: list[Callable[[Linear], object]] = [
    assign,
    round_weights,
    train,
    lambda layer: train(layer, fused=True),
    lambda layer: train(layer, slice(4, None), fused=True),
    train_one_word,
    lambda layer: layer.weight.mul_(2),
    lambda layer: layer.weight.data.mul_(2),
    lambda layer: layer.load_state_dict({name: value + 1 for name, value in layer.state_dict().items()}),
]


@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights(change: Callable[[Linear], object]) -> None:
    torch.manual_seed(0)
    layer, inputs = Linear(5, 37).eval(), torch.randn(3, 5)
    with torch.no_grad():
        before = layer(inputs)
        copied = copy.deepcopy(layer)
        change(layer)
        after = layer(inputs)
        assert not torch.equal(after, before)
        torch.testing.assert_close(after, exact(layer, inputs))
        assert torch.equal(copied(inputs), before)


def test_blocks_leave_with_their_layer() -> None:
    kept = len(packed._KEPT)
    layer = Linear(5, 37).eval()
    with torch.no_grad():
        layer(torch.randn(3, 5))
    assert len(packed._KEPT) == kept + packed._have_blocks()
    del layer
    assert len(packed._KEPT) == kept


@pytest.mark.parametrize("how", ["nested", "once"])
def test_unchanging_weights_are_looked_at_once(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not packed._have_blocks():
        pytest.skip("this processor or torch has no products with weights in blocks")
    looks, look = [], packed._Blocks.are_of
    monkeypatch.setattr(packed._Blocks, "are_of", lambda blocks, weight: looks.append(1) or look(blocks, weight))
    layer, inputs = Linear(5, 37).eval(), torch.randn(3, 5)
    with torch.no_grad():
        first = layer(inputs)
        with packed.unchanging_weights():
            if how == "nested":
                with packed.unchanging_weights():
                    layer(inputs)
            assert all(torch.equal(layer(inputs), first) for _ in range(3))
        assert len(looks) == 1


def test_weights_changed_between_two_scopes() -> None:
    layer, inputs = Linear(5, 37).eval(), torch.randn(3, 5)
    with torch.no_grad():
        for _ in range(2):
            with packed.unchanging_weights():
                torch.testing.assert_close(layer(inputs), exact(layer, inputs))
            layer.weight.mul_(2)
        torch.testing.assert_close(layer(inputs), exact(layer, inputs))
