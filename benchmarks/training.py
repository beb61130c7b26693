"""Tokens a second in training, against the step-by-step form the public repositories use, in one run.

    .venv/bin/python benchmarks/training.py [--rounds 6]

The step-by-step form, with the same weights: features are repeated for each caption before they are projected; every
step runs all rows, finished or not, attends, and takes a log softmax over the whole vocabulary. Ours encodes an image
once, touches real tokens only, and does all that does not depend on the recurrence at once. Forward and backward of 16
images with 5 captions each, regions of 1,280 numbers in a 7 x 7 and in the 14 x 14 grid of the public repositories, a
vocabulary of 2,500 words, captions about as long as COCO's (8 to 18 words, mean 10.5); CPU time on one thread, rounds
alternate. The gradients of both are compared first. The larger the grid, the more repeating it costs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from made_up import WORDS
from torch.nn import functional

from tellapart.captioners.adaptive import AdaptiveAttention, AdaptiveAttentionSettings
from tellapart.captioners.base import words_before
from tellapart.captioners.updown import UpDown, UpDownSettings
from tellapart.encoders.base import EncoderIdentity
from tellapart.text import PAD, Vocabulary

StepByStep = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]


def adaptive_step_by_step(model: AdaptiveAttention, features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log probabilities `[rows, time, vocabulary]` of AdaptiveAttention, one step after another."""
    width = model.settings.hidden
    normal = model.normalise(features)
    regions = functional.relu(model.region(normal))
    whole = functional.relu(model.whole(normal.mean(dim=1)))
    keys = model.key_of_region(regions)
    hidden = cell = regions.new_zeros(len(tokens), width)
    outputs = []
    for before in words_before(tokens).t():
        gates = (
            model.gates_from_word(functional.relu(model.word(before)))
            + model.gates_from_whole(whole)
            + model.gates_from_hidden(hidden)
        )
        take, keep, show, guard = gates[:, : 4 * width].sigmoid().chunk(4, dim=1)
        cell = keep * cell + take * gates[:, 4 * width :].tanh()
        hidden, sentinel = show * cell.tanh(), guard * cell.tanh()
        query = model.query(hidden)
        energy = torch.cat(
            [
                model.score(torch.tanh(keys + query[:, None])).squeeze(-1),
                model.score(torch.tanh(model.key_of_sentinel(sentinel) + query)),
            ],
            dim=1,
        )
        weights = energy.softmax(dim=1)
        context = torch.bmm(weights[:, None, :-1], regions).squeeze(1) + weights[:, -1:] * sentinel
        outputs.append(model.output(context + hidden).log_softmax(dim=1))
    return torch.stack(outputs, dim=1)


def updown_step_by_step(model: UpDown, features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log probabilities `[rows, time, vocabulary]` of UpDown, one step after another."""
    regions = functional.relu(model.region(model.normalise(features)))
    keys, mean = model.key(regions), regions.mean(dim=1)
    hidden_1 = cell_1 = hidden_2 = cell_2 = regions.new_zeros(len(tokens), model.settings.hidden)
    outputs = []
    for before in words_before(tokens).t():
        gates = (
            model.gates_from_word(model.word(before))
            + model.gates_from_mean(mean)
            + model.gates_from_states(torch.cat([hidden_2, hidden_1], dim=1))
        )
        hidden_1, cell_1 = model._cell(gates, cell_1)
        energy = model.score(torch.tanh(keys + model.query(hidden_1)[:, None])).squeeze(-1)
        context = torch.bmm(energy.softmax(dim=1)[:, None], regions).squeeze(1)
        hidden_2, cell_2 = model._cell(model.language_gates(torch.cat([context, hidden_1, hidden_2], dim=1)), cell_2)
        outputs.append(model.output(hidden_2).log_softmax(dim=1))
    return torch.stack(outputs, dim=1)


def compare(model: Any, step_by_step: StepByStep, rounds: int) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(16, model.encoder.regions, model.encoder.width, generator=generator)
    lengths = (8 + torch.empty(80).exponential_(0.4, generator=generator)).clamp(max=18).int().tolist()
    captions = [
        " ".join(WORDS[int(i)] for i in torch.randint(len(WORDS), (length,), generator=generator)) for length in lengths
    ]
    tokens, image_of_row = model.tokenize(captions), torch.arange(16).repeat_interleave(5)
    real = tokens != PAD

    def ours() -> torch.Tensor:
        score: torch.Tensor = model.log_prob(model.encode(features), tokens, image_of_row).sum()
        return score

    def theirs() -> torch.Tensor:
        log_probs = step_by_step(model, features[image_of_row], tokens)
        return log_probs.gather(2, tokens[..., None]).squeeze(2).masked_fill(~real, 0.0).sum()

    def gradients(score: Callable[[], torch.Tensor]) -> dict[str, torch.Tensor]:
        model.zero_grad(set_to_none=True)
        (score() / real.sum()).backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    one, other = gradients(ours), gradients(theirs)
    apart = max(float((one[n] - other[n]).abs().max() / other[n].abs().max().clamp(min=1e-8)) for n in other)
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(rounds):
        for label, score in (("theirs", theirs), ("ours", ours)):
            began = time.process_time()
            gradients(score)
            seconds[label].append(time.process_time() - began)
    count = int(real.sum())
    mine, public = (statistics.median(seconds[label]) for label in ("ours", "theirs"))
    name = f"{model.name}, {model.encoder.regions} regions"
    print(f"{name}: {count / public:.0f} tokens/s step by step, {count / mine:.0f} ours: {public / mine:.2f} times")
    print(f"  largest difference of a gradient, relative to its largest value: {apart:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=6)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    vocabulary = Vocabulary(WORDS)
    for regions in (49, 196):
        identity = EncoderIdentity("made-up", "0", "none", regions=regions, width=1280)
        adaptive = AdaptiveAttention(AdaptiveAttentionSettings(dropout=0.0), vocabulary, identity)
        compare(adaptive, adaptive_step_by_step, chosen.rounds)
        updown = UpDown(UpDownSettings(dropout=0.0), vocabulary, identity)
        compare(updown, updown_step_by_step, chosen.rounds)


if __name__ == "__main__":
    main()
