"""Transformer captioners, plain (Vaswani et al. 2017) and meshed-memory (Cornia et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from pydantic import Field, model_validator
from torch import nn
from torch.nn import functional

from tellapart.captioners.base import (
    Captioner,
    CaptionerSettings,
    Grouping,
    PictureNorm,
    Traces,
    at_tokens,
    words_before,
)
from tellapart.captioners.packed import Linear
from tellapart.captioners.words import WordLogits
from tellapart.encoders.base import EncoderIdentity
from tellapart.settings import MAX_WIDTH
from tellapart.text import PAD, Vocabulary

KeysAndValues = tuple[torch.Tensor, torch.Tensor]  # each [batch, heads, items, width / heads]


class TransformerSettings(CaptionerSettings):
    """Settings of `Transformer`."""

    width: int = Field(512, ge=1, le=MAX_WIDTH, description="width of all hidden states")
    layers: int = Field(6, ge=1, le=256, description="number of encoder layers, and of decoder layers")
    heads: int = Field(8, ge=1, le=1024, description="number of attention heads")
    feedforward: int = Field(2048, ge=1, le=4 * MAX_WIDTH, description="hidden width of the feed-forward networks")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout of attention weights and after each sub-layer")
    normalise_first: bool = Field(False, description="normalise before each sub-layer instead of after it")

    @model_validator(mode="after")
    def _divides(self) -> TransformerSettings:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads ({self.width} is not a multiple of {self.heads})")
        return self


class MeshedMemorySettings(TransformerSettings):
    """Settings of `MeshedMemory`."""

    layers: int = Field(3, ge=1, le=256, description="number of encoder layers, and of decoder layers")
    slots: int = Field(40, ge=1, le=MAX_WIDTH, description="m: number of learned keys and values in each encoder layer")


class Attention(nn.Module):
    """Multi-head attention: softmax(Q Kᵀ / √d) V with learned projections.

    Args:
        width: total width of all heads.
        heads: number of heads.
        dropout: dropout of the attention weights.
        slots: number of learned keys and values added to those of the items (Cornia et al., eq. 2).
    """

    def __init__(self, width: int, heads: int, dropout: float, slots: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.value = Linear(width, width)
        self.mix = Linear(width, width)
        self.slot_keys: nn.Parameter | None = None
        self.slot_values: nn.Parameter | None = None
        if slots:
            # Scaled like projected items, so that they get weight from the start.
            self.slot_keys = nn.Parameter(torch.randn(slots, width) / math.sqrt(width // heads))
            self.slot_values = nn.Parameter(torch.randn(slots, width) / math.sqrt(slots))

    def _split(self, items: torch.Tensor) -> torch.Tensor:
        batch, length, width = items.shape
        return items.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def keys_and_values(self, items: torch.Tensor) -> KeysAndValues:
        """Keys and values of items `[batch, items, width]`; the learned slots come last."""
        keys, values = self.key(items), self.value(items)
        if self.slot_keys is not None and self.slot_values is not None:
            keys = torch.cat([keys, self.slot_keys.expand(len(items), -1, -1)], dim=1)
            values = torch.cat([values, self.slot_values.expand(len(items), -1, -1)], dim=1)
        return self._split(keys), self._split(values)

    def forward(
        self,
        queries: torch.Tensor,
        keys_and_values: KeysAndValues,
        causal: bool = False,
        maps: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Attend from `[batch, n, width]`; with `causal` the i-th query sees only the first i items.

        With `maps`, ln of the weights `[batch, heads, n, items]` is added to them, before dropout.
        """
        mixed: torch.Tensor = self.mix(self.weighted_values(self.query(queries), keys_and_values, causal, maps))
        return mixed

    def weighted_values(
        self,
        queries: torch.Tensor,
        keys_and_values: KeysAndValues,
        causal: bool = False,
        maps: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """What `forward` computes between its projections: from projected queries to values that are not mixed yet.

        `[batch, n, width]` in and out. For callers who group rows in between.
        """
        keys, values = keys_and_values
        query = self._split(queries)
        dropout = self.dropout if self.training else 0.0
        if maps is None:
            found = functional.scaled_dot_product_attention(query, keys, values, dropout_p=dropout, is_causal=causal)
        else:
            scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
            if causal:
                later = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).triu(diagonal=1)
                scores = scores.masked_fill(later, -torch.inf)
            maps.append(scores.log_softmax(dim=-1))
            found = functional.dropout(maps[-1].exp().to(values.dtype), dropout) @ values
        return found.transpose(1, 2).reshape(queries.shape)


