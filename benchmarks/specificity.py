"""What a step of specificity training costs beside one of likelihood on as many captions, in one run.

    .venv/bin/python benchmarks/specificity.py [--rounds 8] [--images 16] [--captioner adaptive-attention]

A step is forward, backward, clipping and AdamW. The captioner has hidden size 512 and reads random features; the
retriever is the ranking retriever at the laptop's sizes on the same vocabulary. Likelihood has one true caption of each
image, of 8 to 13 made-up words; specificity training generates one caption of 11 words for each image. CPU time on one
thread, rounds alternate, medians are compared. The aim is at most 4 times likelihood.
"""

from __future__ import annotations

import argparse
import copy
import statistics

import torch
from made_up import IDENTITY, WORDS, make_data
from training_steps import alternate, stepper

from tellapart import registry
from tellapart.data.batches import BatchSource
from tellapart.objectives.base import Roles
from tellapart.objectives.likelihood import Likelihood, LikelihoodSettings
from tellapart.objectives.specificity import LOSSES, Specificity, SpecificitySettings
from tellapart.retrievers.ranking import Ranking, RankingSettings
from tellapart.text import END, Vocabulary

MAX_WORDS = 11


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--captioner", default="adaptive-attention")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = make_data(64)
    source = BatchSource(*data, "train", chosen.images, captions_per_image=1)
    source.nearest(0.1)
    captioner = registry.find("captioner", chosen.captioner)
    sizes = {"hidden": 512} if "hidden" in captioner.Settings.model_fields else {"width": 512}
    model = captioner(captioner.Settings(**sizes, dropout=0.0), Vocabulary(WORDS), IDENTITY)
    speaker = captioner(captioner.Settings(**sizes, dropout=0.0), Vocabulary(WORDS, max_words=MAX_WORDS), IDENTITY)
    speaker.load_state_dict(model.state_dict())
    with torch.no_grad():
        speaker.predict.bias[END] = -1e4  # all captions are as long as they may be
    retriever = Ranking(RankingSettings(words=300, hidden=384), Vocabulary(WORDS), IDENTITY)

    def specific(loss: str, **settings: object) -> Specificity:
        given = SpecificitySettings(loss=loss, top=0.1, **settings)
        return Specificity(given, Roles(copy.deepcopy(speaker), retriever=retriever))

    steps = {
        "likelihood": stepper(Likelihood(LikelihoodSettings(), Roles(model)), source),
        **{f"specificity, {loss}": stepper(specific(loss), source) for loss in LOSSES},
        "specificity, ccos, gumbel": stepper(specific("ccos", decoding="gumbel"), source),
    }
    medians = {name: statistics.median(times) for name, times in alternate(steps, chosen.rounds).items()}
    print(f"{chosen.captioner}, {len(WORDS):,} words, {chosen.images} images a step, one caption each")
    for name, median in medians.items():
        print(f"{name:28} {1000 * median:7.0f} ms: {median / medians['likelihood']:5.2f} times likelihood")


if __name__ == "__main__":
    main()
