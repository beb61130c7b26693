"""The CL loss against a naive loop from eq. 7–10, and the objective against the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch

from support.close import assert_close
from support.tiny import WORDS, make_objective
from tellapart.captioners.adaptive import AdaptiveAttention
from tellapart.data.batches import Batch, BatchSource, Kind
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset
from tellapart.data.settings import NegativeSettings
from tellapart.errors import RecipeError
from tellapart.objectives.base import Progress, Roles
from tellapart.objectives.contrastive import Contrastive, ContrastiveSettings, contrastive_loss
from tellapart.objectives.difference import Difference
from tellapart.objectives.pairwise import Pairwise
from tellapart.objectives.reference import CONTRASTS, AgainstReference
from tellapart.text import Vocabulary

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


Data = tuple[Dataset, FeatureStore]


def naive_against_images(
    objective: AgainstReference, batch: Batch, kinds: Sequence[Kind]
) -> tuple[torch.Tensor, dict[Kind, list[float]]]:
    """The mean over true pairs of eq. 9, pair by pair and without padding, with the mean over kinds of negatives.

    Also returns G of all negatives. A true pair (t) and its k-th negative are found by counting.
    """

    def ratio(pair: int) -> torch.Tensor:
        scores = []
        for model in (objective.target, objective.reference):
            image = batch.features["tiny"][batch.pairs.image_row[pair]][None]
            tokens = model.tokenize([batch.captions[batch.pairs.caption_row[pair]]])
            scores.append(model.log_prob(model.encode(image), tokens, torch.tensor([0]))[0])
        return scores[0] - scores[1].detach()

    nu, draws = objective.nu, objective.settings.negatives
    positives = batch.pairs.of(Kind.POSITIVE).tolist()
    known = objective._comparable
    total, used, seen = torch.zeros(()), 0, {kind: list[float]() for kind in kinds}
    for t, positive in enumerate(positives):
        caption = batch.pairs.caption_row[positive]
        negatives: dict[Kind, list[int]] = {}
        for kind in kinds:
            rows = batch.pairs.of(kind).tolist()
            per_pair = len(rows) // len(positives)
            mine = [rows[t * per_pair + k] for k in range(draws)]
            for row in mine:
                if kind is Kind.NEGATIVE:
                    assert batch.pairs.image_row[row] == batch.pairs.image_row[positive]
                else:
                    assert batch.pairs.caption_row[row] == caption
                    assert batch.pairs.image_row[row] != batch.pairs.image_row[positive]
            negatives[kind] = [row for row in mine if known(batch.captions[batch.pairs.caption_row[row]])]
        if not known(batch.captions[caption]) or not all(negatives.values()):
            continue
        used += 1
        of_pair = ratio(positive)
        total = total - torch.log(1 / (1 + nu * torch.exp(-of_pair)))
        for kind, rows in negatives.items():
            for row in rows:
                of_negative = ratio(row)
                seen[kind].append(of_negative.item())
                chance = 1 / (1 + nu * torch.exp(-of_negative))
                total = total - nu * torch.log(1 - chance) / (len(rows) * len(kinds))
    return total / used, seen


@pytest.mark.parametrize("other_words", [False, True])
@pytest.mark.parametrize(("contrast", "kinds"), CONTRASTS.items())
def test_other_images_as_negatives_equal_a_naive_loop(
    tiny_data: Data, make_captioner: Make, contrast: str, kinds: tuple[Kind, ...], other_words: bool
) -> None:
    """Ragged captions; the batch holds more draws than asked for; with other words some captions are left out."""
    words = Vocabulary([*WORDS[:-1][::-1], "green"]) if other_words else None
    target, reference = make_captioner(seed=1), make_captioner(seed=2, words=words)
    objective = Contrastive(
        ContrastiveSettings(contrast=contrast, nu=1.5, negatives=2), Roles(target, reference=reference)
    )
    batch = BatchSource(*tiny_data, "train", images_per_batch=4, negatives=3, image_negatives=3).at(0)
    totals = objective(batch, PROGRESS)
    expected, seen = naive_against_images(objective, batch, kinds)
    loss = totals["loss"].sum / totals["loss"].count
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    parameters = list(target.parameters())
    assert_close(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), rounding=1e-4)
    assert (totals["loss"].count < len(batch.pairs.of(Kind.POSITIVE))) == other_words
    for kind in (Kind.NEGATIVE, Kind.IMAGE_NEGATIVE):
        name = f"log_ratio_{kind.name.lower()}"
        assert (name in totals) == (kind in kinds)
        if kind in kinds:
            assert totals[name].count == len(seen[kind])
            assert totals[name].sum.item() == pytest.approx(sum(seen[kind]), rel=1e-4, abs=1e-4)
    assert ("told_apart" in totals, "told_apart_images" in totals) == (contrast != "images", contrast != "captions")


@pytest.mark.parametrize("contrast", CONTRASTS)
@pytest.mark.parametrize("name", ["contrastive", "contrastive-pairwise", "contrastive-difference"])
def test_the_parts_of_a_batch_add_up_to_the_whole(tiny_data: Data, contrast: str, name: str) -> None:
    """Whole steps, steps in three parts and steps of two processes have the same totals, also with hard negatives."""
    objective = make_objective(name, contrast=contrast)
    needs = objective.needs(objective.settings)
    options = {
        "negatives": needs.negatives,
        "image_negatives": needs.image_negatives,
        "negative_settings": NegativeSettings(hard=0.5, top=0.3, ramp_epochs=0),
        "seed": 3,
    }
    whole = BatchSource(*tiny_data, "train", 5, **options)
    parts = [BatchSource(*tiny_data, "train", 5, **options, world=2, rank=rank, parts=3) for rank in range(2)]
    for step in range(3):
        one_epoch = Progress(step, 1)  # longer trainings gather the reference's scores from real processes
        expected = objective(whole.at(step), one_epoch)
        shares = [objective(source.at(step, part), one_epoch) for part in range(3) for source in parts]
        for total, value in expected.items():
            assert sum(share[total].count for share in shares) == value.count
            # Sums of differences of ln p that are larger than the sums.
            added = torch.stack([share[total].sum for share in shares]).sum()
            torch.testing.assert_close(added, value.sum, atol=1e-4, rtol=1e-4)
        assert expected["loss"].count > 0


def test_both_contrasts_are_the_mean_of_one_and_the_other(tiny_data: Data, make_captioner: Make) -> None:
    """And only `both` needs both kinds of pairs."""
    roles = Roles(make_captioner(seed=1), reference=make_captioner(seed=2))
    batch = BatchSource(*tiny_data, "train", 4, negatives=3, image_negatives=3).at(1)
    for cls in (Contrastive, Pairwise, Difference):
        losses = {}
        for contrast in CONTRASTS:
            settings = cls.Settings(negatives=3, contrast=contrast)
            needs = cls.needs(settings)
            assert needs.negatives == 3 * (contrast != "images")
            assert needs.image_negatives == 3 * (contrast != "captions")
            losses[contrast] = cls(settings, roles)(batch, PROGRESS)["loss"].sum  # type: ignore[arg-type]
        assert_close(losses["both"], (losses["captions"] + losses["images"]) / 2)
        assert abs(losses["captions"] - losses["images"]) > 1e-3 * abs(losses["captions"])


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
    tables, _ = Contrastive(ContrastiveSettings(), Roles(target, reference=reference)).scores(batch, PROGRESS)
    captions = [batch.captions[row] for row in batch.pairs.of(Kind.POSITIVE).tolist()]
    rows = batch.pairs.image_row[: len(captions)]
    bound = -reference.log_prob(reference.encode(batch.features["tiny"]), reference.tokenize(captions), rows)
    assert (tables[Kind.NEGATIVE].ratios[0] < bound).all()
