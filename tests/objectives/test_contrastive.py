"""The CL loss against a naive loop from eq. 7–10, and the objective against the loss."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tellapart.captioners.adaptive import AdaptiveAttention
from tellapart.data.batches import Batch, BatchSource, Kind
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset
from tellapart.errors import RecipeError
from tellapart.objectives.base import Progress, Roles
from tellapart.objectives.contrastive import Contrastive, ContrastiveSettings, contrastive_loss

Make = Callable[..., AdaptiveAttention]
PROGRESS = Progress(0, 10)


def naive_loss(
    target_positive: torch.Tensor,
    reference_positive: torch.Tensor,
    target_negative: torch.Tensor,
    reference_negative: torch.Tensor,
    nu: float,
    positive: bool,
    negative: bool,
) -> torch.Tensor:
    """-J, eq. 10: K copies of X, each with its own Y of T_n = ν T_m pairs; h from eq. 3 and 8, G from eq. 7."""
    count, draws = target_negative.shape
    total = torch.zeros((), dtype=target_positive.dtype)
    for k in range(draws):
        for t in range(count):
            if positive:
                ratio = target_positive[t] - reference_positive[t]
                total = total + torch.log(1 / (1 + nu * torch.exp(-ratio)))
            if negative:
                ratio = target_negative[t, k] - reference_negative[t, k]
                total = total + nu * torch.log(1 - 1 / (1 + nu * torch.exp(-ratio)))
    return -total / (draws * count)


def scores(count: int, draws: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count * 100 + draws)
    shapes = [(count,), (count,), (count, draws), (count, draws)]
    return [(-10 + 3 * torch.randn(s, generator=generator, dtype=torch.float64)).requires_grad_() for s in shapes]


@pytest.mark.parametrize("nu", [1.0, 0.5, 3.0])
@pytest.mark.parametrize(("positive", "negative"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize(("count", "draws"), [(1, 1), (7, 5), (4, 2)])
def test_equals_the_naive_loop_in_value_and_gradient(
    nu: float, positive: bool, negative: bool, count: int, draws: int
) -> None:
    given = scores(count, draws)
    loss = contrastive_loss(*given, nu=nu, positive=positive, negative=negative)
    expected = naive_loss(*given, nu=nu, positive=positive, negative=negative)
    torch.testing.assert_close(loss.double(), expected, atol=1e-6, rtol=1e-6)
    found = torch.autograd.grad(loss, given, allow_unused=True, materialize_grads=True)
    wanted = torch.autograd.grad(expected, given, allow_unused=True, materialize_grads=True)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("nu", [1.0, 2.0])
def test_gradients_are_finite_and_right_far_from_zero(nu: float) -> None:
    """At |G| = 100, log(h) in its naive form loses the gradient; here dL/dG⁺ = h − 1 and dL/dG⁻ = ν h."""
    ratios = torch.tensor([100.0, -100.0], requires_grad=True)
    zero = torch.zeros(2)
    loss = contrastive_loss(ratios, zero, zero[:, None], zero[:, None], nu=nu, negative=False)
    (gradient,) = torch.autograd.grad(loss, ratios)
    assert torch.isfinite(loss)
    torch.testing.assert_close(gradient, torch.tensor([0.0, -0.5]))
    loss = contrastive_loss(zero, zero, ratios[:, None], zero[:, None], nu=nu, positive=False)
    (gradient,) = torch.autograd.grad(loss, ratios)
    assert torch.isfinite(loss)
    torch.testing.assert_close(gradient, torch.tensor([0.5 * nu, 0.0]))


def test_identical_models_give_two_ln_two_and_a_gradient() -> None:
    positive = torch.full((3,), -8.0, requires_grad=True)
    negative = torch.full((3, 5), -20.0, requires_grad=True)
    loss = contrastive_loss(positive, positive.detach(), negative, negative.detach())
    assert loss.item() == pytest.approx(2 * math.log(2))
    gradients = torch.autograd.grad(loss, [positive, negative])
    torch.testing.assert_close(gradients[0], torch.full((3,), -0.5 / 3))
    torch.testing.assert_close(gradients[1], torch.full((3, 5), 0.5 / 15))


def test_half_precision_scores_are_compared_in_float32() -> None:
    given = [t.detach().half() for t in scores(4, 3)]
    loss = contrastive_loss(*given)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, contrastive_loss(*(t.float() for t in given)))


def test_no_term_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="positive term"):
        contrastive_loss(*scores(2, 2), positive=False, negative=False)
    with pytest.raises(ValueError, match="positive, negative, or both"):
        ContrastiveSettings(positive=False, negative=False)


def ragged_batch(tiny_data: tuple[Dataset, FeatureStore], negatives: int) -> Batch:
    """Images with one to four captions each, captions of two to five words."""
    dataset, store = tiny_data
    return BatchSource(dataset, store, "train", images_per_batch=4, negatives=negatives).at(0)


@pytest.mark.parametrize("settings", [{}, {"nu": 2.0, "negatives": 3}, {"positive": False}, {"negative": False}])
def test_the_objective_equals_scores_of_single_pairs(
    tiny_data: tuple[Dataset, FeatureStore], make_captioner: Make, settings: dict[str, float]
) -> None:
    """Pair by pair through both models, no batch, no padding; then the naive loop."""
    target, reference = make_captioner(seed=1), make_captioner(seed=2)
    chosen = ContrastiveSettings(**settings)
    batch = ragged_batch(tiny_data, chosen.negatives)
    totals = Contrastive(chosen, Roles(target, reference=reference))(batch, PROGRESS)

    def alone(model: AdaptiveAttention, pair: int) -> torch.Tensor:
        image = batch.features["tiny"][batch.pairs.image_row[pair]][None]
        tokens = model.tokenize([batch.captions[batch.pairs.caption_row[pair]]])
        return model.log_prob(model.encode(image), tokens, torch.tensor([0]))[0]

    positives, negatives = batch.pairs.of(Kind.POSITIVE).tolist(), batch.pairs.of(Kind.NEGATIVE).tolist()
    count, draws = len(positives), chosen.negatives
    given = [
        torch.stack([alone(target, pair) for pair in positives]),
        torch.stack([alone(reference, pair) for pair in positives]).detach(),
        torch.stack([alone(target, pair) for pair in negatives]).view(count, draws),
        torch.stack([alone(reference, pair) for pair in negatives]).view(count, draws).detach(),
    ]
    expected = naive_loss(*given, nu=chosen.nu, positive=chosen.positive, negative=chosen.negative)
    loss = totals["loss"].sum / totals["loss"].count
    assert totals["loss"].count == count
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    parameters = list(target.parameters())
    found = torch.autograd.grad(loss, parameters)
    wanted = torch.autograd.grad(expected, parameters)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_the_reference_is_frozen_and_outside(tiny_data: tuple[Dataset, FeatureStore], make_captioner: Make) -> None:
    target, reference = make_captioner(seed=1), make_captioner(seed=2, dropout=0.5).train()
    objective = Contrastive(ContrastiveSettings(), Roles(target, reference=reference)).train()
    assert not reference.training
    assert not any(parameter.requires_grad for parameter in reference.parameters())
    assert {id(p) for p in objective.parameters()} == {id(p) for p in target.parameters()}
    assert all(name.startswith("target.") for name in objective.state_dict())
    before = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    objective(ragged_batch(tiny_data, 5), PROGRESS)["loss"].sum.backward()
    for name, tensor in reference.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_it_needs_a_reference(make_captioner: Make) -> None:
    with pytest.raises(RecipeError, match=r"reference\.from"):
        Contrastive(ContrastiveSettings(), Roles(make_captioner()))


def test_log_ratio_of_a_true_pair_is_bounded_by_the_reference(
    tiny_data: tuple[Dataset, FeatureStore], make_captioner: Make
) -> None:
    """G⁺ ≤ −ln p_reference, since p_target ≤ 1: the loss cannot be driven below its bound."""
    target, reference = make_captioner(seed=1), make_captioner(seed=2)
    batch = ragged_batch(tiny_data, 5)
    scores, _ = Contrastive(ContrastiveSettings(), Roles(target, reference=reference)).scores(batch, PROGRESS)
    captions = [batch.captions[row] for row in batch.pairs.of(Kind.POSITIVE).tolist()]
    rows = batch.pairs.image_row[: len(captions)]
    bound = -reference.log_prob(reference.encode(batch.features["tiny"]), reference.tokenize(captions), rows)
    assert (scores.ratios[0] < bound).all()
