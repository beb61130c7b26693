"""Rewards of captions that a captioner has sampled, for `SelfCritical`.

A reward is a class with `needs(settings)` and `__call__(samples) -> [images, samples]`, and a line in `REWARDS`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from pydantic import Field, field_validator

from tellapart.captioners.base import Captioner
from tellapart.data.batches import Batch, BatchSource, Kind
from tellapart.data.neighbours import nearest_in_store
from tellapart.decoding.base import Decodable
from tellapart.errors import DataError, RecipeError, did_you_mean
from tellapart.files import digest_of, find_or_make_arrays
from tellapart.metrics.cider import DocumentFrequencies
from tellapart.metrics.token_cider import TokenCaptions, TokenReferences, token_cider
from tellapart.objectives.base import Needs
from tellapart.progress import ProgressLine
from tellapart.retrievers.base import Retriever
from tellapart.settings import Section
from tellapart.text import END, PAD, UNKNOWN, Vocabulary

T = TypeVar("T")

# Captions read at a time.
_BLOCK = 4096
# From this number of captions on their tokens and document frequencies are kept beside the features: COCO's take 17 s.
KEPT_FROM = 50_000
# Version of the kept files: other tokens of the same captions and vocabulary need another one.
FORMAT = 1


class RewardSettings(Section):
    """Settings of the rewards."""

    reward: dict[str, float] = Field({"cider": 1.0}, description="name of a reward -> its weight")
    end_token: bool = Field(True, description="cider, cider_between: the end token is a word")
    neighbours: int = Field(5, ge=1, le=1_000, description="cider_between: similar images of each image")
    others: int = Field(5, ge=1, le=10_000, description="margin, own_likelihood: other images drawn for each image")
    hardest: bool = Field(True, description="margin: over the most similar of the others; false: over their mean")

    @field_validator("reward")
    @classmethod
    def _known(cls, reward: dict[str, float]) -> dict[str, float]:
        for name in reward:
            if name not in REWARDS:
                raise ValueError(f"there is no reward '{name}'{did_you_mean(name, REWARDS)}")
        if not any(reward.values()):
            raise ValueError("no reward has a weight; give one, such as {cider: 1.0}")
        return reward

    @property
    def weights(self) -> dict[str, float]:
        """The rewards that count, with their weights."""
        return {name: weight for name, weight in self.reward.items() if weight}


@dataclass(frozen=True)
class Samples:
    """Captions of the images of a batch, n each.

    Attributes:
        batch: the images.
        tokens: words, end token, padding, `[images, n, time]`.
        captions: the same as strings, image by image.
    """

    batch: Batch
    tokens: torch.Tensor
    captions: list[str]
    _memo: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of images, and of captions for each."""
        return self.tokens.shape[0], self.tokens.shape[1]

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Compute a value at most once for these captions; rewards share it."""
        if key not in self._memo:
            self._memo[key] = compute()
        value: T = self._memo[key]
        return value

    def other_images(self, count: int) -> torch.Tensor:
        """Image rows of the batch that were drawn for each image, `[images, count]`: those of its first true pair."""
        pairs = self.batch.pairs
        positive = pairs.image_row[pairs.of(Kind.POSITIVE)]
        drawn = pairs.image_row[pairs.of(Kind.IMAGE_NEGATIVE)].view(len(positive), -1)
        first = torch.searchsorted(positive, torch.arange(len(self.batch.ids), device=positive.device))
        return drawn[first, :count]


class CaptionTables:
    """The captions of a split as tokens, and the document frequencies of the training split; each computed once.

    `learn` is called with the training split before its first batch. A validation before that uses the frequencies of
    its own split.

    Those of many captions are kept in the folder of the features, as `reward-tokens-DIGEST.npz` and
    `reward-frequencies-DIGEST.npz`, and found again by the same captions and vocabulary. A captioner with tokens of its
    own (Hugging Face) keeps none.

    Args:
        target: the captioner whose tokens are the words.
        end_token: whether the end token is a word.
    """

    def __init__(self, target: Captioner, end_token: bool) -> None:
        self._target = target
        self._end_token = end_token
        self._frequencies: DocumentFrequencies | None = None
        self.show_progress = True

    def references(self, source: BatchSource) -> TokenReferences:
        """The captions of all images of a split."""

        def find() -> TokenReferences:
            found = self._find(source, "tokens", lambda: self._read(source))
            captions = TokenCaptions(found["tokens"], found["lengths"])
            return TokenReferences(captions, np.asarray(source.pool.counts, dtype=np.int64))

        return source.once(("token_references", id(self)), find)

    def learn(self, training: BatchSource) -> None:
        """Count the document frequencies of the training split, the first time."""
        if self._frequencies is None:
            self._frequencies = self.frequencies(training)

    def frequencies(self, source: BatchSource) -> DocumentFrequencies:
        """The document frequencies for a split: those of the training split, as soon as they are known."""
        if self._frequencies is not None:
            return self._frequencies
        words = [str(row) for row in range(len(self._target.vocabulary))]

        def count() -> dict[str, np.ndarray]:
            table = self.references(source).frequencies(words)
            keys = {f"keys_{n}": key for n, key in enumerate(table.keys, start=2)}
            return keys | {f"counts_{n}": count for n, count in enumerate(table.counts, start=1)}

        def find() -> DocumentFrequencies:
            found = self._find(source, "frequencies", count)
            keys, counts = ([found[name] for name in sorted(found) if name.startswith(s)] for s in ("keys", "counts"))
            return DocumentFrequencies(len(source.pool.counts), tuple(words), tuple(keys), tuple(counts))

        return source.once(("token_frequencies", id(self)), find)

    def candidates(self, samples: Samples) -> TokenCaptions:
        """Sampled captions; an unknown word gets a number of its own, so that it matches none of a reference."""
        rows = samples.tokens.flatten(0, 1)
        return self._tokens(torch.where(rows == UNKNOWN, len(self._target.vocabulary), rows))

    def scores(self, samples: Samples, images: np.ndarray) -> torch.Tensor:
        """CIDEr-D of each sample with the references of images of the split, `[images, n, k]`.

        Args:
            samples: the captions.
            images: positions in the split, `[images, k]`.
        """
        source = source_of(samples)
        count, each = samples.shape
        k = images.shape[1]
        scores = token_cider(
            samples.once("tokens", lambda: self.candidates(samples)),
            self.references(source),
            np.repeat(np.arange(count * each), k),
            np.repeat(images, each, axis=0).ravel(),
            self.frequencies(source),
        )
        return torch.from_numpy(scores.astype(np.float32)).view(count, each, k).to(samples.tokens.device)

    def _find(self, source: BatchSource, name: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Arrays of a split, kept in the folder of its features if there are many captions."""
        folder, vocabulary, captions = source.store.folder, self._target.vocabulary, source.pool.captions
        few = len(captions) < KEPT_FROM or type(vocabulary) is not Vocabulary
        if few or folder is None or not os.access(folder, os.W_OK):
            return make()
        of_words = [vocabulary.tokens, vocabulary.normaliser, vocabulary.max_words, self._end_token]
        digest = digest_of([FORMAT, of_words, captions, source.pool.counts.tolist()])
        return find_or_make_arrays(folder / f"reward-{name}-{digest[:16]}.npz", make)

    def _read(self, source: BatchSource) -> dict[str, np.ndarray]:
        captions = source.pool.captions
        line = ProgressLine("captions for the reward", " captions") if self.show_progress else None
        parts = []
        for start in range(0, len(captions), _BLOCK):
            parts.append(self._tokens(self._target.tokenize(captions[start : start + _BLOCK])))
            if line is not None:
                line.update(min(start + _BLOCK, len(captions)), len(captions))
        tokens, lengths = (
            np.concatenate(arrays) for arrays in zip(*((p.tokens, p.lengths) for p in parts), strict=True)
        )
        return {"tokens": tokens, "lengths": lengths}

    def _tokens(self, rows: torch.Tensor) -> TokenCaptions:
        words = (rows != PAD) & (rows != END)
        kept = words
        if self._end_token:
            # A caption of the greatest length was cut, or may have been: its end says nothing.
            whole = words.sum(dim=1, keepdim=True) < self._target.vocabulary.max_words
            kept = words | ((rows == END) & whole)
        return TokenCaptions.of_rows(rows.cpu().numpy(), kept.cpu().numpy())


