"""Top-down attention with two LSTMs (Anderson et al. 2018, "Bottom-up and top-down attention"), on grid regions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional

from tellapart.captioners.base import (
    CaptionerSettings,
    Grouping,
    PictureNorm,
    Traces,
    at_tokens,
    words_before,
)
from tellapart.captioners.fused import Recurrence, additive_scores
from tellapart.captioners.packed import Linear
from tellapart.captioners.recurrent import Packing, RecurrentCaptioner, RegionMemory, initialise_gates
from tellapart.captioners.words import WordLogits
from tellapart.encoders.base import EncoderIdentity
from tellapart.settings import MAX_WIDTH
from tellapart.text import PAD, Vocabulary

LstmState = tuple[torch.Tensor, torch.Tensor]  # hidden state and cell, [rows, hidden] each
Layer = Callable[[torch.Tensor], torch.Tensor]


class UpDownSettings(CaptionerSettings):
    """Settings of `UpDown`."""

    hidden: int = Field(512, ge=1, le=MAX_WIDTH, description="width of both LSTMs and of the regions (paper: 1000)")
    embedding: int = Field(512, ge=1, le=MAX_WIDTH, description="width of the word embedding (paper: 1000)")
    attention: int = Field(128, ge=1, le=MAX_WIDTH, description="width of the additive attention (paper: 512)")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout of regions, words and before the output layer")


@dataclass(frozen=True)
class UpDownState:
    """States of the attention LSTM (1) and of the language LSTM (2)."""

    memory: RegionMemory
    image_of_row: torch.Tensor
    attention: LstmState
    language: LstmState


class UpDown(RecurrentCaptioner):
    """Top-down attention: one LSTM chooses the regions, another one the words.

    Use it where attention should depend on the words so far; it is slower than `AdaptiveAttention`, since its
    attention is part of the recurrence. With regions V_i = relu(W_a a_i) of the layer-normalised grid and their mean
    v̄::

        h¹, c¹ = LSTM₁([h²₋₁; v̄; E w], h¹₋₁, c¹₋₁)                                     (1)
        z_i = wᵀ tanh(W_V V_i + W_g h¹),   α = softmax(z),   v̂ = Σ_i α_i V_i          (2–4)
        h², c² = LSTM₂([v̂; h¹], h²₋₁, c²₋₁)                                           (5)
        p = softmax(W_p h²)                                                            (6)

    Gate inputs that do not depend on the recurrence (words, v̄) are computed for all steps at once. Attention is
    grouped by image. Only real tokens are computed.

    Args:
        settings: see `UpDownSettings`.
        vocabulary, encoder: see `Model`.

    Example:
        >>> captioner = UpDown(UpDownSettings(), vocabulary, encoder)   # doctest: +SKIP
    """

    name = "updown"
    Settings = UpDownSettings
    settings: UpDownSettings

    def __init__(self, settings: UpDownSettings, vocabulary: Vocabulary, encoder: EncoderIdentity) -> None:
        super().__init__(settings, vocabulary, encoder)
        width, attention = settings.hidden, settings.attention
        self.normalise = PictureNorm(encoder.width, settings.picture_dropout)
        self.region = Linear(encoder.width, width)
        self.word = nn.Embedding(len(vocabulary), settings.embedding)
        # Gates (input, forget, output, candidate) of LSTM₁ from each of its inputs, and of LSTM₂ from [v̂; h¹; h²₋₁].
        self.gates_from_word = Linear(settings.embedding, 4 * width)
        self.gates_from_mean = Linear(width, 4 * width, bias=False)
        self.gates_from_states = Linear(2 * width, 4 * width, bias=False)
        self.language_gates = Linear(3 * width, 4 * width)
        self.key = Linear(width, attention)
        self.query = Linear(width, attention, bias=False)
        self.score = Linear(attention, 1, bias=False)
        self.dropout = nn.Dropout(settings.dropout)
        self.predict = WordLogits(width, vocabulary)
        nn.init.normal_(self.word.weight, std=0.5)
        recurrent = [self.gates_from_states.weight[:, width:], self.language_gates.weight[:, 2 * width :]]
        initialise_gates(recurrent, [self.gates_from_word.bias, self.language_gates.bias])

    # --- equations --------------------------------------------------------------------------------------------

    def encode(self, features: torch.Tensor) -> RegionMemory:
        regions = self.dropout(functional.relu(self.region(self.normalise(features))))
        return RegionMemory(regions, self.key(regions), self.gates_from_mean(regions.mean(dim=1)))

    def _gates_of(self, words: torch.Tensor) -> torch.Tensor:
        """The words' part of the gate inputs."""
        gates: torch.Tensor = self.gates_from_word(self.dropout(self.word(words)))
        return gates

    def _cell(self, gates: torch.Tensor, cell: torch.Tensor) -> LstmState:
        width = self.settings.hidden
        take, keep, show = gates[:, : 3 * width].sigmoid().chunk(3, dim=1)
        cell = keep * cell + take * gates[:, 3 * width :].tanh()
        return show * cell.tanh(), cell

    def _attend(
        self, memory: RegionMemory, grouping: Grouping, query: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Context `[rows, hidden]` and attention weights `[rows, regions]` of queries `[rows, attention]`."""
        query = grouping.group(query[:, None])
        weights = additive_scores(memory.keys, query, self.score.weight[0]).softmax(dim=2)
        context = torch.bmm(weights, memory.regions)
        return grouping.ungroup(context)[:, 0], grouping.ungroup(weights)[:, 0]

    def _advance(
        self, state: UpDownState, rows: int, grouping: Grouping, layers: tuple[Layer, Layer, Layer]
    ) -> tuple[UpDownState, torch.Tensor]:
        """One step of the first rows: LSTM₁, attention, LSTM₂; the layers give the gates, the query, the gates."""
        attention_gates, query, language_gates = layers
        (hidden_1, cell_1), (hidden_2, cell_2) = (
            (hidden[:rows], cell[:rows]) for hidden, cell in (state.attention, state.language)
        )
        hidden_1, cell_1 = self._cell(attention_gates(torch.cat([hidden_2, hidden_1], dim=1)), cell_1)
        now = replace(grouping, place=grouping.place[:rows])
        context, weights = self._attend(state.memory, now, query(hidden_1))
        hidden_2, cell_2 = self._cell(language_gates(torch.cat([context, hidden_1, hidden_2], dim=1)), cell_2)
        return replace(state, attention=(hidden_1, cell_1), language=(hidden_2, cell_2)), weights

    def _run(
        self, memory: RegionMemory, tokens: torch.Tensor, image_of_row: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Teacher forcing over real tokens only: hidden states of both LSTMs and attention weights, row by row."""
        packing = Packing.of(tokens)
        words = packing.by_time(words_before(tokens))
        inputs = self.of_words(self._gates_of, words).add_(memory.gates.index_select(0, packing.of_row(image_of_row)))
        state = self.start(memory, image_of_row[packing.order])
        grouping = Grouping.of(state.image_of_row, len(memory.regions))
        steps, sizes = [], packing.sizes()
        no_bias = inputs.new_zeros(len(inputs), self.settings.attention)
        layers = (
            Recurrence(inputs, self.gates_from_states, sizes),
            Recurrence(no_bias, self.query, sizes),
            Recurrence(self.language_gates.bias.expand(len(inputs), -1), self.language_gates, sizes),
        )
        for rows in sizes:
            state, weights = self._advance(state, rows, grouping, layers)
            steps.append((state.attention[0], state.language[0], weights))
        first, second, weights = (packing.by_row(torch.cat(parts)) for parts in zip(*steps, strict=True))
        return first, second, weights

    # --- captioner interface ----------------------------------------------------------------------------------

    def hidden(self, memory: RegionMemory, tokens: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        return self._run(memory, tokens, image_of_row)[1]

    def start(self, memory: RegionMemory, image_of_row: torch.Tensor) -> UpDownState:
        zero = memory.regions.new_zeros(len(image_of_row), self.settings.hidden)
        return UpDownState(memory, image_of_row, (zero, zero), (zero, zero))

    def step(self, state: UpDownState, token: torch.Tensor) -> tuple[torch.Tensor, UpDownState]:
        inputs = self.of_words(self._gates_of, token) + state.memory.gates[state.image_of_row]
        grouping = Grouping.of(state.image_of_row, len(state.memory.regions))
        layers = (lambda states: inputs + self.gates_from_states(states), self.query, self.language_gates)
        state, _ = self._advance(state, len(token), grouping, layers)
        return self.log_probs(state.language[0]), state

    def select(self, state: UpDownState, rows: torch.Tensor) -> UpDownState:
        (hidden_1, cell_1), (hidden_2, cell_2) = state.attention, state.language
        memory, image_of_row = state.memory.of_rows(state.image_of_row[rows])
        return UpDownState(memory, image_of_row, (hidden_1[rows], cell_1[rows]), (hidden_2[rows], cell_2[rows]))

    def traces(self, memory: RegionMemory, tokens: torch.Tensor, image_of_row: torch.Tensor) -> Traces:
        first, second, weights = (at_tokens(part, tokens != PAD) for part in self._run(memory, tokens, image_of_row))
        return Traces((first, second), weights)
