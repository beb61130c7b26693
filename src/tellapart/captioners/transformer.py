"""Transformer captioners, plain (Vaswani et al. 2017) and meshed-memory (Cornia et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field, model_validator
from torch import nn
from torch.nn import functional

from tellapart.captioners.base import Captioner, Traces, WordLogits, group_by_image, words_before
from tellapart.encoders.base import EncoderIdentity
from tellapart.settings import Section
from tellapart.text import PAD, Vocabulary

KeysAndValues = tuple[torch.Tensor, torch.Tensor]  # each [batch, heads, items, width / heads]


class TransformerSettings(Section):
    """Settings of `Transformer`."""

    width: int = Field(512, ge=1, description="of all states")
    layers: int = Field(6, ge=1, description="of the encoder, and of the decoder")
    heads: int = Field(8, ge=1)
    feedforward: int = Field(2048, ge=1, description="width inside the feed-forward networks")
    dropout: float = Field(0.1, ge=0, lt=1)
    normalise_first: bool = Field(False, description="normalise before each sub-layer, not after it")

    @model_validator(mode="after")
    def _divides(self) -> TransformerSettings:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads ({self.width} is none of {self.heads})")
        return self


class MeshedMemorySettings(TransformerSettings):
    """Settings of `MeshedMemory`."""

    layers: int = Field(3, ge=1, description="of the encoder, and of the decoder")
    slots: int = Field(40, ge=1, description="m: learned keys and values in each encoder layer")


class Attention(nn.Module):
    """Multi-head attention: softmax(Q Kᵀ / √d) V with learned projections.

    Args:
        width: of queries, keys and values together.
        heads: how many.
        dropout: on the weights.
        slots: so many learned keys and values stand beside those of the items (Cornia et al., eq. 2).
    """

    def __init__(self, width: int, heads: int, dropout: float, slots: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.mix = nn.Linear(width, width)
        self.slot_keys: nn.Parameter | None = None
        self.slot_values: nn.Parameter | None = None
        if slots:
            # As large as projected items are, so that they are noticed from the start.
            self.slot_keys = nn.Parameter(torch.randn(slots, width) / math.sqrt(width // heads))
            self.slot_values = nn.Parameter(torch.randn(slots, width) / math.sqrt(slots))

    def _split(self, items: torch.Tensor) -> torch.Tensor:
        batch, length, width = items.shape
        return items.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def keys_and_values(self, items: torch.Tensor) -> KeysAndValues:
        """Of items `[batch, items, width]`; the learned slots come last."""
        keys, values = self.key(items), self.value(items)
        if self.slot_keys is not None and self.slot_values is not None:
            keys = torch.cat([keys, self.slot_keys.expand(len(items), -1, -1)], dim=1)
            values = torch.cat([values, self.slot_values.expand(len(items), -1, -1)], dim=1)
        return self._split(keys), self._split(values)

    def forward(self, asking: torch.Tensor, keys_and_values: KeysAndValues, causal: bool = False) -> torch.Tensor:
        """`[batch, n, width]` asks; with `causal` the i-th sees the first i items only."""
        keys, values = keys_and_values
        found = functional.scaled_dot_product_attention(
            self._split(self.query(asking)),
            keys,
            values,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=causal,
        )
        mixed: torch.Tensor = self.mix(found.transpose(1, 2).reshape(asking.shape))
        return mixed

    def weights(self, asking: torch.Tensor, keys_and_values: KeysAndValues) -> torch.Tensor:
        """The attention weights, mean over heads `[batch, n, items]`; only for those who want to see them."""
        query = self._split(self.query(asking))
        scores = query @ keys_and_values[0].transpose(2, 3) / math.sqrt(query.shape[-1])
        return scores.softmax(dim=-1).mean(dim=1)


class SubLayer(nn.Module):
    """Residual, dropout and normalisation around a sub-layer: after it as published, or before it."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.first = settings.normalise_first
        self.norm = nn.LayerNorm(settings.width)
        self.dropout = nn.Dropout(settings.dropout)

    def before(self, states: torch.Tensor) -> torch.Tensor:
        """What the sub-layer is given."""
        return self.norm(states) if self.first else states

    def after(self, states: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        """The states with what the sub-layer found."""
        states = states + self.dropout(found)
        return states if self.first else self.norm(states)


def feed_forward(settings: TransformerSettings) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(settings.width, settings.feedforward),
        nn.ReLU(),
        nn.Dropout(settings.dropout),
        nn.Linear(settings.feedforward, settings.width),
    )


