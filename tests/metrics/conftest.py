"""Fixtures of the metric tests: random captions, and the exact scores of the reference tool when at hand."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Corpus = tuple[list[list[str]], list[str]]

PARITY = Path(__file__).resolve().parents[3] / "shared" / "data" / "metrics"


@pytest.fixture(params=["coco_fakecap1000", "mrnn1k_beam1"])
def parity(request: pytest.FixtureRequest) -> dict[str, Any]:
    """1,000 images with PTB tokens and the reference tool's corpus and per-image scores."""
    path = PARITY / f"{request.param}.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here: exact scores of the reference tool are needed")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file)
    return content


@pytest.fixture
def random_corpus() -> Callable[[int], Corpus]:
    """seed → references and candidates: few words, so that n-grams repeat; some captions short or empty."""

    def make(seed: int) -> Corpus:
        generator = random.Random(seed)
        words = ["a", "dog", "cat", "on", "the", "grass", "runs"][: generator.randint(2, 7)]

        def caption(shortest: int) -> str:
            return " ".join(generator.choices(words, k=generator.randint(shortest, 12)))

        images = generator.randint(2, 12)
        references = [[caption(1) for _ in range(generator.randint(1, 5))] for _ in range(images)]
        candidates = [caption(0) for _ in range(images)]
        # One literal copy, so that a perfect match is always among the cases.
        candidates[0] = references[0][0]
        return references, candidates

    return make
