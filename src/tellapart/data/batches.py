"""Batches: images encoded once, captions as strings, and the pairs between them.

The order of images and the draw of captions and negatives are functions of (seed, epoch, step): to resume a training
is arithmetic, nothing is remembered.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch

from tellapart.data.features import FeatureStore
from tellapart.data.negatives import CaptionPool, HardNegatives
from tellapart.data.records import Dataset, Record
from tellapart.recipe import NegativeSettings

T = TypeVar("T")


class Kind(enum.IntEnum):
    """What a pair of an image and a caption is."""

    POSITIVE = 0
    NEGATIVE = 1
    DISTRACTOR = 2


@dataclass(frozen=True)
class Pairs:
    """Which caption is scored against which image.

    Pairs of one kind stand together. Negatives follow the order of the positives, K for each, so that scores of
    the negatives viewed as `[P, K]` line up with the scores of the positives `[P]`.
    """

    image_row: torch.Tensor
    caption_row: torch.Tensor
    kind: torch.Tensor

    def of(self, *kinds: Kind) -> torch.Tensor:
        """Positions of the pairs of these kinds."""
        wanted = torch.zeros_like(self.kind, dtype=torch.bool)
        for kind in kinds:
            wanted |= self.kind == kind
        return wanted.nonzero().squeeze(1)

    def __len__(self) -> int:
        return len(self.kind)


@dataclass
class Batch:
    """One step's data.

    Attributes:
        ids: image ids, one per image row.
        features: encoder name -> region features `[images, regions, width]`.
        captions: caption strings; each model tokenises them for itself.
        pairs: which caption is scored against which image.
    """

    ids: list[str]
    features: dict[str, torch.Tensor]
    captions: list[str]
    pairs: Pairs
    _memo: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Compute something at most once per step, so that composed objectives share a forward pass."""
        if key not in self._memo:
            self._memo[key] = compute()
        value: T = self._memo[key]
        return value

    def to(self, device: torch.device) -> Batch:
        pairs = Pairs(*(t.to(device) for t in (self.pairs.image_row, self.pairs.caption_row, self.pairs.kind)))
        return Batch(self.ids, {n: f.to(device) for n, f in self.features.items()}, self.captions, pairs)


class BatchSource:
    """The batches of one split.

    Args:
        dataset: the records, in the order of the feature store's rows.
        store: their features.
        split: `train`, `val` or `test`.
        images_per_batch: the last batch of an epoch may hold fewer.
        captions_per_image: draw this many of an image's captions each time; `None` takes all of them.
        negatives: K captions of other images per positive (0 for none).
        negative_settings: where those come from.
        bucket_batches: sort the images of so many successive batches by the length of their captions, then shuffle the
            batches, so that captions of a batch are about equally long.
        seed: everything is drawn from (seed, epoch, step).
        rank: which of `world` processes this is. Together they see what one process would see: every step's batch is
            drawn whole and its images dealt out.
        world: how many processes share each batch.
    """

    def __init__(
        self,
        dataset: Dataset,
        store: FeatureStore,
        split: str,
        images_per_batch: int,
        captions_per_image: int | None = None,
        negatives: int = 0,
        negative_settings: NegativeSettings | None = None,
        bucket_batches: int = 1,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.records: list[Record] = [r for r in dataset.split(split) if r.captions]
        self.rows = [dataset.row(record.id) for record in self.records]
        self.store = store
        self.images_per_batch = images_per_batch
        self.captions_per_image = captions_per_image
        self.negatives = negatives
        self.bucket_batches = bucket_batches
        self.seed = seed
        self.rank = rank
        self.world = world
        self.pool = CaptionPool([record.captions for record in self.records])
        self.hard: HardNegatives | None = None
        if negatives and negative_settings is not None and negative_settings.hard > 0:
            self.hard = HardNegatives(self.pool, store.pooled(self.rows), negative_settings)

    def __len__(self) -> int:
        """Steps in an epoch."""
        return -(-len(self.records) // self.images_per_batch)

    def at(self, step: int, shuffle: bool = True) -> Batch:
        """The batch of a global step (0-based), whatever came before it."""
        epoch, position = divmod(step, len(self))
        order = self._order(epoch) if shuffle else np.arange(len(self.records))
        chosen = order[position * self.images_per_batch : (position + 1) * self.images_per_batch]
        rng = np.random.default_rng([self.seed, 1, epoch, position])
        return self._batch(chosen, rng, epoch + position / len(self))

    def epoch(self, shuffle: bool = False) -> Iterator[Batch]:
        """One pass over the split, by default in record order (for validation)."""
        for position in range(len(self)):
            yield self.at(position, shuffle)

    def _order(self, epoch: int) -> np.ndarray:
        rng = np.random.default_rng([self.seed, 0, epoch])
        order = rng.permutation(len(self.records))
        if self.bucket_batches == 1:
            return order
        window = self.bucket_batches * self.images_per_batch
        buckets = [order[at : at + window] for at in range(0, len(order), window)]
        order = np.concatenate([bucket[np.argsort(self._lengths[bucket], kind="stable")] for bucket in buckets])
        # The ragged batch stays last, so that every other batch is a full one.
        whole = len(order) // self.images_per_batch * self.images_per_batch
        shuffled = rng.permutation(order[:whole].reshape(-1, self.images_per_batch)).ravel()
        return np.concatenate([shuffled, order[whole:]])

    @cached_property
    def _lengths(self) -> np.ndarray:
        """Mean length of each image's captions, in words."""
        return np.array([np.mean([len(c.split()) for c in record.captions]) for record in self.records])

    def _batch(self, chosen: np.ndarray, rng: np.random.Generator, epochs: float) -> Batch:
        captions = [self._draw_captions(int(image), rng) for image in chosen]
        image_row = np.repeat(np.arange(len(chosen)), [len(drawn) for drawn in captions])
        positives = np.concatenate(captions)
        negatives = self._draw_negatives(chosen[image_row], rng, epochs)

        # Dealt out after everything is drawn: what a process gets does not depend on how many there are.
        mine = np.arange(len(chosen)) % self.world == self.rank
        kept = mine[image_row]
        new_row = np.cumsum(mine) - 1
        image_row, positives, negatives = new_row[image_row[kept]], positives[kept], negatives[kept]
        caption_index = np.concatenate([positives, negatives.ravel()])
        kind = np.repeat([int(Kind.POSITIVE), int(Kind.NEGATIVE)], [positives.size, negatives.size])
        grid = self.store.grid([self.rows[i] for i in chosen[mine]])
        return Batch(
            ids=[self.records[i].id for i in chosen[mine]],
            features={self.store.encoder.name: torch.from_numpy(grid)},
            captions=[self.pool.captions[i] for i in caption_index],
            pairs=Pairs(
                torch.from_numpy(np.concatenate([image_row, np.repeat(image_row, self.negatives)])),
                torch.arange(len(caption_index)),
                torch.from_numpy(kind),
            ),
        )

    def _draw_captions(self, image: int, rng: np.random.Generator) -> np.ndarray:
        own = self.pool.of_image(image)
        if self.captions_per_image is None or self.captions_per_image >= len(own):
            return own
        return np.sort(rng.choice(own, self.captions_per_image, replace=False))

    def _draw_negatives(self, images: np.ndarray, rng: np.random.Generator, epochs: float) -> np.ndarray:
        if not self.negatives:
            return np.empty((len(images), 0), dtype=np.int64)
        if self.hard is not None:
            return self.hard.draw(images, self.negatives, rng, epochs)
        return self.pool.negatives(images, self.negatives, rng)
