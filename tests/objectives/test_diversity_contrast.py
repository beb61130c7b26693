"""Diversity, DCL, the triplet loss and InfoNCE against naive loops from their equations, on values and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tellapart.objectives.diversity_contrast import (
    both_directions,
    coder_weights,
    dcl_loss,
    deviations,
    diversity,
    info_nce,
    mean_diversity,
    other_images,
    triplet_loss,
    unscaled_diversity,
)

Loss = Callable[..., torch.Tensor]


def naive_diversity(similarity: torch.Tensor, negatives: torch.Tensor, epsilon: float) -> list[float]:
    """Eq. 3, as printed."""
    found = []
    for row, mask in zip(similarity.tolist(), negatives.tolist(), strict=True):
        values = [value for value, is_negative in zip(row, mask, strict=True) if is_negative]
        if not values:
            found.append(1.0)
            continue
        square = sum(value**2 for value in values) / len(values)
        mean = sum(values) / len(values)
        deviation = math.sqrt(max(0.0, square - mean**2))
        sigmoid = 1.0 if deviation < 1e-9 else 1 / (1 + math.exp(-epsilon / deviation))
        found.append(1 / sigmoid)
    return [value / max(found) for value in found]


def naive_dcl(
    positives: torch.Tensor,
    similarity: torch.Tensor,
    negatives: torch.Tensor,
    diversity: torch.Tensor | None = None,
    mu: float = 0.1,
    gamma: float = 0.3,
    positive_weight: float = 1.0,
) -> torch.Tensor:
    """The summands of eq. 4 and 5."""
    values = []
    for n in range(len(similarity)):
        div = 1.0 if diversity is None else diversity[n].item()
        total = torch.ones((), dtype=similarity.dtype)
        for q in range(similarity.shape[1]):
            if negatives[n, q]:
                total = total + torch.exp((similarity[n, q] - gamma) / (mu * div))
        values.append(mu * torch.log(total) - positive_weight * torch.log(positives[n] + 1))
    return torch.stack(values)


def naive_triplet(
    positives: torch.Tensor, similarity: torch.Tensor, negatives: torch.Tensor, hardest: bool = True
) -> torch.Tensor:
    values = []
    for n in range(len(similarity)):
        costs = [0 * (positives[n] + similarity[n].sum())]
        for q in range(similarity.shape[1]):
            cost = 0.2 - positives[n] + similarity[n, q]
            if negatives[n, q] and cost > 0:
                costs.append(cost)
        values.append(max(costs) if hardest else torch.stack(costs).sum())
    return torch.stack(values)


def naive_info_nce(positives: torch.Tensor, similarity: torch.Tensor, negatives: torch.Tensor) -> torch.Tensor:
    values = []
    for n in range(len(similarity)):
        partner = torch.exp(positives[n] / 0.05)
        total = partner
        for q in range(similarity.shape[1]):
            if negatives[n, q]:
                total = total + torch.exp(similarity[n, q] / 0.05)
        values.append(-torch.log(partner / total))
    return torch.stack(values)


def given(anchors: int, candidates: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Positives, similarities and a ragged mask; the last anchor has no negative, the one before has one."""
    generator = torch.Generator().manual_seed(100 * anchors + candidates + 2)
    positives, similarity = (
        (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1).requires_grad_()
        for shape in ((anchors,), (anchors, candidates))
    )
    negatives = torch.rand(anchors, candidates, generator=generator) < 0.7
    negatives[-1] = False
    if anchors > 1:
        negatives[-2] = torch.arange(candidates) == 0
    return positives, similarity, negatives


