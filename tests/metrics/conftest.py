"""Fixtures of the metric tests: random captions, our own, and the reference tool's exact scores when at hand."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Corpus = tuple[list[list[str]], list[str]]

HERE = Path(__file__).resolve().parent
SHARED = HERE.parents[2] / "shared" / "data"


@dataclass(frozen=True)
class Parity:
    """Captions and what the reference tool says of them.

    references, candidates: raw; *_tokens: by the Java tokenizer
    corpus:    metric → figure
    per_image: metric → figures
    tolerance: metric → how exactly the figures are stored
    """

    references: list[list[str]]
    candidates: list[str]
    reference_tokens: list[list[str]]
    candidate_tokens: list[str]
    corpus: dict[str, float]
    per_image: dict[str, Any]
    tolerance: dict[str, float]


def shared(name: str) -> Path:
    """A file of the data folder beside the checkout, or the test is skipped."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{path} is not here: this test needs the reference tool's values")
    return path


def read_gzip(name: str) -> Any:
    with gzip.open(shared(name), "rt", encoding="utf-8") as file:
        return json.load(file)


@pytest.fixture(scope="session")
def stored() -> Callable[[str], Any]:
    """Name of a compressed file in the data folder → its content."""
    return read_gzip


@pytest.fixture(scope="session")
def shared_folder() -> Callable[[str], Path]:
    """Name in the data folder → its path; the test is skipped when it is not here."""
    return shared


@pytest.fixture(scope="session", params=["coco_fakecap1000", "mrnn1k_beam1", "karpathy_test"])
def parity(request: pytest.FixtureRequest) -> Parity:
    """COCO images with PTB tokens and the reference tool's scores."""
    if request.param == "karpathy_test":
        return _karpathy()
    content = read_gzip(f"metrics/{request.param}.json.gz")
    images = content["images"]
    per_image = {f"Bleu_{n + 1}": np.array([i["bleu"][n] for i in images]) for n in range(4)}
    per_image |= {"ROUGE_L": np.array([i["rouge_l"] for i in images]), "CIDEr": np.array([i["cider"] for i in images])}
    return Parity(
        references=[i["refs"] for i in images],
        candidates=[i["hyp"] for i in images],
        reference_tokens=[i["refs_tok"] for i in images],
        candidate_tokens=[i["hyp_tok"] for i in images],
        corpus={name: value for name, value in content["corpus"].items() if name != "METEOR"},
        per_image=per_image,
        tolerance=dict.fromkeys(per_image, 1e-9),
    )


def _karpathy() -> Parity:
    """5,000 images; these scores are stored rounded, so that half a unit of the last digit is allowed."""
    folder = "metrics/karpathy_test"
    stored = read_gzip(f"{folder}/show_edit_tell_rl.per_image_scores.json.gz")
    order = stored.pop("order")
    raw: dict[int, list[str]] = {}
    for annotation in read_gzip(f"{folder}/captions_karpathy_test_gt.json.gz")["annotations"]:
        raw.setdefault(annotation["image_id"], []).append(annotation["caption"])
    said = {row["image_id"]: row["caption"] for row in read_gzip(f"{folder}/show_edit_tell_rl.json.gz")}
    tokens = read_gzip(f"{folder}/captions_karpathy_test_gt.ptb.json.gz")
    said_tokens = read_gzip(f"{folder}/show_edit_tell_rl.ptb.json.gz")
    per_image = {name: np.array(values) for name, values in stored.items()}
    return Parity(
        references=[raw[i] for i in order],
        candidates=[said[i] for i in order],
        reference_tokens=[tokens[str(i)] for i in order],
        candidate_tokens=[said_tokens[str(i)] for i in order],
        corpus={name: float(per_image[name].mean()) for name in ("ROUGE_L", "CIDEr")},
        per_image=per_image,
        tolerance={"ROUGE_L": 0.5001e-6, "CIDEr": 0.5001e-6, "Bleu_4": 0.5001e-8},
    )


@pytest.fixture(scope="session")
def own_scores() -> dict[str, Any]:
    """Our own captions with the reference tool's figures; make_own.py wrote them."""
    content: dict[str, Any] = json.loads((HERE / "scores_own.json").read_text(encoding="utf-8"))
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
