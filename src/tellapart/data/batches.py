"""Batches: images encoded once, captions as strings, and the pairs between them.

The order of images and the draw of captions and negatives are functions of (seed, epoch, step): to resume a training
is arithmetic, nothing is remembered.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from tellapart.data.features import FeatureStore
from tellapart.data.negatives import CaptionPool
from tellapart.data.records import Dataset, Record

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
        seed: everything is drawn from (seed, epoch, step).
    """

    def __init__(
        self,
        dataset: Dataset,
        store: FeatureStore,
        split: str,
        images_per_batch: int,
        captions_per_image: int | None = None,
        negatives: int = 0,
        seed: int = 0,
    ) -> None:
        self.records: list[Record] = [r for r in dataset.split(split) if r.captions]
        self.rows = [dataset.row(record.id) for record in self.records]
        self.store = store
        self.images_per_batch = images_per_batch
        self.captions_per_image = captions_per_image
        self.negatives = negatives
        self.seed = seed
        self.pool = CaptionPool([record.captions for record in self.records])

    def __len__(self) -> int:
        """Steps in an epoch."""
        return -(-len(self.records) // self.images_per_batch)

    def at(self, step: int, shuffle: bool = True) -> Batch:
        """The batch of a global step (0-based), whatever came before it."""
        epoch, position = divmod(step, len(self))
        order = self._order(epoch) if shuffle else np.arange(len(self.records))
        chosen = order[position * self.images_per_batch : (position + 1) * self.images_per_batch]
        return self._batch(chosen, np.random.default_rng([self.seed, 1, epoch, position]))

    def epoch(self, shuffle: bool = False) -> Iterator[Batch]:
        """One pass over the split, by default in record order (for validation)."""
        for position in range(len(self)):
            yield self.at(position, shuffle)

    def _order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, 0, epoch]).permutation(len(self.records))

    def _batch(self, chosen: Sequence[int] | np.ndarray, rng: np.random.Generator) -> Batch:
        positives, image_of_positive = [], []
        for image, index in enumerate(chosen):
            captions = self.pool.of_image(int(index))
            if self.captions_per_image is not None and self.captions_per_image < len(captions):
                captions = np.sort(rng.choice(captions, self.captions_per_image, replace=False))
            positives.append(captions)
            image_of_positive.append(np.full(len(captions), image))
        caption_index = np.concatenate(positives)
        image_row = np.concatenate(image_of_positive)
        kind = np.full(len(image_row), int(Kind.POSITIVE))
        if self.negatives:
            drawn = self.pool.negatives(np.asarray(chosen)[image_row], self.negatives, rng)
            caption_index = np.concatenate([caption_index, drawn.ravel()])
            image_row = np.concatenate([image_row, np.repeat(image_row, self.negatives)])
            kind = np.concatenate([kind, np.full(drawn.size, int(Kind.NEGATIVE))])
        grid = self.store.grid([self.rows[i] for i in chosen])
        return Batch(
            ids=[self.records[i].id for i in chosen],
            features={self.store.encoder.name: torch.from_numpy(grid)},
            captions=[self.pool.captions[i] for i in caption_index],
            pairs=Pairs(
                torch.from_numpy(image_row),
                torch.arange(len(caption_index)),
                torch.from_numpy(kind),
            ),
        )
