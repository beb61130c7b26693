"""Base of CODER's retrievers: images, pooling, both branches and index vectors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional

from tellapart.errors import RunError
from tellapart.files import read_model, write_json
from tellapart.retrievers.base import Raw, Retriever
from tellapart.retrievers.concept_graph import (
    ConceptGraph,
    ConceptQuery,
    concept_adjacency,
    conditional_probabilities,
)
from tellapart.retrievers.concepts import Concept, concepts_in
from tellapart.retrievers.pooling import (
    GeneralizedPooling,
    drop_regions,
    max_pool,
    mean_pool,
    pack_items,
)
from tellapart.settings import ADDED, MAX_WIDTH, Section

# The file with the concepts in a model folder; their graph is a buffer of the model.
CONCEPTS = "concepts.json"


class BranchSettings(Section):
    """Settings of `TwoBranches`."""

    width: int = Field(256, ge=1, le=MAX_WIDTH, description="F: width of each branch (paper: 1024)")
    pooling: Literal["gpo", "mean", "max"] = Field("gpo", description="pooling of regions and words to one vector")
    concepts: int = Field(0, ge=0, le=MAX_WIDTH, description="g: number of concepts (paper: 400); 0: no concept branch")
    smoothness: float = Field(
        3.0, gt=0, description="λ of the softmax over concepts (paper: 10, with literal_concepts)"
    )
    literal_concepts: bool = Field(
        False,
        description="concepts not centred and queries without bound, as eq. 2 is written",
        json_schema_extra=ADDED,
    )
    whitened_concepts: bool = Field(
        False,
        description="give all directions of the concept vectors the same size, so that they do not collapse to a few",
        json_schema_extra=ADDED,
    )
    instance_share: float = Field(0.9, gt=0, le=1, description="β: weight of the instance branch in the similarity")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of word vectors and region features")
    drop_regions: float = Field(0.2, ge=0, lt=1, description="share of regions to drop in training")
    disturb_words: float = Field(0.2, ge=0, lt=1, description="share of words to drop or replace in training")


class TwoBranches(Retriever):
    """Base of CODER's retrievers: images, pooling, both branches and index vectors.

    A subclass adds the part that reads captions and calls `_embed_items` with its states. The order in which weights
    are created decides their random values: word vectors, `_make_image_side`, sentence encoder, `_make_branches`.

    Each branch has its own aggregators g of eq. 1, with their projection: regions go through a linear layer and an MLP
    of the branch, and the states of words through a linear layer of the concept branch, before each is pooled.

    Attributes:
        concepts: concepts of the second branch.
    """

    settings: BranchSettings
    concepts: tuple[Concept, ...]

    def _make_image_side(self) -> None:
        self.normalise = nn.LayerNorm(self.encoder.width)
        self.region, self.detail = self._make_projection()

    def _make_projection(self) -> tuple[nn.Linear, nn.Sequential]:
        """A linear layer and an MLP from regions to F; their sum projects the regions for one branch."""
        wide, width = self.encoder.width, self.settings.width
        return (
            nn.Linear(wide, width),
            nn.Sequential(nn.Linear(wide, width // 2), nn.ReLU(), nn.Linear(width // 2, width)),
        )

    def _make_branches(self, concepts: Sequence[Concept]) -> None:
        settings = self.settings
        assert len(concepts) == settings.concepts, "the number of concepts must match the settings"
        self.concepts = tuple(concepts)
        self.dropout = nn.Dropout(settings.dropout)
        branches = 2 if concepts else 1
        learned = branches if settings.pooling == "gpo" else 0
        self.pool_regions = nn.ModuleList(GeneralizedPooling() for _ in range(learned))
        self.pool_words = nn.ModuleList(GeneralizedPooling() for _ in range(learned))
        if concepts:
            self.concept_region, self.concept_detail = self._make_projection()
            self.concept_words = nn.Linear(settings.width, settings.width)
            # The adjacency is set by `make`, or loaded with the weights.
            better = not settings.literal_concepts
            adjacency, vectors = torch.eye(len(concepts)), self._concept_vectors()
            self.graph = ConceptGraph(
                adjacency,
                settings.width,
                vectors=vectors,
                centred=better,
                whitened=settings.whitened_concepts,
            )
            self.ask_image = ConceptQuery(settings.width, settings.smoothness, better)
            self.ask_text = ConceptQuery(settings.width, settings.smoothness, better)

    @abstractmethod
    def _concept_vectors(self) -> torch.Tensor:
        """X: initial vectors of the concepts, `[g, any width]`."""

    def _relate_concepts(self, captions: Iterable[Sequence[str]], vectors: torch.Tensor | None = None) -> None:
        """Compute the graph from the training captions, each split into words.

        Args:
            captions: of the training split.
            vectors: X, by default `_concept_vectors`.
        """
        probabilities = conditional_probabilities(concepts_in(captions, self.concepts), len(self.concepts))
        self.graph.adjacency.copy_(concept_adjacency(probabilities))
        self.graph.vectors.data.copy_(self._concept_vectors() if vectors is None else vectors)

    def write_parts(self, folder: Path) -> None:
        super().write_parts(folder)
        if self.concepts:
            write_json(folder / CONCEPTS, [asdict(concept) for concept in self.concepts])

    @staticmethod
    def _read_concepts(settings: BranchSettings, folder: Path) -> list[Concept]:
        path, remedy = folder / CONCEPTS, "use another checkpoint"
        if not settings.concepts:
            return []
        concepts = read_model(path, list[Concept], "list of concepts", remedy, RunError)
        if len(concepts) != settings.concepts:
            raise RunError(f"{path}: has {len(concepts)} concepts, and the model has {settings.concepts}; {remedy}")
        return concepts

    # --- equations --------------------------------------------------------------------------------------------

    @property
    def _has_concepts(self) -> bool:
        """Whether the concept branch is computed."""
        return bool(self.concepts) and not self.instances_only

    def embed_images(self, features: torch.Tensor) -> Raw:
        mask = torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
        if self.training and self.settings.drop_regions:
            # The layers below are most of a step's cost, so they get only the regions that are kept.
            features, mask = pack_items(features, drop_regions(mask, self.settings.drop_regions))
        normal = self.dropout(self.normalise(features))
        items = [self.region(normal) + self.detail(normal)]
        if self._has_concepts:
            items.append(self.concept_region(normal) + self.concept_detail(normal))
        return self._branches(self._pool(items, mask, self.pool_regions), "ask_image")

    def _embed_items(self, items: torch.Tensor, mask: torch.Tensor) -> Raw:
        """Raw embeddings of captions from the states of their words `[rows, words, width]` and their mask."""
        of_branches = [items, self.concept_words(items)] if self._has_concepts else [items]
        return self._branches(self._pool(of_branches, mask, self.pool_words), "ask_text")

    def _pool(self, items: list[torch.Tensor], mask: torch.Tensor, pools: nn.ModuleList) -> list[torch.Tensor]:
        """One vector per row for each branch."""
        if self.settings.pooling == "gpo":
            # With instances only there are fewer items than pools.
            return [pool(of_branch, mask) for pool, of_branch in zip(pools, items, strict=False)]
        return [(mean_pool if self.settings.pooling == "mean" else max_pool)(one, mask) for one in items]

    def _branches(self, pooled: list[torch.Tensor], ask: str) -> tuple[torch.Tensor, ...]:
        instance = functional.normalize(pooled[0].float(), dim=1)
        if not self._has_concepts:
            return (instance,)
        query = functional.normalize(pooled[1], dim=1)
        described = getattr(self, ask)(query, self.graph())
        return instance, functional.normalize(described.float(), dim=1)

    def branches(self, raw: Raw) -> tuple[torch.Tensor, ...]:
        assert isinstance(raw, tuple)
        return raw

    def branch_widths(self) -> tuple[int, ...]:
        return (self.settings.width,) * (2 if self.concepts else 1)

    def index_vectors(self, raw: Raw) -> torch.Tensor:
        assert isinstance(raw, tuple)
        if len(raw) == 1:
            return raw[0]
        share = self.settings.instance_share
        return torch.cat([share**0.5 * raw[0], (1 - share) ** 0.5 * raw[1]], dim=1)
