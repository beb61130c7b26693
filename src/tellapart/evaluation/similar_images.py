"""Figures that need features of images or embeddings: consensus re-ranking, CIDErBtw, CLIPScore under a retriever."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from tellapart.data.neighbours import nearest_in_store
from tellapart.data.prepare import Prepared
from tellapart.errors import DataError
from tellapart.evaluation.judge import Judge
from tellapart.evaluation.retrieval import AT_ONCE, embed_rows
from tellapart.metrics import (
    best_candidates,
    cider_between,
    clip_scores,
    consensus_scores,
    nearest_features,
    reference_clip_scores,
    tokenize,
)
from tellapart.metrics.cider import DocumentFrequencies
from tellapart.metrics.consensus import NEIGHBOURS
from tellapart.progress import ProgressLine


class Consensus:
    """Keeps the best of each image's captions by consensus with the captions of the nearest training images.

    What does not depend on the captions is found once, when first needed.

    Args:
        prepared: data and features.
        split: the captioned images.
        images: only the first so many; by default all.
    """

    def __init__(self, prepared: Prepared, split: str, images: int | None = None) -> None:
        self._prepared = prepared
        self._records = prepared.dataset.split(split)[:images]
        self._training = [record for record in prepared.dataset.split("train") if record.captions]

    @cached_property
    def _nearest(self) -> NDArray[np.int64]:
        dataset, store = self._prepared.dataset, self._prepared.store
        rows, training = ([dataset.row(record.id) for record in some] for some in (self._records, self._training))
        return nearest_features(store.pooled(rows), store.pooled(training), min(NEIGHBOURS, len(training)))

    @cached_property
    def _training_captions(self) -> list[list[str]]:
        return [tokenize(list(record.captions)) for record in self._training]

    @cached_property
    def _frequencies(self) -> DocumentFrequencies:
        return DocumentFrequencies.count(self._training_captions)

    def best(self, captions: Sequence[Sequence[str]], keep: int) -> list[list[str]]:
        """The best captions of each image, best first.

        Args:
            captions: several per image, in the split's order.
            keep: how many stay.
        """
        scores = consensus_scores(
            [tokenize(list(texts)) for texts in captions],
            self._training_captions,
            self._nearest,
            frequencies=self._frequencies,
            on_progress=ProgressLine("consensus re-ranking", " images").update,
        )
        return best_candidates(captions, scores, keep)


def consensus_captions(prepared: Prepared, split: str, captions: Sequence[Sequence[str]], keep: int) -> list[list[str]]:
    """Of each image's captions the best by `Consensus`."""
    return Consensus(prepared, split).best(captions, keep)


def cider_between_similar(prepared: Prepared, split: str, captions: Sequence[str], count: int) -> NDArray[np.float64]:
    """CIDErBtw of each caption: mean CIDEr-D with people's captions of the most similar images of the split.

    Args:
        prepared: data and features.
        split: the captioned images.
        captions: one per image, in the split's order.
        count: how many similar images each image is compared with.
    """
    records = prepared.dataset.split(split)
    if not 0 < count < len(records):
        raise DataError(f"{count} similar images cannot be found in a split of {len(records)}; take fewer")
    similar = nearest_in_store(prepared.store, [prepared.dataset.row(record.id) for record in records], count)
    references = [tokenize(list(record.captions)) for record in records]
    return cider_between(references, tokenize(list(captions)), similar).per_image


def clip_scores_under(
    judge: Judge, ids: Sequence[str], captions: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[str, NDArray[np.float64]]:
    """CLIPScore and RefCLIPScore of each caption with its image and references, by the embeddings of a retriever.

    Empty for a retriever without one vector per item. Figures of different retrievers do not compare.
    """
    retriever, dataset, store = judge.model, judge.data.dataset, judge.data.store
    if not retriever.has_index_vectors:
        return {}

    @torch.no_grad()
    def texts(sentences: Sequence[str]) -> NDArray[np.float32]:
        parts = [sentences[start : start + AT_ONCE] for start in range(0, len(sentences), AT_ONCE)]
        return np.concatenate([retriever.index_vectors(retriever.embed_texts(p)).float().cpu().numpy() for p in parts])

    @torch.no_grad()
    def images(rows: Sequence[int]) -> NDArray[np.float32]:
        parts = [rows[start : start + AT_ONCE] for start in range(0, len(rows), AT_ONCE)]
        embedded = (embed_rows(retriever, store, part) for part in parts)
        return np.concatenate([retriever.index_vectors(raw).float().cpu().numpy() for raw in embedded])

    of_images, of_captions = images([dataset.row(id) for id in ids]), texts(captions)
    owner = np.repeat(np.arange(len(ids)), [len(several) for several in references])
    of_people = texts([caption for several in references for caption in several])
    return {
        "CLIPScore": clip_scores(of_images, of_captions),
        "RefCLIPScore": reference_clip_scores(of_images, of_captions, of_people, owner),
    }
