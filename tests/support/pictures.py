"""A tiny captioner of pictures, with an encoder that needs no weights."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tellapart import registry
from tellapart.captioners.adaptive import AdaptiveAttention, AdaptiveAttentionSettings
from tellapart.encoders.base import EncoderIdentity
from tellapart.models import write_model
from tellapart.text import Vocabulary

WORDS = ("a", "red", "blue", "house", "tree")


class TinyEncoder:
    """Colours of the four quarters of a picture."""

    concurrency = 1
    size = 4
    identity = EncoderIdentity("tiny", "0", "quarters", regions=4, width=3)

    def __init__(self, name: str = "tiny", threads: int | None = None, device: str | None = None) -> None:
        assert name == "tiny"

    def squeeze(self, image: Image.Image) -> Image.Image:
        return image.resize((2, 2))

    def encode(self, images: list[Image.Image]) -> np.ndarray:
        return np.stack([np.asarray(image, dtype=np.float32).reshape(4, 3) / 255 for image in images])


def save_model(folder: Path, identity: EncoderIdentity) -> Path:
    """A model that has learnt nothing, but looks at its picture."""
    torch.manual_seed(3)
    settings = AdaptiveAttentionSettings(hidden=6, embedding=4, attention=3, dropout=0.5)
    model = AdaptiveAttention(settings, Vocabulary(WORDS), identity)
    folder.mkdir()
    write_model(model, folder)
    return folder


def use_tiny_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the encoder `tiny` for one test."""
    module = types.ModuleType("tiny_encoder_of_the_tests")
    module.TinyEncoder = TinyEncoder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(registry.TABLE["encoder"], "tiny", f"{module.__name__}:TinyEncoder")
