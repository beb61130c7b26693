"""Negatives: captions of other images, drawn uniformly or from images that look alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tellapart.data.neighbours import nearest_images
from tellapart.errors import DataError
from tellapart.recipe import NegativeSettings


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


class HardNegatives:
    """Captions of images that look alike, mixed with uniform ones by a curriculum.

    A hard negative is a caption of an image drawn uniformly from the nearest `top` share of the split's images (cosine
    of pooled features, not the image itself). The chance of a negative to be hard rises linearly from 0 to
    `settings.hard` in the first `settings.ramp_epochs` epochs.

    Args:
        pool: the split's captions.
        pooled: features `[images, width]` of the same images.
        settings: the recipe's `negatives` section.
    """

    def __init__(self, pool: CaptionPool, pooled: np.ndarray, settings: NegativeSettings) -> None:
        self.pool = pool
        self.settings = settings
        count = max(1, min(len(pooled) - 1, round(settings.top * len(pooled))))
        self.nearest = nearest_images(pooled, count)

    def share(self, epochs: float) -> float:
        """The chance of a negative to be hard after so many epochs."""
        ramp = self.settings.ramp_epochs
        return self.settings.hard * (1.0 if ramp == 0 else min(1.0, epochs / ramp))

    def draw(self, images: np.ndarray, count: int, rng: np.random.Generator, epochs: float) -> np.ndarray:
        """As `CaptionPool.negatives`, with hard ones among them."""
        drawn = self.pool.negatives(images, count, rng)
        other = self.nearest[images[:, None], rng.integers(0, self.nearest.shape[1], size=drawn.shape)]
        hard = self.pool.starts[other] + rng.integers(0, self.pool.counts[other])
        return np.where(rng.random(drawn.shape) < self.share(epochs), hard, drawn)
