"""The image retriever of the specificity paper: a sentence encoder and one linear layer on each side."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import BaseModel, Field, model_validator
from torch import nn
from torch.nn import functional

from tellapart.encoders.base import EncoderIdentity
from tellapart.models import Model
from tellapart.retrievers.base import Raw
from tellapart.retrievers.words import WordRetriever
from tellapart.settings import Section
from tellapart.text import Vocabulary

if TYPE_CHECKING:
    from tellapart.data.settings import DataSettings


class RankingSettings(Section):
    """Settings of `Ranking`."""

    words: int = Field(300, ge=1, description="width of the word vectors")
    word_vectors: str | None = Field(None, description="a text file such as GloVe's, from the current folder")
    freeze_words: bool = Field(False, description="keep the word vectors as they are in that file")
    hidden: int = Field(512, ge=1, description="width of the BiLSTM, each direction")
    embedding: int = Field(1000, ge=1, description="width of the joint space")
    dropout: float = Field(0.0, ge=0, lt=1, description="before the two linear layers; the paper has none")
    reading: Literal["cosine", "dot"] = Field("cosine", description="Cos: of normalised projections; DP: as they are")

    @model_validator(mode="after")
    def _something_to_keep(self) -> RankingSettings:
        if self.freeze_words and self.word_vectors is None:
            raise ValueError("freeze_words keeps the vectors of word_vectors; name that file, or leave it out")
        return self


class Ranking(WordRetriever):
    """SentEval's ranker on an InferSent-like sentence encoder, the judge of specificity training.

    ::

        h_t = BiLSTM(w_1 … w_T)_t,   s = max_t h_t  (each dimension by itself)
        u = V s + b,   v = U x̄ + c          x̄: mean of the image's regions
        Cos(I, c) = ⟨v, u⟩ / (|v| |u|),   DP(I, c) = ⟨v, u⟩

    It is trained on normalised projections (`ranking-hinge`), whichever way it is read afterwards. The maximum is over
    real words only: the official code's sees padding, and an embedding then depends on its batch. The paper takes
    InferSent as it was trained on inference; this BiLSTM is trained by the ranking loss, and its words may begin as
    GloVe's (`word_vectors`). A caption without words has s = 0.

    Raw embeddings are u and v, `[items, embedding]`.

    Args:
        settings: see `RankingSettings`.
        vocabulary: the words it knows.
        encoder: identity of the features it reads.

    Example:
        >>> retriever = Ranking(RankingSettings(embedding=256), vocabulary, encoder)   # doctest: +SKIP
    """

    name = "ranking"
    Settings = RankingSettings
    settings: RankingSettings

    def __init__(self, settings: RankingSettings, vocabulary: Vocabulary, encoder: EncoderIdentity) -> None:
        super().__init__(settings, vocabulary, encoder, settings.words, settings.freeze_words)
        self.sentence = nn.LSTM(settings.words, settings.hidden, batch_first=True, bidirectional=True)
        self.text = nn.Linear(2 * settings.hidden, settings.embedding)
        self.image = nn.Linear(encoder.width, settings.embedding)
        self.dropout = nn.Dropout(settings.dropout)

    @classmethod
    def make(cls, settings: BaseModel, captions: Iterable[str], data: DataSettings, encoder: EncoderIdentity) -> Model:
        retriever = super().make(settings, captions, data, encoder)
        assert isinstance(retriever, Ranking)
        if retriever.settings.word_vectors is not None:
            retriever.load_words(Path(retriever.settings.word_vectors))
        return retriever

    @classmethod
    def files(cls, settings: BaseModel) -> dict[str, Path]:
        assert isinstance(settings, RankingSettings)
        return {} if settings.word_vectors is None else {"retriever.word_vectors": Path(settings.word_vectors)}

    def embed_images(self, features: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.image(self.dropout(features.mean(dim=1)))
        return projected

    def embed_words(self, vectors: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.text(self.dropout(self._pooled(vectors, lengths)))
        return projected

    def _pooled(self, vectors: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """The maximum over each sentence's states, `[rows, 2 hidden]`; zero for sentences without words."""
        rows = lengths.nonzero().squeeze(1)
        pooled = vectors.new_zeros(len(vectors), 2 * self.settings.hidden)
        if not len(rows):  # torch's LSTM wants at least one word
            return pooled
        packed = nn.utils.rnn.pack_padded_sequence(
            vectors[rows], lengths[rows].cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = self.sentence(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True, padding_value=-torch.inf)
        return pooled.to(padded.dtype).index_copy(0, rows, padded.amax(dim=1))

    def branch_widths(self) -> tuple[int, ...]:
        return (self.settings.embedding,)

    def index_vectors(self, raw: Raw) -> torch.Tensor:
        assert isinstance(raw, torch.Tensor)
        return functional.normalize(raw.float(), dim=1) if self.settings.reading == "cosine" else raw.float()