class EncoderLayer(nn.Module):
    """Regions look at each other, then think."""

    def __init__(self, settings: TransformerSettings, slots: int = 0) -> None:
        super().__init__()
        self.attention = Attention(settings.width, settings.heads, settings.dropout, slots)
        self.around_attention = SubLayer(settings)
        self.think = feed_forward(settings)
        self.around_think = SubLayer(settings)

    def forward(self, regions: torch.Tensor) -> torch.Tensor:
        seen = self.around_attention.before(regions)
        regions = self.around_attention.after(regions, self.attention(seen, self.attention.keys_and_values(seen)))
        thought: torch.Tensor = self.around_think.after(regions, self.think(self.around_think.before(regions)))
        return thought


class DecoderLayer(nn.Module):
    """Words look at the words before them, then at the image, then think."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.attention = Attention(settings.width, settings.heads, settings.dropout)
        self.around_attention = SubLayer(settings)
        self.look = Attention(settings.width, settings.heads, settings.dropout)
        self.around_look = SubLayer(settings)
        self.think = feed_forward(settings)
        self.around_think = SubLayer(settings)

    def remember(self, layers: Sequence[torch.Tensor]) -> list[KeysAndValues]:
        """Keys and values of the image, once for all its captions: of the last encoder layer."""
        return [self.look.keys_and_values(layers[-1])]

    def see(self, asking: torch.Tensor, image: Sequence[KeysAndValues], grouping: Grouping) -> torch.Tensor:
        return grouping.apart(self.look(grouping.together(asking), image[0]))

    def forward(
        self,
        words: torch.Tensor,
        image: Sequence[KeysAndValues],
        grouping: Grouping,
        past: KeysAndValues | None = None,
    ) -> tuple[torch.Tensor, KeysAndValues]:
        """`[rows, n, width]` -> the same, and keys and values of all words so far. With a past, n is 1."""
        asking = self.around_attention.before(words)
        now = self.attention.keys_and_values(asking)
        if past is not None:
            now = (torch.cat([past[0], now[0]], dim=2), torch.cat([past[1], now[1]], dim=2))
        words = self.around_attention.after(words, self.attention(asking, now, causal=past is None))
        words = self.around_look.after(words, self.see(self.around_look.before(words), image, grouping))
        words = self.around_think.after(words, self.think(self.around_think.before(words)))
        return words, now

    def looked_at(self, asking: torch.Tensor, image: Sequence[KeysAndValues], grouping: Grouping) -> torch.Tensor:
        """Attention weights over the image's regions `[rows, n, regions]`, mean over heads (and encoder layers)."""
        together = grouping.together(self.around_look.before(asking))
        weights = torch.stack([self.look.weights(together, one) for one in image]).mean(dim=0)
        return grouping.apart(weights)


class MeshedDecoderLayer(DecoderLayer):
    """Looks at every encoder layer, each behind a gate (Cornia et al., eq. 4–6)."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__(settings)
        self.gates = nn.ModuleList(nn.Linear(2 * settings.width, settings.width) for _ in range(settings.layers))

    def remember(self, layers: Sequence[torch.Tensor]) -> list[KeysAndValues]:
        return [self.look.keys_and_values(layer) for layer in layers]

    def see(self, asking: torch.Tensor, image: Sequence[KeysAndValues], grouping: Grouping) -> torch.Tensor:
        together = grouping.together(asking)
        found = [grouping.apart(self.look(together, one)) for one in image]
        gated = [
            torch.sigmoid(gate(torch.cat([asking, one], dim=-1))) * one
            for gate, one in zip(self.gates, found, strict=True)
        ]
        return torch.stack(gated).sum(dim=0) / math.sqrt(len(found))


@dataclass(frozen=True)
class Grouping:
    """Rows of one image side by side, so that an image's keys and values are never copied per caption."""

    place: torch.Tensor  # of each row in [images, group]
    images: int
    group: int

    @classmethod
    def of(cls, image_of_row: torch.Tensor, images: int) -> Grouping:
        place, group = group_by_image(image_of_row, images)
        return cls(place, images, max(1, group))

    def together(self, rows: torch.Tensor) -> torch.Tensor:
        """`[rows, n, width]` -> `[images, group * n, width]`."""
        _, length, width = rows.shape
        grid = rows.new_zeros(self.images * self.group, length, width).index_copy(0, self.place, rows)
        return grid.view(self.images, self.group * length, width)

    def apart(self, grouped: torch.Tensor) -> torch.Tensor:
        """The way back."""
        length = grouped.shape[1] // self.group
        return grouped.reshape(self.images * self.group, length, grouped.shape[-1])[self.place]


