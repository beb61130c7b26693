"""CODER's two-branch retriever (Wang et al., ECCV 2022); VSE++ and GPO are special cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import torch
from pydantic import BaseModel, Field
from torch import nn

from tellapart.encoders.base import EncoderIdentity
from tellapart.retrievers.base import Raw
from tellapart.retrievers.caption_vectors import caption_vectors
from tellapart.retrievers.concepts import Concept, mine_concepts
from tellapart.retrievers.pooling import disturb_words
from tellapart.retrievers.sentences import bigru_states
from tellapart.retrievers.two_branches import BranchSettings, TwoBranches
from tellapart.retrievers.words import WordRetriever
from tellapart.settings import ADDED, MAX_WIDTH
from tellapart.text import SPECIALS, Vocabulary

if TYPE_CHECKING:
    from tellapart.data.settings import DataSettings


class CoderSettings(BranchSettings):
    """Settings of `Coder`."""

    words: int = Field(300, ge=1, le=MAX_WIDTH, description="width of the word vectors")
    word_vectors: str | None = Field(None, description="text file of word vectors, such as GloVe's")
    caption_vectors: Literal["none", "concepts", "words"] = Field(
        "concepts",
        description="without such a file: what begins with vectors from the training captions (words: concepts too)",
        json_schema_extra=ADDED,
    )


class Coder(TwoBranches, WordRetriever):
    """CODER's retriever: an instance branch and, optionally, a concept branch. The default for retrieval.

    With mean pooling and no concepts it is the model of VSE++; with `pooling: gpo` that of GPO. Train it with the
    `coder` objective (`CoderObjective`).

    Instance branch, eq. 1. Regions go through a linear layer and an MLP, words through a BiGRU (mean of both
    directions). Each set is pooled to one vector and normalised::

        v^I = g_vis({o_l}),   w^I = g_text({e_t})                            (1)

    Concept branch, eq. 2 (`concepts > 0`). A second pair of projections and poolings makes queries v_q and w_q, which
    attend to a graph of concepts mined from the training captions. Both modalities are mixtures of the same concept
    vectors y_i::

        v^C = Σ_i a_i y_i,   a = softmax(λ cos(W^v v_q, y_i)),   w^C likewise with W^w       (2)

    In the paper the cosine is a product without bound and the y_i are not centred (`literal_concepts`); then the branch
    collapses here (`ConceptGraph`, `ConceptQuery`).

    Similarity (sec. 3.5): β cos(v^I, w^I) + (1 − β) cos(v^C, w^C), which is the inner product of the index vectors
    [√β v^I; √(1−β) v^C].

    The graph starts from word vectors of the concepts: those of the file `word_vectors`, or else vectors made from the
    training captions (`caption_vectors`).

    In training, a fifth of the regions is dropped and a fifth of the words changed, as in GPO's code.

    Raw embeddings are `(v^I,)` or `(v^I, v^C)`, unit vectors `[items, width]`.

    Args:
        settings: see `CoderSettings`.
        vocabulary, encoder: see `Model`.
        concepts: concepts of the second branch; `settings.concepts` of them.

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
        self._make_image_side()
        self.sentence = nn.GRU(settings.words, settings.width, batch_first=True, bidirectional=True)
        self._make_branches(concepts)

    # --- making and loading -----------------------------------------------------------------------------------

    @classmethod
    def make(cls, settings: BaseModel, captions: Iterable[str], data: DataSettings, encoder: EncoderIdentity) -> Self:
        assert isinstance(settings, CoderSettings)
        captions = list(captions)
        vocabulary = cls.make_vocabulary(captions, data)
        concepts = mine_concepts(captions, settings.concepts, words=vocabulary.words) if settings.concepts else []
        retriever = cls(settings, vocabulary, encoder, concepts)
        table = None
        if settings.word_vectors is not None:
            retriever.load_words(Path(settings.word_vectors))
        elif settings.caption_vectors == "words" or (concepts and settings.caption_vectors == "concepts"):
            table = retriever._vectors_of(captions)
            if settings.caption_vectors == "words":
                retriever.word.weight.data[len(SPECIALS) :] = table[len(SPECIALS) :]
        if concepts:
            vectors = None if table is None else retriever._concept_vectors(table)
            retriever._relate_concepts((vocabulary.words(caption) for caption in captions), vectors)
        return retriever

    def _vectors_of(self, captions: Iterable[str]) -> torch.Tensor:
        """Word vectors made from these captions, `[vocabulary, words]`; zero for special tokens."""
        rows = {token: row for row, token in enumerate(self.vocabulary.tokens) if row >= len(SPECIALS)}
        numbers = ([rows.get(word, -1) for word in self.vocabulary.words(caption)] for caption in captions)
        return caption_vectors(numbers, len(self.vocabulary), self.settings.words)

    @classmethod
    def from_parts(cls, settings: BaseModel, encoder: EncoderIdentity, folder: Path) -> Self:
        assert isinstance(settings, CoderSettings)
        vocabulary = Vocabulary.load(folder / "vocabulary.json")
        return cls(settings, vocabulary, encoder, cls._read_concepts(settings, folder))

    def _concept_vectors(self, table: torch.Tensor | None = None) -> torch.Tensor:
        """X: the mean word vector of each concept's forms, `[g, words]`; by default of the model's word vectors."""
        table = self.word.weight.detach() if table is None else table
        row = {token: number for number, token in enumerate(self.vocabulary.tokens)}
        unknown = row[self.vocabulary.tokens[-1]]  # an arbitrary word, for concepts whose forms are all unknown
        means = []
        for concept in self.concepts:
            known = [row[form] for form in concept.forms if form in row] or [unknown]
            means.append(table[known].mean(dim=0))
        return torch.stack(means)

    # --- captions ---------------------------------------------------------------------------------------------

    def tokens_of(self, captions: Sequence[str]) -> torch.Tensor:
        tokens = super().tokens_of(captions)
        if self.training and self.settings.disturb_words:
            tokens = disturb_words(tokens, len(self.vocabulary), self.settings.disturb_words)
        return tokens

    def embed_words(self, vectors: torch.Tensor, lengths: torch.Tensor) -> Raw:
        items = bigru_states(self.sentence, self.dropout(vectors), lengths)
        mask = torch.arange(items.shape[1], device=items.device) < lengths[:, None]
        return self._embed_items(items, mask)
