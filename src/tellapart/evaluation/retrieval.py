"""Ranks of a retriever on a split, in both directions: image → caption and caption → image.

Images and captions are embedded once. Scores are then computed and counted block by block: memory holds the embeddings
and one block, whatever the number of pairs. Scores that differ by less than `ROUNDING` of the largest possible one are
ties, and ties count against the query (`metrics.ranks`): smaller differences depend on batching, not on the retriever.
Vectors are compared in float32, and again in float64 where float32 could be wrong about a tie
(`evaluation.vector_ranks`): the ranks are those of float64.

A retriever without index vectors compares pair by pair. With more pairs than `EXACT_PAIRS` it re-ranks the first
`RERANKED` that its coarse vectors find (`evaluation.rerank`), unless exact ranks are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tellapart.data.blocks import open_blocks
from tellapart.data.features import FeatureStore
from tellapart.data.prepare import Prepared
from tellapart.errors import DataError
from tellapart.evaluation.rerank import reranked_ranks
from tellapart.evaluation.self_retrieval import KS
from tellapart.evaluation.vector_ranks import vector_ranks
from tellapart.metrics import RankSummary, RetrievalRanks, retrieval_ranks, summarize_ranks, summarize_retrieval
from tellapart.retrievers.base import Raw, Retriever, move, take

# Items embedded at a time; images × captions compared at a time by retrievers without index vectors.
AT_ONCE = 128
# Items whose vectors are kept together.
BLOCK = 4096
# Captions compared with a block of images at a time.
COLUMNS = 4096
ROUNDING = 1e-6
# Pairs that a retriever without index vectors compares without re-ranking: all of Flickr8k's test split, not COCO's 5K.
EXACT_PAIRS = 10_000_000
RERANKED = 100
FIRST = 5
# Example queries per direction.
SHOWN = 8
# Names of the branches of a retriever that has two.
BRANCHES = ("instance", "concept")

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Gallery:
    """Images and their captions, image by image.

    Attributes:
        ids: of the images.
        rows: their rows in the feature store.
        captions: of all images, in order.
        image_of_caption: `[captions]`, the place of each caption's image.
    """

    ids: list[str]
    rows: list[int]
    captions: list[str]
    image_of_caption: NDArray[np.int64]

    @classmethod
    def of_split(cls, prepared: Prepared, split: str, images: int | None = None, captioned: bool = True) -> Gallery:
        """The images of a split that have captions, or the first so many of them.

        Args:
            prepared: the data.
            split: the images.
            images: only so many.
            captioned: raise an error if none has a caption.
        """
        records = [record for record in prepared.dataset.split(split) if record.captions][:images]
        if captioned and not records:
            raise DataError(f"{prepared.dataset.name}: no image of the split '{split}' has a caption; take another one")
        return cls(
            [record.id for record in records],
            [prepared.dataset.row(record.id) for record in records],
            [caption for record in records for caption in record.captions],
            np.repeat(np.arange(len(records)), [len(record.captions) for record in records]),
        )

    def check_folds(self, size: int | None) -> None:
        """Refuse folds that are larger than the gallery."""
        if size is not None and not 1 <= size <= len(self.ids):
            raise DataError(f"{len(self.ids)} images make no fold of {size} images; take smaller folds")


class PairScores:
    """Similarities of images and captions under a retriever, a block at a time: `scores(rows, columns)`.

    Args:
        retriever: in eval mode.
        store: features of the images.
        rows: the images' rows in the store.
        captions: compared with the images.
        on_progress: called with items embedded and items in all.
        exact: compare all pairs, however many; by default up to `EXACT_PAIRS`.
        path: of a table of index vectors (`data.blocks`), named by the digest of what they are made from, so that an
            interrupted call continues. Without it they are in memory.

    Attributes:
        rounding: scores that differ by less are equal.
        reranked: whether only the first items found by coarse vectors are compared pair by pair.
    """

    def __init__(
        self,
        retriever: Retriever,
        store: FeatureStore,
        rows: Sequence[int],
        captions: Sequence[str],
        on_progress: OnProgress | None = None,
        exact: bool | None = None,
        path: Path | None = None,
    ) -> None:
        self.retriever = retriever
        self.shape = (len(rows), len(captions))
        many = len(rows) * len(captions) > EXACT_PAIRS and not exact
        self.reranked = many and not retriever.has_index_vectors and retriever.has_coarse_vectors
        images, of = len(rows), sum(self.shape)

        @torch.no_grad()
        def embed(items: slice) -> Iterator[Raw]:
            """Images, or captions, which are numbered after the images; a few at a time."""
            for start in range(items.start, items.stop, AT_ONCE):
                end = min(start + AT_ONCE, items.stop)
                if start < images:
                    raw = embed_rows(retriever, store, rows[start:end])
                else:
                    raw = retriever.embed_texts(captions[start - images : end - images])
                yield move(retriever.index_vectors(raw) if retriever.has_index_vectors else raw, "cpu")
                if on_progress is not None:
                    on_progress(end, of)

        self.rounding = ROUNDING
        if not retriever.has_index_vectors:
            self._images, self._texts = list(embed(slice(0, images))), list(embed(slice(images, of)))
        else:
            vectors = self._find_vectors(embed, path)
            self._image_vectors, self._text_vectors = vectors[:images], vectors[images:]
            # The largest possible score: 1 for cosines.
            squares = [np.einsum("ij,ij->i", v, v).max(initial=0.0) for v in (self._image_vectors, self._text_vectors)]
            self.rounding = ROUNDING * float(np.sqrt(squares[0]) * np.sqrt(squares[1]))

    @property
    def vectors(self) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """The index vectors of images and captions; `None` if the retriever has none."""
        return (self._image_vectors, self._text_vectors) if self.retriever.has_index_vectors else None

    def _find_vectors(self, embed: Callable[[slice], Iterator[Raw]], path: Path | None) -> NDArray[np.float32]:
        """The vectors of all items, block by block; blocks that are on the disk are not embedded again."""
        images, of = self.shape[0], sum(self.shape)
        encoder = self.retriever.encoder
        with torch.no_grad():
            nothing = torch.zeros(0, encoder.regions, encoder.width, device=self.retriever.device)
            width = self.retriever.index_vectors(self.retriever.embed_images(nothing)).shape[1]
        starts = [*range(0, images, BLOCK), *range(images, of, BLOCK)]
        with open_blocks(path, None if path is None else path.name, (of, width), np.float32, starts) as blocks:
            for number in list(blocks.missing):
                values = np.empty((blocks.rows(number).stop - blocks.rows(number).start, width), np.float32)
                for place, part in enumerate(embed(blocks.rows(number))):
                    assert isinstance(part, torch.Tensor)
                    values[place * AT_ONCE :][: len(part)] = part.float().numpy()
                blocks.keep(number, values)
            return blocks.values()

    def __call__(self, rows: slice, columns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Scores `[rows, columns]`; columns in rising order."""
        if not self.retriever.has_index_vectors:
            return self._compared(np.arange(*rows.indices(self.shape[0])), columns)
        images = self._image_vectors[rows].astype(np.float64)
        scores = np.empty((len(images), len(columns)))
        for start in range(0, len(columns), COLUMNS):
            texts = self._text_vectors[columns[start : start + COLUMNS]].astype(np.float64)
            scores[:, start : start + COLUMNS] = images @ texts.T
        return scores

    def ranks(
        self,
        image_of_caption: NDArray[np.int64],
        images: range | None = None,
        on_progress: OnProgress | None = None,
    ) -> RetrievalRanks:
        """Ranks in both directions among all images, or among consecutive ones and their captions.

        Args:
            image_of_caption: `[captions]`, the place of each caption's image, in rising order.
            images: the places; by default all.
            on_progress: called with images done and images in all.
        """
        images = images or range(self.shape[0])
        first, last = np.searchsorted(image_of_caption, (images.start, images.stop))
        owner, texts = image_of_caption[first:last] - images.start, slice(int(first), int(last))
        if self.retriever.has_index_vectors:
            vectors = self._image_vectors[images.start : images.stop], self._text_vectors[texts]
            return vector_ranks(*vectors, owner, rounding=self.rounding, on_progress=on_progress)

        if self.reranked:
            return self._ranks_of_first(images, texts, owner, on_progress)

        def block(rows: slice, columns: NDArray[np.int64]) -> NDArray[np.float64]:
            return self(slice(images.start + rows.start, images.start + rows.stop), columns + first)

        return retrieval_ranks(block, owner, len(images), rounding=self.rounding, on_progress=on_progress)

    def branch_ranks(self, branch: int, image_of_caption: NDArray[np.int64]) -> RetrievalRanks | None:
        """Ranks by one branch of the retriever alone; `None` if its part of the index vectors is zero or not there.

        Args:
            branch: its place in `Retriever.branches`.
            image_of_caption: as in `ranks`.
        """
        widths = self.retriever.branch_widths()
        if len(widths) < 2 or sum(widths) != self._image_vectors.shape[1]:
            return None
        first = sum(widths[:branch])
        images, texts = (v[:, first : first + widths[branch]] for v in (self._image_vectors, self._text_vectors))
        longest = [float(np.sqrt(np.einsum("ij,ij->i", v, v).max(initial=0.0))) for v in (images, texts)]
        if not all(longest):
            return None
        return vector_ranks(images, texts, image_of_caption, rounding=ROUNDING * longest[0] * longest[1])

    @torch.no_grad()
    def _ranks_of_first(
        self, images: range, texts: slice, owner: NDArray[np.int64], on_progress: OnProgress | None
    ) -> RetrievalRanks:
        """`reranked_ranks` among these consecutive images and their captions."""
        retriever, device = self.retriever, self.retriever.device
        coarse = [
            np.concatenate([retriever.coarse_vectors(chunk).float().numpy() for chunk in chunks])
            for chunks in (self._images, self._texts)
        ]

        def compare(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.float64]:
            some = _items(self._images, rows + images.start), _items(self._texts, columns + texts.start)
            return retriever.similarity(*(move(raw, device) for raw in some)).double().cpu().numpy()

        vectors = coarse[0][images.start : images.stop], coarse[1][texts]
        return reranked_ranks(*vectors, owner, compare, RERANKED, self.rounding, on_progress)

    @torch.no_grad()
    def _compared(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.float64]:
        device = self.retriever.device
        blocks = [
            [
                self.retriever.similarity(move(images, device), move(texts, device)).double().cpu().numpy()
                for texts in _chosen(self._texts, columns)
            ]
            for images in _chosen(self._images, rows)
        ]
        return np.block(blocks)


