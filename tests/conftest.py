"""Fixtures that several folders share: a tiny vocabulary, encoder identity, captioner and data set."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from support import tiny
from support.tiny import IDENTITY, WORDS
from tellapart.captioners.adaptive import AdaptiveAttention
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset
from tellapart.text import Vocabulary

# Folders whose tests compare floating-point results; `make test-numerical` runs them with other kernels.
NUMERICAL = ("captioners", "decoding", "encoders", "engine", "evaluation", "huggingface", "objectives", "retrievers")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folders = {Path(__file__).parent / name for name in NUMERICAL}
    for item in items:
        if folders.intersection(item.path.parents):
            item.add_marker("numerical")


def pytest_configure() -> None:
    set_threads()  # also for fixtures of modules, which are made before those of functions


@pytest.fixture(autouse=True)
def threads() -> None:
    set_threads()


def set_threads() -> None:
    torch.set_num_threads(int(os.environ.get("TELLAPART_TEST_THREADS", "1")))


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
