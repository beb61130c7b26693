"""Hard negatives: captions that a retriever ranks high for an image though they were written for another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tellapart.data.blocks import open_blocks, remove_blocks
from tellapart.data.negatives import CaptionPool
from tellapart.data.prepare import Prepared
from tellapart.errors import DataError
from tellapart.evaluation.retrieval import Gallery, PairScores
from tellapart.files import digest_of
from tellapart.models import weights_digest
from tellapart.progress import OnProgress
from tellapart.retrievers.base import Retriever

# Images whose captions are ranked at a time, which is also a block of the file, and captions compared with them at a
# time: memory for 256 × 16,384 scores, whatever the number of captions.
IMAGES = 256
CAPTIONS = 16_384
# Numbers in the whole table: 1 GB. With more images than fit, each has fewer candidates.
LARGEST = 250_000_000
# Version of the table.
FORMAT = 1


def likely_captions(
    retriever: Retriever,
    prepared: Prepared,
    split: str,
    top: float,
    folder: Path | None = None,
    on_progress: OnProgress | None = None,
) -> NDArray[np.int32]:
    """For each image of a split the best-ranked captions of other images, best first: `[images, candidates]`.

    Captions are numbered image by image, as `CaptionPool` does. Those that are word for word the image's own are left
    out. Scores are compared in float32; captions with equal scores are ordered by number.

    With a folder, the table is the memory-mapped file `likely-captions-DIGEST.npy` in it. It is found again by the same
    weights, data, split and share, and an interrupted call continues. Until it is finished, the vectors of images and
    captions are kept beside it, unless the retriever has none.

    Args:
        retriever: in eval mode; it should not have been trained on these captions.
        prepared: data and features.
        split: the images that have captions.
        top: this share of the split's captions, but at most `LARGEST` numbers for all images together.
        folder: gets the file; without it the table is in memory.
        on_progress: called with the name of the work, the number done and the total.
    """
    prepared.store.check(prepared.dataset, retriever.encoder)
    gallery = Gallery.of_split(prepared, split)
    pool = CaptionPool([record.captions for record in prepared.dataset.split(split) if record.captions])
    images, captions = len(gallery.rows), len(gallery.captions)
    allowed = int(pool.allowed().min())
    if allowed < 1:
        raise DataError(f"the split '{split}': an image has no caption that is not word for word its own; add images")
    count = min(allowed, max(1, round(top * captions)), max(1, LARGEST // images))
    made_from = {
        "format": FORMAT,
        "weights": weights_digest(retriever.state_dict()),
        "retriever": [retriever.name, retriever.settings.model_dump(mode="json"), list(retriever.vocabulary.tokens)],
        "captions": [gallery.captions, gallery.rows],
        "features": [
            prepared.dataset.digest,
            retriever.encoder.as_dict(),
            prepared.store.pictures_digest(gallery.rows),
        ],
        "candidates": count,
    }
    digest = digest_of(made_from)[:16]
    path, vectors = (None if folder is None else folder / f"{name}-{digest}" for name in ("likely-captions", "vectors"))

    def show(what: str, done: int, of: int) -> None:
        if on_progress is not None:
            on_progress(what, done, of)

    with open_blocks(path, made_from, (images, count), np.int32, range(0, images, IMAGES)) as blocks:
        if blocks.missing:
            scores = PairScores(
                retriever,
                prepared.store,
                gallery.rows,
                gallery.captions,
                lambda done, of: show("embedding images and captions", done, of),
                path=vectors,
            )
            show("ranking captions for hard negatives", blocks.done, images)
        for number in list(blocks.missing):
            blocks.keep(number, _best_captions(scores, pool, blocks.rows(number), count))
            show("ranking captions for hard negatives", blocks.done, images)
        if vectors is not None:
            remove_blocks(vectors)
        return blocks.values()


def _best_captions(scores: PairScores, pool: CaptionPool, images: slice, count: int) -> NDArray[np.int32]:
    """The `count` best captions of other images for each of these images, best first, equal ones by number.

    Captions come in parts. After each part only the best so far stay, in the order of their numbers.
    """
    height, captions = images.stop - images.start, scores.shape[1]
    own_image, own = pool.own_captions(np.arange(images.start, images.stop))
    best = np.empty((height, 0), np.float32)
    numbers = np.empty((height, 0), np.int32)
    for start in range(0, captions, CAPTIONS):
        columns = np.arange(start, min(start + CAPTIONS, captions))
        # Rounded to float32: equal captions then have equal scores, wherever they are in a matrix product.
        part = scores(images, columns).astype(np.float32)
        if not np.isfinite(part).all():
            raise DataError("a similarity is not a finite number; the retriever has diverged: train it again")
        here = (own >= start) & (own < start + CAPTIONS)
        part[own_image[here], own[here] - start] = -np.inf
        best = np.concatenate([best, part], axis=1)
        numbers = np.concatenate([numbers, np.broadcast_to(columns.astype(np.int32), part.shape)], axis=1)
        if best.shape[1] > count:
            stay = _highest(best, count)
            best, numbers = best[stay].reshape(height, count), numbers[stay].reshape(height, count)
    order = np.argsort(-best, axis=1, kind="stable")
    return np.take_along_axis(numbers, order, axis=1)


def _highest(scores: NDArray[np.float32], count: int) -> NDArray[np.bool_]:
    """Which `count` scores of each row are the highest; of equal ones the first.

    >>> _highest(np.array([[1, 3, 1, 2, 1]], np.float32), 3).astype(int).tolist()
    [[1, 1, 0, 1, 0]]
    """
    lowest = np.partition(scores, scores.shape[1] - count, axis=1)[:, -count, None]
    higher, equal = scores > lowest, scores == lowest
    room = count - np.count_nonzero(higher, axis=1, keepdims=True)
    return np.asarray(higher | (equal & (np.cumsum(equal, axis=1, dtype=np.int32) <= room)))
