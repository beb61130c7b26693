"""Top-down attention with two LSTMs (Anderson et al. 2018, "Bottom-up and top-down attention"), on grid regions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional

from tellapart.captioners.base import Captioner, Traces, WordLogits, at_tokens, group_by_image, words_before
from tellapart.captioners.packing import Packing
from tellapart.encoders.base import EncoderIdentity
from tellapart.settings import Section
from tellapart.text import PAD, Vocabulary


class UpDownSettings(Section):
    """Settings of `UpDown`."""

    hidden: int = Field(512, ge=1, description="width of both LSTMs and of the regions (the paper: 1000)")
    embedding: int = Field(512, ge=1, description="width of the word embedding (the paper: 1000)")
    attention: int = Field(128, ge=1, description="width of the additive attention (the paper: 512)")
    dropout: float = Field(0.5, ge=0, lt=1, description="on regions, word embeddings and before the output")


@dataclass(frozen=True)
class Memory:
    """What all captions of an image share: regions, their attention keys, the image's part of LSTM₁'s input."""

    regions: torch.Tensor  # [images, regions, hidden]
    keys: torch.Tensor  # [images, regions, attention]
    gates: torch.Tensor  # [images, 4 * hidden]


@dataclass(frozen=True)
class State:
    """The two LSTMs' states, `[rows, hidden]` each: attention (1) and language (2)."""

    memory: Memory
    image_of_row: torch.Tensor
    attention: tuple[torch.Tensor, torch.Tensor]
    language: tuple[torch.Tensor, torch.Tensor]


