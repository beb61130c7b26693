"""What the reward costs in a step of self-critical training, and the step beside one of likelihood, in one run.

    .venv/bin/python benchmarks/self_critical.py [--rounds 8] [--captions 566435]

A step is forward, backward, clipping and AdamW. The model is AdaptiveAttention with hidden size 512 on random features
and made-up captions, 16 images with 5 samples each (likelihood: 5 true captions each). The document frequencies are
counted over `--captions` more made-up captions (COCO's training split has 566,435), since their table is what a reward
searches. CPU time on one thread, rounds alternate, medians are compared. Also printed: the time to count the
frequencies, and the size of the table and of the references.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from made_up import IDENTITY, WORDS, make_data
from training_steps import alternate, stepper

from tellapart.captioners.adaptive import AdaptiveAttention, AdaptiveAttentionSettings
from tellapart.data.batches import BatchSource
from tellapart.metrics.token_cider import TokenCaptions, TokenReferences
from tellapart.objectives.base import Roles
from tellapart.objectives.likelihood import Likelihood, LikelihoodSettings
from tellapart.objectives.rewards import Samples
from tellapart.objectives.self_critical import SelfCritical, SelfCriticalSettings
from tellapart.text import SPECIALS, Vocabulary


def made_up_references(captions: int) -> TokenReferences:
    """Five captions for each image, of 8 to 13 words whose counts fall as those of a language."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(8, 14, captions)
    weights = 1 / np.arange(1, len(WORDS) + 1)
    tokens = len(SPECIALS) + rng.choice(len(WORDS), size=lengths.sum(), p=weights / weights.sum())
    return TokenReferences(TokenCaptions(tokens.astype(np.int32), lengths), np.full(captions // 5, 5))


def rewarder(objective: SelfCritical, source: BatchSource) -> Callable[[int], float]:
    """A function that gives the seconds of the rewards of a step's samples; these are drawn before the clock starts."""

    def reward(number: int) -> float:
        batch = source.at(number)
        with torch.no_grad():
            memory = objective.target.encode(batch.features[IDENTITY.name])
            tokens, _ = objective._sample(batch, memory)
        samples = Samples(batch, tokens, objective.target.detokenize(tokens.flatten(0, 1)))
        began = time.process_time()
        objective._rewards(samples)
        return time.process_time() - began

    return reward


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--captions", type=int, default=566_435)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    source = BatchSource(*make_data(64), "train", 16)
    model = AdaptiveAttention(AdaptiveAttentionSettings(hidden=512, dropout=0.0), Vocabulary(WORDS), IDENTITY)
    many = made_up_references(chosen.captions // 5 * 5)
    began = time.process_time()
    table = many.frequencies(model.vocabulary.tokens)
    counted = time.process_time() - began
    size = sum(array.nbytes for array in (*table.keys, *table.counts)), many.captions.tokens.nbytes
    print(f"document frequencies of {len(many.captions):,} captions: {counted:.1f} s")
    print(f"table {size[0] / 1e6:.0f} MB, references {size[1] / 1e6:.0f} MB")

    def critical(**settings: object) -> SelfCritical:
        made = SelfCritical(SelfCriticalSettings(**settings), Roles(copy.deepcopy(model)))
        made.tables._frequencies = table
        return made

    between = {"reward": {"cider": 1.0, "cider_between": 0.5}}
    likelihood = Likelihood(LikelihoodSettings(), Roles(copy.deepcopy(model)))
    one, both, greedy = critical(), critical(**between), critical(baseline="greedy")
    steps = {
        "likelihood": stepper(likelihood, source),
        "self-critical, cider": stepper(one, source),
        "  of it, the reward": rewarder(one, source),
        "self-critical, cider and cider_between": stepper(both, source),
        "  of it, the rewards": rewarder(both, source),
        "self-critical, cider, greedy baseline": stepper(greedy, source),
    }
    medians = {name: statistics.median(times) for name, times in alternate(steps, chosen.rounds).items()}
    whole = medians["likelihood"]
    for name, median in medians.items():
        if name.startswith(" "):
            print(f"{name:40} {1000 * median:7.1f} ms: {100 * median / whole:5.1f} % of the step")
        else:
            print(f"{name:40} {1000 * median:7.0f} ms: {median / medians['likelihood']:5.2f} times likelihood")
            whole = median


if __name__ == "__main__":
    main()
