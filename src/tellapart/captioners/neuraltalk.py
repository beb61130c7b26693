"""NeuralTalk2: the image is the first word (Karpathy and Fei-Fei 2015; Vinyals et al. 2015, "Show and tell")."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import Field
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from tellapart.captioners.base import CaptionerSettings, PictureNorm, Traces, at_tokens, words_before
from tellapart.captioners.packed import Linear
from tellapart.captioners.recurrent import Packing, RecurrentCaptioner
from tellapart.captioners.words import WordLogits
from tellapart.encoders.base import EncoderIdentity
from tellapart.settings import MAX_WIDTH
from tellapart.text import PAD, Vocabulary


class NeuralTalkSettings(CaptionerSettings):
    """Settings of `NeuralTalk`."""

    hidden: int = Field(512, ge=1, le=MAX_WIDTH, description="width of the LSTM")
    embedding: int = Field(512, ge=1, le=MAX_WIDTH, description="width of the word and image embeddings")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout of the embeddings and before the output layer")


@dataclass(frozen=True)
class NeuralTalkState:
    """LSTM states, `[rows, hidden]` each; as the memory, the states after each image."""

    hidden: torch.Tensor
    cell: torch.Tensor


class NeuralTalk(RecurrentCaptioner):
    """NeuralTalk2: one LSTM that reads the image once, as its first input.

    The smallest and fastest captioner here; use it as a baseline without attention. Equations 10–12 of "Show and
    tell"::

        x₋₁ = W_I v̄            v̄: mean of the (layer-normalised) image regions      (10)
        x_0 = E <start>,   x_t = E w_t                                               (11)
        h_t, c_t = LSTM(x_t, h_{t−1}, c_{t−1}),   p(w_{t+1}) = softmax(W_p h_t)      (12)

    The step on the image runs once per image, for all its captions. The rest runs in torch's fused LSTM, on real
    tokens only.

    Args:
        settings: see `NeuralTalkSettings`.
        vocabulary, encoder: see `Model`.

    Example:
        >>> captioner = NeuralTalk(NeuralTalkSettings(), vocabulary, encoder)   # doctest: +SKIP
    """

    name = "neuraltalk"
    Settings = NeuralTalkSettings
    settings: NeuralTalkSettings

    def __init__(self, settings: NeuralTalkSettings, vocabulary: Vocabulary, encoder: EncoderIdentity) -> None:
        super().__init__(settings, vocabulary, encoder)
        self.normalise = PictureNorm(encoder.width, settings.picture_dropout)
        self.image = Linear(encoder.width, settings.embedding)
        self.word = nn.Embedding(len(vocabulary), settings.embedding)
        self.lstm = nn.LSTM(settings.embedding, settings.hidden)
        self.dropout = nn.Dropout(settings.dropout)
        self.predict = WordLogits(settings.hidden, vocabulary)

    def encode(self, features: torch.Tensor) -> NeuralTalkState:
        image = self.dropout(self.image(self.normalise(features).mean(dim=1)))
        zero = image.new_zeros(len(image), self.settings.hidden)
        return self._advance(NeuralTalkState(zero, zero), image)

    def _advance(self, state: NeuralTalkState, inputs: torch.Tensor) -> NeuralTalkState:
        if not len(inputs):  # torch's LSTM needs at least one row
            return state
        _, (hidden, cell) = self.lstm(inputs[None], (state.hidden[None], state.cell[None]))
        return NeuralTalkState(hidden[0], cell[0])

    def hidden(self, memory: NeuralTalkState, tokens: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        packing = Packing.of(tokens)
        words = self.dropout(self.word(packing.by_time(words_before(tokens))))
        images = image_of_row[packing.order]
        packed = PackedSequence(words, torch.tensor(packing.sizes()))
        states, _ = self.lstm(packed, (memory.hidden[images][None], memory.cell[images][None]))
        return packing.by_row(states.data)

    def start(self, memory: NeuralTalkState, image_of_row: torch.Tensor) -> NeuralTalkState:
        return self.select(memory, image_of_row)

    def step(self, state: NeuralTalkState, token: torch.Tensor) -> tuple[torch.Tensor, NeuralTalkState]:
        state = self._advance(state, self.dropout(self.word(token)))
        return self.log_probs(state.hidden), state

    def select(self, state: NeuralTalkState, rows: torch.Tensor) -> NeuralTalkState:
        return NeuralTalkState(state.hidden[rows], state.cell[rows])

    def traces(self, memory: NeuralTalkState, tokens: torch.Tensor, image_of_row: torch.Tensor) -> Traces:
        return Traces((at_tokens(self.hidden(memory, tokens, image_of_row), tokens != PAD),), attention=None)
