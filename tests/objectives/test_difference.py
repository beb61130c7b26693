"""The literal difference loss against a naive loop from eq. 5–6."""

from __future__ import annotations

import pytest
import torch

from tellapart.objectives.difference import difference_loss


@pytest.mark.parametrize(("count", "draws"), [(1, 1), (7, 5)])
@pytest.mark.parametrize("ragged", [False, True])
def test_equals_the_naive_loop_in_value_and_gradient(count: int, draws: int, ragged: bool) -> None:
    """−L' / T_m, averaged over K copies of X, each with its own Y of T_n = T_m pairs."""
    generator = torch.Generator().manual_seed(count)
    shapes = [(count,), (count,), (count, draws), (count, draws)]
    given = [(-2 + torch.randn(s, generator=generator, dtype=torch.float64)).requires_grad_() for s in shapes]
    kept = torch.ones(count, draws, dtype=torch.bool)
    if ragged:
        kept[:, 1:] = torch.rand(count, draws - 1, generator=generator) < 0.5
    target_positive, reference_positive, target_negative, reference_negative = given
    expected = torch.zeros((), dtype=torch.float64)
    for t in range(count):
        drawn = [k for k in range(draws) if kept[t, k]]
        for k in drawn:
            positive = torch.exp(target_positive[t]) - torch.exp(reference_positive[t])
            negative = torch.exp(target_negative[t, k]) - torch.exp(reference_negative[t, k])
            expected = expected - (positive - negative) / (count * len(drawn))
    loss = difference_loss(*given, kept if ragged else None).mean()
    torch.testing.assert_close(loss.double(), expected, atol=1e-6, rtol=1e-5)
    found, wanted = (torch.autograd.grad(one, given) for one in (loss, expected))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_unlikely_captions_hardly_count() -> None:
    """What the paper leaves it for: the gradient of a pair is its probability."""
    positive = torch.tensor([-18.0, -2.0], requires_grad=True)
    zero = torch.full((2,), -5.0)
    (gradient,) = torch.autograd.grad(difference_loss(positive, zero, zero[:, None], zero[:, None]).sum(), positive)
    torch.testing.assert_close(gradient, -positive.detach().exp())