@dataclass(frozen=True)
class Memory:
    """Keys and values of the images for each decoder layer."""

    layers: list[list[KeysAndValues]]
    images: int


@dataclass(frozen=True)
class State:
    """Keys and values of the words said so far, for each decoder layer."""

    memory: Memory
    image_of_row: torch.Tensor
    past: list[KeysAndValues]
    length: int


class Transformer(Captioner):
    """The Transformer: an encoder over the image's regions, a decoder over words.

    ::

        X_0 = norm(W a),   X_{l+1} = FFN(SelfAttention(X_l))
        Y_0 = √d E w + sinusoids,   Y_{l+1} = FFN(Attention(CausalSelfAttention(Y_l), X_L))
        p = softmax(W_p Y_L)

    each sub-layer with a residual connection, dropout and layer normalisation. Teacher forcing computes all tokens at
    once, stepping keeps keys and values. An image's keys and values are computed once and shared by its captions.

    Args:
        settings: see `TransformerSettings`.
        vocabulary: the words it can say.
        encoder: identity of the features it reads.

    Example:
        >>> captioner = Transformer(TransformerSettings(width=256, layers=3), vocabulary, encoder)   # doctest: +SKIP
    """

    name = "transformer"
    Settings: ClassVar[type[TransformerSettings]] = TransformerSettings
    settings: TransformerSettings

    def __init__(self, settings: TransformerSettings, vocabulary: Vocabulary, encoder: EncoderIdentity) -> None:
        super().__init__(settings, vocabulary, encoder)
        self.normalise = nn.LayerNorm(encoder.width)
        self.region = nn.Linear(encoder.width, settings.width)
        self.normalise_region = nn.LayerNorm(settings.width)
        self.encoder_layers = self._encoder_layers(settings)
        self.word = nn.Embedding(len(vocabulary), settings.width)
        self.decoder_layers = self._decoder_layers(settings)
        # States that were normalised before each sub-layer are so once more at the end.
        self.last_of_encoder = nn.LayerNorm(settings.width) if settings.normalise_first else nn.Identity()
        self.last_of_decoder = nn.LayerNorm(settings.width) if settings.normalise_first else nn.Identity()
        self.dropout = nn.Dropout(settings.dropout)
        self.predict = WordLogits(settings.width, vocabulary)
        self.register_buffer("positions", sinusoids(vocabulary.max_words + 1, settings.width), persistent=False)
        self.positions: torch.Tensor
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.word.weight, std=settings.width**-0.5)

    def _encoder_layers(self, settings: TransformerSettings) -> nn.ModuleList:
        return nn.ModuleList(EncoderLayer(settings) for _ in range(settings.layers))

    def _decoder_layers(self, settings: TransformerSettings) -> nn.ModuleList:
        return nn.ModuleList(DecoderLayer(settings) for _ in range(settings.layers))

    # --- the equations ----------------------------------------------------------------------------------------

    def encode(self, features: torch.Tensor) -> Memory:
        regions = self.normalise_region(self.dropout(functional.relu(self.region(self.normalise(features)))))
        outputs = []
        for layer in self.encoder_layers:
            regions = layer(regions)
            outputs.append(regions)
        outputs = [self.last_of_encoder(output) for output in outputs]
        layers = [layer.remember(outputs) for layer in self._layers()]
        return Memory(layers, len(features))

    def _layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.decoder_layers if isinstance(layer, DecoderLayer)]

    def _embed(self, tokens: torch.Tensor, first: int) -> torch.Tensor:
        positions = self.positions[first : first + tokens.shape[1]]
        embedded: torch.Tensor = self.dropout(self.word(tokens) * math.sqrt(self.settings.width) + positions)
        return embedded

    def _run(self, memory: Memory, tokens: torch.Tensor, image_of_row: torch.Tensor) -> list[torch.Tensor]:
        """Teacher-forced states before and after each decoder layer, `[rows, tokens, width]`.

        Padding stands at the end, where no real token looks.
        """
        grouping = Grouping.of(image_of_row, memory.images)
        words = self._embed(words_before(tokens), 0)
        states = [words]
        for layer, image in zip(self._layers(), memory.layers, strict=True):
            words, _ = layer(words, image, grouping)
            states.append(words)
        return states

    # --- the contract -----------------------------------------------------------------------------------------

    def hidden(self, memory: Memory, tokens: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        last: torch.Tensor = self.last_of_decoder(self._run(memory, tokens, image_of_row)[-1][tokens != PAD])
        return last

    def output(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.predict(hidden)
        return logits

    def start(self, memory: Memory, image_of_row: torch.Tensor) -> State:
        heads, width = self.settings.heads, self.settings.width
        nothing = self.positions.new_zeros(len(image_of_row), heads, 0, width // heads)
        return State(memory, image_of_row, [(nothing, nothing)] * self.settings.layers, 0)

    def step(self, state: State, token: torch.Tensor) -> tuple[torch.Tensor, State]:
        grouping = Grouping.of(state.image_of_row, state.memory.images)
        words = self._embed(token[:, None], state.length)
        past = []
        for layer, image, before in zip(self._layers(), state.memory.layers, state.past, strict=True):
            words, now = layer(words, image, grouping, before)
            past.append(now)
        log_probs = self.output(self.last_of_decoder(words[:, 0])).float().log_softmax(dim=1)
        return log_probs, State(state.memory, state.image_of_row, past, state.length + 1)

    def select(self, state: State, rows: torch.Tensor) -> State:
        past = [(keys[rows], values[rows]) for keys, values in state.past]
        return State(state.memory, state.image_of_row[rows], past, state.length)

    def traces(self, memory: Memory, tokens: torch.Tensor, image_of_row: torch.Tensor) -> Traces:
        states = self._run(memory, tokens, image_of_row)
        grouping = Grouping.of(image_of_row, memory.images)
        layer, image = self._layers()[-1], memory.layers[-1]
        before = states[-2]
        asking = layer.around_attention.before(before)
        own = layer.attention(asking, layer.attention.keys_and_values(asking), causal=True)
        attention = layer.looked_at(layer.around_attention.after(before, own), image, grouping)
        real = (tokens != PAD)[..., None]
        layers = [*states[1:-1], self.last_of_decoder(states[-1])]
        return Traces(tuple(layer_states * real for layer_states in layers), attention * real)


class MeshedMemory(Transformer):
    """The meshed-memory Transformer (M²).

    The encoder's attention has m learned keys and values beside the regions' own; the decoder looks at *every* encoder
    layer, each behind a gate::

        M_mem(X) = Attention(W_q X, [W_k X; M_k], [W_v X; M_v])                     (2–3)
        M_mesh(X̃, Y) = Σ_i α_i ⊙ C(X_i, Y) / √layers,   C(X_i, Y) = Attention(Y, X_i)       (4–5)
        α_i = σ(W_i [Y; C(X_i, Y)] + b_i)                                              (6)

    Args:
        settings: see `MeshedMemorySettings`.
        vocabulary: the words it can say.
        encoder: identity of the features it reads.

    Example:
        >>> captioner = MeshedMemory(MeshedMemorySettings(width=256), vocabulary, encoder)   # doctest: +SKIP
    """

    name = "meshed-memory"
    Settings = MeshedMemorySettings
    settings: MeshedMemorySettings

    def _encoder_layers(self, settings: TransformerSettings) -> nn.ModuleList:
        assert isinstance(settings, MeshedMemorySettings)
        return nn.ModuleList(EncoderLayer(settings, settings.slots) for _ in range(settings.layers))

    def _decoder_layers(self, settings: TransformerSettings) -> nn.ModuleList:
        return nn.ModuleList(MeshedDecoderLayer(settings) for _ in range(settings.layers))


def sinusoids(length: int, width: int) -> torch.Tensor:
    """Position signals `[length, width]`: sines and cosines of falling frequency."""
    position = torch.arange(length)[:, None]
    frequency = torch.exp(-math.log(10000.0) * torch.arange(0, width, 2) / width)
    signal = torch.zeros(length, width)
    signal[:, 0::2] = torch.sin(position * frequency)
    signal[:, 1::2] = torch.cos(position * frequency[: width // 2])
    return signal
