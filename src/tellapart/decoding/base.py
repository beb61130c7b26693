"""Shared by all decoding methods: the captioner's interface, and the step from token rows to captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from pydantic import BaseModel

from tellapart.captioners.base import Traces
from tellapart.decoding.reweighted import Reweighted
from tellapart.decoding.settings import DecodingSettings
from tellapart.encoders.base import EncoderIdentity, ImageEncoder
from tellapart.errors import RecipeError
from tellapart.text import END, PAD, Vocabulary


@dataclass(frozen=True)
class Caption:
    """One generated caption.

    Attributes:
        caption: the text.
        log_prob: the model's ln p(caption | image), with the end token if it ended.
        ended: whether the model ended it; otherwise it was cut at the length limit.
    """

    caption: str
    log_prob: float
    ended: bool

    def __str__(self) -> str:
        return self.caption


class Decodable(Protocol):
    """The part of a `Captioner` that decoding and scoring use; an `Ensemble` has it too."""

    @property
    def name(self) -> str: ...
    @property
    def settings(self) -> BaseModel: ...
    @property
    def vocabulary(self) -> Vocabulary: ...
    @property
    def encoder(self) -> EncoderIdentity: ...
    @property
    def device(self) -> torch.device: ...
    def encode(self, features: torch.Tensor) -> Any: ...
    def start(self, memory: Any, image_of_row: torch.Tensor) -> Any: ...
    def step(self, state: Any, token: torch.Tensor) -> tuple[torch.Tensor, Any]: ...
    def select(self, state: Any, rows: torch.Tensor) -> Any: ...
    def tokenize(self, captions: Sequence[str]) -> torch.Tensor: ...
    def detokenize(self, tokens: torch.Tensor) -> list[str]: ...
    def log_prob(
        self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor, per_token: bool = False
    ) -> torch.Tensor: ...
    def state_dict(self) -> dict[str, Any]: ...
    def open_encoder(self, device: str | None = None) -> ImageEncoder: ...
    def traces(self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor) -> Traces: ...


@dataclass(frozen=True)
class Decoded:
    """Generated captions as columns, one entry for each caption, in any order.

    Attributes:
        image: index of the image in the batch, `[captions]`.
        rank: rank among the captions of the same image (and of the same group in a diverse beam).
        tokens: words, then padding, `[captions, longest]`.
        log_prob: the model's ln p, with the end token if it ended; with guidance, the guided one.
        ended: whether it has an end token.
    """

    image: torch.Tensor
    rank: torch.Tensor
    tokens: torch.Tensor
    log_prob: torch.Tensor
    ended: torch.Tensor

    def at(self, chosen: torch.Tensor) -> Decoded:
        return Decoded(*(column[chosen] for column in vars(self).values()))

    @staticmethod
    def join(parts: Sequence[Decoded]) -> Decoded:
        return Decoded(*(torch.cat(columns) for columns in zip(*(vars(part).values() for part in parts), strict=True)))


def length_limit(captioner: Decodable, settings: DecodingSettings) -> int:
    """Most words in a caption: `settings.max_words`, or less if the captioner cannot score captions that long."""
    longest = min(settings.max_words, captioner.vocabulary.max_words)
    if settings.min_words > longest:
        raise RecipeError(
            f"decoding.min_words: {settings.min_words} is more than this captioner's limit of {longest} words; lower it"
        )
    return longest


def normalise(log_prob: torch.Tensor, tokens: torch.Tensor | int, length_penalty: float) -> torch.Tensor:
    """A caption's score: ln p / tokens^length_penalty, so 0 gives ln p and 1 its mean over tokens.

    Args:
        log_prob: ln p(caption | image).
        tokens: number of tokens, with the end token.
        length_penalty: larger values favour longer captions.
    """
    return log_prob if length_penalty == 0 else log_prob / torch.as_tensor(tokens).clamp(min=1) ** length_penalty


def remove_repeats(tokens: torch.Tensor) -> torch.Tensor:
    """Remove tokens that equal the one before; padding fills the rows up.

    >>> remove_repeats(torch.tensor([[5, 5, 6, 5, 0], [7, 7, 7, 0, 0]]))
    tensor([[5, 6, 5, 0, 0],
            [7, 0, 0, 0, 0]])
    """
    repeated = torch.zeros_like(tokens, dtype=torch.bool)
    repeated[:, 1:] = tokens[:, 1:] == tokens[:, :-1]
    order = torch.argsort(repeated.int(), dim=1, stable=True)
    return tokens.masked_fill(repeated, PAD).gather(1, order)


def make_captions(
    captioner: Decodable, memory: Any, images: int, decoded: Decoded, settings: DecodingSettings
) -> list[list[Caption]]:
    """The captions of each image: ended ones first, then by falling score; samples in the order drawn.

    With `remove_repeats`, captions that lose a word are scored again, so that `log_prob` fits the caption. With
    guidance or contrast, captions are ordered by these scores, and `log_prob` is then the captioner's own.
    """
    if settings.remove_repeats:
        shorter = remove_repeats(decoded.tokens)
        changed = (shorter != decoded.tokens).any(dim=1).nonzero().squeeze(1)
        log_prob = decoded.log_prob.clone()
        if len(changed):
            whole = _with_end(shorter[changed], decoded.ended[changed])
            log_prob[changed] = captioner.log_prob(memory, whole, decoded.image[changed])
        decoded = Decoded(decoded.image, decoded.rank, shorter, log_prob, decoded.ended)
    lengths = (decoded.tokens != PAD).sum(dim=1) + decoded.ended
    scores = normalise(decoded.log_prob, lengths, settings.length_penalty)
    log_prob = decoded.log_prob
    if isinstance(captioner, Reweighted) and len(log_prob):
        log_prob = captioner.own_log_prob(memory, _with_end(decoded.tokens, decoded.ended), decoded.image)
    columns = zip(
        decoded.image.tolist(),
        decoded.rank.tolist(),
        (-scores).tolist(),
        map(Caption, captioner.detokenize(decoded.tokens), log_prob.tolist(), decoded.ended.tolist()),
        strict=True,
    )
    listed: list[list[tuple[int, bool, float, Caption]]] = [[] for _ in range(images)]
    for image, rank, cost, caption in columns:
        listed[image].append((rank, not caption.ended, cost, caption))
    return [_in_order(candidates, settings) for candidates in listed]


def _in_order(candidates: list[tuple[int, bool, float, Caption]], settings: DecodingSettings) -> list[Caption]:
    """The best captions of one image in their order; a candidate is (rank, cut, cost, caption)."""
    if not candidates:
        raise RecipeError(
            "decoding: no caption is possible under these settings; lower min_words or allow repeats and unknown words"
        )
    if settings.method == "sample":
        return [caption for _, _, _, caption in sorted(candidates, key=lambda one: one[0])]
    # The best captions of all groups come before any second best.
    chosen = sorted(candidates, key=lambda one: one[:3])[: settings.samples]
    return [caption for _, _, _, caption in sorted(chosen, key=lambda one: one[1:3])]


def _with_end(tokens: torch.Tensor, ended: torch.Tensor) -> torch.Tensor:
    """Add the end token to the captions that ended."""
    rows = torch.cat([tokens, tokens.new_full((len(tokens), 1), PAD)], dim=1)
    length = (tokens != PAD).sum(dim=1)
    rows[ended.nonzero().squeeze(1), length[ended]] = END
    return rows
