"""The retriever contract: a module that says how well an image and a caption fit.

- Captions are strings; a retriever owns its tokens.
- Images and captions are embedded apart (`embed_images`, `embed_texts`), each once, whatever they are compared with.
- `similarity` compares raw embeddings. Where it is an inner product, `index_vectors` gives one vector per item whose
  inner product it is: what an index stores, and what evaluation streams. A retriever that compares words with regions
  (SCAN) overrides `similarity` and sets `has_index_vectors = False`; it is scored in blocks.
- Neither padding, nor the company an item is embedded in, nor its place changes its embedding.
- `bind(vocabulary)` reads sentences as weights over a captioner's words, so that gradients reach the captioner.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import torch
from torch.nn import functional

from tellapart.errors import RecipeError
from tellapart.models import Model, load_model
from tellapart.text import Vocabulary

# One tensor or several, each with one row per item: vectors, branches, or words and their mask.
Raw: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]


class BoundWords(ABC):
    """A retriever that reads the words of a captioner's vocabulary; from `Retriever.bind`."""

    @abstractmethod
    def embed_word_weights(self, weights: torch.Tensor, lengths: torch.Tensor) -> Raw:
        """Raw embeddings of sentences given as weights over words; gradients reach the weights.

        With one-hot rows this is `embed_texts` of the same words.

        Args:
            weights: `[rows, tokens, words]`, soft or one-hot over the rows of the captioner's vocabulary.
            lengths: `[rows]`, how many of the tokens are words: end token and padding come after and are not read.
        """


class Retriever(Model):
    """Base of all retrievers; see `Model` for the arguments, and how one is made, saved and loaded.

    Attributes:
        has_index_vectors: whether its similarity is an inner product of one vector per item.

    Example:
        >>> retriever = Retriever.from_pretrained("runs/scenes-ranking-1a2b3c4d")           # doctest: +SKIP
        >>> images = retriever.embed_images(features)                                       # doctest: +SKIP
        >>> retriever.similarity(images, retriever.embed_texts(["a red car", "two trees"])) # doctest: +SKIP
    """

    kind = "retriever"
    has_index_vectors: ClassVar[bool] = True

    # --- what an architecture gives ---------------------------------------------------------------------------

    @abstractmethod
    def embed_images(self, features: torch.Tensor) -> Raw:
        """Region features `[images, regions, width]` -> raw embeddings, one row per image; there may be none."""

    @abstractmethod
    def embed_texts(self, captions: Sequence[str]) -> Raw:
        """Raw embeddings, one row per caption; there may be none, and a caption may have no known word."""

    def index_vectors(self, raw: Raw) -> torch.Tensor:
        """One vector per item, `[items, width]`, for images and captions alike; only where `has_index_vectors`.

        The similarity is the inner product of an image's and a caption's.
        """
        raise NotImplementedError(f"{self.name} has no index vectors; use similarity")

    def branches(self, raw: Raw) -> tuple[torch.Tensor, ...]:
        """Unit vectors of each branch, the instances' first, `[items, width]` each; by default the index vectors'."""
        return (functional.normalize(self.index_vectors(raw).float(), dim=1),)

    def branch_widths(self) -> tuple[int, ...]:
        """How wide the vectors of `branches` are; none for a retriever that only compares."""
        return ()

    def bind(self, vocabulary: Vocabulary) -> BoundWords:
        """This retriever as a reader of weights over a captioner's words, matched by their strings."""
        raise RecipeError(
            f"the {self.name} retriever reads no words and cannot be bound to a captioner's; "
            "take one with word vectors, such as 'ranking'"
        )

    # --- what all share ---------------------------------------------------------------------------------------

    def similarity(self, images: Raw, texts: Raw) -> torch.Tensor:
        """How well each image and each caption fit, `[images, texts]` in float32; higher is better."""
        return inner_products(self.index_vectors(images), self.index_vectors(texts))

    @staticmethod
    def from_pretrained(folder: str | Path) -> Retriever:
        """The retriever in a model folder, a checkpoint or a run folder, in eval mode."""
        return load_retriever(folder)


def inner_products(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """All inner products `[rows, columns]` in float32, also where mixed precision would have fewer digits.

    >>> inner_products(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[11.,  2.]])
    """
    with torch.autocast(rows.device.type, enabled=False):
        return rows.float() @ columns.float().t()


def take(raw: Raw, rows: slice | torch.Tensor) -> Raw:
    """Raw embeddings of some of the items."""
    return tuple(part[rows] for part in raw) if isinstance(raw, tuple) else raw[rows]


def move(raw: Raw, device: torch.device | str) -> Raw:
    """Raw embeddings on a device."""
    return tuple(part.to(device) for part in raw) if isinstance(raw, tuple) else raw.to(device)


def load_retriever(folder: str | Path, overrides: dict[str, Any] | None = None) -> Retriever:
    """A retriever from a model folder, a checkpoint or a run folder, in eval mode.

    Args:
        folder: where it is.
        overrides: settings that differ from the saved ones and change no weight's shape, such as `reading`.
    """
    retriever: Retriever = load_model(folder, "retriever", overrides)
    return retriever