def embed_rows(retriever: Retriever, store: FeatureStore, rows: Sequence[int]) -> Raw:
    """Raw embeddings of these rows of a store; if it has mirrored images, those of both, joined by the retriever."""

    def embed(features: FeatureStore) -> Raw:
        return retriever.embed_images(torch.from_numpy(features.grid(rows)).to(retriever.device))

    return embed(store) if store.mirrored is None else retriever.join_views(embed(store), embed(store.mirrored))


def _chosen(chunks: list[Raw], places: NDArray[np.int64]) -> Iterator[Raw]:
    """The items at these places (in rising order), chunk by chunk."""
    for number, chunk in enumerate(chunks):
        first = number * AT_ONCE
        here = places[(places >= first) & (places < first + AT_ONCE)] - first
        if len(here):
            yield take(chunk, torch.from_numpy(here))


def _items(chunks: list[Raw], places: NDArray[np.int64]) -> Raw:
    """The items at these places (in rising order), together."""
    parts = list(_chosen(chunks, places))
    if isinstance(parts[0], torch.Tensor):
        return torch.cat([part for part in parts if isinstance(part, torch.Tensor)])
    return tuple(torch.cat([part[place] for part in parts]) for place in range(len(parts[0])))


@dataclass(frozen=True)
class RankedSplit:
    """Ranks in both directions, and the scores they come from.

    Attributes:
        gallery: the images and captions.
        scores: block by block.
        ranks: among all of them.
        folds: the same within each fold, if any.
        branches: branch -> ranks by it alone, of a retriever with several.
    """

    gallery: Gallery
    scores: PairScores
    ranks: RetrievalRanks
    folds: list[RetrievalRanks]
    branches: dict[str, RetrievalRanks]

    def figures(self) -> dict[str, float]:
        """The figures of all ranks, and `R@sum` of each branch alone, such as `concept_R@sum`."""
        alone = {
            f"{name}_R@sum": summarize_retrieval(ranks).figures()["R@sum"] for name, ranks in self.branches.items()
        }
        return {**summarize_retrieval(self.ranks).figures(), **alone}


