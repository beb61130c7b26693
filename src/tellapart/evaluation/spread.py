"""Diversity of negatives: the standard deviation of an anchor's similarities to them (CODER, eq. 3), over a split.

The paper claims (figure 1) that diversity-sensitive contrast spreads negatives out. Similarities are computed block by
block and not kept; each block's mean and sum of squared deviations are merged in float64, because E(S²) − E(S)² would
lose precision.

A retriever without index vectors compares pair by pair, which takes too long for the 97 million pairs of COCO's test
split. With more pairs than `EXACT_PAIRS` only `ANCHORS` images and as many captions, always the same ones, are anchors.
Each is compared with all its negatives, so its SD is exact; only the mean is over fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tellapart.data.features import FeatureStore
from tellapart.evaluation.retrieval import EXACT_PAIRS, Gallery, PairScores
from tellapart.files import Stored
from tellapart.metrics.ranks import Similarity
from tellapart.retrievers.base import Retriever
from tellapart.run import Run

# Anchors of each kind if all would be too many.
ANCHORS = 250


class SpreadFile(Stored):
    """`spread.json`."""

    image_to_text: list[float] = Field(min_length=1)
    text_to_image: list[float] = Field(min_length=1)


@dataclass(frozen=True)
class NegativeSpread:
    """The standard deviation of each anchor's similarities to its negatives, items of other images.

    Attributes:
        image_to_text: `[images]`, over the captions of other images; of all images, or of a sample.
        text_to_image: `[captions]`, over the other images; of all captions, or of a sample.
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


def split_spread(
    retriever: Retriever, store: FeatureStore, gallery: Gallery, anchors: int | None = None
) -> NegativeSpread:
    """The spread of a retriever's negatives in a gallery.

    Args:
        retriever: in eval mode.
        store: features of the images.
        gallery: the images and captions.
        anchors: only so many images and captions are anchors, always the same ones; by default all are.
    """
    owner, images = gallery.image_of_caption, len(gallery.rows)
    if anchors is None:
        scores = PairScores(retriever, store, gallery.rows, gallery.captions)
        return negative_spread(scores, owner, images)
    some_images, some_captions = (drawn(count, anchors) for count in (images, len(owner)))
    # Images are numbered within the sample; captions of no image of the sample are negatives of all.
    number = np.full(images, -1)
    number[some_images] = np.arange(len(some_images))
    of_images = PairScores(retriever, store, [gallery.rows[image] for image in some_images], gallery.captions)
    of_captions = PairScores(retriever, store, gallery.rows, [gallery.captions[place] for place in some_captions])
    return NegativeSpread(
        negative_spread(of_images, number[owner], len(some_images)).image_to_text,
        negative_spread(of_captions, owner[some_captions], images).text_to_image,
    )


def drawn(count: int, wanted: int) -> NDArray[np.int64]:
    """Some of so many places, always the same ones, in rising order.

    >>> drawn(3, 5).tolist()
    [0, 1, 2]
    """
    return np.sort(np.random.default_rng(0).permutation(count)[:wanted])


def measure_spread(run: Run, split: str = "test") -> NegativeSpread:
    """The spread of a retriever's negatives on a split; kept in the run's folder and reused.

    With more than `EXACT_PAIRS` pairs, a retriever without index vectors has `ANCHORS` anchors of each kind.

    Args:
        run: a finished training of a retriever.
        split: the images.

    Example:
        >>> measure_spread(open_run("runs/flickr8k-coder-1a2b3c4d")).figures()   # doctest: +SKIP
        {'image_to_text_negative_SD': 0.14, 'text_to_image_negative_SD': 0.13}
    """
    retriever, prepared = run.retriever, run.data

    gallery = Gallery.of_split(prepared, split)
    many = len(gallery.rows) * len(gallery.captions) > EXACT_PAIRS
    anchors = ANCHORS if many and not retriever.has_index_vectors else None

    def make() -> dict[str, Any]:
        found = split_spread(retriever, prepared.store, gallery, anchors)
        return {name: [round(float(value), 6) for value in values] for name, values in vars(found).items()}

    name = "spread.json" if split == "test" else f"spread-{split}.json"
    made_from = [retriever.settings.model_dump(mode="json"), split, *([] if anchors is None else [anchors])]
    content = run.derived(name, made_from, make, SpreadFile)
    return NegativeSpread(np.array(content.image_to_text), np.array(content.text_to_image))
