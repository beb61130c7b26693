"""What all ways of decoding share: what they ask of a captioner, and how token rows become captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from pydantic import BaseModel

from tellapart.captioners.base import Traces
from tellapart.decoding.settings import DecodingSettings
from tellapart.encoders.base import EncoderIdentity, ImageEncoder
from tellapart.errors import RecipeError
from tellapart.text import END, PAD, Vocabulary


@dataclass(frozen=True)
class Caption:
    """One generated caption.

    Attributes:
        caption: the words.
        log_prob: ln p(caption | image) of the model itself, with the end token if it ended.
        ended: whether the model itself ended it; otherwise it ran into the length limit.
    """

    caption: str
    log_prob: float
    ended: bool


class Decodable(Protocol):
    """The part of the captioner contract that decoding and scoring use: of a `Captioner`, or an `Ensemble` of them."""

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
class Found:
    """Generated captions as columns, one entry a caption, in no particular order.

    Attributes:
        image: the image it is about, by its place in the batch, `[captions]`.
        rank: its place among the captions of its image that it is compared with (its group's, in a diverse beam).
        tokens: its words, then padding, `[captions, longest]`.
        log_prob: the model's own.
        ended: whether the end token was said; then it is in `log_prob`.
    """

    image: torch.Tensor
    rank: torch.Tensor
    tokens: torch.Tensor
    log_prob: torch.Tensor
    ended: torch.Tensor

    def at(self, chosen: torch.Tensor) -> Found:
        return Found(*(column[chosen] for column in vars(self).values()))

    @staticmethod
    def join(parts: Sequence[Found]) -> Found:
        return Found(*(torch.cat(columns) for columns in zip(*(vars(part).values() for part in parts), strict=True)))


def most_words(captioner: Decodable, settings: DecodingSettings) -> int:
    """The length limit: the settings', or the vocabulary's own, since nothing longer could be scored again."""
    longest = min(settings.max_words, captioner.vocabulary.max_words)
    if settings.min_words > longest:
        raise RecipeError(
            f"decoding.min_words: {settings.min_words} words are asked for, but this captioner says at most {longest}; "
            "lower it"
        )
    return longest


def normalised(log_prob: torch.Tensor, tokens: torch.Tensor | int, length_penalty: float) -> torch.Tensor:
    """A caption's score: ln p / tokens^length_penalty. 0 leaves ln p as it is; 1 is the mean over tokens.

    Args:
        log_prob: ln p(caption | image).
        tokens: how many tokens it is made of, the end token among them.
        length_penalty: larger ones favour longer captions.
    """
    return log_prob if length_penalty == 0 else log_prob / torch.as_tensor(tokens).clamp(min=1) ** length_penalty


def without_repeats(tokens: torch.Tensor) -> torch.Tensor:
    """Token rows without the tokens that equal the one before them; padding fills the end.

    >>> without_repeats(torch.tensor([[5, 5, 6, 5, 0], [7, 7, 7, 0, 0]]))
    tensor([[5, 6, 5, 0, 0],
            [7, 0, 0, 0, 0]])
    """
    repeated = torch.zeros_like(tokens, dtype=torch.bool)
    repeated[:, 1:] = tokens[:, 1:] == tokens[:, :-1]
    order = torch.argsort(repeated.int(), dim=1, stable=True)
    return tokens.masked_fill(repeated, PAD).gather(1, order)


def make_captions(
    captioner: Decodable, memory: Any, images: int, found: Found, settings: DecodingSettings
) -> list[list[Caption]]:
    """Lists of captions, one list an image: ended ones first, then by falling score; samples as they were drawn.

    With `remove_repeats`, captions that lose a word are scored again, so that `log_prob` is that of what is said.
    """
    if settings.remove_repeats:
        shorter = without_repeats(found.tokens)
        changed = (shorter != found.tokens).any(dim=1).nonzero().squeeze(1)
        log_prob = found.log_prob.clone()
        if len(changed):
            whole = _with_end(shorter[changed], found.ended[changed])
            log_prob[changed] = captioner.log_prob(memory, whole, found.image[changed])
        found = Found(found.image, found.rank, shorter, log_prob, found.ended)
    lengths = (found.tokens != PAD).sum(dim=1) + found.ended
    scores = normalised(found.log_prob, lengths, settings.length_penalty)
    columns = zip(
        found.image.tolist(),
        found.rank.tolist(),
        (-scores).tolist(),
        map(Caption, captioner.detokenize(found.tokens), found.log_prob.tolist(), found.ended.tolist()),
        strict=True,
    )
    listed: list[list[tuple[int, bool, float, Caption]]] = [[] for _ in range(images)]
    for image, rank, cost, caption in columns:
        listed[image].append((rank, not caption.ended, cost, caption))
    return [_in_order(candidates, settings) for candidates in listed]


def _in_order(candidates: list[tuple[int, bool, float, Caption]], settings: DecodingSettings) -> list[Caption]:
    """The captions of one image that are asked for, in their order; each is (rank, cut, cost, caption)."""
    if not candidates:
        raise RecipeError(
            "decoding: the vocabulary has too few words for a caption under these settings; lower min_words or allow "
            "repeats and unknown words"
        )
    if settings.method == "sample":
        return [caption for _, _, _, caption in sorted(candidates, key=lambda one: one[0])]
    # The best of every group come before the second best of any.
    chosen = sorted(candidates, key=lambda one: one[:3])[: settings.samples]
    return [caption for _, _, _, caption in sorted(chosen, key=lambda one: one[1:3])]


def _with_end(tokens: torch.Tensor, ended: torch.Tensor) -> torch.Tensor:
    """Words and padding -> words, the end token where the caption ended, padding."""
    rows = torch.cat([tokens, tokens.new_full((len(tokens), 1), PAD)], dim=1)
    length = (tokens != PAD).sum(dim=1)
    rows[ended.nonzero().squeeze(1), length[ended]] = END
    return rows
