"""Hard negatives: captions that a retriever ranks high for an image though they were written for another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tellapart.data.prepare import Prepared
from tellapart.evaluation.retrieval import Gallery, PairScores
from tellapart.retrievers.base import Retriever

# Images whose captions are ranked at a time.
CHUNK = 256


def likely_captions(retriever: Retriever, prepared: Prepared, split: str, top: float) -> NDArray[np.int64]:
    """For each image of a split the best-ranked captions of other images: `[images, candidates]`.

    Captions are numbered image by image, as `CaptionPool` does.

    Args:
        retriever: in eval mode; it should not have been trained on these captions.
        prepared: data and features.
        split: the images that have captions.
        top: this share of the split's captions.
    """
    prepared.store.check(prepared.dataset, retriever.encoder)
    gallery = Gallery.of_split(prepared, split)
    owner = gallery.image_of_caption
    scores = PairScores(retriever, prepared.store, gallery.rows, gallery.captions)
    images, captions = scores.shape
    most = captions - int(np.bincount(owner).max())
    count = max(1, min(most, round(top * captions)))
    likely = np.empty((images, count), dtype=np.int64)
    columns = np.arange(captions)
    for start in range(0, images, CHUNK):
        block = scores(slice(start, start + CHUNK), columns)
        block[
            owner[None, :] == np.arange(start, start + len(block))[:, None]
        ] = -np.inf  # own captions are no negatives
        # Ties by number, so that draws do not depend on the machine.
        likely[start : start + CHUNK] = np.argsort(-block, axis=1, kind="stable")[:, :count]
    return likely
