"""The pairwise loss against a naive loop."""

from __future__ import annotations

import math

import pytest
import torch

from tellapart.objectives.pairwise import pairwise_loss


def naive_loss(positive: torch.Tensor, negative: torch.Tensor, beta: float, kept: torch.Tensor) -> torch.Tensor:
    """−mean_t mean_k ln σ(β (G⁺_t − G⁻_tk)) over the negatives kept."""
    total = torch.zeros((), dtype=positive.dtype)
    for t in range(len(positive)):
        ratios = [negative[t, k] for k in range(negative.shape[1]) if kept[t, k]]
        for ratio in ratios:
            total = total + torch.log(1 / (1 + torch.exp(-beta * (positive[t] - ratio)))) / len(ratios)
    return -total / len(positive)


@pytest.mark.parametrize("beta", [0.1, 1.0, 3.0])
@pytest.mark.parametrize(("count", "draws"), [(1, 1), (7, 5)])
@pytest.mark.parametrize("ragged", [False, True])
def test_equals_the_naive_loop_in_value_and_gradient(beta: float, count: int, draws: int, ragged: bool) -> None:
    generator = torch.Generator().manual_seed(count)
    positive, negative = (
        (3 * torch.randn(shape, generator=generator, dtype=torch.float64)).requires_grad_()
        for shape in ((count,), (count, draws))
    )
    kept = torch.ones(count, draws, dtype=torch.bool)
    if ragged:
        kept[:, 1:] = torch.rand(count, draws - 1, generator=generator) < 0.5
    loss = pairwise_loss(positive, negative, beta, kept if ragged else None).mean()
    expected = naive_loss(positive, negative, beta, kept)
    torch.testing.assert_close(loss.double(), expected, atol=1e-6, rtol=1e-6)
    found, wanted = (torch.autograd.grad(one, [positive, negative]) for one in (loss, expected))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_identical_models_give_ln_two_and_a_gradient() -> None:
    positive, negative = torch.zeros(3, requires_grad=True), torch.zeros(3, 5, requires_grad=True)
    loss = pairwise_loss(positive, negative, beta=2.0).mean()
    assert loss.item() == pytest.approx(math.log(2))
    gradients = torch.autograd.grad(loss, [positive, negative])
    torch.testing.assert_close(gradients[0], torch.full((3,), -2.0 * 0.5 / 3))
    torch.testing.assert_close(gradients[1], torch.full((3, 5), 2.0 * 0.5 / 15))


def test_far_from_zero_the_gradient_stays() -> None:
    positive = torch.tensor([-200.0, 200.0], requires_grad=True)
    loss = pairwise_loss(positive, torch.zeros(2, 1)).sum()
    (gradient,) = torch.autograd.grad(loss, positive)
    assert torch.isfinite(loss)
    torch.testing.assert_close(gradient, torch.tensor([-1.0, 0.0]))