@pytest.mark.parametrize(
    ("loss", "naive"),
    [
        (dcl_loss, naive_dcl),
        (
            lambda *args: dcl_loss(*args, mu=0.2, gamma=0.1, positive_weight=0.2),  # the literal reading
            lambda *args: naive_dcl(*args, mu=0.2, gamma=0.1, positive_weight=0.2),
        ),
        (
            lambda p, s, n: dcl_loss(p, s, n, diversity(s, n)),
            lambda p, s, n: naive_dcl(p, s, n, torch.tensor(naive_diversity(s, n, 0.1))),
        ),
        (triplet_loss, naive_triplet),
        (lambda *args: triplet_loss(*args, hardest=False), lambda *args: naive_triplet(*args, hardest=False)),
        (info_nce, naive_info_nce),
    ],
    ids=["implicit", "literal", "explicit", "hardest", "all", "info-nce"],
)
@pytest.mark.parametrize(("anchors", "candidates"), [(1, 1), (5, 5), (3, 8), (6, 2)])
def test_losses_equal_the_naive_loop_in_value_and_gradient(
    loss: Loss, naive: Loss, anchors: int, candidates: int
) -> None:
    positives, similarity, negatives = given(anchors, candidates)
    found, expected = loss(positives, similarity, negatives), naive(positives, similarity, negatives)
    assert found.shape == (anchors,)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=1e-5)
    weights = torch.arange(1.0, anchors + 1)
    gradients, wanted = (
        torch.autograd.grad((weights * values).sum(), [positives, similarity], materialize_grads=True)
        for values in (found, expected)
    )
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("epsilon", [0.1, 0.5])
@pytest.mark.parametrize(("anchors", "candidates"), [(1, 1), (5, 5), (3, 8), (6, 2)])
def test_diversity_equals_the_naive_loop(epsilon: float, anchors: int, candidates: int) -> None:
    _, similarity, negatives = given(anchors, candidates)
    found = diversity(similarity, negatives, epsilon)
    torch.testing.assert_close(found, torch.tensor(naive_diversity(similarity, negatives, epsilon)))
    assert not found.requires_grad
    assert ((found > 0.5) & (found <= 1)).all()


def test_diversity_is_exact_for_similarities_close_together() -> None:
    """E(S²) − E(S)² in float32 would be rounding noise here."""
    similarity = torch.tensor([[0.9, 0.9 + 2e-4, 0.9 - 2e-4], [0.0, 0.4, -0.4]])
    negatives = torch.ones(2, 3, dtype=torch.bool)
    found = unscaled_diversity(similarity, negatives, epsilon=1e-3)
    deviation = similarity.double().std(dim=1, correction=0)
    torch.testing.assert_close(found, (1 + torch.exp(-1e-3 / deviation)).float(), rtol=1e-4, atol=0)
    torch.testing.assert_close(deviations(similarity, negatives), deviation.float(), rtol=1e-4, atol=0)


def test_equal_negatives_are_the_least_diverse_and_leave_a_finite_gradient() -> None:
    similarity = torch.tensor([[0.5, 0.2, 0.2], [0.9, 0.5, -0.9], [0.3, 0.3, 0.3]], requires_grad=True)
    negatives = other_images(torch.arange(3), torch.arange(3))
    found = diversity(similarity, negatives)
    assert found[0] == found[2] == found.min()
    loss = dcl_loss(similarity.diagonal(), similarity, negatives, found)
    (gradient,) = torch.autograd.grad(loss.sum(), similarity)
    assert gradient.isfinite().all()


def test_low_diversity_weighs_its_hard_negatives_more() -> None:
    similarity = torch.full((2, 1), 0.5, requires_grad=True)
    loss = dcl_loss(torch.zeros(2), similarity, torch.ones(2, 1, dtype=torch.bool), torch.tensor([0.6, 1.0]))
    (gradient,) = torch.autograd.grad(loss.sum(), similarity)
    assert gradient[0] > gradient[1]


@pytest.mark.parametrize("loss", [dcl_loss, triplet_loss, info_nce])
@pytest.mark.parametrize("positive", [-1.0, -1.0000001, 1.0])
def test_gradients_are_finite_at_the_ends_and_without_negatives(loss: Loss, positive: float) -> None:
    positives = torch.full((3,), positive, requires_grad=True)
    similarity = torch.tensor([[1.0, -1.0], [math.nan, 1.0], [math.inf, -math.inf]], requires_grad=True)
    negatives = torch.tensor([[True, True], [False, True], [False, False]])
    values = loss(positives, similarity, negatives)
    assert values.isfinite().all()
    for gradient in torch.autograd.grad(values.sum(), [positives, similarity]):
        assert gradient.isfinite().all()
    assert diversity(similarity, negatives).isfinite().all()


