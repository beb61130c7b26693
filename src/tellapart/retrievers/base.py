"""The retriever interface: a module that scores how well an image and a caption match.

- Captions are strings; each retriever has its own tokens.
- Images and captions are embedded separately and once (`embed_images`, `embed_texts`).
- `similarity` compares raw embeddings. If it is an inner product, `index_vectors` returns one vector per item for a
  search index. A retriever that compares words with regions (SCAN) overrides `similarity` and sets
  `has_index_vectors = False`; it is evaluated in blocks.
- An embedding is independent of padding, batch composition and order.
- `bind(vocabulary)` embeds sentences given as weights over a captioner's words, so that gradients reach the captioner.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import torch
from torch.nn import functional

from tellapart.errors import RecipeError
from tellapart.models import Model
from tellapart.text import Vocabulary

# One or more tensors with one row per item: vectors, the vectors of several branches, or words and their mask.
Raw: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]


class BoundWords(ABC):
    """A retriever that reads the words of a captioner's vocabulary; made by `Retriever.bind`."""

    @abstractmethod
    def embed_word_weights(self, weights: torch.Tensor, lengths: torch.Tensor) -> Raw:
        """Raw embeddings of sentences given as weights over words; gradients reach the weights.

        With one-hot rows the result equals `embed_texts` of the same words.

        Args:
            weights: `[rows, tokens, words]`, soft or one-hot over the rows of the captioner's vocabulary.
            lengths: number of words in each row, `[rows]`; the end token and padding after them are ignored.
        """


class Retriever(Model):
    """Base of all retrievers; see `Model` for the arguments, and for making, saving and loading one.

    Attributes:
        has_index_vectors: whether the similarity is an inner product of one vector per item.
        has_coarse_vectors: for a retriever without them: whether `coarse_vectors` give about the same order.
        instances_only: raw embeddings have the instance branch only, for those who need no other; only `branches` can
            read them then.

    Example:
        >>> retriever = Retriever.from_pretrained("runs/scenes-ranking-1a2b3c4d")           # doctest: +SKIP
        >>> images = retriever.embed_images(features)                                       # doctest: +SKIP
        >>> retriever.similarity(images, retriever.embed_texts(["a red car", "two trees"])) # doctest: +SKIP
    """

    kind = "retriever"
    has_index_vectors: ClassVar[bool] = True
    has_coarse_vectors: ClassVar[bool] = False
    instances_only: bool = False

    # --- implemented by each architecture ---------------------------------------------------------------------

    @abstractmethod
    def embed_images(self, features: torch.Tensor) -> Raw:
        """Region features `[images, regions, width]` -> raw embeddings, one row per image; zero images are allowed."""

    @abstractmethod
    def embed_texts(self, captions: Sequence[str]) -> Raw:
        """Raw embeddings, one row per caption; the list may be empty, and a caption may have no known word."""

    def index_vectors(self, raw: Raw) -> torch.Tensor:
        """One vector per image or caption, `[items, width]`; the similarity is their inner product.

        Only if `has_index_vectors`.
        """
        raise NotImplementedError(f"{self.name} has no index vectors; use similarity")

    def coarse_vectors(self, raw: Raw) -> torch.Tensor:
        """One vector per item whose inner products order items roughly as the similarity does, `[items, width]`.

        Only if `has_coarse_vectors`: to find the items that are worth comparing pair by pair.
        """
        raise NotImplementedError(f"{self.name} has no coarse vectors")

    def branches(self, raw: Raw) -> tuple[torch.Tensor, ...]:
        """Unit vectors of each branch, instance branch first, `[items, width]` each; by default the index vectors."""
        return (functional.normalize(self.index_vectors(raw).float(), dim=1),)

    def branch_widths(self) -> tuple[int, ...]:
        """Widths of the vectors of `branches`; empty for a retriever without index vectors."""
        return ()

    def bind(self, vocabulary: Vocabulary) -> BoundWords:
        """This retriever with the words of a captioner's vocabulary, matched by string."""
        raise RecipeError(
            f"the {self.name} retriever reads no words and cannot be bound to a captioner's vocabulary; "
            "use one with word vectors, such as 'ranking'"
        )

    def join_views(self, plain: Raw, mirrored: Raw) -> Raw:
        """Raw embeddings of images that are read twice, as they are and mirrored left to right: the mean of both."""
        if isinstance(plain, torch.Tensor):
            assert isinstance(mirrored, torch.Tensor)
            return (plain + mirrored) / 2
        return tuple((one + other) / 2 for one, other in zip(plain, mirrored, strict=True))

    # --- shared -----------------------------------------------------------------------------------------------

    def similarity(self, images: Raw, texts: Raw) -> torch.Tensor:
        """Similarity of each image with each caption, `[images, texts]`, in float32; higher is better."""
        return inner_products(self.index_vectors(images), self.index_vectors(texts))


def load_retriever(folder: str | Path, overrides: dict[str, Any] | None = None) -> Retriever:
    """Load a retriever from a model folder, a checkpoint or a run folder; see `Model.from_pretrained`."""
    return Retriever.from_pretrained(folder, overrides)


def inner_products(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """All inner products `[rows, columns]`, in float32 even under mixed precision.

    >>> inner_products(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[11.,  2.]])
    """
    with torch.autocast(rows.device.type, enabled=False):
        return rows.float() @ columns.float().t()


def take(raw: Raw, rows: slice | torch.Tensor) -> Raw:
    """Raw embeddings of a subset of the items."""
    return tuple(part[rows] for part in raw) if isinstance(raw, tuple) else raw[rows]


def move(raw: Raw, device: torch.device | str) -> Raw:
    """Move raw embeddings to a device."""
    return tuple(part.to(device) for part in raw) if isinstance(raw, tuple) else raw.to(device)
