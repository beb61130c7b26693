"""What a step of UNKT costs beside one of likelihood on the same captions, in one run; with the teacher's pass.

    .venv/bin/python benchmarks/negative_teacher.py [--rounds 8] [--images 16] [--captioner transformer] [--layers 3]

A step is forward, backward, clipping and AdamW. Student and teacher have width 512 and read random features; each image
has two true captions of 8 to 13 made-up words. CPU time on one thread, rounds alternate, medians are compared. The aim
is at most 2.2 times likelihood.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from typing import Any

import torch
from made_up import IDENTITY, WORDS, make_data
from training_steps import alternate, stepper

from tellapart import registry
from tellapart.data.batches import BatchSource
from tellapart.objectives.base import Progress, Roles
from tellapart.objectives.likelihood import Likelihood, LikelihoodSettings
from tellapart.objectives.negative_teacher import NegativeTeacher, NegativeTeacherSettings
from tellapart.text import Vocabulary

HALF_WAY = Progress(500, 1000)
NO_ATTENTION = {"self_attention": False, "cross_attention": False}
# What is timed -> settings.
CASES: dict[str, dict[str, Any]] = {
    "L_pred, L_hid, L_att": {},
    "L_pred, L_hid": NO_ATTENTION,
    "L_pred": {"hidden": False, **NO_ATTENTION},
    "hard L_pred": {"prediction": "hard", "hidden": False, **NO_ATTENTION},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--captioner", default="transformer")
    parser.add_argument("--layers", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    source = BatchSource(*make_data(64), "train", chosen.images, captions_per_image=2)
    captioner = registry.find("captioner", chosen.captioner)
    is_transformer = "width" in captioner.Settings.model_fields
    sizes = {"width": 512, "layers": chosen.layers} if is_transformer else {"hidden": 512}
    model = captioner(captioner.Settings(**sizes), Vocabulary(WORDS), IDENTITY)

    def avoiding(settings: dict[str, Any]) -> NegativeTeacher:
        roles = Roles(copy.deepcopy(model), negative_teacher=copy.deepcopy(model))
        return NegativeTeacher(NegativeTeacherSettings(**settings), roles)

    cases = {name: settings for name, settings in CASES.items() if is_transformer or "L_att" not in name}
    steps = {
        "likelihood": stepper(Likelihood(LikelihoodSettings(), Roles(copy.deepcopy(model))), source, HALF_WAY),
        **{name: stepper(avoiding(settings), source, HALF_WAY) for name, settings in cases.items()},
    }
    medians = {name: statistics.median(times) for name, times in alternate(steps, chosen.rounds).items()}
    print(f"{chosen.captioner}, {len(WORDS):,} words, {chosen.images} images a step, two captions each")
    for name, median in medians.items():
        print(f"{name:22} {1000 * median:7.0f} ms: {median / medians['likelihood']:5.2f} times likelihood")


if __name__ == "__main__":
    main()
