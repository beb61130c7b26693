"""AdaptiveAttention against a loop written from its equations, and the properties every captioner must have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tellapart.captioners.adaptive import AdaptiveAttention
from tellapart.captioners.base import group_by_image
from tellapart.text import END, PAD, START, UNKNOWN

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


def test_step_equals_forward(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner()
    tokens = model.tokenize(CAPTIONS)
    images = torch.tensor([0, 2, 1, 0, 2])
    memory = model.encode(features)
    logits = model(memory, tokens, images)
    state = model.start(memory, images)
    token = torch.full((len(tokens),), START)
    for time in range(tokens.shape[1]):
        log_probs, state = model.step(state, token)
        real = tokens[:, time] != PAD
        expected = logits[:, time].log_softmax(dim=1)
        torch.testing.assert_close(log_probs[real], expected[real], atol=1e-5, rtol=1e-5)
        token = tokens[:, time]


def test_select_reorders_rows(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner()
    state = model.start(model.encode(features), torch.tensor([0, 1, 2]))
    _, state = model.step(state, torch.tensor([4, 5, 6]))
    whole, _ = model.step(state, torch.tensor([7, 8, 9]))
    picked, _ = model.step(model.select(state, torch.tensor([2, 0, 2])), torch.tensor([9, 7, 9]))
    torch.testing.assert_close(picked, whole[[2, 0, 2]], atol=1e-6, rtol=1e-6)


def test_padding_composition_and_order_do_not_change_a_score(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner()
    images = torch.tensor([0, 2, 1, 0, 2])
    tokens = model.tokenize(CAPTIONS)
    together = model.log_prob(model.encode(features), tokens, images)
    for row, (caption, image) in enumerate(zip(CAPTIONS, images.tolist(), strict=True)):
        alone = model.log_prob(model.encode(features[image][None]), model.tokenize([caption]), torch.tensor([0]))
        torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=0)
    wider = torch.nn.functional.pad(tokens, (0, 7), value=PAD)
    torch.testing.assert_close(model.log_prob(model.encode(features), wider, images), together, atol=1e-5, rtol=0)
    order = torch.tensor([3, 1, 4, 0, 2])
    torch.testing.assert_close(
        model.log_prob(model.encode(features), tokens[order], images[order]), together[order], atol=1e-5, rtol=0
    )


def test_probabilities_are_a_distribution_without_pad_and_start(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner()
    log_probs, _ = model.step(model.start(model.encode(features), torch.tensor([0, 1, 2])), torch.full((3,), START))
    torch.testing.assert_close(log_probs.exp().sum(dim=1), torch.ones(3))
    assert torch.isinf(log_probs[:, [PAD, START]]).all()
    assert torch.isfinite(log_probs[:, [END, UNKNOWN]]).all()


def test_the_end_token_counts(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner()
    memory, tokens = model.encode(features), model.tokenize(["a red house"])
    per_token = model.log_prob(memory, tokens, torch.tensor([1]), per_token=True)
    assert tokens[0, -1] == END
    assert per_token.shape == (1, 4)
    torch.testing.assert_close(per_token.sum(dim=1), model.log_prob(memory, tokens, torch.tensor([1])))
    assert (per_token < 0).all()


def test_traces_are_attention_over_regions_and_sentinel(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner()
    tokens, images = model.tokenize(CAPTIONS), torch.tensor([0, 2, 1, 0, 2])
    traces = model.traces(model.encode(features), tokens, images)
    assert traces.sentinel is not None
    total = traces.attention.sum(dim=2) + traces.sentinel
    torch.testing.assert_close(total, (tokens != PAD).float())
    expected = model.hidden(model.encode(features), tokens, images)
    torch.testing.assert_close(traces.hidden[tokens != PAD], expected)


def test_it_overfits_a_few_captions(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner(hidden=24, embedding=12).train()
    captions = ["a red house", "two blue car near tree", "a tree"]
    tokens, images = model.tokenize(captions), torch.arange(3)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(150):
        loss = -model.log_prob(model.encode(features), tokens, images).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    scores = torch.stack([model.log_prob(model.encode(features), tokens, torch.full((3,), i)) for i in range(3)])
    assert loss.item() < 0.05
    assert scores.argmax(dim=0).tolist() == [0, 1, 2]  # each caption is likeliest for its own image


@pytest.mark.parametrize("images_of_items", [[0, 0, 1], [2, 0, 2, 2, 1], [1], []])
def test_group_by_image_gives_every_item_its_own_place(images_of_items: list[int]) -> None:
    items = torch.tensor(images_of_items, dtype=torch.long)
    place, width = group_by_image(items, 3)
    assert sorted(set(place.tolist())) == sorted(place.tolist())
    assert all(p // width == image for p, image in zip(place.tolist(), images_of_items, strict=True))
