"""Negatives: captions of other images, drawn uniformly, from similar images, or from those a retriever ranks high."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tellapart.data.neighbours import nearest_images
from tellapart.data.settings import NegativeSettings
from tellapart.errors import DataError


class CaptionPool:
    """All captions of a split, in one list, image by image.

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
        """Draw `count` captions for each image, uniformly from all captions but its own: indices `[images, count]`.

        The draw is over the pool without the image's own block, then shifted past that block. Nothing is redrawn.
        """
        own = self.counts[images][:, None]
        if (own >= len(self.captions)).any():
            raise DataError("negatives need captions of at least two images, but this split has one; add images")
        drawn = rng.integers(0, len(self.captions) - own, size=(len(images), count))
        return np.asarray(drawn + np.where(drawn >= self.starts[images][:, None], own, 0))


# (images `[n]`, captions per image, generator) -> hard captions `[n, count]`.
Choose = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]


def from_similar_images(pool: CaptionPool, pooled: np.ndarray, top: float) -> Choose:
    """Draw captions of images from the nearest `top` share of the split (cosine of pooled features)."""
    nearest = nearest_images(pooled, max(1, min(len(pooled) - 1, round(top * len(pooled)))))

    def choose(images: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        other = nearest[images[:, None], rng.integers(0, nearest.shape[1], size=(len(images), count))]
        return np.asarray(pool.starts[other] + rng.integers(0, pool.counts[other]))

    return choose


def from_ranked_captions(ranked: np.ndarray) -> Choose:
    """Draw from captions of other images that a retriever ranks high for the image: indices `[images, candidates]`."""

    def choose(images: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        return np.asarray(ranked[images[:, None], rng.integers(0, ranked.shape[1], size=(len(images), count))])

    return choose


class HardNegatives:
    """Negatives that nearly fit, mixed with uniform ones by a curriculum.

    The probability that a negative is hard rises linearly from 0 to `settings.hard` over `settings.ramp_epochs` epochs.

    Args:
        pool: the split's captions.
        choose: draws the hard ones: `from_similar_images` or `from_ranked_captions`.
        settings: the recipe's `negatives` section.
    """

    def __init__(self, pool: CaptionPool, choose: Choose, settings: NegativeSettings) -> None:
        self.pool = pool
        self.choose = choose
        self.settings = settings

    def share(self, epochs: float) -> float:
        """The probability that a negative is hard after this many epochs."""
        ramp = self.settings.ramp_epochs
        return self.settings.hard * (1.0 if ramp == 0 else min(1.0, epochs / ramp))

    def draw(self, images: np.ndarray, count: int, rng: np.random.Generator, epochs: float) -> np.ndarray:
        """Like `CaptionPool.negatives`, with a share of hard ones."""
        drawn = self.pool.negatives(images, count, rng)
        hard = self.choose(images, count, rng)
        return np.where(rng.random(drawn.shape) < self.share(epochs), hard, drawn)
