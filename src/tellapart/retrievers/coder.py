"""CODER's two-branch retriever (Wang et al., ECCV 2022), of which VSE++, GPO and CVSE are cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn
from torch.nn import functional

from tellapart.encoders.images import EncoderIdentity
from tellapart.files import read_json, write_json
from tellapart.models import Model
from tellapart.retrievers.base import Raw
from tellapart.retrievers.concept_graph import (
    ConceptGraph,
    ConceptQuery,
    concept_adjacency,
    conditional_probabilities,
)
from tellapart.retrievers.concepts import Concept, concepts_in, mine_concepts
from tellapart.retrievers.pooling import (
    GeneralizedPooling,
    disturb_words,
    drop_regions,
    max_pool,
    mean_pool,
    pack_items,
    sort_items,
)
from tellapart.retrievers.sentences import bigru_states
from tellapart.retrievers.words import WordRetriever
from tellapart.text import Vocabulary

if TYPE_CHECKING:
    from tellapart.recipe import DataSettings

# The file of a model folder that holds the concepts; their graph is a buffer.
CONCEPTS = "concepts.json"


class CoderSettings(BaseModel):
    """Settings of `Coder`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    width: int = Field(256, ge=1, description="F: width of each branch's space; 1024 in the paper")
    words: int = Field(300, ge=1, description="width of the word vectors")
    word_vectors: str | None = Field(None, description="a text file such as GloVe's, from the current folder")
    pooling: Literal["gpo", "mean", "max"] = Field("gpo", description="how regions and words become one vector")
    concepts: int = Field(0, ge=0, description="g: concepts of the second branch, 400 in the paper; 0: no such branch")
    smoothness: float = Field(10.0, gt=0, description="λ of the softmax over concepts")
    instance_share: float = Field(0.9, gt=0, le=1, description="β: the instance branch's part of the similarity")
    dropout: float = Field(0.0, ge=0, lt=1, description="of words and of regions' features")
    drop_regions: float = Field(0.2, ge=0, lt=1, description="regions left out while training")
    disturb_words: float = Field(0.2, ge=0, lt=1, description="words left out or replaced while training")