class UpDown(Captioner):
    """Top-down attention: one LSTM decides where to look, another what to say.

    With regions V_i = relu(W_a a_i) of the layer-normalised grid and their mean v̄::

        h¹, c¹ = LSTM₁([h²₋₁; v̄; E w], h¹₋₁, c¹₋₁)                  (1)
        z_i = wᵀ tanh(W_V V_i + W_g h¹),   α = softmax(z),   v̂ = Σ_i α_i V_i     (2–4)
        h², c² = LSTM₂([v̂; h¹], h²₋₁, c²₋₁)                        (5)
        p = softmax(W_p h²)                                         (6)

    Inputs that do not depend on the recurrence (words, v̄) go through their products all at once; attention looks at an
    image's regions once for all its captions, which are never copied; only real tokens are computed.

    Args:
        settings: see `UpDownSettings`.
        vocabulary: the words it can say.
        encoder: identity of the features it reads.

    Example:
        >>> captioner = UpDown(UpDownSettings(), vocabulary, encoder)   # doctest: +SKIP
    """

    name = "updown"
    Settings = UpDownSettings
    settings: UpDownSettings

    def __init__(self, settings: UpDownSettings, vocabulary: Vocabulary, encoder: EncoderIdentity) -> None:
        super().__init__(settings, vocabulary, encoder)
        width, attention = settings.hidden, settings.attention
        self.normalise = nn.LayerNorm(encoder.width)
        self.region = nn.Linear(encoder.width, width)
        self.word = nn.Embedding(len(vocabulary), settings.embedding)
        # Gates (input, forget, output, candidate) of LSTM₁ from each of its inputs, and of LSTM₂ from [v̂; h¹; h²₋₁].
        self.gates_from_word = nn.Linear(settings.embedding, 4 * width)
        self.gates_from_mean = nn.Linear(width, 4 * width, bias=False)
        self.gates_from_states = nn.Linear(2 * width, 4 * width, bias=False)
        self.language_gates = nn.Linear(3 * width, 4 * width)
        self.key = nn.Linear(width, attention)
        self.query = nn.Linear(width, attention, bias=False)
        self.score = nn.Linear(attention, 1, bias=False)
        self.dropout = nn.Dropout(settings.dropout)
        self.predict = WordLogits(width, vocabulary)
        self._initialise()

    def _initialise(self) -> None:
        """As AdaptiveAttention: small words, an orthogonal recurrence per gate, and forget gates that start open."""
        width = self.settings.hidden
        nn.init.normal_(self.word.weight, std=0.5)
        with torch.no_grad():
            for gate in range(4):
                rows = slice(gate * width, (gate + 1) * width)
                nn.init.orthogonal_(self.gates_from_states.weight[rows, width:])
                nn.init.orthogonal_(self.language_gates.weight[rows, 2 * width :])
            for gates in (self.gates_from_word, self.language_gates):
                gates.bias.zero_()
                gates.bias[width : 2 * width] = 1.0

    # --- the equations ----------------------------------------------------------------------------------------

    def encode(self, features: torch.Tensor) -> Memory:
        regions = self.dropout(functional.relu(self.region(self.normalise(features))))
        return Memory(regions, self.key(regions), self.gates_from_mean(regions.mean(dim=1)))

    def _cell(self, gates: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        width = self.settings.hidden
        take, keep, show = gates[:, : 3 * width].sigmoid().chunk(3, dim=1)
        cell = keep * cell + take * gates[:, 3 * width :].tanh()
        return show * cell.tanh(), cell

    def _attend(
        self, memory: Memory, place: torch.Tensor, group: int, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Context `[n, hidden]` and weights `[n, regions]` for rows at these places of `[images, group]`."""
        images, regions, width = memory.regions.shape
        query = hidden.new_zeros(images * group, self.settings.attention).index_copy(0, place, self.query(hidden))
        seen = torch.tanh(memory.keys[:, None] + query.view(images, group, 1, self.settings.attention))
        weights = self.score(seen).squeeze(-1).softmax(dim=2)
        context = torch.bmm(weights, memory.regions).view(images * group, width)
        return context[place], weights.view(images * group, regions)[place]

    def _advance(
        self, state: State, inputs: torch.Tensor, place: torch.Tensor, group: int
    ) -> tuple[State, torch.Tensor]:
        """One word further for the first `len(inputs)` rows: LSTM₁, attention, LSTM₂."""
        now = len(inputs)
        (hidden_1, cell_1), (hidden_2, cell_2) = (
            (hidden[:now], cell[:now]) for hidden, cell in (state.attention, state.language)
        )
        gates = inputs + self.gates_from_states(torch.cat([hidden_2, hidden_1], dim=1))
        hidden_1, cell_1 = self._cell(gates, cell_1)
        context, weights = self._attend(state.memory, place[:now], group, hidden_1)
        gates = self.language_gates(torch.cat([context, hidden_1, hidden_2], dim=1))
        hidden_2, cell_2 = self._cell(gates, cell_2)
        return replace(state, attention=(hidden_1, cell_1), language=(hidden_2, cell_2)), weights

    def _run(
        self, memory: Memory, tokens: torch.Tensor, image_of_row: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Teacher forcing over real tokens only: states of both LSTMs and attention weights, row by row."""
        packing = Packing.of(tokens)
        words = self.dropout(self.word(packing.by_time(words_before(tokens))))
        inputs = self.gates_from_word(words) + memory.gates[packing.of_row(image_of_row)]
        state = self.start(memory, image_of_row[packing.order])
        place, group = group_by_image(state.image_of_row, len(memory.regions))
        steps = []
        for now in inputs.split(packing.sizes()):
            state, weights = self._advance(state, now, place, group)
            steps.append((state.attention[0], state.language[0], weights))
        first, second, weights = (packing.by_row(torch.cat(parts)) for parts in zip(*steps, strict=True))
        return first, second, weights

    # --- the contract -----------------------------------------------------------------------------------------

    def hidden(self, memory: Memory, tokens: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        return self._run(memory, tokens, image_of_row)[1]

    def output(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.predict(self.dropout(hidden))
        return logits

    def start(self, memory: Memory, image_of_row: torch.Tensor) -> State:
        zero = memory.regions.new_zeros(len(image_of_row), self.settings.hidden)
        return State(memory, image_of_row, (zero, zero), (zero, zero))

    def step(self, state: State, token: torch.Tensor) -> tuple[torch.Tensor, State]:
        inputs = self.gates_from_word(self.dropout(self.word(token))) + state.memory.gates[state.image_of_row]
        place, group = group_by_image(state.image_of_row, len(state.memory.regions))
        state, _ = self._advance(state, inputs, place, group)
        return self.output(state.language[0]).float().log_softmax(dim=1), state

    def select(self, state: State, rows: torch.Tensor) -> State:
        (hidden_1, cell_1), (hidden_2, cell_2) = state.attention, state.language
        return State(
            state.memory, state.image_of_row[rows], (hidden_1[rows], cell_1[rows]), (hidden_2[rows], cell_2[rows])
        )

    def traces(self, memory: Memory, tokens: torch.Tensor, image_of_row: torch.Tensor) -> Traces:
        first, second, weights = (at_tokens(part, tokens != PAD) for part in self._run(memory, tokens, image_of_row))
        return Traces((first, second), weights)
