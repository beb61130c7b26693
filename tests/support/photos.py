"""Tiny pictures, an encoder of their colours, and a retriever that reads it: an index without a real network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from support.tiny import WORDS, tiny_settings
from tellapart import registry
from tellapart.encoders.base import EncoderIdentity
from tellapart.models import write_model
from tellapart.text import Vocabulary


class ColourEncoder:
    """Colours of the four quarters of a picture."""

    concurrency = 1
    size = 4
    identity = EncoderIdentity("colours", "0", "quarters", regions=4, width=3)
    encoded = 0

    def __init__(self, name: str = "colours", threads: int | None = None, device: str | None = None) -> None:
        assert name == "colours"

    def squeeze(self, image: Image.Image) -> Image.Image:
        return image.resize((2, 2))

    def encode(self, images: list[Image.Image]) -> np.ndarray:
        ColourEncoder.encoded += len(images)
        return np.stack([np.asarray(image, dtype=np.float32).reshape(4, 3) / 255 for image in images])


def register() -> None:
    """Make the encoder known by its name."""
    registry.TABLE["encoder"]["colours"] = "support.photos:ColourEncoder"


def make_retriever_folder(folder: Path, seed: int = 0, name: str = "ranking") -> Path:
    """A model folder of a retriever that has learnt nothing, but looks at its pictures."""
    torch.manual_seed(seed)
    cls = registry.find("retriever", name)
    model = cls(cls.Settings(**tiny_settings("retriever", name)), Vocabulary(WORDS), ColourEncoder.identity)
    folder.mkdir(parents=True)
    write_model(model, folder)
    return folder


def make_picture(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (2, 2, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((16, 16), Image.Resampling.NEAREST).save(path)
    return path


def make_pictures(folder: Path, count: int) -> Path:
    """Pictures `000.png`, `001.png`, …"""
    for number in range(count):
        make_picture(folder / f"{number:03d}.png", number)
    return folder
