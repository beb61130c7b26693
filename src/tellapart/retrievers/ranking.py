"""The image retriever of the specificity paper: a BiLSTM sentence encoder and a linear layer for each modality."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import torch
from pydantic import BaseModel, Field, model_validator
from torch import nn
from torch.nn import functional

from tellapart.encoders.base import EncoderIdentity
from tellapart.retrievers.base import Raw
from tellapart.retrievers.sentences import run_rnn
from tellapart.retrievers.words import WordRetriever
from tellapart.settings import MAX_WIDTH, Section
from tellapart.text import Vocabulary

if TYPE_CHECKING:
    from tellapart.data.settings import DataSettings


class RankingSettings(Section):
    """Settings of `Ranking`."""

    words: int = Field(300, ge=1, le=MAX_WIDTH, description="width of the word vectors")
    word_vectors: str | None = Field(None, description="text file of word vectors, such as GloVe's")
    freeze_words: bool = Field(False, description="do not train the word vectors of word_vectors")
    hidden: int = Field(512, ge=1, le=MAX_WIDTH, description="width of the BiLSTM, each direction")
    embedding: int = Field(1000, ge=1, le=MAX_WIDTH, description="width of the joint space")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout before the two linear layers (paper: none)")
    reading: Literal["cosine", "dot"] = Field("cosine", description="similarity: cosine (Cos) or inner product (DP)")

    @model_validator(mode="after")
    def _freezes_vectors(self) -> RankingSettings:
        if self.freeze_words and self.word_vectors is None:
            raise ValueError("freeze_words needs word_vectors; set word_vectors, or remove freeze_words")
        return self


class Ranking(WordRetriever):
    """SentEval's ranker on an InferSent-like sentence encoder: the retriever of specificity training.

    Small and fast, and the only retriever besides `Coder` and `Scan` that passes gradients on to a captioner
    (`bind`)::

        h_t = BiLSTM(w_1 … w_T)_t,   s = max_t h_t  (in each dimension)
        u = V s + b,   v = U x̄ + c          x̄: mean of the image regions
        Cos(I, c) = ⟨v, u⟩ / (|v| |u|),   DP(I, c) = ⟨v, u⟩

    Train it with the `ranking-hinge` objective, which uses normalised projections for either `reading`. Differences
    from the paper: the maximum is over real words only (in the official code it includes padding, so that an embedding
    depends on its batch), and the BiLSTM is trained by the ranking loss instead of on inference; its word vectors can
    start from GloVe (`word_vectors`). A caption without words has s = 0.

    Raw embeddings are u and v, `[items, embedding]`.

    Args:
        settings: see `RankingSettings`.
        vocabulary, encoder: see `Model`.

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
    def make(cls, settings: BaseModel, captions: Iterable[str], data: DataSettings, encoder: EncoderIdentity) -> Self:
        retriever = super().make(settings, captions, data, encoder)
        if retriever.settings.word_vectors is not None:
            retriever.load_words(Path(retriever.settings.word_vectors))
        return retriever

    def embed_images(self, features: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.image(self.dropout(features.mean(dim=1)))
        return projected

    def embed_words(self, vectors: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.text(self.dropout(self._pooled(vectors, lengths)))
        return projected

    def _pooled(self, vectors: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Maximum over the states of each sentence, `[rows, 2 hidden]`; zero for sentences without words."""
        rows = lengths.nonzero().squeeze(1)
        pooled = vectors.new_zeros(len(vectors), 2 * self.settings.hidden)
        if not len(rows):  # torch's LSTM needs at least one word
            return pooled
        states = run_rnn(self.sentence, vectors[rows], lengths[rows], padding=-torch.inf)
        return pooled.to(states.dtype).index_copy(0, rows, states.amax(dim=1))

    def branch_widths(self) -> tuple[int, ...]:
        return (self.settings.embedding,)

    def index_vectors(self, raw: Raw) -> torch.Tensor:
        assert isinstance(raw, torch.Tensor)
        return functional.normalize(raw.float(), dim=1) if self.settings.reading == "cosine" else raw.float()
