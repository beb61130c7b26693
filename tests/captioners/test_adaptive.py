"""AdaptiveAttention against a loop written from its equations; test_contract.py has what every captioner must be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tellapart.captioners.adaptive import AdaptiveAttention
from tellapart.captioners.base import Grouping
from tellapart.text import PAD, START

Make = Callable[..., AdaptiveAttention]
CAPTIONS = ["a red house", "two", "a blue car near a tree", "a red unknownword", ""]


def naive_log_probs(model: AdaptiveAttention, image: torch.Tensor, tokens: list[int]) -> list[torch.Tensor]:
    """One caption, one image, one token at a time, from the equations in the class docstring."""
    width = model.settings.hidden
    normal = [
        (a - a.mean()) / (a.var(unbiased=False) + model.normalise.eps).sqrt() * model.normalise.weight
        + model.normalise.bias
        for a in image
    ]
    regions = [torch.relu(model.region.weight @ a + model.region.bias) for a in normal]
    whole = torch.relu(model.whole.weight @ (sum(normal) / len(normal)) + model.whole.bias)
    hidden = cell = image.new_zeros(width)
    score = model.score.weight[0]
    found = []
    for before, token in zip([START, *tokens[:-1]], tokens, strict=True):
        word = torch.relu(model.word.weight[before])
        gates = (
            model.gates_from_word.weight @ word
            + model.gates_from_word.bias
            + model.gates_from_whole.weight @ whole
            + model.gates_from_hidden.weight @ hidden
        )
        take, keep, show, guard, candidate = (gates[i * width : (i + 1) * width] for i in range(5))
        cell = torch.sigmoid(keep) * cell + torch.sigmoid(take) * torch.tanh(candidate)
        hidden = torch.sigmoid(show) * torch.tanh(cell)
        sentinel = torch.sigmoid(guard) * torch.tanh(cell)
        query = model.query.weight @ hidden
        energies = [
            score @ torch.tanh(model.key_of_region.weight @ v + model.key_of_region.bias + query) for v in regions
        ]
        energies.append(
            score @ torch.tanh(model.key_of_sentinel.weight @ sentinel + model.key_of_sentinel.bias + query)
        )
        weights = torch.softmax(torch.stack(energies), dim=0)
        context = sum(w * v for w, v in zip(weights, [*regions, sentinel], strict=True))
        logits = model.predict.weight @ (context + hidden) + model.predict.bias
        logits = torch.cat([logits[:PAD], logits[START + 1 :]])  # neither <pad> nor <start> can be said
        found.append(logits[token - 2] - torch.logsumexp(logits, dim=0))
    return found


def test_log_prob_equals_the_naive_loop_in_value_and_gradient(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner().double()
    features = features.double().requires_grad_()
    tokens = model.tokenize(CAPTIONS)
    images = torch.tensor([0, 2, 1, 0, 2])
    weights = torch.tensor([0.3, -1.0, 0.7, 2.0, 0.5]).double()
    scores = model.log_prob(model.encode(features), tokens, images)
    naive = torch.stack(
        [
            torch.stack(naive_log_probs(model, features[image], [t for t in row.tolist() if t != PAD])).sum()
            for row, image in zip(tokens, images, strict=True)
        ]
    )
    torch.testing.assert_close(scores.double(), naive, atol=1e-5, rtol=1e-5)
    of_model = [*model.parameters(), features]
    found = torch.autograd.grad((scores * weights).sum(), of_model)
    expected = torch.autograd.grad((naive * weights).sum(), of_model)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_traces_are_attention_over_regions_and_sentinel(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner()
    tokens, images = model.tokenize(CAPTIONS), torch.tensor([0, 2, 1, 0, 2])
    traces = model.traces(model.encode(features), tokens, images)
    assert traces.sentinel is not None
    total = traces.attention.sum(dim=2) + traces.sentinel
    torch.testing.assert_close(total, (tokens != PAD).float())
    expected = model.hidden(model.encode(features), tokens, images)
    torch.testing.assert_close(traces.hidden[tokens != PAD], expected)


@pytest.mark.parametrize("images_of_items", [[0, 0, 1], [2, 0, 2, 2, 1], [1], []])
def test_grouping_gives_every_row_its_own_place(images_of_items: list[int]) -> None:
    items = torch.tensor(images_of_items, dtype=torch.long)
    grouping = Grouping.of(items, 3)
    place = grouping.place.tolist()
    assert sorted(set(place)) == sorted(place)
    assert all(p // grouping.size == image for p, image in zip(place, images_of_items, strict=True))
