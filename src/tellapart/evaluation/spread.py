"""Diversity of negatives: the standard deviation of an anchor's similarities to them (CODER, eq. 3), over a split.

The paper claims (figure 1) that diversity-sensitive contrast spreads negatives out. Similarities are computed block by
block and not kept; each block's mean and sum of squared deviations are merged in float64, because E(S²) − E(S)² would
lose precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tellapart.evaluation.retrieval import Gallery, PairScores
from tellapart.files import Stored
from tellapart.metrics.ranks import Similarity
from tellapart.run import Run


class SpreadFile(Stored):
    """`spread.json`."""

    image_to_text: list[float] = Field(min_length=1)
    text_to_image: list[float] = Field(min_length=1)


@dataclass(frozen=True)
class NegativeSpread:
    """The standard deviation of each anchor's similarities to its negatives, items of other images.

    Attributes:
        image_to_text: `[images]`, over the captions of other images.
        text_to_image: `[captions]`, over the other images.
    """

    image_to_text: NDArray[np.float64]
    text_to_image: NDArray[np.float64]

    def figures(self) -> dict[str, float]:
        """The means over anchors."""
        return {
            "image_to_text_negative_SD": float(self.image_to_text.mean()),
            "text_to_image_negative_SD": float(self.text_to_image.mean()),
        }


def negative_spread(
    similarity: Similarity, image_of_caption: NDArray[np.int64], images: int, chunk: int = 256
) -> NegativeSpread:
    """SD of the negatives of every image and every caption; 0 where there are none.

    Args:
        similarity: gives blocks of scores `[images, captions]`, such as `PairScores`.
        image_of_caption: `[captions]`, the place of each caption's image.
        images: how many there are.
        chunk: images compared at a time.

    Example:
        >>> scores = np.array([[0.9, 0.2, 0.4], [0.3, 0.7, 0.1], [0.1, 0.1, 0.8]])
        >>> spread = negative_spread(lambda rows, columns: scores[rows][:, columns], np.arange(3), 3)
        >>> spread.image_to_text.round(2).tolist(), spread.text_to_image.round(2).tolist()
        ([0.1, 0.1, 0.0], [0.1, 0.05, 0.15])
    """
    columns = np.arange(len(image_of_caption))
    of_images = np.zeros(images)
    count, mean, squares = (np.zeros(len(columns)) for _ in range(3))
    for start in range(0, images, chunk):
        stop = min(start + chunk, images)
        scores = np.asarray(similarity(slice(start, stop), columns), dtype=np.float64)
        negatives = image_of_caption[None] != np.arange(start, stop)[:, None]
        here, _, apart = _moments(scores, negatives, axis=1)
        of_images[start:stop] = np.sqrt(apart / np.maximum(here, 1))
        here, of_columns, apart = _moments(scores, negatives, axis=0)
        # Merge of two groups' squared deviations (Chan et al.).
        both = np.maximum(count + here, 1)
        step = of_columns - mean
        squares += apart + step**2 * count * here / both
        mean += step * here / both
        count += here
    return NegativeSpread(of_images, np.sqrt(squares / np.maximum(count, 1)))


def _moments(
    scores: NDArray[np.float64], chosen: NDArray[np.bool_], axis: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Count, mean and sum of squares about the mean of the chosen scores along an axis."""
    count = chosen.sum(axis=axis).astype(np.float64)
    mean = np.where(chosen, scores, 0.0).sum(axis=axis) / np.maximum(count, 1)
    apart = np.where(chosen, scores - np.expand_dims(mean, axis), 0.0)
    return count, mean, np.square(apart).sum(axis=axis)


def measure_spread(run: Run, split: str = "test") -> NegativeSpread:
    """The spread of a retriever's negatives on a split; kept in the run's folder and reused.

    Args:
        run: a finished training of a retriever.
        split: the images.

    Example:
        >>> measure_spread(open_run("runs/flickr8k-coder-1a2b3c4d")).figures()   # doctest: +SKIP
        {'image_to_text_negative_SD': 0.14, 'text_to_image_negative_SD': 0.13}
    """
    retriever, prepared = run.retriever, run.data

    def make() -> dict[str, Any]:
        gallery = Gallery.of_split(prepared, split)
        scores = PairScores(retriever, prepared.store, gallery.rows, gallery.captions)
        found = negative_spread(scores, gallery.image_of_caption, len(gallery.ids))
        return {name: [round(float(value), 6) for value in values] for name, values in vars(found).items()}

    name = "spread.json" if split == "test" else f"spread-{split}.json"
    content = run.derived(name, [retriever.settings.model_dump(mode="json"), split], make, SpreadFile)
    return NegativeSpread(np.array(content.image_to_text), np.array(content.text_to_image))
