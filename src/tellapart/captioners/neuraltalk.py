"""NeuralTalk2: the image is the first word (Karpathy and Fei-Fei 2015; Vinyals et al. 2015, "Show and tell")."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from tellapart.captioners.base import Captioner, Traces, WordLogits, at_tokens, words_before
from tellapart.captioners.packing import Packing
from tellapart.encoders.base import EncoderIdentity
from tellapart.settings import Section
from tellapart.text import PAD, Vocabulary


class NeuralTalkSettings(Section):
    """Settings of `NeuralTalk`."""

    hidden: int = Field(512, ge=1, description="width of the LSTM")
    embedding: int = Field(512, ge=1, description="width of the word and image embeddings")
    dropout: float = Field(0.5, ge=0, lt=1, description="on embeddings and before the output")


@dataclass(frozen=True)
class State:
    """One LSTM's state for each row; as a memory, that after seeing each image."""

    hidden: torch.Tensor
    cell: torch.Tensor


class NeuralTalk(Captioner):
    """NeuralTalk2: one LSTM that sees the image once, as its first input.

    ::

        x₋₁ = W_I v̄            v̄: mean of the image's (layer-normalised) regions
        x_0 = E <start>,   x_t = E w_t
        h_t, c_t = LSTM(x_t, h_{t−1}, c_{t−1})
        p(w_{t+1}) = softmax(W_p h_t)

    The step on the image is done once an image, however many captions follow it; the rest runs through torch's fused
    LSTM on real tokens only.

    Args:
        settings: see `NeuralTalkSettings`.
        vocabulary: the words it can say.
        encoder: identity of the features it reads.

    Example:
        >>> captioner = NeuralTalk(NeuralTalkSettings(), vocabulary, encoder)   # doctest: +SKIP
    """

    name = "neuraltalk"
    Settings = NeuralTalkSettings
    settings: NeuralTalkSettings

    def __init__(self, settings: NeuralTalkSettings, vocabulary: Vocabulary, encoder: EncoderIdentity) -> None:
        super().__init__(settings, vocabulary, encoder)
        self.normalise = nn.LayerNorm(encoder.width)
        self.image = nn.Linear(encoder.width, settings.embedding)
        self.word = nn.Embedding(len(vocabulary), settings.embedding)
        self.lstm = nn.LSTM(settings.embedding, settings.hidden)
        self.dropout = nn.Dropout(settings.dropout)
        self.predict = WordLogits(settings.hidden, vocabulary)

    def encode(self, features: torch.Tensor) -> State:
        image = self.dropout(self.image(self.normalise(features).mean(dim=1)))
        zero = image.new_zeros(len(image), self.settings.hidden)
        return self._advance(State(zero, zero), image)

    def _advance(self, state: State, inputs: torch.Tensor) -> State:
        if not len(inputs):  # torch's LSTM wants at least one row
            return state
        _, (hidden, cell) = self.lstm(inputs[None], (state.hidden[None], state.cell[None]))
        return State(hidden[0], cell[0])

    def hidden(self, memory: State, tokens: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        packing = Packing.of(tokens)
        words = self.dropout(self.word(packing.by_time(words_before(tokens))))
        images = image_of_row[packing.order]
        packed = PackedSequence(words, torch.tensor(packing.sizes()))
        states, _ = self.lstm(packed, (memory.hidden[images][None], memory.cell[images][None]))
        return packing.by_row(states.data)

    def output(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.predict(self.dropout(hidden))
        return logits

    def start(self, memory: State, image_of_row: torch.Tensor) -> State:
        return self.select(memory, image_of_row)

    def step(self, state: State, token: torch.Tensor) -> tuple[torch.Tensor, State]:
        state = self._advance(state, self.dropout(self.word(token)))
        return self.output(state.hidden).float().log_softmax(dim=1), state

    def select(self, state: State, rows: torch.Tensor) -> State:
        return replace(state, hidden=state.hidden[rows], cell=state.cell[rows])

    def traces(self, memory: State, tokens: torch.Tensor, image_of_row: torch.Tensor) -> Traces:
        return Traces((at_tokens(self.hidden(memory, tokens, image_of_row), tokens != PAD),), attention=None)
