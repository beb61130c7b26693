"""Negatives: captions of other images, drawn uniformly, from images that look alike, or as a retriever ranks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tellapart.data.neighbours import nearest_images
from tellapart.data.settings import NegativeSettings
from tellapart.errors import DataError


class CaptionPool:
    """All captions of a split, laid out image by image.

    Args:
        captions_of_image: the captions of each image, in image order.

    Example:
        >>> pool = CaptionPool([("a cat", "a pet"), ("a dog",)])
        >>> pool.captions[int(pool.negatives(np.array([0]), 1, np.random.default_rng(0))[0, 0])]
        'a dog'
    """

    def __init__(self, captions_of_image: Sequence[Sequence[str]]) -> None:
        self.captions = [caption for captions in captions_of_image for caption in captions]
        self.counts = np.array([len(captions) for captions in captions_of_image])
        self.starts = np.concatenate([[0], np.cumsum(self.counts)[:-1]])

    def of_image(self, image: int) -> np.ndarray:
        """Indices into `captions` of one image's own captions."""
        return np.arange(self.starts[image], self.starts[image] + self.counts[image])

    def negatives(self, images: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """For each image, `count` captions drawn uniformly from all captions but its own: indices `[images, count]`.

        The draw is over the pool without the image's block, then shifted past the block: exact, nothing is redrawn.
        """
        own = self.counts[images][:, None]
        if (own >= len(self.captions)).any():
            raise DataError("negatives need the captions of at least two images, and this split has one; add images")
        drawn = rng.integers(0, len(self.captions) - own, size=(len(images), count))
        return np.asarray(drawn + np.where(drawn >= self.starts[images][:, None], own, 0))


# Given images `[n]`, how many captions for each, and a generator: hard captions `[n, count]`.
Choose = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]


def of_alike_images(pool: CaptionPool, pooled: np.ndarray, top: float) -> Choose:
    """Captions of images drawn uniformly from the nearest `top` share of the split (cosine of pooled features)."""
    nearest = nearest_images(pooled, max(1, min(len(pooled) - 1, round(top * len(pooled)))))

    def choose(images: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        other = nearest[images[:, None], rng.integers(0, nearest.shape[1], size=(len(images), count))]
        return np.asarray(pool.starts[other] + rng.integers(0, pool.counts[other]))

    return choose


def of_likely_captions(likely: np.ndarray) -> Choose:
    """Captions drawn uniformly from those that a retriever takes for the image's: indices `[images, candidates]`."""

    def choose(images: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        return np.asarray(likely[images[:, None], rng.integers(0, likely.shape[1], size=(len(images), count))])

    return choose


class HardNegatives:
    """Captions that nearly fit, mixed with uniform ones by a curriculum.

    The chance of a negative to be hard rises linearly from 0 to `settings.hard` in the first `settings.ramp_epochs`
    epochs.

    Args:
        pool: the split's captions.
        choose: where hard ones come from: `of_alike_images` or `of_likely_captions`.
        settings: the recipe's `negatives` section.
    """

    def __init__(self, pool: CaptionPool, choose: Choose, settings: NegativeSettings) -> None:
        self.pool = pool
        self.choose = choose
        self.settings = settings

    def share(self, epochs: float) -> float:
        """The chance of a negative to be hard after so many epochs."""
        ramp = self.settings.ramp_epochs
        return self.settings.hard * (1.0 if ramp == 0 else min(1.0, epochs / ramp))

    def draw(self, images: np.ndarray, count: int, rng: np.random.Generator, epochs: float) -> np.ndarray:
        """As `CaptionPool.negatives`, with hard ones among them."""
        drawn = self.pool.negatives(images, count, rng)
        hard = self.choose(images, count, rng)
        return np.where(rng.random(drawn.shape) < self.share(epochs), hard, drawn)
