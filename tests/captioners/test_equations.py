"""Each architecture against a loop written from its equations: one caption, one image, one token at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.tiny import make_captioner
from tellapart.captioners.neuraltalk import NeuralTalk
from tellapart.captioners.transformer import Attention, MeshedMemory, SubLayer, Transformer
from tellapart.captioners.updown import UpDown
from tellapart.text import PAD, START

CAPTIONS = ["a red house", "two", "a blue car near a tree", "a red unknownword", ""]


def layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return (x - x.mean()) / (x.var(unbiased=False) + norm.eps).sqrt() * norm.weight + norm.bias


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    out = layer.weight @ x
    return out if layer.bias is None else out + layer.bias


def said(model: Any, state: Tensor, token: int) -> Tensor:
    logits = model.predict.weight @ state + model.predict.bias
    logits = torch.cat([logits[:PAD], logits[START + 1 :]])  # neither <pad> nor <start> can be said
    return logits[token - 2] - torch.logsumexp(logits, dim=0)


def lstm(gates: Tensor, cell: Tensor, order: str) -> tuple[Tensor, Tensor]:
    """Gates named in the order they are stacked: i(nput), f(orget), o(utput), g (candidate)."""
    parts = dict(zip(order, gates.chunk(4), strict=True))
    cell = torch.sigmoid(parts["f"]) * cell + torch.sigmoid(parts["i"]) * torch.tanh(parts["g"])
    return torch.sigmoid(parts["o"]) * torch.tanh(cell), cell


def neuraltalk(model: NeuralTalk, image: Tensor, tokens: list[int]) -> list[Tensor]:
    mean = sum(layer_norm(model.normalise, a) for a in image) / len(image)
    hidden = cell = image.new_zeros(model.settings.hidden)
    inputs = [linear(model.image, mean), *(model.word.weight[w] for w in [START, *tokens[:-1]])]
    scores = []
    for position, x in enumerate(inputs):
        gates = (
            model.lstm.weight_ih_l0 @ x
            + model.lstm.bias_ih_l0
            + model.lstm.weight_hh_l0 @ hidden
            + model.lstm.bias_hh_l0
        )
        hidden, cell = lstm(gates, cell, "ifgo")
        if position > 0:
            scores.append(said(model, hidden, tokens[position - 1]))
    return scores


def updown(model: UpDown, image: Tensor, tokens: list[int]) -> list[Tensor]:
    regions = [torch.relu(linear(model.region, layer_norm(model.normalise, a))) for a in image]
    mean = sum(regions) / len(regions)
    hidden_1 = cell_1 = hidden_2 = cell_2 = image.new_zeros(model.settings.hidden)
    scores = []
    for before, token in zip([START, *tokens[:-1]], tokens, strict=True):
        gates = (
            linear(model.gates_from_word, model.word.weight[before])
            + linear(model.gates_from_mean, mean)
            + linear(model.gates_from_states, torch.cat([hidden_2, hidden_1]))
        )
        hidden_1, cell_1 = lstm(gates, cell_1, "ifog")
        energies = [
            model.score.weight[0] @ torch.tanh(linear(model.key, v) + linear(model.query, hidden_1)) for v in regions
        ]
        weights = torch.softmax(torch.stack(energies), dim=0)
        context = sum(w * v for w, v in zip(weights, regions, strict=True))
        gates = linear(model.language_gates, torch.cat([context, hidden_1, hidden_2]))
        hidden_2, cell_2 = lstm(gates, cell_2, "ifog")
        scores.append(said(model, hidden_2, token))
    return scores


def attend(attention: Attention, asking: Tensor, items: list[Tensor]) -> Tensor:
    """softmax(q kᵀ / √d) v for one asking vector, head by head; learned slots stand beside the items."""
    keys = [linear(attention.key, item) for item in items]
    values = [linear(attention.value, item) for item in items]
    if attention.slot_keys is not None:
        keys += list(attention.slot_keys)
        values += list(attention.slot_values)
    query = linear(attention.query, asking)
    width = len(query) // attention.heads
    heads = []
    for head in range(attention.heads):
        part = slice(head * width, (head + 1) * width)
        energies = torch.stack([query[part] @ key[part] / math.sqrt(width) for key in keys])
        weights = torch.softmax(energies, dim=0)
        heads.append(sum(w * value[part] for w, value in zip(weights, values, strict=True)))
    return linear(attention.mix, torch.cat(heads))


def around(sub: SubLayer, states: list[Tensor], work: Callable[[list[Tensor], int], Tensor]) -> list[Tensor]:
    """Residual and normalisation around a sub-layer that works on each position."""
    given = [layer_norm(sub.norm, x) for x in states] if sub.first else states
    added = [x + work(given, position) for position, x in enumerate(states)]
    return added if sub.first else [layer_norm(sub.norm, x) for x in added]


def think(layer: Any, x: Tensor) -> Tensor:
    return linear(layer.think[3], torch.relu(linear(layer.think[0], x)))


def transformer(model: Transformer, image: Tensor, tokens: list[int]) -> list[Tensor]:
    width, first = model.settings.width, model.settings.normalise_first
    states = [torch.relu(linear(model.region, layer_norm(model.normalise, a))) for a in image]
    states = [layer_norm(model.normalise_region, x) for x in states]
    encoded = []
    for layer in model.encoder_layers:
        states = around(layer.around_attention, states, lambda given, i, m=layer: attend(m.attention, given[i], given))
        states = around(layer.around_think, states, lambda given, i, m=layer: think(m, given[i]))
        encoded.append([layer_norm(model.last_of_encoder, x) for x in states] if first else states)

    def look(layer: Any, asking: Tensor) -> Tensor:
        if not isinstance(model, MeshedMemory):
            return attend(layer.look, asking, encoded[-1])
        total = torch.zeros_like(asking)
        for gate, regions in zip(layer.gates, encoded, strict=True):
            found = attend(layer.look, asking, regions)
            total = total + torch.sigmoid(linear(gate, torch.cat([asking, found]))) * found
        return total / math.sqrt(len(encoded))

    words = []
    for position, word in enumerate([START, *tokens[:-1]]):
        signal = [
            (math.sin if i % 2 == 0 else math.cos)(position / 10000 ** ((i - i % 2) / width)) for i in range(width)
        ]
        words.append(model.word.weight[word] * math.sqrt(width) + torch.tensor(signal, dtype=torch.float64))
    for layer in model.decoder_layers:
        words = around(
            layer.around_attention, words, lambda given, i, m=layer: attend(m.attention, given[i], given[: i + 1])
        )
        words = around(layer.around_look, words, lambda given, i, m=layer: look(m, given[i]))
        words = around(layer.around_think, words, lambda given, i, m=layer: think(m, given[i]))
    if first:
        words = [layer_norm(model.last_of_decoder, x) for x in words]
    return [said(model, x, token) for x, token in zip(words, tokens, strict=True)]


NAIVE: dict[str, tuple[str, dict[str, Any], Callable[..., list[Tensor]]]] = {
    "neuraltalk": ("neuraltalk", {}, neuraltalk),
    "updown": ("updown", {}, updown),
    "transformer": ("transformer", {}, transformer),
    "transformer, norm first": ("transformer", {"normalise_first": True}, transformer),
    "meshed-memory": ("meshed-memory", {}, transformer),
    "meshed-memory, norm first": ("meshed-memory", {"normalise_first": True, "layers": 3}, transformer),
}


@pytest.mark.parametrize("case", NAIVE)
def test_log_prob_equals_the_naive_loop_in_value_and_gradient(case: str, features: Tensor) -> None:
    name, settings, naive = NAIVE[case]
    model = make_captioner(seed=5, name=name, **settings).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    features = features.double().requires_grad_()
    tokens = model.tokenize(CAPTIONS)
    images = torch.tensor([0, 2, 1, 0, 2])
    weights = torch.tensor([0.3, -1.0, 0.7, 2.0, 0.5]).double()
    scores = model.log_prob(model.encode(features), tokens, images)
    expected = torch.stack(
        [
            torch.stack(naive(model, features[image], [t for t in row.tolist() if t != PAD])).sum()
            for row, image in zip(tokens, images, strict=True)
        ]
    )
    torch.testing.assert_close(scores.double(), expected, atol=1e-5, rtol=1e-5)
    inputs = [*model.parameters(), features]
    found = torch.autograd.grad((scores * weights).sum(), inputs)
    naive_gradients = torch.autograd.grad((expected * weights).sum(), inputs)
    for one, other in zip(found, naive_gradients, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