@dataclass(frozen=True)
class LayerMaps:
    """ln of the attention weights of one decoder layer, for `Traces`.

    Attributes:
        words: over the words, one tensor `[rows, heads, n, n]`.
        image: over the regions, `[images, heads, size * n, regions]` for each encoder layer that it attends to.
    """

    words: list[torch.Tensor] = field(default_factory=list)
    image: list[torch.Tensor] = field(default_factory=list)

    def of_words(self, real: torch.Tensor) -> torch.Tensor:
        """`[real tokens, heads, n]`."""
        return self.words[0].transpose(1, 2)[real]

    def of_image(self, real: torch.Tensor, grouping: Grouping) -> torch.Tensor:
        """`[real tokens, heads of all encoder layers, regions]`."""
        by_row = [grouping.ungroup(one.transpose(1, 2).flatten(2))[real] for one in self.image]
        return torch.cat([one.view(len(one), self.image[0].shape[1], -1) for one in by_row], dim=1)


class SubLayer(nn.Module):
    """Residual connection, dropout and layer normalisation (after, as published, or before) around a sub-layer."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.first = settings.normalise_first
        self.norm = nn.LayerNorm(settings.width)
        self.dropout = nn.Dropout(settings.dropout)

    def before(self, states: torch.Tensor) -> torch.Tensor:
        """The input of the sub-layer."""
        return self.norm(states) if self.first else states

    def after(self, states: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """The states plus the output of the sub-layer."""
        states = states + self.dropout(output)
        return states if self.first else self.norm(states)


def feed_forward(settings: TransformerSettings) -> nn.Sequential:
    return nn.Sequential(
        Linear(settings.width, settings.feedforward),
        nn.ReLU(),
        nn.Dropout(settings.dropout),
        Linear(settings.feedforward, settings.width),
    )


class EncoderLayer(nn.Module):
    """Self-attention over regions, then a feed-forward network."""

    def __init__(self, settings: TransformerSettings, slots: int = 0) -> None:
        super().__init__()
        self.attention = Attention(settings.width, settings.heads, settings.dropout, slots)
        self.around_attention = SubLayer(settings)
        self.think = feed_forward(settings)
        self.around_think = SubLayer(settings)

    def forward(self, regions: torch.Tensor) -> torch.Tensor:
        normal = self.around_attention.before(regions)
        regions = self.around_attention.after(regions, self.attention(normal, self.attention.keys_and_values(normal)))
        output: torch.Tensor = self.around_think.after(regions, self.think(self.around_think.before(regions)))
        return output


class DecoderLayer(nn.Module):
    """Causal self-attention over words, attention to the image, then a feed-forward network."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.attention = Attention(settings.width, settings.heads, settings.dropout)
        self.around_attention = SubLayer(settings)
        self.look = Attention(settings.width, settings.heads, settings.dropout)
        self.around_look = SubLayer(settings)
        self.think = feed_forward(settings)
        self.around_think = SubLayer(settings)

    def image_keys_and_values(self, layers: Sequence[torch.Tensor]) -> list[KeysAndValues]:
        """Keys and values of the image, from the last encoder layer; computed once for all its captions."""
        return [self.look.keys_and_values(layers[-1])]

    def attend_to_image(
        self,
        words: torch.Tensor,
        image: Sequence[KeysAndValues],
        grouping: Grouping,
        maps: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Attention from words to the image, `[rows, n, width]`; with `maps`, as in `Attention`."""
        return self.look_from(words, image, grouping, maps)[0]

    def look_from(
        self,
        words: torch.Tensor,
        image: Sequence[KeysAndValues],
        grouping: Grouping,
        maps: list[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """What words find in each encoder layer, `[rows, n, width]` each.

        Only attention itself works on groups; the projections work on rows, since groups are padded.
        """
        queries = grouping.group(self.look.query(words))
        return [self.look.mix(grouping.ungroup(self.look.weighted_values(queries, one, maps=maps))) for one in image]

    def forward(
        self,
        words: torch.Tensor,
        image: Sequence[KeysAndValues],
        grouping: Grouping,
        past: KeysAndValues | None = None,
        maps: LayerMaps | None = None,
    ) -> tuple[torch.Tensor, KeysAndValues]:
        """New states `[rows, n, width]`, and keys and values of all words so far. With a past, n is 1.

        With `maps`, the attention weights are added to them.
        """
        own, looks = (None, None) if maps is None else (maps.words, maps.image)
        normal = self.around_attention.before(words)
        now = self.attention.keys_and_values(normal)
        if past is not None:
            now = (torch.cat([past[0], now[0]], dim=2), torch.cat([past[1], now[1]], dim=2))
        words = self.around_attention.after(words, self.attention(normal, now, past is None, own))
        looked = self.attend_to_image(self.around_look.before(words), image, grouping, looks)
        words = self.around_look.after(words, looked)
        words = self.around_think.after(words, self.think(self.around_think.before(words)))
        return words, now


class MeshedDecoderLayer(DecoderLayer):
    """A decoder layer with gated attention to every encoder layer (Cornia et al., eq. 4–6)."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__(settings)
        self.gates = nn.ModuleList(Linear(2 * settings.width, settings.width) for _ in range(settings.layers))

    def image_keys_and_values(self, layers: Sequence[torch.Tensor]) -> list[KeysAndValues]:
        return [self.look.keys_and_values(layer) for layer in layers]

    def attend_to_image(
        self,
        words: torch.Tensor,
        image: Sequence[KeysAndValues],
        grouping: Grouping,
        maps: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        found = self.look_from(words, image, grouping, maps)
        gated = [
            torch.sigmoid(gate(torch.cat([words, one], dim=-1))) * one
            for gate, one in zip(self.gates, found, strict=True)
        ]
        return torch.stack(gated).sum(dim=0) / math.sqrt(len(found))


@dataclass(frozen=True)
class TransformerMemory:
    """Keys and values of the images for each decoder layer."""

    layers: list[list[KeysAndValues]]
    images: int


@dataclass(frozen=True)
class TransformerState:
    """Keys and values of the words so far, for each decoder layer."""

    memory: TransformerMemory
    image_of_row: torch.Tensor
    past: list[KeysAndValues]
    length: int


class Transformer(Captioner):
    """The Transformer (Vaswani et al. 2017): an encoder over image regions, a decoder over words.

    Use it for larger data sets; on small ones `AdaptiveAttention` trains faster::

        X_0 = norm(W a),   X_{l+1} = FFN(SelfAttention(X_l))
        Y_0 = √d E w + sinusoids,   Y_{l+1} = FFN(Attention(CausalSelfAttention(Y_l), X_L))
        p = softmax(W_p Y_L)

    Each sub-layer has a residual connection, dropout and layer normalisation. Teacher forcing computes all tokens at
    once; stepping caches keys and values. Keys and values of an image are computed once and shared by its captions.

    Args:
        settings: see `TransformerSettings`.
        vocabulary, encoder: see `Model`.

    Example:
        >>> captioner = Transformer(TransformerSettings(width=256, layers=3), vocabulary, encoder)   # doctest: +SKIP
    """

    name = "transformer"
    Settings: ClassVar[type[TransformerSettings]] = TransformerSettings
    settings: TransformerSettings

    def __init__(self, settings: TransformerSettings, vocabulary: Vocabulary, encoder: EncoderIdentity) -> None:
        super().__init__(settings, vocabulary, encoder)
        self.normalise = PictureNorm(encoder.width, settings.picture_dropout)
        self.region = Linear(encoder.width, settings.width)
        self.normalise_region = nn.LayerNorm(settings.width)
        self.encoder_layers = self._encoder_layers(settings)
        self.word = nn.Embedding(len(vocabulary), settings.width)
        self.decoder_layers = self._decoder_layers(settings)
        # With normalisation before each sub-layer, the last states need one more.
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

    # --- equations --------------------------------------------------------------------------------------------

    def encode(self, features: torch.Tensor) -> TransformerMemory:
        regions = self.normalise_region(self.dropout(functional.relu(self.region(self.normalise(features)))))
        outputs = []
        for layer in self.encoder_layers:
            regions = layer(regions)
            outputs.append(regions)
        outputs = [self.last_of_encoder(output) for output in outputs]
        layers = [layer.image_keys_and_values(outputs) for layer in self._layers()]
        return TransformerMemory(layers, len(features))

    def _layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.decoder_layers if isinstance(layer, DecoderLayer)]

    def _embed(self, tokens: torch.Tensor, first: int) -> torch.Tensor:
        positions = self.positions[first : first + tokens.shape[1]]
        embedded: torch.Tensor = self.dropout(self.word(tokens) * math.sqrt(self.settings.width) + positions)
        return embedded

    def _run(
        self,
        memory: TransformerMemory,
        tokens: torch.Tensor,
        grouping: Grouping,
        maps: Sequence[LayerMaps | None] | None = None,
    ) -> list[torch.Tensor]:
        """Teacher-forced states before and after each decoder layer, `[rows, tokens, width]`.

        Padding comes last, and attention only looks back, so padding changes no real token. With `maps`, the attention
        weights of each layer are added to them.
        """
        words = self._embed(words_before(tokens), 0)
        states = [words]
        maps = maps or [None] * len(memory.layers)
        for layer, image, of_layer in zip(self._layers(), memory.layers, maps, strict=True):
            words, _ = layer(words, image, grouping, maps=of_layer)
            states.append(words)
        return states

    # --- captioner interface ----------------------------------------------------------------------------------

    def hidden(self, memory: TransformerMemory, tokens: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        states = self._run(memory, tokens, Grouping.of(image_of_row, memory.images))
        last: torch.Tensor = self.last_of_decoder(states[-1][tokens != PAD])
        return last

    def output(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.predict(hidden)
        return logits

    def word_log_prob(self, hidden: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return self.predict.log_prob(hidden, words)

    def start(self, memory: TransformerMemory, image_of_row: torch.Tensor) -> TransformerState:
        heads, width = self.settings.heads, self.settings.width
        nothing = self.positions.new_zeros(len(image_of_row), heads, 0, width // heads)
        return TransformerState(memory, image_of_row, [(nothing, nothing)] * self.settings.layers, 0)

    def step(self, state: TransformerState, token: torch.Tensor) -> tuple[torch.Tensor, TransformerState]:
        grouping = Grouping.of(state.image_of_row, state.memory.images)
        words = self._embed(token[:, None], state.length)
        past = []
        for layer, image, before in zip(self._layers(), state.memory.layers, state.past, strict=True):
            words, now = layer(words, image, grouping, before)
            past.append(now)
        log_probs = self.predict.log_softmax(self.last_of_decoder(words[:, 0]))
        return log_probs, TransformerState(state.memory, state.image_of_row, past, state.length + 1)

    def select(self, state: TransformerState, rows: torch.Tensor) -> TransformerState:
        # Three times as fast as keys[rows].
        past = [(keys.index_select(0, rows), values.index_select(0, rows)) for keys, values in state.past]
        return TransformerState(state.memory, state.image_of_row[rows], past, state.length)

    def traces(self, memory: TransformerMemory, tokens: torch.Tensor, image_of_row: torch.Tensor) -> Traces:
        grouping, real = Grouping.of(image_of_row, memory.images), tokens != PAD
        maps = [LayerMaps() for _ in memory.layers]
        states = self._run(memory, tokens, grouping, maps)
        layers = [*states[1:-1], self.last_of_decoder(states[-1])]
        over_regions = tuple(of_layer.of_image(real, grouping) for of_layer in maps)
        return Traces(
            tuple(layer_states * real[..., None] for layer_states in layers),
            at_tokens(over_regions[-1].exp().mean(dim=1), real),
            self_attention=tuple(of_layer.of_words(real) for of_layer in maps),
            cross_attention=over_regions,
        )


class MeshedMemory(Transformer):
    """The meshed-memory Transformer (M², Cornia et al. 2020).

    A stronger variant of `Transformer`. The encoder's attention has m learned keys and values besides those of the
    regions; the decoder attends to *every* encoder layer, each with a gate::

        M_mem(X) = Attention(W_q X, [W_k X; M_k], [W_v X; M_v])                     (2–3)
        M_mesh(X̃, Y) = Σ_i α_i ⊙ C(X_i, Y) / √layers,   C(X_i, Y) = Attention(Y, X_i)       (4–5)
        α_i = σ(W_i [Y; C(X_i, Y)] + b_i)                                              (6)

    Args:
        settings: see `MeshedMemorySettings`.
        vocabulary, encoder: see `Model`.

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
    """Position encodings `[length, width]`: sines and cosines of falling frequency."""
    position = torch.arange(length)[:, None]
    frequency = torch.exp(-math.log(10000.0) * torch.arange(0, width, 2) / width)
    signal = torch.zeros(length, width)
    signal[:, 0::2] = torch.sin(position * frequency)
    signal[:, 1::2] = torch.cos(position * frequency[: width // 2])
    return signal
