"""What a step of contrastive learning costs beside a step of maximum likelihood on the same true pairs, in one run.

    .venv/bin/python benchmarks/contrastive.py [--rounds 8] [--negatives 5]

A step is forward, backward, clipping and AdamW. The model is AdaptiveAttention at the size of the Flickr8k recipe, on
random features and made-up captions, 16 images with 5 captions each; the reference has the same size. Three CL steps
are measured: the reference scores all pairs; it knows the true pairs (as in any training of more than an epoch) and
scores the mismatched ones; it knows all scores (as where the same mismatched pairs come again). Counting passes, with a
backward pass as two forward ones, K = 5 would cost (6 · 3 + 6) / 3 = 8, (6 · 3 + 5) / 3 = 7.7 and 6 times a step of
likelihood; images are encoded once whatever K is. CPU time on one thread, rounds alternate, medians are compared.
"""

from __future__ import annotations

import argparse
import copy
import statistics

import torch
from made_up import IDENTITY, WORDS, make_data
from training_steps import alternate, stepper

from tellapart.captioners.adaptive import AdaptiveAttention, AdaptiveAttentionSettings
from tellapart.data.batches import Batch, BatchSource, Kind
from tellapart.objectives.base import Progress, Roles
from tellapart.objectives.contrastive import Contrastive, ContrastiveSettings
from tellapart.objectives.likelihood import Likelihood, LikelihoodSettings
from tellapart.text import Vocabulary

ONE_EPOCH = Progress(0, 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--negatives", type=int, default=5)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = make_data(64)
    model = AdaptiveAttention(AdaptiveAttentionSettings(dropout=0.0), Vocabulary(WORDS), IDENTITY)
    reference = copy.deepcopy(model)
    settings = ContrastiveSettings(negatives=chosen.negatives)

    def contrast() -> Contrastive:
        return Contrastive(settings, Roles(copy.deepcopy(model), reference=reference))

    # The same seed draws the same images and captions, with and without negatives.
    plain = BatchSource(*data, "train", 16)
    source = BatchSource(*data, "train", 16, negatives=chosen.negatives)
    likelihood = Likelihood(LikelihoodSettings(), Roles(copy.deepcopy(model)))
    knowing = contrast()

    def know_all(batch: Batch) -> None:
        knowing._reference_negative(batch, Kind.NEGATIVE)

    steps = {
        "likelihood": stepper(likelihood, plain),
        "contrastive, the reference scores all pairs": stepper(contrast(), source, ONE_EPOCH),
        "contrastive, true pairs known": stepper(contrast(), source),
        "contrastive, all pairs known": stepper(knowing, source, before=know_all),
    }
    # The first round, which is not counted, also has the reference score the true pairs.
    seconds = alternate(steps, chosen.rounds)
    base = statistics.median(seconds["likelihood"])
    for name, times in seconds.items():
        median = statistics.median(times)
        spread = f"{1000 * min(times):.0f} to {1000 * max(times):.0f}"
        print(f"{name:45} {1000 * median:7.0f} ms a step ({spread}): {median / base:5.2f} times")


if __name__ == "__main__":
    main()
