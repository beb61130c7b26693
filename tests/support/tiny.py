"""Tiny models, objectives and data, made from seeds.

A registered captioner, retriever or objective needs one line here; then every contract test runs on it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tellapart import registry
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset, Record
from tellapart.encoders.base import EncoderIdentity
from tellapart.objectives.base import Objective, Roles
from tellapart.retrievers.concepts import Concept
from tellapart.text import Vocabulary

WORDS = ("a", "red", "blue", "house", "tree", "car", "near", "two")
IDENTITY = EncoderIdentity("tiny", "0", "none", regions=4, width=6)

# name -> tiny settings, by kind
CAPTIONERS: dict[str, dict[str, Any]] = {
    "neuraltalk": {"hidden": 8, "embedding": 5},
    "adaptive-attention": {"hidden": 8, "embedding": 5, "attention": 3},
    "updown": {"hidden": 8, "embedding": 5, "attention": 3},
    "transformer": {"width": 8, "layers": 2, "heads": 2, "feedforward": 12},
    "meshed-memory": {"width": 8, "layers": 2, "heads": 2, "feedforward": 12, "slots": 3},
}
RETRIEVERS: dict[str, dict[str, Any]] = {
    "ranking": {"words": 5, "hidden": 4, "embedding": 7},
    "coder": {"words": 5, "width": 6, "concepts": 4},
    "scan": {"words": 5, "width": 6},
    "coder-transformer": {"width": 6, "concepts": 4},
}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "likelihood": {},
    "contrastive": {"negatives": 2},
    "contrastive-pairwise": {"negatives": 2},
    "contrastive-difference": {"negatives": 2},
    "introspective": {"weight": 2.0},
    "adversarial": {"noise": 4, "width": 6, "negatives": 2, "rollouts": 2, "evaluator_warmup_steps": 2},
    "self-critical": {"samples": 3},
    "specificity": {"loss": "ccos", "top": 0.5},
    "negative-teacher": {"self_attention": False, "cross_attention": False, "warmup": 0.5},
    "ranking-hinge": {"negatives": 3},
    "coder": {"bank": 9, "diversity_of_bank": True, "prototypes": 3},
    "composed": {"parts": {"likelihood": {"weight": 0.5}, "contrastive": {"negatives": 2}}},
}


def names(kind: str) -> list[str]:
    """Registered names of a kind without Hugging Face's models, whose tests are in `tests/huggingface`."""
    return [name for name in registry.names(kind) if not name.startswith("hf-")]


def tiny_settings(kind: str, name: str) -> dict[str, Any]:
    table = {"captioner": CAPTIONERS, "retriever": RETRIEVERS, "objective": OBJECTIVES}[kind]
    if name not in table:
        raise AssertionError(f"{kind} '{name}': add its tiny settings to {kind.upper()}S in tests/support/tiny.py")
    return table[name]


def make_captioner(
    seed: int = 0, words: Vocabulary | None = None, name: str = "adaptive-attention", **settings: Any
) -> Any:
    """A tiny captioner of any architecture, in eval mode."""
    torch.manual_seed(seed)
    cls = registry.find("captioner", name)
    chosen = cls.Settings(**{"dropout": 0.0, **tiny_settings("captioner", name), **settings})
    return cls(chosen, words or Vocabulary(WORDS), IDENTITY).eval()


def make_retriever(seed: int = 0, words: Vocabulary | None = None, name: str = "ranking", **settings: Any) -> Any:
    """A tiny retriever of any architecture, in eval mode."""
    torch.manual_seed(seed)
    cls = registry.find("retriever", name)
    chosen = cls.Settings(**{**tiny_settings("retriever", name), **settings})
    known = words or Vocabulary(WORDS)
    count = getattr(chosen, "concepts", 0)
    extra: list[Any] = [[Concept(word, "noun", (word,)) for word in WORDS[:count]]] if count else []
    if name == "coder-transformer":
        from support.huggingface import text_network, text_tokens  # where transformers is missing, the test is skipped

        known = text_tokens()
        extra = [text_network("bert"), *extra]
    return cls(chosen, known, IDENTITY, *extra).eval()


def make_objective(
    name: str,
    dropout: float = 0.0,
    retriever: str | None = None,
    captioner: str = "adaptive-attention",
    **settings: Any,
) -> Any:
    """Any objective with a tiny target, and a tiny frozen model in each of its roles.

    Args:
        retriever: which retriever a retrieval objective trains; by default the one of the same name, or else `ranking`.
        captioner: which captioner the others train.
        settings: others than the tiny ones.
    """
    cls: type[Objective] = registry.find("objective", name)
    chosen = cls.Settings(**{**tiny_settings("objective", name), **settings})
    if cls.trains == "captioner":
        target = make_captioner(seed=1, name=captioner, dropout=dropout)
    else:
        retriever = retriever or (name if name in RETRIEVERS else "ranking")
        fields = registry.find("retriever", retriever).Settings.model_fields
        target = make_retriever(
            1, name=retriever, **{f: dropout for f in ("dropout", "drop_regions", "disturb_words") if f in fields}
        )
    # A frozen captioner has words of its own, in another order, and does not have one of the target's.
    words = Vocabulary([*reversed(WORDS[:-1]), "green"])
    makers = {"captioner": lambda: make_captioner(2, words, "neuraltalk"), "retriever": lambda: make_retriever(2)}
    frozen = {role: makers[kind]() for role, kind in cls.needs(chosen).roles.items()}
    if "negative_teacher" in frozen:  # has the target's words and shape
        frozen["negative_teacher"] = make_captioner(2, name=captioner)
    objective = cls(chosen, Roles(target, **frozen))
    torch.manual_seed(3)
    for path, parameter in objective.named_parameters():
        if parameter.requires_grad and not path.startswith("target."):  # some begin at zero
            torch.nn.init.normal_(parameter)
    return objective


def make_data() -> tuple[Dataset, FeatureStore]:
    """Twelve images with unequal numbers of captions, and features that tell them apart."""
    rng = np.random.default_rng(0)
    records = []
    for number in range(12):
        captions = tuple(" ".join(rng.choice(WORDS, size=rng.integers(2, 6))) for _ in range(1 + number % 4))
        records.append(Record(str(number), f"{number}.png", ("train", "train", "val", "test")[number % 4], captions))
    dataset = Dataset("tiny", Path(), tuple(records))
    grid = rng.normal(size=(12, IDENTITY.regions, IDENTITY.width))
    features = np.concatenate([grid, grid.mean(axis=1, keepdims=True)], axis=1).astype(np.float16)
    return dataset, FeatureStore(features, IDENTITY, dataset.digest)