@pytest.mark.parametrize("loss", [dcl_loss, triplet_loss, info_nce])
@pytest.mark.parametrize(("anchors", "candidates"), [(0, 3), (2, 0), (0, 0)])
def test_empty_shares(loss: Loss, anchors: int, candidates: int) -> None:
    """No anchors: an empty share of a batch. No candidates: nothing to push away."""
    positives = torch.zeros(anchors, requires_grad=True)
    similarity, negatives = torch.zeros(anchors, candidates), torch.zeros(anchors, candidates, dtype=torch.bool)
    values = loss(positives, similarity, negatives)
    assert values.tolist() == [0.0] * anchors
    values.sum().backward()
    assert diversity(similarity, negatives).tolist() == [1.0] * anchors


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    positives, similarity, negatives = given(5, 6)
    positives, similarity = positives.detach().to(dtype), similarity.detach().to(dtype)
    torch.testing.assert_close(diversity(similarity, negatives), diversity(similarity.float(), negatives))
    for loss in (dcl_loss, triplet_loss, info_nce):
        torch.testing.assert_close(
            loss(positives, similarity, negatives), loss(positives.float(), similarity.float(), negatives)
        )


def test_large_similarities_do_not_overflow() -> None:
    similarity = torch.tensor([[1.0, 1.0]])
    values = dcl_loss(torch.ones(1), similarity, torch.ones(1, 2, dtype=torch.bool), mu=1e-4)
    torch.testing.assert_close(values, torch.tensor([0.7 - math.log(2)]), atol=1e-3, rtol=0)


def test_anchors_without_a_partner_are_only_pushed_away() -> None:
    positives, similarity, negatives = given(4, 5)
    whole = dcl_loss(positives, similarity, negatives)
    torch.testing.assert_close(
        dcl_loss(None, similarity, negatives), whole + torch.log1p(positives.float()), atol=1e-6, rtol=1e-5
    )


def test_both_directions_of_several_captions_of_an_image() -> None:
    """Three images with 2, 1 and 3 captions: an image's other captions are neither positives nor negatives."""
    generator = torch.Generator().manual_seed(0)
    similarity = 2 * torch.rand(3, 6, generator=generator, dtype=torch.float64) - 1
    image_row, text_row = torch.tensor([0, 0, 1, 2, 2, 2]), torch.arange(6)
    images = torch.tensor([40, 7, 12])
    to_text, to_image = both_directions(similarity, image_row, text_row, images, images[image_row])
    found = dcl_loss(*to_text).mean() + dcl_loss(*to_image).mean()
    expected = 0.0
    for image, text in zip(image_row.tolist(), text_row.tolist(), strict=True):
        for candidates in (
            [similarity[image, t] for t in range(6) if image_row[t] != image],
            [similarity[i, text] for i in range(3) if i != image],
        ):
            total = 1 + sum(math.exp((value - 0.3) / 0.1) for value in candidates)
            expected += (0.1 * math.log(total) - math.log(1 + similarity[image, text])) / 6
    assert found.item() == pytest.approx(expected, abs=1e-5)


def test_shares_of_anchors_equal_the_whole() -> None:
    """Two processes: local anchors by gathered candidates, with the largest diversity of all."""
    positives, similarity, negatives = given(6, 6)
    largest = unscaled_diversity(similarity, negatives).max()
    whole = dcl_loss(positives, similarity, negatives, diversity(similarity, negatives))
    parts = [
        dcl_loss(p, s, n, diversity(s, n, largest=largest))
        for p, s, n in zip(positives.split(4), similarity.split(4), negatives.split(4), strict=True)
    ]
    torch.testing.assert_close(torch.cat(parts), whole)


def test_an_empty_bank_does_not_change_diversity() -> None:
    _, similarity, negatives = given(4, 5)
    of_batch = diversity(similarity, negatives)
    nothing = torch.zeros(4, 5, dtype=torch.bool)
    assert torch.equal(mean_diversity(of_batch, diversity(similarity, nothing), nothing), of_batch)
    of_bank = diversity(-similarity.flip(1), negatives)
    mixed = mean_diversity(of_batch, of_bank, negatives)
    torch.testing.assert_close(mixed[:2], (of_batch + of_bank)[:2] / 2)
    assert torch.equal(mixed[2:], of_batch[2:])


def test_weights_of_equation_8() -> None:
    assert coder_weights() == {"instance": 3.0, "memory": 1.0, "concept": 1.0, "prototypes": 1.0}
    assert coder_weights(2.0, concept_twice=True)["concept"] == 2.0
