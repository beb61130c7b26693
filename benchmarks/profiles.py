"""Where the time of a training step, a CL step and beam search goes: shares of torch's operators.

    .venv/bin/python benchmarks/profiles.py [--rounds 3]

Sizes are those of `captioners.py` (UpDown and AdaptiveAttention, 9,487 words, width 512, 49 regions) and, for the CL
step, those of `contrastive.py` (2,500 words). One thread; the optimiser is left out. Shares are of the time inside
operators by torch's profiler, which is wall-clock time: other load makes them rough.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from typing import Any

import torch
from made_up import IDENTITY as SMALL
from made_up import WORDS, make_data
from torch.profiler import ProfilerActivity, profile
from training_steps import LONG

from captioners import IDENTITY, SEARCH, made_up_captions, make_captioners, teach_to_end
from tellapart.captioners.adaptive import AdaptiveAttention, AdaptiveAttentionSettings
from tellapart.captioners.base import Captioner
from tellapart.data.batches import BatchSource
from tellapart.decoding.search import n_best
from tellapart.objectives.base import Roles
from tellapart.objectives.contrastive import Contrastive, ContrastiveSettings
from tellapart.text import Vocabulary

# What an operator does, by the end of its name.
KINDS = {
    "matrix products": ("mm", "addmm", "addmm_", "bmm", "baddbmm", "_linear_pointwise"),
    "exp, tanh, division": ("exp", "exp_", "tanh", "tanh_", "sigmoid", "sigmoid_", "div", "div_", "reciprocal_"),
    "choosing words (topk)": ("topk",),
}
REST = "sums, copies and the rest"


def shares(run: Callable[[], Any], rounds: int) -> dict[str, float]:
    """The share of each kind of operator in a run; one more run before warms up."""
    run()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(rounds):
            run()
    found = dict.fromkeys((*KINDS, REST), 0.0)
    for event in profiled.key_averages():
        name = event.key.rpartition("::")[2]
        kind = next((kind for kind, names in KINDS.items() if name in names), REST)
        found[kind] += event.self_cpu_time_total
    total = sum(found.values())
    return {kind: time / total for kind, time in found.items()}


def training_step(captioner: Captioner, features: torch.Tensor) -> Callable[[], None]:
    tokens, image_of_row = made_up_captions()

    def step() -> None:
        captioner.zero_grad(set_to_none=True)
        loss: Any = -captioner.log_prob(captioner.encode(features), tokens, image_of_row).mean()
        loss.backward()

    return step


def contrastive_step() -> Callable[[], None]:
    model = AdaptiveAttention(AdaptiveAttentionSettings(dropout=0.0), Vocabulary(WORDS), SMALL)
    objective = Contrastive(ContrastiveSettings(negatives=5), Roles(model, reference=copy.deepcopy(model)))
    source = BatchSource(*make_data(64), "train", 16, negatives=5)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        total = objective(source.at(0), LONG)["loss"]
        torch.autograd.backward(total.sum / total.count)

    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    features = torch.randn(50, IDENTITY.regions, IDENTITY.width)
    found = {"CL step, K = 5": shares(contrastive_step(), rounds)}
    for captioner in make_captioners():
        name = type(captioner).__name__
        found[f"training step, {name}"] = shares(training_step(captioner, features[:10]), rounds)
        teach_to_end(captioner.eval(), features)
        found[f"beam 5, {name}"] = shares(lambda model=captioner: n_best(model, features, SEARCH), rounds)  # type: ignore[misc]
    for name, row in found.items():
        print(f"{name:34}" + "  ".join(f"{kind} {share:4.0%}" for kind, share in row.items()))


if __name__ == "__main__":
    main()
