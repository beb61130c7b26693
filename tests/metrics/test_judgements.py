"""Agreement with people on Flickr8k, as published: needs the judgements in the data folder."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "judgements.py"
# Kendall's τ-c · 100 of Flickr8k-Expert.
EXPERT = {"Bleu_1": 32.3, "Bleu_4": 30.8, "ROUGE_L": 32.3, "CIDEr": 43.9, "METEOR": 41.8}


@pytest.fixture(scope="module")
def judgements() -> ModuleType:
    if not SCRIPT.exists():
        pytest.skip(f"{SCRIPT} is not here")
    spec = importlib.util.spec_from_file_location("judgements", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_expert(judgements: ModuleType, shared_folder: Callable[[str], Path]) -> None:
    folder = shared_folder("flickr8k/judgements").parent
    found = judgements.expert(folder, judgements.read_captions(folder / "text" / "Flickr8k.token.txt"))
    for name, tau in found.items():
        assert round(100 * tau, 1) == pytest.approx(EXPERT[name], abs=0.11 if name == "METEOR" else 1e-9), name
    assert set(found) >= EXPERT.keys() - {"METEOR"}


def test_tau_by_hand(judgements: ModuleType) -> None:
    # Six pairs of points: 3 concordant, 2 discordant, 1 tied in the ratings.
    scores, ratings = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 2.0, 2.0, 1.5])
    assert judgements.kendall_tau_c(scores, ratings) == pytest.approx(2 * (3 - 2) * 3 / (16 * 2))
    assert judgements.kendall_tau_b(scores, ratings) == pytest.approx((3 - 2) / np.sqrt(6 * 5))
    assert judgements.kendall_tau_b(scores, scores) == pytest.approx(1.0)
