"""MLE against a loop over single captions and tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tellapart.captioners.adaptive import AdaptiveAttention
from tellapart.data.batches import BatchSource, Kind
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset
from tellapart.objectives.base import Progress, Roles
from tellapart.objectives.likelihood import Likelihood, LikelihoodSettings


def test_loss_is_the_mean_over_tokens_with_end_tokens(
    tiny_data: tuple[Dataset, FeatureStore], make_captioner: Callable[..., AdaptiveAttention]
) -> None:
    dataset, store = tiny_data
    model = make_captioner(seed=3)
    batch = BatchSource(dataset, store, "train", images_per_batch=5, negatives=2).at(0)
    totals = Likelihood(LikelihoodSettings(), Roles(model))(batch, Progress(0, 1))
    total, count = torch.zeros(()), 0
    for pair in batch.pairs.of(Kind.POSITIVE).tolist():
        memory = model.encode(batch.features["tiny"][batch.pairs.image_row[pair]][None])
        tokens = model.tokenize([batch.captions[batch.pairs.caption_row[pair]]])
        for value in model.log_prob(memory, tokens, torch.tensor([0]), per_token=True)[0]:
            total = total - value
            count += 1
    assert totals["loss"].count == count
    torch.testing.assert_close(totals["loss"].sum, total, atol=1e-4, rtol=1e-5)
    found = torch.autograd.grad(totals["loss"].sum, list(model.parameters()))
    expected = torch.autograd.grad(total, list(model.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
