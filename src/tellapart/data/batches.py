"""Batches: encoded images, captions as strings, and the pairs between them.

The order of images, the captions and negatives drawn, the choice of mirrored pictures and all noise are functions of
(seed, epoch, step), so training can resume at any step without stored state. Each step's batch is drawn as a whole,
then divided among processes and the parts of an accumulated step. What is drawn for an image does not depend on how the
batch is divided.
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
from tellapart.data.negatives import (
    CaptionPool,
    HardNegatives,
    from_captions,
    from_ranked_captions,
    from_similar_images,
    number_of_similar,
)
from tellapart.data.neighbours import nearest_in_store
from tellapart.data.records import Dataset, Record
from tellapart.data.settings import NegativeSettings
from tellapart.errors import DataError
from tellapart.text import names_a_side

T = TypeVar("T")


class Kind(enum.IntEnum):
    """The kind of a pair of image and caption.

    A true pair (c, I); another caption for the image, (c', I); the caption with the image's distractor; the caption
    with another image, (c, I').
    """

    POSITIVE = 0
    NEGATIVE = 1
    DISTRACTOR = 2
    IMAGE_NEGATIVE = 3


@dataclass(frozen=True)
class Pairs:
    """Which caption is scored against which image.

    Pairs of one kind are contiguous. Negatives of either kind follow the order of the positives, K for each, so that
    their scores viewed as `[P, K]` line up with the scores of the positives `[P]`.
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
        ids: ids of this share's images, the first image rows.
        features: encoder name -> region features `[images + others, regions, width]`.
        captions: caption strings; each model tokenises them itself.
        pairs: which caption is scored against which image.
        first: position of this share's first image in the step's whole batch.
        whole: number of images in the whole batch.
        noise_seed: seed of `uniform` and `generator`.
        source: the split it comes from; `None` for a batch made by hand.
        places: position of each caption among all captions of the split.
        others: ids of further image rows, which image negatives refer to.
        mirrored: which image rows have the features of the mirrored picture, if mirrored pictures are drawn.
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
    others: list[str] = field(default_factory=list)
    mirrored: torch.Tensor | None = None
    _memo: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Compute a value at most once per step, so that composed objectives share a forward pass."""
        if key not in self._memo:
            self._memo[key] = compute()
        value: T = self._memo[key]
        return value

    def uniform(self, name: str, *shape: int) -> torch.Tensor:
        """Noise in [0, 1) for each image, `[images, *shape]`, independent of how the batch is divided.

        Args:
            name: its purpose; each name gives different noise.
            shape: shape of one image's noise.
        """
        whole = len(self.ids) if self.whole is None else self.whole
        noise = torch.rand(whole, *shape, generator=self.generator(name))[self.first : self.first + len(self.ids)]
        return noise.to(self.pairs.kind.device)

    def generator(self, name: str) -> torch.Generator:
        """A CPU generator that is equal in every process, for draws over the gathered batch.

        Args:
            name: its purpose; each name gives different numbers.
        """
        seed = np.random.SeedSequence([*self.noise_seed, *name.encode()]).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(seed[0] >> np.uint64(1)))

    def image_numbers(self) -> torch.Tensor:
        """Positions of this share's images in the split, `[images]`; banks identify images by them across steps."""
        device = self.pairs.kind.device
        if self.source is None:
            return torch.arange(len(self.ids), device=device)
        return self.source.numbers(self.ids).to(device)

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device, without memoised values."""
        pairs = Pairs(*(t.to(device) for t in (self.pairs.image_row, self.pairs.caption_row, self.pairs.kind)))
        features = {name: values.to(device) for name, values in self.features.items()}
        places = None if self.places is None else self.places.to(device)
        mirrored = None if self.mirrored is None else self.mirrored.to(device)
        return replace(self, features=features, pairs=pairs, places=places, mirrored=mirrored, _memo={})

    def forget(self) -> None:
        """Drop the memoised values: after an update they are stale."""
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
        negative_settings: how they are drawn.
        bucket_batches: number of successive batches whose images are sorted by caption length before the batches are
            shuffled, so that the captions of a batch have about equal lengths.
        seed: everything is drawn from (seed, epoch, step).
        rank: rank of this process. All processes together see what one process would see.
        world: number of processes that share each batch.
        parts: number of parts of a step's batch, for gradient accumulation.
        likely_captions: hard negatives are drawn from these: `[images, candidates]`, captions of other images that a
            retriever ranks high for each image, or `[candidates]`, the same for all images. By default they are drawn
            from the captions of similar images.
        more_stores: features of the same images by other encoders, for frozen models that need them.
        image_negatives: K other images per positive (0 for none). They are drawn from the images of the step's whole
            batch, whose features are at hand; a short last batch is filled up for this with images of the split. Hard
            ones come from the whole split. A share also holds the features of those that are not its own.
        captioned_only: leave out images without captions. Others have no pairs.
        most: use only so many images, the first of the split; by default all.
        mirrored: draw for each picture and step whether its features are those of the mirrored picture. Pictures with a
            caption that names a side ("left", "right") are never mirrored.
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
        image_negatives: int = 0,
        captioned_only: bool = True,
        most: int | None = None,
        mirrored: bool = False,
    ) -> None:
        self.records: list[Record] = [r for r in dataset.split(split) if r.captions or not captioned_only][:most]
        self.rows = [dataset.row(record.id) for record in self.records]
        self.store = store
        self.stores = [store, *more_stores]
        assert not mirrored or all(one.mirrored is not None for one in self.stores), "there are no mirrored pictures"
        self.images_per_batch = images_per_batch
        self.captions_per_image = captions_per_image
        self.negatives = negatives
        self.image_negatives = image_negatives
        self.bucket_batches = bucket_batches
        self.seed = seed
        self.rank = rank
        self.world = world
        self.parts = parts
        self.mirrored = mirrored
        self.pool = CaptionPool([record.captions for record in self.records])
        if (negatives or image_negatives) and len(self.records) < 2:
            raise DataError(f"the split '{split}' has one captioned image; negatives need two")
        if negatives and (without := np.flatnonzero(self.pool.allowed() == 0)).size:
            raise DataError(
                f"the split '{split}': all captions are word for word captions of the image "
                f"'{self.records[without[0]].id}', so it has no negatives; add images or captions"
            )
        if image_negatives and (everywhere := self.pool.of_all_images()).size:
            raise DataError(
                f"the split '{split}': every image has the caption '{self.pool.captions[everywhere[0]]}', so no other "
                "image can be drawn for it; add images or captions"
            )
        self.hard: HardNegatives | None = None
        if (negatives or image_negatives) and negative_settings is not None and negative_settings.hard > 0:
            if likely_captions is None:
                similar = number_of_similar(len(self.rows), negative_settings.top)
                choose = from_similar_images(self.pool, nearest_in_store(store, self.rows, similar))
            else:
                choose = (from_captions if likely_captions.ndim == 1 else from_ranked_captions)(likely_captions)
            self.hard = HardNegatives(self.pool, choose, negative_settings)
        self._memo: dict[Hashable, Any] = {}
        self._kept_order = (-1, np.empty(0, np.int64))

    def __len__(self) -> int:
        """Number of steps in an epoch."""
        return -(-len(self.records) // self.images_per_batch)

    def at(self, step: int, part: int = 0, shuffle: bool = True) -> Batch:
        """This process's share of the batch of a global step (0-based); independent of earlier steps.

        With more processes than images, some shares are empty.
        """
        epoch, position = divmod(step, len(self))
        start = position * self.images_per_batch
        end = min(start + self.images_per_batch, len(self.records))
        chosen = self._order(epoch)[start:end] if shuffle else np.arange(start, end)
        shares = np.array_split(np.arange(len(chosen)), self.parts * self.world)
        # By part, then by rank: shares gathered in this order give the whole batch in its order.
        share = shares[part * self.world + self.rank]
        return self._batch(chosen, share, epoch, position)

    def epoch(self, shuffle: bool = False) -> Iterator[Batch]:
        """One pass over the split, by default in record order (for validation)."""
        for position in range(len(self)):
            for part in range(self.parts):
                yield self.at(position, part, shuffle)

    def positives(self) -> Iterator[Batch]:
        """This process's shares of every caption of the split with its image, in record order; nothing is drawn.

        The shares of all processes, gathered batch by batch, give the captions in the order of `Batch.places`.
        """
        for start in range(0, len(self.records), self.images_per_batch):
            chosen = np.arange(start, min(start + self.images_per_batch, len(self.records)))
            yield self.true_pairs(np.array_split(chosen, self.world)[self.rank])

    def true_pairs(self, images: np.ndarray, mirrored: bool = False) -> Batch:
        """Every caption of these images of the split with its image, in their order; nothing is drawn.

        Args:
            images: their positions in the split.
            mirrored: with the features of the mirrored pictures.
        """
        places = np.concatenate([np.empty(0, np.int64), *(self.pool.of_image(int(image)) for image in images)])
        image_row = np.repeat(np.arange(len(images)), self.pool.counts[images])
        flipped = np.ones(len(images), bool) if mirrored else None
        return self._assemble(images, torch.from_numpy(places), torch.from_numpy(image_row), Kind.POSITIVE, flipped)

    def distracted(self, batch: Batch) -> Batch:
        """Pair a batch's true captions with distractors: for each image, the most similar other image.

        An image always has the same distractor. The pairs have the kind `DISTRACTOR`, in the order of the positives.
        """
        assert batch.places is not None
        images = self.distractors()[[self._image_of_id[id] for id in batch.ids]]
        rows = batch.pairs.of(Kind.POSITIVE)
        places, image_row = batch.places[batch.pairs.caption_row[rows]], batch.pairs.image_row[rows]
        flipped = self._drawn_with(batch, images)
        return self._assemble(images, places, image_row, Kind.DISTRACTOR, flipped).to(image_row.device)

    def similar(self, batch: Batch, chance: torch.Tensor, top: float, encoder: str) -> torch.Tensor:
        """Features of a similar image of the split for each image of a batch, `[images, regions, width]`.

        Args:
            batch: of this split.
            chance: uniform in [0, 1), `[images]`; decides which of the similar images.
            top: the similar images are this share of the split, those with the nearest pooled features.
            encoder: whose features.
        """
        nearest = self.nearest(top)
        place = (chance.double() * nearest.shape[1]).long().cpu().numpy()
        images = nearest[self.numbers(batch.ids).numpy(), place]
        store = next(store for store in self.stores if store.encoder.name == encoder)
        grid = store.grid([self.rows[image] for image in images], self._drawn_with(batch, images))
        return torch.from_numpy(grid).to(chance.device)

    def nearest(self, top: float) -> np.ndarray:
        """Positions of the nearest `top` share of the other images of each image, `[images, similar]`; found once."""
        if len(self.records) < 2:
            raise DataError("similar images need at least two images, but this split has one; add images")
        return self.once(
            ("nearest", top), lambda: nearest_in_store(self.store, self.rows, number_of_similar(len(self.rows), top))
        )

    def distractors(self) -> np.ndarray:
        """Position of the most similar other image of each image, `[images]`; found once."""
        if len(self.records) < 2:
            raise DataError("distractors need at least two images, but this split has one; add images")
        return self.once("distractors", lambda: nearest_in_store(self.store, self.rows, 1)[:, 0])

    def numbers(self, ids: Sequence[str]) -> torch.Tensor:
        """Positions of these images in the split."""
        return torch.tensor([self._image_of_id[id] for id in ids], dtype=torch.long)

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Compute a value at most once for the split, e.g. the scores of a frozen model."""
        if key not in self._memo:
            self._memo[key] = compute()
        value: T = self._memo[key]
        return value

    @cached_property
    def _image_of_id(self) -> dict[str, int]:
        return {record.id: image for image, record in enumerate(self.records)}

    @cached_property
    def _names_a_side(self) -> np.ndarray:
        """Which images have a caption with "left" or "right"."""
        return np.array([any(map(names_a_side, record.captions)) for record in self.records], bool)

    def _draw_mirrored(self, epoch: int, position: int) -> np.ndarray | None:
        """Which images of the split are mirrored in a step; `None` if none ever is."""
        if not self.mirrored:
            return None
        # For all images of the split, so that it does not matter which of them a process needs: 0.3 ms for COCO.
        rng = np.random.default_rng([self.seed, 4, epoch, position])
        drawn = rng.integers(2, size=len(self.records), dtype=np.uint8).astype(bool)
        return np.asarray(drawn & ~self._names_a_side)

    def _drawn_with(self, batch: Batch, images: np.ndarray) -> np.ndarray | None:
        """Which of these images are mirrored in the step of a batch."""
        drawn = None if batch.mirrored is None else self._draw_mirrored(*batch.noise_seed[2:])
        return None if drawn is None else drawn[images]

    def _assemble(
        self,
        images: np.ndarray,
        places: torch.Tensor,
        image_row: torch.Tensor,
        kind: Kind,
        mirrored: np.ndarray | None = None,
    ) -> Batch:
        """A batch of the captions at these positions, each paired with its image."""
        return Batch(
            ids=[self.records[image].id for image in images],
            features=self._features(images, mirrored),
            captions=[self.pool.captions[place] for place in places.tolist()],
            pairs=Pairs(image_row, torch.arange(len(places)), torch.full((len(places),), int(kind))),
            source=self,
            places=places,
        )

    def _features(self, images: np.ndarray, mirrored: np.ndarray | None = None) -> dict[str, torch.Tensor]:
        """Encoder name -> grids of these images, for every store.

        Args:
            images: their positions in the split.
            mirrored: `[images]`, which of them are mirrored, in every store.
        """
        rows = [self.rows[image] for image in images]
        return {store.encoder.name: torch.from_numpy(store.grid(rows, mirrored)) for store in self.stores}

    def _order(self, epoch: int) -> np.ndarray:
        """The images in the order of an epoch. The last one asked for is kept: making it takes as long as a step."""
        kept, order = self._kept_order
        if kept != epoch:
            order = self._make_order(epoch)
            order.setflags(write=False)
            self._kept_order = (epoch, order)  # at once, since a thread may read ahead
        return order

    def _make_order(self, epoch: int) -> np.ndarray:
        rng = np.random.default_rng([self.seed, 0, epoch])
        order = rng.permutation(len(self.records))
        if self.bucket_batches == 1:
            return order
        window = self.bucket_batches * self.images_per_batch
        buckets = [order[at : at + window] for at in range(0, len(order), window)]
        order = np.concatenate([bucket[np.argsort(self._lengths[bucket], kind="stable")] for bucket in buckets])
        # The incomplete batch stays last, so that all others are full.
        whole = len(order) // self.images_per_batch * self.images_per_batch
        shuffled = rng.permutation(order[:whole].reshape(-1, self.images_per_batch)).ravel()
        return np.concatenate([shuffled, order[whole:]])

    @cached_property
    def _lengths(self) -> np.ndarray:
        """Mean length of each image's captions, in words; 0 without captions."""
        return np.array([np.mean([len(c.split()) for c in r.captions]) if r.captions else 0.0 for r in self.records])

    def _batch(self, chosen: np.ndarray, share: np.ndarray, epoch: int, position: int) -> Batch:
        rng = np.random.default_rng([self.seed, 1, epoch, position])
        captions = [self._draw_captions(int(image), rng) for image in chosen]
        image_row = np.repeat(np.arange(len(chosen)), [len(drawn) for drawn in captions])
        positives = np.concatenate(captions)
        epochs = epoch + position / len(self)
        negatives = self._draw_negatives(chosen[image_row], rng, epochs)
        # With a generator of their own: captions are the same with and without image negatives.
        rng = np.random.default_rng([self.seed, 3, epoch, position])
        other_images = self._draw_images(chosen, chosen[image_row], positives, rng, epochs)

        # Divided after everything is drawn, so that the draws do not depend on the number of processes.
        mine = np.isin(np.arange(len(chosen)), share)
        kept = mine[image_row]
        new_row = np.cumsum(mine) - 1
        image_row, positives, negatives = new_row[image_row[kept]], positives[kept], negatives[kept]
        other_images = other_images[kept]
        own = chosen[mine]
        others = np.setdiff1d(other_images, own)
        images = np.concatenate([own, others])
        drawn = self._draw_mirrored(epoch, position)
        mirrored = None if drawn is None else drawn[images]
        by_number = np.argsort(images)
        other_row = by_number[np.searchsorted(images, other_images.ravel(), sorter=by_number)]
        caption_index = np.concatenate([positives, negatives.ravel()])
        caption_row = [np.arange(len(caption_index)), np.repeat(np.arange(len(positives)), self.image_negatives)]
        kinds = [int(kind) for kind in (Kind.POSITIVE, Kind.NEGATIVE, Kind.IMAGE_NEGATIVE)]
        return Batch(
            ids=[self.records[i].id for i in own],
            features=self._features(images, mirrored),
            captions=[self.pool.captions[i] for i in caption_index],
            pairs=Pairs(
                torch.from_numpy(np.concatenate([image_row, np.repeat(image_row, self.negatives), other_row])),
                torch.from_numpy(np.concatenate(caption_row)),
                torch.from_numpy(np.repeat(kinds, [positives.size, negatives.size, other_images.size])),
            ),
            first=int(share[0]) if len(share) else 0,
            whole=len(chosen),
            noise_seed=(self.seed, 2, epoch, position),
            source=self,
            places=torch.from_numpy(caption_index),
            others=[self.records[i].id for i in others],
            mirrored=None if mirrored is None else torch.from_numpy(mirrored),
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

    def _draw_images(
        self, chosen: np.ndarray, images: np.ndarray, captions: np.ndarray, rng: np.random.Generator, epochs: float
    ) -> np.ndarray:
        """Other images for these captions of `images`, `[captions, image_negatives]`."""
        if not self.image_negatives:
            return np.empty((len(captions), 0), dtype=np.int64)
        missing = min(self.images_per_batch, len(self.records)) - len(chosen)
        if missing > 0:
            outside = np.setdiff1d(np.arange(len(self.records)), chosen)
            chosen = np.concatenate([chosen, rng.choice(outside, missing, replace=False)])
        drawn = self.pool.other_images(captions, chosen, self.image_negatives, rng)
        return drawn if self.hard is None else self.hard.draw_images(images, captions, drawn, rng, epochs)