def rank_split(
    retriever: Retriever,
    prepared: Prepared,
    split: str = "test",
    fold_size: int | None = None,
    on_embedding: OnProgress | None = None,
    on_ranking: OnProgress | None = None,
    images: int | None = None,
    exact: bool | None = None,
    path: Path | None = None,
) -> RankedSplit:
    """Rank all captions of a split for each of its images, and all images for each caption.

    Args:
        retriever: in eval mode.
        prepared: data and features.
        split: the images.
        fold_size: also rank within folds of this many consecutive images (COCO's "1K": 1,000). Images that are too few
            for another fold are in none.
        on_embedding: called with items embedded and items in all.
        on_ranking: called with images done and images in all.
        images: only the first so many images of the split.
        exact: see `PairScores`.
        path: see `PairScores`.

    Example:
        >>> ranked = rank_split(retriever, prepared, "val")                       # doctest: +SKIP
        >>> summarize_retrieval(ranked.ranks).figures()["R@sum"]                  # doctest: +SKIP
        3.12
    """
    prepared.store.check(prepared.dataset, retriever.encoder)
    gallery = Gallery.of_split(prepared, split, images)
    gallery.check_folds(fold_size)
    scores = PairScores(retriever, prepared.store, gallery.rows, gallery.captions, on_embedding, exact, path)
    return rank_scores(scores, gallery, fold_size, on_ranking)


