"""Negatives: other captions for an image, or other images for a caption.

They are drawn uniformly, from similar images, from those that a retriever ranks high, or from generic captions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tellapart.data.settings import NegativeSettings
from tellapart.errors import DataError
from tellapart.metrics.ngrams import ranges


def wording(caption: str) -> str:
    """A caption as it is compared with others: lower case, single spaces, no full stop at the end.

    >>> wording("A man  riding a wave. ") == wording("a man riding a wave")
    True
    """
    return " ".join(caption.lower().split()).removesuffix(".").rstrip()


class CaptionPool:
    """All captions of a split, in one list, image by image.

    A negative of an image is never word for word one of its own captions, also when it was written for another image:
    captions are compared by their `wording`.

    Args:
        captions_of_image: the captions of each image, in image order.

    Attributes:
        captions: all captions.
        counts: number of captions of each image, `[images]`.
        starts: index of each image's first caption, `[images]`.
        owner: image of each caption, `[captions]`.

    Example:
        >>> pool = CaptionPool([("a cat", "a pet"), ("a dog", "A cat.")])
        >>> pool.captions[int(pool.negatives(np.array([0]), 1, np.random.default_rng(0))[0, 0])]
        'a dog'
    """

    def __init__(self, captions_of_image: Sequence[Sequence[str]]) -> None:
        self.captions = [caption for captions in captions_of_image for caption in captions]
        self.counts = np.array([len(captions) for captions in captions_of_image])
        self.starts = np.concatenate([[0], np.cumsum(self.counts)[:-1]])
        self.owner = np.repeat(np.arange(len(self.counts)), self.counts)
        # Each wording has a number, in the order in which they first occur.
        numbers: dict[str, int] = {}
        self._wording = np.array([numbers.setdefault(wording(text), len(numbers)) for text in self.captions], np.int64)
        self._wordings = len(numbers)
        # Captions sorted by wording: those with one wording are a block, so an image's own are at most `counts` blocks.
        self._by_wording = np.argsort(self._wording, kind="stable")
        sizes = np.bincount(self._wording, minlength=self._wordings)
        starts = np.cumsum(sizes) - sizes
        # The pairs (image, wording) that occur, sorted, each as one number; then the blocks of each image.
        self._own = np.unique(self.owner * self._wordings + self._wording)
        image, own = np.divmod(self._own, max(1, self._wordings))
        self._blocks = np.bincount(image, minlength=len(self.counts))
        self._first_block = np.cumsum(self._blocks) - self._blocks
        self._sizes, self._block_starts = sizes[own], starts[own]
        # Where a block begins once the image's earlier blocks are taken out.
        before = np.cumsum(self._sizes) - self._sizes
        self._begins = self._block_starts - (before - before[self._first_block[image]])
        self._forbidden = np.bincount(image, weights=self._sizes, minlength=len(self.counts)).astype(np.int64)

    def of_image(self, image: int) -> np.ndarray:
        """Indices into `captions` of one image's own captions."""
        return np.arange(self.starts[image], self.starts[image] + self.counts[image])

    def allowed(self, images: np.ndarray | slice = slice(None)) -> np.ndarray:
        """The number of captions that may be a negative of each of these images, by default of all."""
        return np.asarray(len(self.captions) - self._forbidden[images])

    def is_own(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Whether a caption (an index) is word for word one of an image's own; both are broadcast together."""
        pairs = images * self._wordings + self._wording[captions]
        place = np.minimum(np.searchsorted(self._own, pairs), len(self._own) - 1)
        return np.asarray(self._own[place] == pairs)

    def own_captions(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All captions that are word for word one of an image's own, as pairs: indices into `images`, and captions."""
        block = ranges(self._first_block[images], self._blocks[images])
        row = np.repeat(np.arange(len(images)), self._blocks[images])
        place = ranges(self._block_starts[block], self._sizes[block])
        return np.repeat(row, self._sizes[block]), self._by_wording[place]

    def negatives(self, images: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw `count` captions for each image, uniformly from all that are not word for word its own.

        Returns indices `[images, count]`. The draw is over the captions sorted by wording without the image's own
        blocks, then shifted past these blocks. Nothing is redrawn.
        """
        allowed = self.allowed(images)
        if (allowed < 1).any():
            raise DataError(
                "negatives need captions of at least two images that are not word for word the same, but an image of "
                "this split has no other; add images"
            )
        drawn = rng.integers(0, allowed[:, None], size=(len(images), count))
        # The blocks of each image, [images, blocks]; rows with fewer blocks end with empty ones.
        blocks = self._blocks[images][:, None]
        column = np.arange(int(blocks.max(initial=0)))
        block = np.where(column < blocks, self._first_block[images][:, None] + column, 0)
        sizes = np.where(column < blocks, self._sizes[block], 0)
        shift = np.where(drawn[:, :, None] >= self._begins[block][:, None], sizes[:, None], 0).sum(axis=2)
        return np.asarray(self._by_wording[drawn + shift])

    def of_all_images(self) -> np.ndarray:
        """Indices of the captions that every image has word for word among its own."""
        images = np.bincount(self._own % max(1, self._wordings), minlength=self._wordings)
        return np.flatnonzero(images[self._wording] == len(self.counts))

    def other_images(
        self, captions: np.ndarray, candidates: np.ndarray, count: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Draw `count` of the candidate images for each caption, uniformly from those without it: `[captions, count]`.

        An image has a caption if it is word for word one of its own. No image comes twice for a caption before all
        others have come. If all candidates have the caption, the draw is from all images.

        Args:
            captions: indices `[captions]`.
            candidates: images, each once.
            count: images for each caption.
            rng: the generator.
        """
        own = self.is_own(candidates, captions[:, None])
        order = np.argsort(np.where(own, 2.0, rng.random(own.shape)), axis=1)
        free = np.count_nonzero(~own, axis=1)
        column = np.arange(count) % np.maximum(1, free)[:, None]
        drawn = candidates[np.take_along_axis(order, column, axis=1)]
        for row in np.flatnonzero(free == 0):  # rare: in a batch without duplicates never
            others = np.flatnonzero(~self.is_own(np.arange(len(self.counts)), captions[row]))
            if not len(others):
                raise DataError(f"every image has the caption '{self.captions[captions[row]]}'; add images without it")
            drawn[row] = rng.choice(others, count)
        return np.asarray(drawn)


# How often a hard negative is drawn again where its caption is word for word the image's own.
REDRAWS = 8

# (images `[n]`, captions per image, generator) -> hard captions `[n, count]`.
Choose = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]


def number_of_similar(images: int, top: float) -> int:
    """How many images are the nearest `top` share of the others: at least one."""
    return max(1, min(images - 1, round(top * images)))


def from_similar_images(pool: CaptionPool, nearest: np.ndarray) -> Choose:
    """Draw captions of the images that are nearest to each image: positions `[images, candidates]`."""

    def choose(images: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        other = nearest[images[:, None], rng.integers(0, nearest.shape[1], size=(len(images), count))]
        return np.asarray(pool.starts[other] + rng.integers(0, pool.counts[other]))

    return choose


def from_ranked_captions(ranked: np.ndarray) -> Choose:
    """Draw from captions of other images that a retriever ranks high for the image: indices `[images, candidates]`."""

    def choose(images: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        return np.asarray(ranked[images[:, None], rng.integers(0, ranked.shape[1], size=(len(images), count))])

    return choose


def from_captions(candidates: np.ndarray) -> Choose:
    """Draw from the same captions for every image: indices `[candidates]`."""

    def choose(images: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        return np.asarray(candidates[rng.integers(0, len(candidates), size=(len(images), count))])

    return choose


class HardNegatives:
    """Negatives that nearly fit, mixed with uniform ones by a curriculum.

    The probability that a negative is hard rises linearly from 0 to `settings.hard` over `settings.ramp_epochs` epochs.

    Args:
        pool: the split's captions.
        choose: draws the hard ones: `from_similar_images`, `from_ranked_captions` or `from_captions`.
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
        """Like `CaptionPool.negatives`, with a share of hard ones.

        Hard captions that are word for word the image's own are drawn again, at most `REDRAWS` times; where that does
        not help, because all that nearly fit are its own, the negative is a uniform one.
        """
        drawn = self.pool.negatives(images, count, rng)
        return self._mix(
            drawn,
            lambda rows, count: self.choose(images[rows], count, rng),
            lambda hard: self.pool.is_own(images[:, None], hard),
            rng,
            epochs,
        )

    def draw_images(
        self, images: np.ndarray, captions: np.ndarray, drawn: np.ndarray, rng: np.random.Generator, epochs: float
    ) -> np.ndarray:
        """Replace a share of the images drawn for captions by hard ones: those that hard captions were written for.

        So they are similar images, or images with a caption that the retriever ranks high for the caption's own image.
        Images that have the caption are drawn again, as in `draw`.

        Args:
            images: the image of each caption, `[captions]`.
            captions: indices `[captions]`.
            drawn: uniform draws, `[captions, count]`.
            rng: the generator.
            epochs: for the curriculum.
        """
        return self._mix(
            drawn,
            lambda rows, count: self.pool.owner[self.choose(images[rows], count, rng)],
            lambda hard: self.pool.is_own(hard, captions[:, None]),
            rng,
            epochs,
        )

    def _mix(
        self,
        drawn: np.ndarray,
        choose: Callable[[np.ndarray, int], np.ndarray],
        clashes: Callable[[np.ndarray], np.ndarray],
        rng: np.random.Generator,
        epochs: float,
    ) -> np.ndarray:
        """Replace a share of the draws `[rows, count]` by `choose(rows, count)`, but not where this clashes."""
        hard = choose(np.arange(len(drawn)), drawn.shape[1])
        wanted = rng.random(drawn.shape) < self.share(epochs)
        clash = clashes(hard)
        for _ in range(REDRAWS):
            if not clash.any():
                break
            row, column = clash.nonzero()
            hard[row, column] = choose(row, 1)[:, 0]
            clash = clashes(hard)
        return np.where(wanted & ~clash, hard, drawn)