class Coder(WordRetriever):
    """Instances and concepts: what is in this picture or sentence, and what it is about.

    Instance branch, eq. 1. Regions go through a linear layer and an MLP, words through a BiGRU (the mean of both
    directions); each set is pooled to one vector and normalised::

        v^I = g_vis({o_l}),   w^I = g_text({e_t})                            (1)

    Concept branch, eq. 2 (`concepts > 0`). A second pair of aggregators makes queries, which ask a graph of concepts
    mined from the training captions; both modalities are then mixtures of the same concept representations y_i::

        v^C = Σ_i a_i y_i,   a = softmax(λ v_qᵀ W^v y_i),   w^C likewise with W^w       (2)

    Similarity (sec. 3.5): β cos(v^I, w^I) + (1 − β) cos(v^C, w^C), which is one inner product of the index vectors
    [√β v^I; √(1−β) v^C].

    While training, a fifth of the regions is left out and a fifth of the words disturbed, as GPO's code does. With mean
    pooling and no concepts this is the model of VSE++, with `gpo` that of GPO, with concepts that of CVSE.

    Raw embeddings are `(v^I,)` or `(v^I, v^C)`, unit vectors `[items, width]`.

    Args:
        settings: see `CoderSettings`.
        vocabulary: the words it knows.
        encoder: identity of the features it reads.
        concepts: those of the second branch, as many as the settings say.

    Example:
        >>> retriever = Coder(CoderSettings(width=64), vocabulary, encoder)   # doctest: +SKIP
    """

    name = "coder"
    Settings = CoderSettings
    settings: CoderSettings

    def __init__(
        self,
        settings: CoderSettings,
        vocabulary: Vocabulary,
        encoder: EncoderIdentity,
        concepts: Sequence[Concept] = (),
    ) -> None:
        super().__init__(settings, vocabulary, encoder, settings.words)
        assert len(concepts) == settings.concepts, "as many concepts as the settings say"
        self.concepts = tuple(concepts)
        width = settings.width
        self.normalise = nn.LayerNorm(encoder.width)
        self.region = nn.Linear(encoder.width, width)
        self.detail = nn.Sequential(nn.Linear(encoder.width, width // 2), nn.ReLU(), nn.Linear(width // 2, width))
        self.sentence = nn.GRU(settings.words, width, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(settings.dropout)
        branches = 2 if concepts else 1
        learned = branches if settings.pooling == "gpo" else 0
        self.pool_regions = nn.ModuleList(GeneralizedPooling() for _ in range(learned))
        self.pool_words = nn.ModuleList(GeneralizedPooling() for _ in range(learned))
        if concepts:
            # The graph of the training captions comes with `make`, or with the weights.
            self.graph = ConceptGraph(torch.eye(len(concepts)), width, vectors=self._concept_vectors())
            self.ask_image = ConceptQuery(width, settings.smoothness)
            self.ask_text = ConceptQuery(width, settings.smoothness)

    # --- how one is made, saved and loaded --------------------------------------------------------------------

    @classmethod
    def make(cls, settings: BaseModel, captions: Iterable[str], data: DataSettings, encoder: EncoderIdentity) -> Model:
        assert isinstance(settings, CoderSettings)
        captions = list(captions)
        vocabulary = cls.make_vocabulary(captions, data)
        concepts = mine_concepts(captions, settings.concepts, words=vocabulary.words) if settings.concepts else []
        retriever = cls(settings, vocabulary, encoder, concepts)
        if settings.word_vectors is not None:
            retriever.load_words(Path(settings.word_vectors))
        if concepts:
            mentioned = concepts_in([vocabulary.words(caption) for caption in captions], concepts)
            probabilities = conditional_probabilities(mentioned, len(concepts))
            retriever.graph.adjacency.copy_(concept_adjacency(probabilities))
            retriever.graph.vectors.data.copy_(retriever._concept_vectors())
        return retriever

    @classmethod
    def files(cls, settings: BaseModel) -> dict[str, Path]:
        assert isinstance(settings, CoderSettings)
        named = settings.word_vectors
        return {} if named is None else {"retriever.word_vectors": Path(named)}

    def write_parts(self, folder: Path) -> None:
        super().write_parts(folder)
        if self.concepts:
            write_json(folder / CONCEPTS, [asdict(concept) for concept in self.concepts])

    @classmethod
    def from_parts(cls, settings: BaseModel, encoder: EncoderIdentity, folder: Path) -> Model:
        assert isinstance(settings, CoderSettings)
        rows = read_json(folder / CONCEPTS, "list of concepts") if settings.concepts else []
        concepts = [Concept(row["name"], row["part"], tuple(row["forms"])) for row in rows]
        return cls(settings, Vocabulary.load(folder / "vocabulary.json"), encoder, concepts)

    def _concept_vectors(self) -> torch.Tensor:
        """X: the mean of a concept's forms among the word vectors, `[g, words]`."""
        row = {token: number for number, token in enumerate(self.vocabulary.tokens)}
        unknown = row[self.vocabulary.tokens[-1]]  # a word like any other, for forms too rare to be known
        means = []
        for concept in self.concepts:
            known = [row[form] for form in concept.forms if form in row] or [unknown]
            means.append(self.word.weight[known].mean(dim=0))
        return torch.stack(means).detach()

    # --- the equations ----------------------------------------------------------------------------------------

    def embed_images(self, features: torch.Tensor) -> Raw:
        mask = torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
        if self.training and self.settings.drop_regions:
            # The layers below are most of a step's cost: they see only what stays.
            features, mask = pack_items(features, drop_regions(mask, self.settings.drop_regions))
        normal = self.dropout(self.normalise(features))
        pooled = self._pool(self.region(normal) + self.detail(normal), mask, self.pool_regions)
        return self._branches(pooled, "ask_image")

    def tokens_of(self, captions: Sequence[str]) -> torch.Tensor:
        tokens = super().tokens_of(captions)
        if self.training and self.settings.disturb_words:
            tokens = disturb_words(tokens, len(self.vocabulary), self.settings.disturb_words)
        return tokens

    def embed_words(self, vectors: torch.Tensor, lengths: torch.Tensor) -> Raw:
        items = bigru_states(self.sentence, self.dropout(vectors), lengths)
        mask = torch.arange(items.shape[1], device=items.device) < lengths[:, None]
        return self._branches(self._pool(items, mask, self.pool_words), "ask_text")

    def _pool(self, items: torch.Tensor, mask: torch.Tensor, pools: nn.ModuleList) -> list[torch.Tensor]:
        """One vector per row for each branch; learned poolings share one sort."""
        if self.settings.pooling != "gpo":
            pooled = (mean_pool if self.settings.pooling == "mean" else max_pool)(items, mask)
            return [pooled] * (2 if self.concepts else 1)
        ordered, counts = sort_items(items, mask), mask.sum(dim=1)
        return [pool.combine(ordered, counts) for pool in pools]  # type: ignore[operator]

    def _branches(self, pooled: list[torch.Tensor], ask: str) -> tuple[torch.Tensor, ...]:
        instance = functional.normalize(pooled[0].float(), dim=1)
        if not self.concepts:
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
