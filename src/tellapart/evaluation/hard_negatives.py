"""Hard negatives: captions that a retriever ranks high for an image though they were written for another.

COCO has 109,000 images and 548,000 captions, so this is made to cost hardly more than the product of their vectors in
float32. A score that is not above the last of an image's best so far is thrown away by one comparison; few are left to
sort.

The sum of a product depends on the order of its additions, and so on the size of blocks and on the CPU; equal captions
may then have unequal scores. So vectors are first rounded to whole numbers, small enough that float32 holds every sum
of them exactly: by Cauchy and Schwarz no part of the sum is above |a| |b| ≤ 4096² = 2²⁴. The order of the captions is
then the same everywhere, and ties are true ties. In return, scores are known to about 10⁻⁴ of the largest possible one
(`GRID`), where a retriever says nothing more about how hard a negative is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tellapart.data.blocks import open_blocks, remove_blocks
from tellapart.data.negatives import CaptionPool
from tellapart.data.prepare import Prepared
from tellapart.errors import DataError, RecipeError
from tellapart.evaluation.retrieval import Gallery, PairScores
from tellapart.files import digest_of
from tellapart.models import weights_digest
from tellapart.progress import OnProgress
from tellapart.retrievers.base import Retriever

# Images whose captions are ranked at a time, which is also a block of the file, and captions compared with them at a
# time. A larger block of images makes the product faster; 1,024 × 4,096 scores are 16 MB.
IMAGES = 1024
CAPTIONS = 4096
# Numbers in the buffer of candidates: with many for each image, fewer images are ranked at a time.
BUFFER = 16_000_000
# Captions that tell beforehand about how good the best are.
SAMPLE = 8192
# Numbers in the whole table: 1 GB. With more images than fit, each has fewer candidates.
LARGEST = 250_000_000
# The length of a rounded vector is at most this.
GRID = 4096
TOO_SHORT = 1e-30
# Pairs that a retriever without vectors compares at most: Flickr8k's training split has 180 million, COCO's 60 billion.
MOST_PAIRS = 200_000_000
# Version of the table.
FORMAT = 2

# (images, captions) -> scores `[images, captions]`, larger for better ones of an image; it may be written to.
Compare = Callable[[slice, slice], NDArray[np.float32]]

DIVERGED = "a similarity is not a finite number; the retriever has diverged: train it again"


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
    out. Scores are those of rounded vectors (see the top of this file), or of pairs in float32 if the retriever has no
    vectors; captions with equal scores are ordered by number.

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
            _check_pairs(retriever, images, captions)
            scores = PairScores(
                retriever,
                prepared.store,
                gallery.rows,
                gallery.captions,
                lambda done, of: show("embedding images and captions", done, of),
                path=vectors,
            )
            compare = _compare_pairs(scores) if scores.vectors is None else compare_on_grid(*scores.vectors)
            show("ranking captions for hard negatives", blocks.done, images)
        for number in list(blocks.missing):
            blocks.keep(number, best_captions(compare, pool, blocks.rows(number), count))
            show("ranking captions for hard negatives", blocks.done, images)
        if vectors is not None:
            remove_blocks(vectors)
        return blocks.values()


def _check_pairs(retriever: Retriever, images: int, captions: int) -> None:
    """A retriever that compares pair by pair would need weeks for COCO, and holds all words and regions in memory."""
    if not retriever.has_index_vectors and images * captions > MOST_PAIRS:
        raise RecipeError(
            f"roles.retriever: '{retriever.name}' compares pair by pair, and {images:,} images with {captions:,} "
            f"captions are more than {MOST_PAIRS:,} pairs; take a retriever that has vectors, such as 'coder', or "
            "negatives.by: images"
        )


def compare_on_grid(images: NDArray[np.float32], captions: NDArray[np.float32]) -> Compare:
    """Inner products of vectors that are rounded to whole numbers, which are exact in float32.

    Each image is scaled by its own length, which does not change its order of the captions; captions are scaled by the
    length of the longest.

    >>> vectors = np.array([[1, 0], [0.6, 0.8]], np.float32)
    >>> compare_on_grid(vectors, vectors)(slice(0, 1), slice(0, 2)).round(-4).tolist()   # 4096² and 0.6 of it
    [[16760000.0, 10060000.0]]
    """
    lengths = _lengths(images)
    longest = _lengths(captions).max()
    if not np.isfinite([longest, lengths.max()]).all():
        raise DataError(DIVERGED)
    # Rounding makes a vector longer by half the root of its width at most.
    largest = GRID - 1 - images.shape[1] ** 0.5 / 2
    # Vectors that are zero, or so short that float32 has no scale for them, are zero.
    image_scales, caption_scale = (
        np.where(values > TOO_SHORT, largest / np.maximum(values, TOO_SHORT), 0.0).astype(np.float32)
        for values in (lengths[:, None], longest)
    )

    def compare(rows: slice, columns: slice) -> NDArray[np.float32]:
        some = captions[columns] * caption_scale
        return np.asarray(np.rint(images[rows] * image_scales[rows]) @ np.rint(some, out=some).T)

    return compare


def _lengths(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """The length of each vector in float64; a few at a time, since all may need more memory than there is."""

    def of(some: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", some, some)))

    starts = range(0, len(vectors), CAPTIONS)
    return np.concatenate([of(vectors[start : start + CAPTIONS].astype(np.float64)) for start in starts])


def _compare_pairs(scores: PairScores) -> Compare:
    """Pair by pair, for retrievers without vectors. Rounded to float32, so that equal captions have equal scores."""

    def compare(rows: slice, columns: slice) -> NDArray[np.float32]:
        found = scores(rows, np.arange(*columns.indices(scores.shape[1]))).astype(np.float32)
        if not np.isfinite(found).all():
            raise DataError(DIVERGED)
        return found

    return compare


def best_captions(compare: Compare, pool: CaptionPool, images: slice, count: int) -> NDArray[np.int32]:
    """The `count` best captions of other images for each of these images, best first, equal ones by number.

    Args:
        compare: gives the scores.
        pool: the captions, at least `count` of which are not word for word an image's own.
        images: consecutive ones.
        count: candidates of an image.
    """
    height = max(1, min(IMAGES, BUFFER // (2 * count + CAPTIONS)))
    parts = [slice(start, min(start + height, images.stop)) for start in range(images.start, images.stop, height)]
    return np.concatenate([_best_of_all(compare, pool, part, count) for part in parts])


def _best_of_all(compare: Compare, pool: CaptionPool, images: slice, count: int) -> NDArray[np.int32]:
    """`best_captions` of images whose candidates fit into the buffer."""
    limits = _likely_limits(compare, images, count, len(pool.captions))
    found = _above(limits, compare, pool, images, count)
    if (found.filled < count).any():  # a limit was too high: very rare, and noticed
        found = _above(np.full_like(limits, -np.inf), compare, pool, images, count)
    return found.best()


def _likely_limits(compare: Compare, images: slice, count: int, captions: int) -> NDArray[np.float32]:
    """A score for each image, `[images, 1]`, that nearly surely more than `count` captions exceed, and not many more.

    It comes from a sample of captions, evenly spread. Without it, most of the time goes to captions that are among the
    best only because few came before them.
    """
    step = captions // SAMPLE
    expected = count * SAMPLE / captions  # how many of the best are in the sample; the true number varies by its root
    rank = int(expected + 5 * expected**0.5 + 5)
    if step < 2 or rank > SAMPLE // 2:
        return np.full((images.stop - images.start, 1), -np.inf, np.float32)
    sample = compare(images, slice(0, captions, step))
    return np.partition(sample, sample.shape[1] - rank, axis=1)[:, -rank, None]


def _above(limits: NDArray[np.float32], compare: Compare, pool: CaptionPool, images: slice, count: int) -> _Candidates:
    """The best captions of other images, among those above the limits; an image may have fewer than `count`."""
    candidates = _Candidates(limits, count)
    own_image, own = pool.own_captions(np.arange(images.start, images.stop))
    captions = len(pool.captions)
    for start in range(0, captions, CAPTIONS):
        stop = min(start + CAPTIONS, captions)
        part = compare(images, slice(start, stop))
        here = (own >= start) & (own < stop)
        part[own_image[here], own[here] - start] = -np.inf  # never above a limit
        candidates.add(part, start)
    return candidates


class _Candidates:
    """The captions of some images that may be among the best, in the order of their numbers.

    Captions come in the order of their numbers. One that is not better than the best `count` before it can be left
    out: of equal ones the first stay. So the scores that are to be exceeded only rise.

    Args:
        limits: the scores that are to be exceeded at first, `[images, 1]`.
        count: how many are wanted for each image.

    Attributes:
        filled: how many there are for each image.
    """

    def __init__(self, limits: NDArray[np.float32], count: int) -> None:
        self.count, self.limits, images = count, limits.copy(), len(limits)
        # Twice as many as needed: the more room, the rarer the best are chosen again.
        room = 2 * count + CAPTIONS
        self.scores = np.full((images, room), -np.inf, np.float32)
        self.numbers = np.zeros((images, room), np.int32)
        self.filled = np.zeros(images, np.int64)

    def add(self, scores: NDArray[np.float32], first: int) -> None:
        """Scores `[images, captions]` of at most `CAPTIONS` captions, the next ones by number."""
        width = scores.shape[1]
        above = np.flatnonzero(scores > self.limits)
        rows, columns = np.divmod(above, width)
        begins = np.searchsorted(above, np.arange(len(scores) + 1) * width)
        places = self.filled[rows] + np.arange(len(above)) - begins[rows]
        self.scores[rows, places] = scores.reshape(-1)[above]
        self.numbers[rows, places] = columns + first
        self.filled += np.diff(begins)
        if self.filled.max() > 2 * self.count:
            self._choose()

    def best(self) -> NDArray[np.int32]:
        """The best `count` of each image, best first."""
        self._choose()
        order = np.argsort(-self.scores[:, : self.count], axis=1, kind="stable")
        return np.take_along_axis(self.numbers[:, : self.count], order, axis=1)

    def _choose(self) -> None:
        """Keep the best `count` of the images that have more."""
        (rows,) = np.nonzero(self.filled > self.count)
        if not len(rows):
            return
        used = int(self.filled.max())
        scores, numbers = self.scores[rows, :used], self.numbers[rows, :used]
        stay, limits = _highest(scores, self.count)
        self.scores[rows, :used] = -np.inf
        self.scores[rows, : self.count] = scores[stay].reshape(len(rows), self.count)
        self.numbers[rows, : self.count] = numbers[stay].reshape(len(rows), self.count)
        self.filled[rows], self.limits[rows] = self.count, limits


def _highest(scores: NDArray[np.float32], count: int) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    """Which `count` scores of each row are the highest, of equal ones the first; and the lowest of them.

    >>> stay, lowest = _highest(np.array([[1, 3, 1, 2, 1]], np.float32), 3)
    >>> stay.astype(int).tolist(), lowest.tolist()
    ([[1, 1, 0, 1, 0]], [[1.0]])
    """
    lowest = np.partition(scores, scores.shape[1] - count, axis=1)[:, -count, None]
    stay = scores >= lowest
    (tied,) = np.nonzero(np.count_nonzero(stay, axis=1) > count)
    if len(tied):
        higher, equal = scores[tied] > lowest[tied], scores[tied] == lowest[tied]
        room = count - np.count_nonzero(higher, axis=1, keepdims=True)
        stay[tied] = higher | (equal & (np.cumsum(equal, axis=1, dtype=np.int32) <= room))
    return stay, lowest
