"""A captioner and a retriever of coloured pictures, made up so that the right answers are known."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tellapart import registry
from tellapart.captioners.base import Captioner, Traces
from tellapart.encoders.base import EncoderIdentity
from tellapart.models import write_model
from tellapart.retrievers.base import Retriever
from tellapart.settings import Section
from tellapart.text import END, PAD, START, Vocabulary

IDENTITY = EncoderIdentity("colours", "0", "mean colour", regions=1, width=4)
# Features of a picture: how green it is, how red, how blue, and that there is a picture at all.
WORDS = ("a", "red", "blue", "house")
A, RED, BLUE, HOUSE = range(END + 2, END + 6)


class ColourEncoder:
    """The mean colour of a picture."""

    concurrency = 1
    size = 4
    identity = IDENTITY

    def __init__(self, name: str = "colours", threads: int | None = None, device: str | None = None) -> None:
        assert name == "colours"

    def squeeze(self, image: Image.Image) -> Image.Image:
        return image.resize((2, 2))

    def encode(self, images: list[Image.Image]) -> np.ndarray:
        colours = np.stack([np.asarray(image, dtype=np.float32).mean(axis=(0, 1)) / 255 for image in images])
        red, green, blue = colours.T
        return np.stack([3 * green, red, blue, np.ones_like(red)], axis=1)[:, None]


class Colours(Captioner):
    """Says "a house", "a red house" or "a blue house"; the plain one is likeliest, a colour if it is strong."""

    name = "colours"
    Settings = Section

    def __init__(self, settings: Any, vocabulary: Vocabulary, encoder: EncoderIdentity) -> None:
        super().__init__(settings, vocabulary, encoder)
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def _next(self, pictures: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """ln p of the next word, given the features of the picture and the word before: a chain of words."""
        rows = torch.full((len(before), len(self.vocabulary)), 0.001)
        red, blue = pictures[:, 1], pictures[:, 2]
        rows[before == START, A] = 1.0
        rows[before == HOUSE, END] = 1.0
        rows[(before == RED) | (before == BLUE), HOUSE] = 1.0
        after = before == A
        rows[after, HOUSE], rows[after, RED], rows[after, BLUE] = 0.6, 0.3 * red[after], 0.3 * blue[after]
        rows = rows.clamp(min=0.001)
        rows[:, [PAD, START]] = 0.0
        return (rows / rows.sum(dim=1, keepdim=True)).log()

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        return features[:, 0]

    def hidden(self, memory: torch.Tensor, tokens: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        before = torch.nn.functional.pad(tokens[:, :-1], (1, 0), value=START)
        pictures = memory[image_of_row][:, None].expand(*tokens.shape, -1)
        real = tokens != PAD
        return self._next(pictures[real], before[real])

    def output(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def start(self, memory: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        return memory[image_of_row]

    def step(self, state: torch.Tensor, token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._next(state, token), state

    def select(self, state: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return state[rows]

    def traces(self, memory: torch.Tensor, tokens: torch.Tensor, image_of_row: torch.Tensor) -> Traces:
        raise NotImplementedError


class ColourRetriever(Retriever):
    """A caption fits a picture by the colours that it names."""

    name = "colours"
    Settings = Section

    def __init__(self, settings: Any, vocabulary: Vocabulary, encoder: EncoderIdentity) -> None:
        super().__init__(settings, vocabulary, encoder)
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def embed_images(self, features: torch.Tensor) -> torch.Tensor:
        return features[:, 0, 1:3]

    def embed_texts(self, captions: Sequence[str]) -> torch.Tensor:
        return torch.tensor([[float(text.count(word)) for word in ("red", "blue")] for text in captions]).view(-1, 2)

    def index_vectors(self, raw: Any) -> torch.Tensor:
        vectors: torch.Tensor = raw
        return vectors


@pytest.fixture
def captioner() -> Colours:
    return Colours(Section(), Vocabulary(WORDS), IDENTITY).eval()


@pytest.fixture
def retriever() -> ColourRetriever:
    return ColourRetriever(Section(), Vocabulary(WORDS), IDENTITY).eval()


@pytest.fixture
def models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captioner: Colours, retriever: ColourRetriever
) -> tuple[Path, Path]:
    """The folders of both, with an encoder of colours."""
    module = types.ModuleType("colours_of_the_tests")
    parts = {"encoder": ColourEncoder, "captioner": Colours, "retriever": ColourRetriever}
    for kind, part in parts.items():
        setattr(module, part.__name__, part)
        monkeypatch.setitem(registry.TABLE[kind], "colours", f"{module.__name__}:{part.__name__}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    for name, model in (("captioner", captioner), ("retriever", retriever)):
        (tmp_path / name).mkdir()
        write_model(model, tmp_path / name)
    return tmp_path / "captioner", tmp_path / "retriever"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two houses, reddish and bluish, which look alike; one that is like no other."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, colour in {"red.png": (200, 90, 80), "blue.png": (80, 90, 200), "green.jpg": (0, 255, 0)}.items():
        Image.new("RGB", (8, 8), colour).save(folder / name)
    return folder