@dataclass(frozen=True)
class Given:
    """What a reward is made from.

    Attributes:
        settings: the rewards' settings.
        frozen: the frozen models by role.
        tables: the captions of the splits as tokens.
    """

    settings: RewardSettings
    frozen: Mapping[str, Any]
    tables: CaptionTables


class Reward(ABC):
    """Base of all rewards.

    Args:
        given: see `Given`.
    """

    name: ClassVar[str]

    def __init__(self, given: Given) -> None:
        self.settings = given.settings
        self.frozen = given.frozen
        self.tables = given.tables

    @classmethod
    def needs(cls, settings: RewardSettings) -> Needs:
        """Roles and other images that the reward needs; none by default."""
        return Needs()

    def prepare(self, training: BatchSource) -> None:  # noqa: B027  # most rewards need nothing
        """Called before each training step, also where a process's share of the batch is empty."""

    def find(self, source: BatchSource) -> None:  # noqa: B027  # as above
        """Called before training with each split, for long work whose results the split keeps (`BatchSource.once`)."""

    @abstractmethod
    def __call__(self, samples: Samples) -> torch.Tensor:
        """The reward of each caption, `[images, n]`; higher is better."""


class CiderReward(Reward):
    """CIDEr-D with the captions of people: the image's captions in its split are the references.

    The words are the captioner's tokens. Document frequencies are those of the training split. With `end_token` the
    end token is a word too, as in the code of Luo (2020): otherwise captions come to end in "with a", since a frequent
    n-gram more costs little. A caption that was cut at the greatest length has no end token. An unknown word in a
    sample matches no word of a reference.
    """

    name = "cider"

    def prepare(self, training: BatchSource) -> None:
        self.tables.learn(training)

    def find(self, source: BatchSource) -> None:
        self.tables.references(source)

    def __call__(self, samples: Samples) -> torch.Tensor:
        images = samples.batch.image_numbers().cpu().numpy()
        return self.tables.scores(samples, images[:, None]).squeeze(2)


