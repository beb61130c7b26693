"""CODER's two-branch retriever (Wang et al., ECCV 2022), of which VSE++, GPO and CVSE are cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from pydantic import BaseModel, Field
from torch import nn

from tellapart.encoders.base import EncoderIdentity
from tellapart.models import Model
from tellapart.retrievers.base import Raw
from tellapart.retrievers.concepts import Concept, mine_concepts
from tellapart.retrievers.pooling import disturb_words
from tellapart.retrievers.sentences import bigru_states
from tellapart.retrievers.two_branches import BranchSettings, TwoBranches
from tellapart.retrievers.words import WordRetriever
from tellapart.text import Vocabulary

if TYPE_CHECKING:
    from tellapart.data.settings import DataSettings


class CoderSettings(BranchSettings):
    """Settings of `Coder`."""

    words: int = Field(300, ge=1, description="width of the word vectors")
    word_vectors: str | None = Field(None, description="a text file such as GloVe's, from the current folder")


class Coder(TwoBranches, WordRetriever):
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
        self._make_image_side()
        self.sentence = nn.GRU(settings.words, settings.width, batch_first=True, bidirectional=True)
        self._make_branches(concepts)

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
            retriever._relate_concepts(vocabulary.words(caption) for caption in captions)
        return retriever

    @classmethod
    def files(cls, settings: BaseModel) -> dict[str, Path]:
        assert isinstance(settings, CoderSettings)
        named = settings.word_vectors
        return {} if named is None else {"retriever.word_vectors": Path(named)}

    @classmethod
    def from_parts(cls, settings: BaseModel, encoder: EncoderIdentity, folder: Path) -> Model:
        assert isinstance(settings, CoderSettings)
        vocabulary = Vocabulary.load(folder / "vocabulary.json")
        return cls(settings, vocabulary, encoder, cls._read_concepts(settings, folder))

    def _concept_vectors(self) -> torch.Tensor:
        """X: the mean of a concept's forms among the word vectors, `[g, words]`."""
        row = {token: number for number, token in enumerate(self.vocabulary.tokens)}
        unknown = row[self.vocabulary.tokens[-1]]  # a word like any other, for forms too rare to be known
        means = []
        for concept in self.concepts:
            known = [row[form] for form in concept.forms if form in row] or [unknown]
            means.append(self.word.weight[known].mean(dim=0))
        return torch.stack(means).detach()

    # --- how captions are read ---------------------------------------------------------------------------------

    def tokens_of(self, captions: Sequence[str]) -> torch.Tensor:
        tokens = super().tokens_of(captions)
        if self.training and self.settings.disturb_words:
            tokens = disturb_words(tokens, len(self.vocabulary), self.settings.disturb_words)
        return tokens

    def embed_words(self, vectors: torch.Tensor, lengths: torch.Tensor) -> Raw:
        items = bigru_states(self.sentence, self.dropout(vectors), lengths)
        mask = torch.arange(items.shape[1], device=items.device) < lengths[:, None]
        return self._embed_items(items, mask)
