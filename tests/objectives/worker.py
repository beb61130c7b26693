"""Run by `torchrun` (or by one plain process): trains the objectives straight, with a stop and a resume, and in parts.

    python -m objectives.worker OUT

Each leaves OUT/NAME/{straight,resumed}/ (run folders), and OUT/NAME/{gradients,parts}.pt: the gradients of each step of
a training without dropout, in one part and in three.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from support.shapes_worker import train_for_gradients, train_straight_and_resumed
from support.tiny import WORDS, make_captioner, make_retriever
from tellapart.captioners.base import Captioner
from tellapart.objectives.adversarial import Adversarial, AdversarialSettings
from tellapart.objectives.base import Objective, Roles
from tellapart.objectives.coder import CoderObjective, CoderObjectiveSettings
from tellapart.objectives.contrastive import Contrastive, ContrastiveSettings
from tellapart.objectives.difference import Difference, DifferenceSettings
from tellapart.objectives.introspective import Introspective, IntrospectiveSettings
from tellapart.objectives.pairwise import Pairwise, PairwiseSettings
from tellapart.objectives.ranking import RankingHinge, RankingHingeSettings
from tellapart.retrievers.base import Retriever
from tellapart.text import Vocabulary


def _cross(target: Captioner) -> Objective:
    """The reference has words of its own, in another order, and does not know one of the target's."""
    words = Vocabulary([*reversed(WORDS[:-1]), "green"])
    reference = make_captioner(seed=2, words=words, name="neuraltalk")
    return Contrastive(ContrastiveSettings(negatives=2), Roles(target, reference=reference))


def _adversarial(target: Captioner) -> Objective:
    torch.manual_seed(3)
    settings = AdversarialSettings(noise=4, width=6, negatives=2, rollouts=2, evaluator_warmup_steps=2)
    objective = Adversarial(settings, Roles(target))
    torch.nn.init.normal_(objective.noise.weight)
    torch.nn.init.normal_(objective.evaluator.word.weight, std=3.0)
    return objective


OBJECTIVES: dict[str, Callable[[Captioner], Objective]] = {
    "cross-vocabulary": _cross,
    "pairwise": lambda target: Pairwise(PairwiseSettings(negatives=2), Roles(target, reference=make_captioner(seed=2))),
    "difference": lambda target: Difference(
        DifferenceSettings(negatives=2), Roles(target, reference=make_captioner(seed=2))
    ),
    "introspective": lambda target: Introspective(IntrospectiveSettings(weight=2.0), Roles(target)),
    "adversarial": _adversarial,
}


# These contrast within a batch: a step in parts sees less, and is another step.
RETRIEVAL: dict[str, Callable[[Retriever], Objective]] = {
    "ranking-hinge": lambda target: RankingHinge(RankingHingeSettings(negatives=3), Roles(target)),
    "coder": lambda target: CoderObjective(
        CoderObjectiveSettings(bank=9, diversity_of_bank=True, prototypes=3), Roles(target)
    ),
    "coder-literally": lambda target: CoderObjective(
        CoderObjectiveSettings(bank=9, bank_anchors=True, positive_weight=0.1, concept_twice=True), Roles(target)
    ),
    "triplet": lambda target: CoderObjective(CoderObjectiveSettings(loss="triplet"), Roles(target)),
}
# Its momentum encoder shares the frozen transformer.
if find_spec("transformers") is not None:
    RETRIEVAL["coder-transformer"] = lambda target: CoderObjective(
        CoderObjectiveSettings(bank=9, prototypes=3), Roles(target)
    )


def make(name: str, dropout: float = 0.0) -> Objective:
    if name in RETRIEVAL:
        # Regions and words are left out by each process's own chance; without it halves can equal the whole.
        quiet = {"drop_regions": dropout, "disturb_words": dropout}
        if name == "ranking-hinge":
            return RETRIEVAL[name](make_retriever(seed=1, dropout=dropout))
        retriever = "coder-transformer" if name == "coder-transformer" else "coder"
        return RETRIEVAL[name](make_retriever(seed=1, name=retriever, dropout=dropout, **quiet))
    return OBJECTIVES[name](make_captioner(seed=1, dropout=dropout))


def main(out: Path) -> None:
    torch.set_num_threads(1)
    for name in (*OBJECTIVES, *RETRIEVAL):
        train_straight_and_resumed(partial(make, name), out / name)
        for accumulate, file in ((1, "gradients"), (3, "parts"))[: 1 if name in RETRIEVAL else 2]:
            train_for_gradients(make(name), out / name / file, out / name / f"{file}.pt", accumulate=accumulate)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
