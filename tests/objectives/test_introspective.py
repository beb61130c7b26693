"""Introspective learning against a naive loop over single pairs, and its distractors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tellapart.captioners.adaptive import AdaptiveAttention
from tellapart.data.batches import BatchSource, Kind
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset, Record
from tellapart.encoders.base import EncoderIdentity
from tellapart.errors import DataError, RecipeError
from tellapart.objectives.base import Progress, Roles
from tellapart.objectives.introspective import Introspective, IntrospectiveSettings, introspective_loss

Data = tuple[Dataset, FeatureStore]
PROGRESS = Progress(0, 10)


@pytest.mark.parametrize(("weight", "margin"), [(1.0, 1.0), (0.5, 3.0), (0.0, 1.0)])
def test_the_loss_equals_a_naive_loop_in_value_and_gradient(weight: float, margin: float) -> None:
    generator = torch.Generator().manual_seed(0)
    given = [(-8 + 2 * torch.randn(9, generator=generator, dtype=torch.float64)).requires_grad_() for _ in range(2)]
    expected = torch.zeros((), dtype=torch.float64)
    for own, other in zip(*given, strict=True):
        expected = expected - own
        if margin - own + other > 0:
            expected = expected + weight * (margin - own + other)
    loss = introspective_loss(*given, weight, margin).sum()
    torch.testing.assert_close(loss.double(), expected, atol=1e-4, rtol=1e-6)
    found, wanted = (
        torch.autograd.grad(one, given, allow_unused=True, materialize_grads=True) for one in (loss, expected)
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def nearest(source: BatchSource, id: str) -> str:
    """By hand: the other image with the largest cosine of pooled features."""
    pooled = {record.id: source.store.pooled([row])[0] for record, row in zip(source.records, source.rows, strict=True)}
    unit = {name: vector / np.linalg.norm(vector) for name, vector in pooled.items()}
    return max((name for name in unit if name != id), key=lambda name: float(unit[name] @ unit[id]))


@pytest.mark.parametrize("negatives", [0, 2])
def test_the_objective_equals_scores_of_single_pairs(
    tiny_data: Data, make_captioner: Callable[..., AdaptiveAttention], negatives: int
) -> None:
    """Ragged: one to four captions an image of two to five words; a batch may hold negatives for other objectives."""
    dataset, store = tiny_data
    model = make_captioner(seed=1)
    source = BatchSource(dataset, store, "train", images_per_batch=4, negatives=negatives)
    batch = source.at(0)
    totals = Introspective(IntrospectiveSettings(weight=2.0, margin=0.05), Roles(model))(batch, PROGRESS)

    def alone(id: str, caption: str) -> torch.Tensor:
        features = torch.from_numpy(store.grid([dataset.row(id)]))
        return model.log_prob(model.encode(features), model.tokenize([caption]), torch.tensor([0]))[0]

    expected, met = torch.zeros(()), []
    for pair in batch.pairs.of(Kind.POSITIVE).tolist():
        id, caption = batch.ids[batch.pairs.image_row[pair]], batch.captions[batch.pairs.caption_row[pair]]
        own, other = alone(id, caption), alone(nearest(source, id), caption)
        met.append(bool(own - other >= 0.05))
        expected = expected - own + (0 if met[-1] else 2.0 * (0.05 - own + other))
    assert any(met), "both sides of the margin are tried"
    assert not all(met)
    assert totals["loss"].count == len(met)
    assert totals["margin_met"].sum == sum(met)
    torch.testing.assert_close(totals["loss"].sum, expected, atol=1e-4, rtol=1e-5)
    parameters = list(model.parameters())
    found, wanted = (torch.autograd.grad(loss, parameters) for loss in (totals["loss"].sum, expected))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_a_distractor_is_fixed(tiny_data: Data) -> None:
    """An image has the same one at every step, whatever else is in the batch and whoever's share it is in."""
    seen: dict[str, set[str]] = {}
    for world in (1, 2):
        for rank in range(world):
            source = BatchSource(*tiny_data, "train", 4, seed=world, rank=rank, world=world)
            for step in range(3 * len(source)):
                batch = source.at(step)
                distracted = source.distracted(batch)
                assert distracted.captions == batch.captions
                assert distracted.pairs.kind.tolist() == [Kind.DISTRACTOR] * len(batch.captions)
                assert torch.equal(distracted.pairs.image_row, batch.pairs.image_row)
                for id, other in zip(batch.ids, distracted.ids, strict=True):
                    seen.setdefault(id, set()).add(other)
    assert len(seen) == 6
    assert all(others == {nearest(source, id)} for id, others in seen.items())


def test_one_image_has_no_distractor(make_captioner: Callable[..., AdaptiveAttention]) -> None:
    dataset = Dataset("one", Path(), (Record("0", "0.png", "train", ("a red house",)),))
    identity = EncoderIdentity("tiny", "0", "none", regions=4, width=6)
    source = BatchSource(dataset, FeatureStore(np.ones((1, 5, 6), np.float16), identity, dataset.digest), "train", 1)
    objective = Introspective(IntrospectiveSettings(), Roles(make_captioner()))
    with pytest.raises(DataError, match="at least two images"):
        objective(source.at(0), PROGRESS)


def test_a_batch_made_by_hand_has_no_distractors(
    tiny_data: Data, make_captioner: Callable[..., AdaptiveAttention]
) -> None:
    batch = BatchSource(*tiny_data, "train", 4).at(0)
    batch.source = None
    with pytest.raises(RecipeError, match="BatchSource"):
        Introspective(IntrospectiveSettings(), Roles(make_captioner()))(batch, PROGRESS)
