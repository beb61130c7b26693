"""A tiny vocabulary, encoder identity, captioner and data set; made of nothing but seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tellapart import registry
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset, Record
from tellapart.encoders.base import EncoderIdentity
from tellapart.retrievers.concepts import Concept
from tellapart.text import Vocabulary

WORDS = ("a", "red", "blue", "house", "tree", "car", "near", "two")
IDENTITY = EncoderIdentity("tiny", "0", "none", regions=4, width=6)


SMALL: dict[str, dict[str, Any]] = {
    "neuraltalk": {"hidden": 8, "embedding": 5},
    "adaptive-attention": {"hidden": 8, "embedding": 5, "attention": 3},
    "updown": {"hidden": 8, "embedding": 5, "attention": 3},
    "transformer": {"width": 8, "layers": 2, "heads": 2, "feedforward": 12},
    "meshed-memory": {"width": 8, "layers": 2, "heads": 2, "feedforward": 12, "slots": 3},
}


def make_captioner(
    seed: int = 0, words: Vocabulary | None = None, name: str = "adaptive-attention", **settings: Any
) -> Any:
    """A tiny captioner of any architecture, in eval mode."""
    torch.manual_seed(seed)
    cls = registry.find("captioner", name)
    chosen = cls.Settings(**{"dropout": 0.0, **SMALL[name], **settings})
    return cls(chosen, words or Vocabulary(WORDS), IDENTITY).eval()


RETRIEVERS: dict[str, dict[str, Any]] = {
    "ranking": {"words": 5, "hidden": 4, "embedding": 7},
    "coder": {"words": 5, "width": 6, "concepts": 4},
    "scan": {"words": 5, "width": 6},
    "coder-transformer": {"width": 6, "concepts": 4},
}


def make_retriever(seed: int = 0, words: Vocabulary | None = None, name: str = "ranking", **settings: Any) -> Any:
    """A tiny retriever of any architecture, in eval mode."""
    torch.manual_seed(seed)
    cls = registry.find("retriever", name)
    chosen = cls.Settings(**{**RETRIEVERS[name], **settings})
    known = words or Vocabulary(WORDS)
    count = getattr(chosen, "concepts", 0)
    extra: list[Any] = [[Concept(word, "noun", (word,)) for word in WORDS[:count]]] if count else []
    if name == "coder-transformer":
        from support.huggingface import text_network, text_tokens  # where transformers is missing, the test is skipped

        known = text_tokens()
        extra = [text_network("bert"), *extra]
    return cls(chosen, known, IDENTITY, *extra).eval()


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
