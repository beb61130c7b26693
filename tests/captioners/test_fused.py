"""Fused parts have the values and gradients of the plain ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tellapart.captioners import fused
from tellapart.captioners.fused import Recurrence, additive_scores

pytestmark = pytest.mark.numerical


@pytest.mark.parametrize("shape", [(3, 4, 5, 6), (1, 7, 2, 3), (2, 0, 3, 4), (4, 1, 1, 1)])
@pytest.mark.parametrize("cached", [1, 40, 100_000])
def test_additive_scores(shape: tuple[int, int, int, int], cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "CACHED", cached)
    torch.manual_seed(0)
    images, rows, regions, attention = shape
    sizes = (images, regions, attention), (images, rows, attention), (attention,)
    given = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    keys, queries, score = given
    found = additive_scores(*given)
    expected = (torch.tanh(keys[:, None] + queries[:, :, None]) * score).sum(dim=-1)
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        torch.testing.assert_close(additive_scores(*given), expected)
    weights = torch.randn_like(expected)
    one, other = (torch.autograd.grad((weights * values).sum(), given) for values in (found, expected))
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("largest_key", [19.9, 20.1, 1000.0])
def test_additive_scores_of_large_numbers(largest_key: float) -> None:
    """No overflow, whatever the keys and queries are; sums near zero are exact."""
    keys = torch.tensor([-largest_key, -1.0, 0.0, largest_key]).view(1, 4, 1).requires_grad_()
    queries = (
        torch.tensor([-1000.0, -largest_key, -45.0, 0.5, 45.0, largest_key, 1000.0]).view(1, 7, 1).requires_grad_()
    )
    score = torch.tensor([2.0], requires_grad=True)
    found = additive_scores(keys, queries, score)
    expected = torch.tanh(keys.mT + queries) * score
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    one, other = (torch.autograd.grad(values.sum(), (keys, queries, score)) for values in (found, expected))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_recurrence() -> None:
    torch.manual_seed(0)
    sizes = [4, 4, 2, 1]
    biases, start = (torch.randn(size, 3, dtype=torch.float64, requires_grad=True) for size in (11, 4))
    layer = nn.Linear(3, 3, bias=False, dtype=torch.float64)
    given = [biases, layer.weight, start]

    def run(late: bool) -> torch.Tensor:
        layers, steps, state, total = Recurrence(biases, layer, sizes), iter(biases.split(sizes)), start, start.sum()
        for rows in sizes:
            before = state[:rows]
            state = torch.tanh(layers(before) if late else next(steps) + before @ layer.weight.t())
            total = total + (state**2).sum()
        return total

    torch.testing.assert_close(run(late=True), run(late=False))
    one, other = (torch.autograd.grad(run(late), given) for late in (True, False))
    torch.testing.assert_close(one, other)


def test_recurrence_of_a_frozen_weight_keeps_nothing() -> None:
    layer = Recurrence(torch.zeros(2, 3, requires_grad=True), nn.Linear(3, 3).requires_grad_(False), [2])
    layer(torch.ones(2, 3)).sum().backward()
    assert layer.inputs == []


def test_recurrence_in_bfloat16_is_that_of_a_plain_layer() -> None:
    torch.manual_seed(0)
    layer, biases = nn.Linear(4, 4, bias=False), torch.randn(5, 4)
    start = torch.randn(3, 4, requires_grad=True)

    def run(late: bool) -> list[torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            steps, state = Recurrence(biases.clone().requires_grad_(), layer, [3, 2]), start
            for rows, bias in zip((3, 2), biases.split((3, 2)), strict=True):
                before = state[:rows]
                state = torch.tanh(steps(before) if late else torch.addmm(bias, before, layer.weight.t()))
        return [state, *torch.autograd.grad(state.float().square().sum(), [start, layer.weight])]

    for one, other in zip(run(late=True), run(late=False), strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=0.02, atol=0.02)
