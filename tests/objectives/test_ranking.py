"""The ranking hinge against naive loops: the loss, the draw, and the objective on ragged batches."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from support.tiny import IDENTITY, make_data, make_retriever
from tellapart.data.batches import Batch, BatchSource
from tellapart.errors import RecipeError
from tellapart.objectives.base import Progress, Roles
from tellapart.objectives.ranking import RankingHinge, RankingHingeSettings, choose_negatives, ranking_hinge_loss
from tellapart.retrievers.ranking import Ranking

EVERYTHING = 1000


def naive_loss(positive: torch.Tensor, scores: torch.Tensor, chosen: torch.Tensor, margin: float) -> torch.Tensor:
    """Σ_a Σ_k max(0, α − s_a + s_ak)."""
    total = torch.zeros((), dtype=scores.dtype)
    for anchor in range(len(positive)):
        for candidate in range(scores.shape[1]):
            if chosen[anchor, candidate]:
                term = margin - positive[anchor] + scores[anchor, candidate]
                total = total + (term if term > 0 else 0 * term)
    return total


@pytest.mark.parametrize("margin", [0.0, 0.2, 1.0])
@pytest.mark.parametrize(("anchors", "candidates"), [(1, 1), (4, 7)])
def test_the_loss_equals_the_naive_loop_in_value_and_gradient(margin: float, anchors: int, candidates: int) -> None:
    generator = torch.Generator().manual_seed(anchors)
    positive, scores = (
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((anchors,), (anchors, candidates))
    )
    chosen = torch.rand(anchors, candidates, generator=generator) < 0.6
    loss, expected = (
        ranking_hinge_loss(positive, scores, chosen, margin).sum(),
        naive_loss(positive, scores, chosen, margin),
    )
    torch.testing.assert_close(loss, expected)
    for one, other in zip(
        *(torch.autograd.grad(value, [positive, scores], allow_unused=True) for value in (loss, expected)), strict=True
    ):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other)


def test_negatives_are_drawn_uniformly_from_those_allowed() -> None:
    allowed = torch.tensor([True, False, True, True, False, True]).expand(6000, -1)
    noise = torch.rand(allowed.shape, generator=torch.Generator().manual_seed(0))
    chosen = choose_negatives(allowed, 2, noise)
    assert (chosen.sum(dim=1) == 2).all()
    assert not (chosen & ~allowed).any()
    assert chosen.float().mean(dim=0)[allowed[0]] == pytest.approx(torch.full((4,), 0.5), abs=0.03)
    assert torch.equal(choose_negatives(allowed, 4, noise), allowed), "all, where there are no more"
    assert torch.equal(choose_negatives(allowed, 30, noise), allowed)
    assert choose_negatives(torch.zeros(2, 3, dtype=torch.bool), 2, torch.rand(2, 3)).sum() == 0


def batches(images: int = 5, **chosen: int) -> BatchSource:
    return BatchSource(*make_data(), "train", images, **chosen)


def naive_objective(model: Ranking, batch: Batch, margin: float) -> torch.Tensor:
    """All captions of other images, all other images; one cosine at a time."""
    images = model.embed_images(batch.features[IDENTITY.name])
    texts = model.embed_texts(batch.captions)
    owner = batch.pairs.image_row.tolist()
    total = torch.zeros(())

    def cosine(image: int, text: int) -> torch.Tensor:
        return (images[image] @ texts[text]) / (images[image].norm() * texts[text].norm())

    for text, image in enumerate(owner):
        for other, its_image in enumerate(owner):
            if its_image != image:
                total = total + functional.relu(margin - cosine(image, text) + cosine(image, other))
        for other in range(len(images)):
            if other != image:
                total = total + functional.relu(margin - cosine(image, text) + cosine(other, text))
    return total


@pytest.mark.parametrize("reading", ["cosine", "dot"])
def test_the_objective_equals_the_naive_loop(reading: str) -> None:
    """Ragged; captions of the same image are never negatives; one that is read by dot products trains on cosines."""
    model: Ranking = make_retriever(seed=1, reading=reading)
    batch = batches().at(0)
    assert len(set(batch.pairs.image_row.bincount().tolist())) > 1, "ragged"
    objective = RankingHinge(RankingHingeSettings(negatives=EVERYTHING), Roles(model))
    totals = objective(batch, Progress(0, 10))
    expected = naive_objective(model, batch, 0.2)
    assert totals["loss"].count == len(batch.captions)
    torch.testing.assert_close(totals["loss"].sum, expected, atol=1e-5, rtol=1e-5)
    parameters = list(model.parameters())
    for one, other in zip(
        *(torch.autograd.grad(value, parameters, retain_graph=True) for value in (totals["loss"].sum, expected)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_negatives_are_drawn_anew_each_step() -> None:
    objective = RankingHinge(RankingHingeSettings(negatives=2), Roles(make_retriever(seed=1)))
    source = batches(6)
    first, again, later = (objective(source.at(step), Progress(0, 10)) for step in (0, 0, 1))
    pairs = first["loss"].count
    assert first["told_apart"].count == pairs * 2 * 2
    assert torch.equal(first["similarity_negative"].sum, again["similarity_negative"].sum)
    assert first["similarity_negative"].sum != later["similarity_negative"].sum
    assert 0 <= first["told_apart"].sum <= first["told_apart"].count


def test_a_batch_of_one_image_has_no_negatives() -> None:
    totals = RankingHinge(RankingHingeSettings(), Roles(make_retriever()))(batches(1).at(0), Progress(0, 10))
    assert totals["loss"].sum.item() == 0
    assert totals["told_apart"].count == 0


def test_a_retriever_without_vectors_is_refused() -> None:
    class Late(Ranking):
        has_index_vectors = False

    plain = make_retriever()
    with pytest.raises(RecipeError, match="compares one vector per item, and the ranking retriever has none"):
        RankingHinge(RankingHingeSettings(), Roles(Late(plain.settings, plain.vocabulary, plain.encoder)))
