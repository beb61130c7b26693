"""Exact nearest neighbours among images, by the cosine of their pooled features; for many images, kept on the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np

from tellapart.data.blocks import open_blocks
from tellapart.data.features import FeatureStore
from tellapart.errors import StoreError
from tellapart.files import digest_of
from tellapart.progress import ProgressLine

# Images compared at a time, and rows of these whose neighbours are sorted out at a time. The first decides the bits.
CHUNK, SORTED = 1024, 128

# From this number of images on the neighbours are kept beside the features: finding them takes minutes.
KEPT_FROM = 10_000

# Positions in the file; half the bytes of numpy's own.
NEIGHBOUR = np.dtype("<i4")


def nearest_images(
    pooled: np.ndarray, count: int, chunk: int = CHUNK, on_progress: Callable[[int, int], None] | None = None
) -> np.ndarray:
    """The `count` most similar other images of each image, nearest first: positions `[images, count]`.

    Equal similarities are ordered by position. Time is quadratic in the images, memory is `chunk × images`.

    Args:
        pooled: features `[images, width]`.
        count: number of neighbours, below the number of images.
        chunk: images compared at a time.
        on_progress: called with images done and images in all.

    Example:
        >>> nearest_images(np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), 1).ravel().tolist()
        [1, 0, 1]
    """
    _check_count(count, len(pooled))
    unit = _unit_length(np.array(pooled, np.float32))
    found = []
    for start in range(0, len(unit), chunk):
        found.append(_nearest(unit, slice(start, start + chunk), count))
        if on_progress is not None:
            on_progress(min(start + chunk, len(unit)), len(unit))
    return np.concatenate(found)


def nearest_in_store(store: FeatureStore, rows: Sequence[int], count: int) -> np.ndarray:
    """The neighbours of these images of a store among each other, as `nearest_images` gives them.

    For many images they are kept in the store's folder, as the table `neighbours-DIGEST` (`data.blocks`), and found
    there again. An interrupted call continues. Of several processes one finds them, and the others wait.
    """
    _check_count(count, len(rows))
    folder = store.folder
    line = ProgressLine("finding similar images", " images") if len(rows) >= KEPT_FROM else None
    if line is None:
        return nearest_images(store.pooled(rows), count)
    if folder is None or not os.access(folder, os.W_OK):
        return nearest_images(store.pooled(rows), count, on_progress=line.update)
    about = [store.encoder.digest, store.records, store.pictures_digest(rows), digest_of(list(rows)), count]
    path = folder / f"neighbours-{digest_of(about)[:16]}"
    try:
        with open_blocks(path, about, (len(rows), count), NEIGHBOUR, range(0, len(rows), CHUNK)) as blocks:
            if blocks.missing:
                unit = _unit_length(store.pooled(rows))
                for number in list(blocks.missing):
                    blocks.keep(number, _nearest(unit, blocks.rows(number), count))
                    line.update(blocks.done, len(rows))
            return blocks.values()
    except OSError as error:
        raise StoreError(
            f"{path}: the nearest images could not be written ({error}); what is found is kept, make room and run the "
            "same command again"
        ) from None


def _check_count(count: int, images: int) -> None:
    if not 0 < count < images:
        raise ValueError(f"{count} neighbours cannot be found among {images} images")


def _unit_length(pooled: np.ndarray) -> np.ndarray:
    """Divide each row by its length, in place and in blocks: the features of a large split fit into memory once."""
    for start in range(0, len(pooled), CHUNK):
        block = pooled[start : start + CHUNK]
        block /= np.maximum(np.linalg.norm(block, axis=1, keepdims=True), 1e-12)
    return pooled


def _nearest(unit: np.ndarray, images: slice, count: int) -> np.ndarray:
    """The neighbours of some of the images."""
    similarity = unit[images] @ unit.T
    rows = np.arange(len(similarity))
    similarity[rows, images.start + rows] = -np.inf  # not itself
    nearest = np.empty((len(similarity), count), dtype=np.int64)
    for part in range(0, len(similarity), SORTED):
        # Partition for the `count` best, then sort these; ties with the last one are sorted too.
        some = similarity[part : part + SORTED]
        threshold = np.partition(some, len(unit) - count, axis=1)[:, len(unit) - count]
        for row, (found, least) in enumerate(zip(some, threshold, strict=True), start=part):
            candidates = np.flatnonzero(found >= least)
            nearest[row] = candidates[np.argsort(-found[candidates], kind="stable")[:count]]
    return nearest