def rank_scores(
    scores: PairScores, gallery: Gallery, fold_size: int | None = None, on_progress: OnProgress | None = None
) -> RankedSplit:
    """Ranks by scores that are there; see `rank_split`."""
    owner, count = gallery.image_of_caption, len(gallery.ids)
    ranks = scores.ranks(owner, on_progress=on_progress)
    size = fold_size or count + 1
    within = [scores.ranks(owner, range(start, start + size)) for start in range(0, count - size + 1, size)]
    several = BRANCHES if len(scores.retriever.branch_widths()) > 1 else ()
    alone = {name: scores.branch_ranks(branch, owner) for branch, name in enumerate(several)}
    return RankedSplit(gallery, scores, ranks, within, {name: of for name, of in alone.items() if of is not None})


@dataclass(frozen=True)
class RankedCaptions:
    """Ranks of the images that captions were written for, and their similarities; one caption per image."""

    ranks: NDArray[np.int64]
    similarities: NDArray[np.float64]

    def summary(self) -> RankSummary:
        """Recall at 1, 5, 10, 50 and 500, as far as there are so many images, with chance beside; mean and median."""
        images = len(self.ranks)
        return summarize_ranks(self.ranks, images, [k for k in KS if k <= images])


def rank_captions_under(
    retriever: Retriever,
    prepared: Prepared,
    rows: Sequence[int],
    captions: Sequence[str],
    on_progress: OnProgress | None = None,
) -> RankedCaptions:
    """Rank images for captions under a retriever; caption t belongs to image `rows[t]`.

    Args:
        retriever: in eval mode.
        prepared: data and features.
        rows: the images' rows in the store.
        captions: one caption per image, whoever wrote them.
        on_progress: called with images done and images in all.
    """
    prepared.store.check(prepared.dataset, retriever.encoder)
    scores = PairScores(retriever, prepared.store, rows, captions)
    own = np.arange(len(rows))
    ranks = scores.ranks(own, on_progress=on_progress).text_to_image
    blocks = [own[start : start + AT_ONCE] for start in range(0, len(own), AT_ONCE)]
    similarities = [np.diagonal(scores(slice(block[0], block[-1] + 1), block)) for block in blocks]
    return RankedCaptions(ranks, np.concatenate(similarities))


def shown_queries(ranks: NDArray[np.int64], count: int = SHOWN) -> list[int]:
    """Example queries spread over the split: half with the right item first, half without."""
    right, wrong = np.flatnonzero(ranks == 1), np.flatnonzero(ranks > 1)
    hits = _spread(right, max(count - count // 2, count - len(wrong)))
    return [*hits, *_spread(wrong, count - len(hits))]


def _spread(places: NDArray[np.int64], count: int) -> list[int]:
    if len(places) <= count:
        return [int(place) for place in places]
    return [int(place) for place in places[np.linspace(0, len(places) - 1, count).round().astype(np.int64)]]


def first_images(ranked: RankedSplit, captions: Sequence[int], count: int = FIRST) -> list[list[int]]:
    """The best images for each of these captions, best first; its own image is at its rank."""
    scores, owner = ranked.scores, ranked.gallery.image_of_caption
    found = []
    for caption in captions:
        column = np.array([caption])
        blocks = [scores(slice(start, start + AT_ONCE), column)[:, 0] for start in range(0, scores.shape[0], AT_ONCE)]
        found.append(
            _best(np.concatenate(blocks), np.arange(scores.shape[0]) == owner[caption], scores.rounding, count)
        )
    return found


def first_captions(ranked: RankedSplit, images: Sequence[int], count: int = FIRST) -> list[list[int]]:
    """The best captions for each of these images, best first; its own best caption is at its rank."""
    scores, owner = ranked.scores, ranked.gallery.image_of_caption
    everything = np.arange(scores.shape[1])
    return [
        _best(scores(slice(image, image + 1), everything)[0], owner == image, scores.rounding, count)
        for image in images
    ]


def _best(scores: NDArray[np.float64], right: NDArray[np.bool_], rounding: float, count: int) -> list[int]:
    """Positions of the highest scores; right items come after their ties, as in their rank, others by position."""
    lowered = np.nextafter(scores - rounding, -np.inf)
    best: list[int] = np.argsort(-np.where(right, lowered, scores), kind="stable")[:count].tolist()
    return best
