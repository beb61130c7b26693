"""What a step of contrastive learning costs beside a step of maximum likelihood on the same true pairs, in one run.

    .venv/bin/python benchmarks/contrastive.py [--rounds 8] [--negatives 5] [--threads 1]

A step is forward, backward, clipping and AdamW. The model is AdaptiveAttention at the size of the Flickr8k recipe, on
random features and made-up captions, 16 images with 5 captions each; the reference has the same size. Three CL steps
are measured: the reference scores all pairs; it knows the true pairs (as in any training of more than an epoch) and
scores the mismatched ones; it knows all scores (as where the same mismatched pairs come again). Counting passes, with a
backward pass as two forward ones, K = 5 would cost (6 · 3 + 6) / 3 = 8, (6 · 3 + 5) / 3 = 7.7 and 6 times a step of
likelihood; images are encoded once whatever K is. CPU time (on more threads wall-clock time), rounds alternate, medians
are compared. First the gradients of all three are compared with those of the plain way: each pair scored by itself, and
eq. 7–10 on top.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable

import torch
from made_up import IDENTITY, WORDS, make_data
from training_steps import LONG, alternate, stepper

from tellapart.captioners.adaptive import AdaptiveAttention, AdaptiveAttentionSettings
from tellapart.captioners.base import Captioner
from tellapart.data.batches import Batch, BatchSource, Kind
from tellapart.objectives.base import Progress, Roles
from tellapart.objectives.contrastive import Contrastive, ContrastiveSettings, contrastive_loss
from tellapart.objectives.likelihood import Likelihood, LikelihoodSettings
from tellapart.text import Vocabulary

ONE_EPOCH = Progress(0, 1)


def gradients(target: Captioner, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(target.parameters())))


def plain_loss(target: Captioner, reference: Captioner, batch: Batch) -> torch.Tensor:
    """The loss with every pair of image and caption encoded and scored by itself."""

    def scores(model: Captioner, kind: Kind) -> torch.Tensor:
        rows = batch.pairs.of(kind)
        tokens = model.tokenize([batch.captions[row] for row in batch.pairs.caption_row[rows].tolist()])
        features = batch.features[IDENTITY.name][batch.pairs.image_row[rows]]
        return model.log_prob(model.encode(features), tokens, torch.arange(len(rows)))

    true = len(batch.pairs.of(Kind.POSITIVE))
    with torch.no_grad():
        of_reference = scores(reference, Kind.POSITIVE), scores(reference, Kind.NEGATIVE).view(true, -1)
    of_target = scores(target, Kind.POSITIVE), scores(target, Kind.NEGATIVE).view(true, -1)
    return contrastive_loss(of_target[0], of_reference[0], of_target[1], of_reference[1])


def check_gradients(make: Callable[[], Contrastive], reference: Captioner, source: BatchSource) -> None:
    """The gradients of the three steps equal those of the plain way, to 1e-4 of the largest of each weight."""
    plain = make().target
    wanted = gradients(plain, plain_loss(plain, reference, source.at(0)))
    for progress, known in ((ONE_EPOCH, False), (LONG, False), (LONG, True)):
        objective, batch = make(), source.at(0)
        if known:
            objective._reference_negative(batch, Kind.NEGATIVE)
        total = objective(batch, progress)["loss"]
        for name, one, other in zip(
            dict(plain.named_parameters()), gradients(objective.target, total.sum / total.count), wanted, strict=True
        ):
            apart = (one - other).abs().max() / other.abs().max().clamp(min=1e-12)
            assert apart < 1e-4, f"the gradient of {name} differs by {apart:.1e} of the largest"
    print("gradients equal those of pairs scored by themselves")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--negatives", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
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
    check_gradients(contrast, reference, source)
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
