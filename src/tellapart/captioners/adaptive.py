"""AdaptiveAttention: a captioner that decides for each word how much to attend to the image."""

from __future__ import annotations

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


class AdaptiveAttentionSettings(CaptionerSettings):
    """Settings of `AdaptiveAttention`."""

    hidden: int = Field(512, ge=1, le=MAX_WIDTH, description="width of the LSTM, the regions and the sentinel")
    embedding: int = Field(256, ge=1, le=MAX_WIDTH, description="width of the word embedding and of v_g")
    attention: int = Field(64, ge=1, le=MAX_WIDTH, description="width of the additive attention (paper: 49)")
    dropout: float = Field(0.3, ge=0, lt=1, description="dropout of regions, words and before the output layer")


@dataclass(frozen=True)
class AdaptiveState:
    """LSTM states, `[rows, hidden]` each."""

    memory: RegionMemory
    image_of_row: torch.Tensor
    hidden: torch.Tensor
    cell: torch.Tensor


class AdaptiveAttention(RecurrentCaptioner):
    """Adaptive attention with a visual sentinel (Lu et al. 2017, "Knowing when to look").

    The captioner of the contrastive learning paper, and a good default: fast to train, with attention maps. For each
    word w, with image regions a_1 … a_k (layer-normalised) and their mean v̄::

        x = relu(E w)            v_g = relu(W v̄)            V_i = relu(W_a a_i)      (15, 16)
        h, c = LSTM([x; v_g], h₋₁, c₋₁)
        s = σ(W_x x + W_v v_g + W_h h₋₁) ⊙ tanh c              the sentinel           (9, 10)
        z_i = wᵀ tanh(W_V V_i + W_g h),   z_s = wᵀ tanh(W_s s + W_g h)                (6, 12)
        α̂ = softmax([z; z_s]),   β = α̂_s                                            (12)
        p = softmax(W_p (Σ_i α̂_i V_i + β s + h))                                     (11, 13)

    The LSTM input does not depend on the attention. So the LSTM runs over the whole caption first, on real tokens
    only. Attention and logits of all steps are then computed in one batch, grouped by image.

    Args:
        settings: see `AdaptiveAttentionSettings`.
        vocabulary, encoder: see `Model`.

    Example:
        >>> captioner = AdaptiveAttention(AdaptiveAttentionSettings(), vocabulary, encoder)     # doctest: +SKIP
        >>> memory = captioner.encode(features)                                                 # doctest: +SKIP
        >>> captioner.log_prob(memory, captioner.tokenize(["a red house"]), torch.tensor([0]))  # doctest: +SKIP
    """

    name = "adaptive-attention"
    Settings = AdaptiveAttentionSettings
    settings: AdaptiveAttentionSettings

    def __init__(self, settings: AdaptiveAttentionSettings, vocabulary: Vocabulary, encoder: EncoderIdentity) -> None:
        super().__init__(settings, vocabulary, encoder)
        width, embedding, attention = settings.hidden, settings.embedding, settings.attention
        self.normalise = PictureNorm(encoder.width, settings.picture_dropout)
        self.region = Linear(encoder.width, width)
        self.whole = Linear(encoder.width, embedding)
        self.word = nn.Embedding(len(vocabulary), embedding)
        # Inputs of five gates (input, forget, output, sentinel, candidate), one product for each source.
        self.gates_from_word = Linear(embedding, 5 * width)
        self.gates_from_whole = Linear(embedding, 5 * width, bias=False)
        self.gates_from_hidden = Linear(width, 5 * width, bias=False)
        self.key_of_region = Linear(width, attention)
        self.key_of_sentinel = Linear(width, attention)
        self.query = Linear(width, attention, bias=False)
        self.score = Linear(attention, 1, bias=False)
        self.dropout = nn.Dropout(settings.dropout)
        self.predict = WordLogits(width, vocabulary)
        nn.init.normal_(self.word.weight, std=0.5)
        initialise_gates([self.gates_from_hidden.weight], [self.gates_from_word.bias])

    # --- equations --------------------------------------------------------------------------------------------

    def encode(self, features: torch.Tensor) -> RegionMemory:
        features = self.normalise(features)
        regions = self.dropout(functional.relu(self.region(features)))
        whole = self.dropout(functional.relu(self.whole(features.mean(dim=1))))
        return RegionMemory(regions, self.key_of_region(regions), self.gates_from_whole(whole))

    def _gates_of(self, words: torch.Tensor) -> torch.Tensor:
        """The words' part of the gate inputs."""
        gates: torch.Tensor = self.gates_from_word(self.dropout(functional.relu(self.word(words))))
        return gates

    def _cell(self, gates: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """New hidden state, cell and sentinel from the summed inputs of the five gates."""
        width = self.settings.hidden
        take, keep, show, sentinel = gates[:, : 4 * width].sigmoid().chunk(4, dim=1)
        cell = keep * cell + take * gates[:, 4 * width :].tanh()
        seen = cell.tanh()
        return show * seen, cell, sentinel * seen

    def _attend(
        self, memory: RegionMemory, image_of_item: torch.Tensor, hidden: torch.Tensor, sentinel: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention over [regions; sentinel] for items `[M, hidden]` of any images.

        Returns the context plus the hidden state `[M, hidden]` and the weights `[M, regions + 1]`.
        """
        images, regions, _ = memory.regions.shape
        grouping = Grouping.of(image_of_item, images)
        query = self.query(hidden)
        scores = additive_scores(memory.keys, grouping.group(query[:, None]), self.score.weight[0])
        of_regions = grouping.ungroup(scores)[:, 0]
        of_sentinel = self.score(torch.tanh(self.key_of_sentinel(sentinel) + query))
        weights = torch.cat([of_regions, of_sentinel], dim=1).softmax(dim=1)
        context = torch.bmm(grouping.group(weights[:, None, :regions]), memory.regions)
        return grouping.ungroup(context)[:, 0] + weights[:, regions:] * sentinel + hidden, weights

    def _run(
        self, memory: RegionMemory, tokens: torch.Tensor, image_of_row: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Teacher forcing over real tokens only: hidden states and attention weights, row by row."""
        packing = Packing.of(tokens)
        image_of_token = packing.of_row(image_of_row)
        words = packing.by_time(words_before(tokens))
        inputs = self.of_words(self._gates_of, words).add_(memory.gates.index_select(0, image_of_token))
        hidden = cell = inputs.new_zeros(len(tokens), self.settings.hidden)
        hiddens, sentinels = [], []
        sizes = packing.sizes()
        gates = Recurrence(inputs, self.gates_from_hidden, sizes)
        for now in sizes:
            hidden, cell, sentinel = self._cell(gates(hidden[:now]), cell[:now])
            hiddens.append(hidden)
            sentinels.append(sentinel)
        states, weights = self._attend(memory, image_of_token, torch.cat(hiddens), torch.cat(sentinels))
        return packing.by_row(states), packing.by_row(weights)

    # --- captioner interface ----------------------------------------------------------------------------------

    def hidden(self, memory: RegionMemory, tokens: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        return self._run(memory, tokens, image_of_row)[0]

    def start(self, memory: RegionMemory, image_of_row: torch.Tensor) -> AdaptiveState:
        zero = memory.regions.new_zeros(len(image_of_row), self.settings.hidden)
        return AdaptiveState(memory, image_of_row, zero, zero)

    def step(self, state: AdaptiveState, token: torch.Tensor) -> tuple[torch.Tensor, AdaptiveState]:
        gates = self.of_words(self._gates_of, token) + state.memory.gates[state.image_of_row]
        hidden, cell, sentinel = self._cell(gates + self.gates_from_hidden(state.hidden), state.cell)
        context, _ = self._attend(state.memory, state.image_of_row, hidden, sentinel)
        log_probs = self.log_probs(context)
        return log_probs, replace(state, hidden=hidden, cell=cell)

    def select(self, state: AdaptiveState, rows: torch.Tensor) -> AdaptiveState:
        memory, image_of_row = state.memory.of_rows(state.image_of_row[rows])
        return AdaptiveState(memory, image_of_row, state.hidden[rows], state.cell[rows])

    def traces(self, memory: RegionMemory, tokens: torch.Tensor, image_of_row: torch.Tensor) -> Traces:
        states, weights = (at_tokens(values, tokens != PAD) for values in self._run(memory, tokens, image_of_row))
        return Traces((states,), weights[..., :-1], weights[..., -1])
