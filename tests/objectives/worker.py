"""Run by `torchrun` (or by one plain process): trains the objectives straight, with a stop and a resume, and in parts.

    python -m objectives.worker OUT

Each leaves OUT/CASE/{straight,resumed}/ (run folders), and OUT/CASE/{gradients,parts}.pt: the gradients of each step of
a training without dropout, in one part and in three.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from support.shapes_worker import train_for_gradients, train_straight_and_resumed
from support.tiny import make_objective, names
from tellapart import registry

REWARDS = {"cider": 1.0, "cider_between": 0.5, "similarity": 2.0, "margin": 1.5, "own_likelihood": 0.25}
MIXED = {"specificity": {"loss": "dp"}, "likelihood": {"weight": 0.5}, "self-critical": {"samples": 2}}
LITERALLY = {"bank_anchors": True, "positive_weight": 0.1, "concept_twice": True}
ATTENTION = {"self_attention": True, "cross_attention": True}
AVOIDING = {
    "negative-teacher": {"prediction": "random", "self_attention": False, "cross_attention": False, "lambda_max": 0.5},
    "contrastive": {"negatives": 2},
}
# What is trained -> arguments of `make_objective`: every registered objective, and more settings of some.
CASES: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in names("objective")},
    "contrastive-images": {"name": "contrastive", "contrast": "images"},
    "pairwise-both": {"name": "contrastive-pairwise", "contrast": "both"},
    "self-critical-greedy": {"name": "self-critical", "reward": REWARDS, "others": 2, "baseline": "greedy"},
    "specificity-gumbel": {
        "name": "specificity",
        "loss": "cdp",
        "decoding": "gumbel",
        "fluency": True,
        "update": "lstm",
    },
    "specificity-composed": {"name": "composed", "parts": MIXED},
    "negative-teacher-transformer": {"name": "negative-teacher", "captioner": "meshed-memory", **ATTENTION},
    "negative-teacher-composed": {"name": "composed", "parts": AVOIDING},
    "coder-literally": {"name": "coder", **LITERALLY, "diversity_of_bank": False, "prototypes": 0},
    "coder-in-steps": {"name": "coder", "cluster_steps": 2, "cluster_embed": False},
    "triplet": {"name": "coder", "loss": "triplet", "bank": 0, "diversity_of_bank": False, "prototypes": 0},
}
# Its momentum encoder shares the frozen transformer.
if find_spec("transformers") is not None:
    CASES["coder-transformer"] = {"name": "coder", "retriever": "coder-transformer", "diversity_of_bank": False}
# Retrieval objectives contrast within a batch: a step in parts sees less, and is another step.
IN_PARTS = [case for case, of in CASES.items() if registry.find("objective", of["name"]).trains == "captioner"]


def main(out: Path) -> None:
    torch.set_num_threads(1)
    for case, of in CASES.items():
        train_straight_and_resumed(partial(make_objective, **of), out / case)
        for accumulate, file in ((1, "gradients"), (3, "parts"))[: 2 if case in IN_PARTS else 1]:
            folder = out / case / file
            train_for_gradients(make_objective(**of), folder, folder.with_suffix(".pt"), accumulate=accumulate)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
