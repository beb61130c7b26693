"""Batches: images encoded once, captions as strings, and the pairs between them.

The order of images, the draw of captions and negatives and all noise are functions of (seed, epoch, step): to resume
a training is arithmetic, nothing is remembered. Every step's batch is drawn whole, then dealt out in successive shares
to processes and to the parts of an accumulated step; what is drawn for an image does not depend on its share.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch

from tellapart.data.features import FeatureStore
from tellapart.data.negatives import CaptionPool, HardNegatives, of_alike_images, of_likely_captions
from tellapart.data.neighbours import nearest_images
from tellapart.data.records import Dataset, Record
from tellapart.data.settings import NegativeSettings
from tellapart.errors import DataError

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
        first: position of the first image in the step's whole batch, of which this may be one process's share.
        whole: images in the whole batch.
        noise_seed: what `uniform` draws from.
        source: the split it comes from; `None` for a batch made by hand.
        places: of each caption, its place among all captions of the split.
    """

    ids: list[str]
    features: dict[str, torch.Tensor]
    captions: list[str]
    pairs: Pairs
    first: int = 0
    whole: int | None = None
    noise_seed: tuple[int, ...] = (0,)
    source: BatchSource | None = field(default=None, repr=False)
    places: torch.Tensor | None = field(default=None, repr=False)
    _memo: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Compute something at most once per step, so that composed objectives share a forward pass."""
        if key not in self._memo:
            self._memo[key] = compute()
        value: T = self._memo[key]
        return value

    def uniform(self, name: str, *shape: int) -> torch.Tensor:
        """Noise in [0, 1) for each image, `[images, *shape]`: that of an image is the same whatever share it is in.

        Args:
            name: what it is for; another name is other noise.
            shape: of one image's noise.
        """
        whole = len(self.ids) if self.whole is None else self.whole
        noise = torch.rand(whole, *shape, generator=self.generator(name))[self.first : self.first + len(self.ids)]
        return noise.to(self.pairs.kind.device)

    def generator(self, name: str) -> torch.Generator:
        """Draws the same on the CPU in every process: for what is drawn over the gathered batch.

        Args:
            name: what it is for; another name draws other numbers.
        """
        seed = np.random.SeedSequence([*self.noise_seed, *name.encode()]).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(seed[0] >> np.uint64(1)))

    def image_numbers(self) -> torch.Tensor:
        """Which images of the split these are, `[images]`: what a bank knows them by in later steps."""
        device = self.pairs.kind.device
        if self.source is None:
            return torch.arange(len(self.ids), device=device)
        return self.source.numbers(self.ids).to(device)

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device, with nothing computed yet."""
        pairs = Pairs(*(t.to(device) for t in (self.pairs.image_row, self.pairs.caption_row, self.pairs.kind)))
        features = {name: values.to(device) for name, values in self.features.items()}
        places = None if self.places is None else self.places.to(device)
        return replace(self, features=features, pairs=pairs, places=places, _memo={})

    def forget(self) -> None:
        """Drop what `once` remembers: after an update it is no longer true."""
        self._memo.clear()


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
        rank: which of `world` processes this is. Together they see what one process would see.
        world: how many processes share each batch.
        parts: so many successive parts make a step's batch, for accumulation.
        likely_captions: `[images, candidates]`, captions of other images that a retriever takes for each image's: what
            hard negatives are drawn from; by default they are captions of images that look alike.
        more_stores: the same images' features by other encoders, for frozen models that read them.
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
        parts: int = 1,
        likely_captions: np.ndarray | None = None,
        more_stores: Sequence[FeatureStore] = (),
    ) -> None:
        self.records: list[Record] = [r for r in dataset.split(split) if r.captions]
        self.rows = [dataset.row(record.id) for record in self.records]
        self.store = store
        self.stores = [store, *more_stores]
        self.images_per_batch = images_per_batch
        self.captions_per_image = captions_per_image
        self.negatives = negatives
        self.bucket_batches = bucket_batches
        self.seed = seed
        self.rank = rank
        self.world = world
        self.parts = parts
        self.pool = CaptionPool([record.captions for record in self.records])
        if negatives and len(self.records) < 2:
            raise DataError(f"the split '{split}' has one image with captions; negatives need captions of another one")
        self.hard: HardNegatives | None = None
        if negatives and negative_settings is not None and negative_settings.hard > 0:
            choose = (
                of_alike_images(self.pool, store.pooled(self.rows), negative_settings.top)
                if likely_captions is None
                else of_likely_captions(likely_captions)
            )
            self.hard = HardNegatives(self.pool, choose, negative_settings)
        self._memo: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        """Steps in an epoch."""
        return -(-len(self.records) // self.images_per_batch)

    def at(self, step: int, part: int = 0, shuffle: bool = True) -> Batch:
        """This process's share of the batch of a global step (0-based), whatever came before it.

        With more processes than images some shares are empty.
        """
        epoch, position = divmod(step, len(self))
        order = self._order(epoch) if shuffle else np.arange(len(self.records))
        chosen = order[position * self.images_per_batch : (position + 1) * self.images_per_batch]
        rng = np.random.default_rng([self.seed, 1, epoch, position])
        shares = np.array_split(np.arange(len(chosen)), self.parts * self.world)
        # Part by part and within a part by rank: shares gathered in that order are the whole batch in its order.
        share = shares[part * self.world + self.rank]
        return self._batch(chosen, share, rng, epoch + position / len(self), (self.seed, 2, epoch, position))

    def epoch(self, shuffle: bool = False) -> Iterator[Batch]:
        """One pass over the split, by default in record order (for validation)."""
        for position in range(len(self)):
            for part in range(self.parts):
                yield self.at(position, part, shuffle)

    def positives(self) -> Iterator[Batch]:
        """Every caption of the split with its image, in record order, nothing drawn: this process's shares.

        The shares of all processes, gathered batch by batch, give the captions in the order of `Batch.places`.
        """
        for start in range(0, len(self.records), self.images_per_batch):
            chosen = np.arange(start, min(start + self.images_per_batch, len(self.records)))
            images = np.array_split(chosen, self.world)[self.rank]
            places = np.concatenate([np.empty(0, np.int64), *(self.pool.of_image(int(image)) for image in images)])
            image_row = np.repeat(np.arange(len(images)), self.pool.counts[images])
            yield self._assemble(images, torch.from_numpy(places), torch.from_numpy(image_row), Kind.POSITIVE)

    def distracted(self, batch: Batch) -> Batch:
        """A batch's true captions against other images: each image's distractor, the one that looks most like it.

        A distractor is chosen once: an image has the same one whenever it comes up. The pairs are of the kind
        `DISTRACTOR`, in the order of the batch's positives.
        """
        assert batch.places is not None
        images = self._distractor[[self._image_of_id[id] for id in batch.ids]]
        rows = batch.pairs.of(Kind.POSITIVE)
        places, image_row = batch.places[batch.pairs.caption_row[rows]], batch.pairs.image_row[rows]
        return self._assemble(images, places, image_row, Kind.DISTRACTOR).to(image_row.device)

    def numbers(self, ids: Sequence[str]) -> torch.Tensor:
        """The places of these images in the split."""
        return torch.tensor([self._image_of_id[id] for id in ids], dtype=torch.long)

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Compute something at most once for the whole split, e.g. what a frozen model says of its pairs."""
        if key not in self._memo:
            self._memo[key] = compute()
        value: T = self._memo[key]
        return value

    @cached_property
    def _image_of_id(self) -> dict[str, int]:
        return {record.id: image for image, record in enumerate(self.records)}

    @cached_property
    def _distractor(self) -> np.ndarray:
        if len(self.records) < 2:
            raise DataError("distractors need at least two images, and this split has one; add images")
        return nearest_images(self.store.pooled(self.rows), 1)[:, 0]

    def _assemble(self, images: np.ndarray, places: torch.Tensor, image_row: torch.Tensor, kind: Kind) -> Batch:
        """The captions at these places, each against its image."""
        return Batch(
            ids=[self.records[image].id for image in images],
            features=self._features(images),
            captions=[self.pool.captions[place] for place in places.tolist()],
            pairs=Pairs(image_row, torch.arange(len(places)), torch.full((len(places),), int(kind))),
            source=self,
            places=places,
        )

    def _features(self, images: np.ndarray) -> dict[str, torch.Tensor]:
        """Encoder name -> grids of these images, of every encoder that some model reads."""
        rows = [self.rows[image] for image in images]
        return {store.encoder.name: torch.from_numpy(store.grid(rows)) for store in self.stores}

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

    def _batch(
        self,
        chosen: np.ndarray,
        share: np.ndarray,
        rng: np.random.Generator,
        epochs: float,
        noise_seed: tuple[int, ...],
    ) -> Batch:
        captions = [self._draw_captions(int(image), rng) for image in chosen]
        image_row = np.repeat(np.arange(len(chosen)), [len(drawn) for drawn in captions])
        positives = np.concatenate(captions)
        negatives = self._draw_negatives(chosen[image_row], rng, epochs)

        # Dealt out after everything is drawn: what a process gets does not depend on how many there are.
        mine = np.isin(np.arange(len(chosen)), share)
        kept = mine[image_row]
        new_row = np.cumsum(mine) - 1
        image_row, positives, negatives = new_row[image_row[kept]], positives[kept], negatives[kept]
        caption_index = np.concatenate([positives, negatives.ravel()])
        kind = np.repeat([int(Kind.POSITIVE), int(Kind.NEGATIVE)], [positives.size, negatives.size])
        return Batch(
            ids=[self.records[i].id for i in chosen[mine]],
            features=self._features(chosen[mine]),
            captions=[self.pool.captions[i] for i in caption_index],
            pairs=Pairs(
                torch.from_numpy(np.concatenate([image_row, np.repeat(image_row, self.negatives)])),
                torch.arange(len(caption_index)),
                torch.from_numpy(kind),
            ),
            first=int(share[0]) if len(share) else 0,
            whole=len(chosen),
            noise_seed=noise_seed,
            source=self,
            places=torch.from_numpy(caption_index),
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
