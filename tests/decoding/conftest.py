"""Every captioner, tiny, with random weights that are sharp enough for captions of several words to win."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from support import tiny
from tellapart.captioners.base import Captioner
from tellapart.text import Vocabulary

Make = Callable[..., Captioner]


def make_sharpened(name: str, seed: int = 0, words: Vocabulary | None = None, sharp: float = 6.0) -> Captioner:
    model: Captioner = tiny.make_captioner(seed=seed, words=words, name=name)
    with torch.no_grad():
        model.predict.weight *= sharp
    return model


@pytest.fixture(params=tiny.names("captioner"))
def make_any(request: pytest.FixtureRequest) -> Make:
    """`make_any(seed=0, words=None, sharp=6.0)` for every captioner."""
    return lambda **chosen: make_sharpened(request.param, **chosen)


@pytest.fixture
def make_sharp() -> Make:
    """The same for one of them, where the algorithm is tested and not the captioner."""
    return lambda **chosen: make_sharpened("adaptive-attention", **chosen)
