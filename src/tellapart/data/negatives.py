"""Negatives: captions of other images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
        self._counts = np.array([len(captions) for captions in captions_of_image])
        self._starts = np.concatenate([[0], np.cumsum(self._counts)[:-1]])

    def of_image(self, image: int) -> np.ndarray:
        """Indices into `captions` of one image's own captions."""
        return np.arange(self._starts[image], self._starts[image] + self._counts[image])

    def negatives(self, images: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """For each image, `count` captions drawn uniformly from all captions but its own: indices `[images, count]`.

        The draw is over the pool without the image's block, then shifted past the block: exact, nothing is redrawn.
        """
        own = self._counts[images][:, None]
        if np.any(own == len(self.captions)):
            raise DataError("negatives need captions of at least two images; add images to this split")
        drawn = rng.integers(0, len(self.captions) - own, size=(len(images), count))
        return np.asarray(drawn + np.where(drawn >= self._starts[images][:, None], own, 0))
