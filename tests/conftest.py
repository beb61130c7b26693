"""Fixtures that several folders share: a tiny vocabulary, encoder identity, captioner and data set."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from support import tiny
from support.tiny import IDENTITY, WORDS
from tellapart.captioners.adaptive import AdaptiveAttention
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset
from tellapart.text import Vocabulary


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary(WORDS)


@pytest.fixture
def make_captioner() -> Callable[..., AdaptiveAttention]:
    return tiny.make_captioner


@pytest.fixture
def features() -> torch.Tensor:
    return torch.randn(3, IDENTITY.regions, IDENTITY.width, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def tiny_data() -> tuple[Dataset, FeatureStore]:
    """Twelve images with unequal numbers of captions, and features that tell them apart."""
    return tiny.make_data()