class CiderBetweenReward(Reward):
    """Minus CIDErBtw (Wang et al. 2020): the mean CIDEr-D with the captions of the most similar images.

    ::

        r(c, I) = −mean over the k images I_j most similar to I of CIDEr-D(c, captions of I_j)

    Similar images are those with the nearest pooled features (cosine) in the whole split. They are searched once at the
    start, and kept with the store if there are many: quadratic in the number of images, seconds for Flickr8k, minutes
    for COCO on a CPU.
    """

    name = "cider_between"

    def prepare(self, training: BatchSource) -> None:
        self.tables.learn(training)

    def find(self, source: BatchSource) -> None:
        self.tables.references(source)
        self._similar(source)

    def __call__(self, samples: Samples) -> torch.Tensor:
        images = self._similar(source_of(samples))[samples.batch.image_numbers().cpu().numpy()]
        return -self.tables.scores(samples, images).mean(dim=2)

    def _similar(self, source: BatchSource) -> np.ndarray:
        count = min(self.settings.neighbours, len(source.records) - 1)
        if count < 1:
            raise DataError("the reward cider_between needs similar images, but a split has one image; add images")
        key = ("similar_images", self.settings.neighbours)
        return source.once(key, lambda: nearest_in_store(source.store, source.rows, count))


class SimilarityReward(Reward):
    """The similarity of a caption with its image, by the frozen `retriever`."""

    name = "similarity"

    @classmethod
    def needs(cls, settings: RewardSettings) -> Needs:
        return Needs({"retriever": Retriever.kind})

    def __call__(self, samples: Samples) -> torch.Tensor:
        similarity = similarities(self.frozen["retriever"], samples)
        rows = torch.arange(len(similarity), device=similarity.device)
        return similarity[rows, rows]


class MarginReward(Reward):
    """How much more similar a caption is to its image than to others, by the frozen `retriever`.

    ::

        r(c, I) = s(c, I) − max_j s(c, I_j)      (with `hardest: false`, the mean over j)

    I_j are `others` images drawn for the image: from the step's whole batch, or similar ones by the recipe's
    `negatives`.
    """

    name = "margin"

    @classmethod
    def needs(cls, settings: RewardSettings) -> Needs:
        return Needs({"retriever": Retriever.kind}, image_negatives=settings.others)

    def __call__(self, samples: Samples) -> torch.Tensor:
        similarity = similarities(self.frozen["retriever"], samples)
        rows = torch.arange(len(similarity), device=similarity.device)
        others = similarity[rows[:, None], samples.other_images(self.settings.others)]
        over = others.amax(dim=1) if self.settings.hardest else others.mean(dim=1)
        return similarity[rows, rows] - over


class OwnLikelihoodReward(Reward):
    """How much likelier a caption is given its image than given others, by the frozen `reference`, per token.

    ::

        r(c, I) = (ln p(c|I) − mean_j ln p(c|I_j)) / T

    T is the number of tokens with the end token, so that long captions do not win by their length. I_j are drawn as for
    `MarginReward`.
    """

    name = "own_likelihood"

    @classmethod
    def needs(cls, settings: RewardSettings) -> Needs:
        return Needs({"reference": Captioner.kind}, image_negatives=settings.others)

    def __call__(self, samples: Samples) -> torch.Tensor:
        reference: Decodable = self.frozen["reference"]
        images, each = samples.shape
        tokens = reference.tokenize(samples.captions)
        own = torch.arange(images, device=tokens.device)[:, None]
        image = torch.cat([own, samples.other_images(self.settings.others)], dim=1)
        k = image.shape[1]
        scores = reference.log_prob(
            reference.encode(samples.batch.features[reference.encoder.name]),
            tokens.repeat_interleave(k, dim=0),
            image.repeat_interleave(each, dim=0).flatten(),
        )
        per_token = scores.view(-1, k) / (tokens != PAD).sum(dim=1, keepdim=True)
        return (per_token[:, 0] - per_token[:, 1:].mean(dim=1)).view(images, each)


REWARDS: dict[str, type[Reward]] = {
    reward.name: reward
    for reward in (CiderReward, CiderBetweenReward, SimilarityReward, MarginReward, OwnLikelihoodReward)
}


def source_of(samples: Samples) -> BatchSource:
    """The split that the batch comes from."""
    if samples.batch.source is None:
        raise RecipeError("the reward needs the captions of a split; give batches made by a BatchSource")
    return samples.batch.source


def similarities(retriever: Retriever, samples: Samples) -> torch.Tensor:
    """Similarity of each image's captions with all image rows of the batch, `[images, rows, n]`."""

    def compute() -> torch.Tensor:
        images = retriever.embed_images(samples.batch.features[retriever.encoder.name])
        matrix = retriever.similarity(images, retriever.embed_texts(samples.captions))
        return matrix.t().reshape(*samples.shape, -1).transpose(1, 2)

    return samples.once(("similarities", id(retriever)), compute)
