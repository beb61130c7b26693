"""Ensembles of retrievers: the mean of their similarities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tellapart.errors import RunError
from tellapart.evaluation.retrieval import Gallery, OnProgress, PairScores, RankedSplit, rank_scores
from tellapart.run import Run


class EnsembleScores(PairScores):
    """The mean of several retrievers' similarities, each on the features that it reads.

    Each similarity is an inner product of index vectors v_k, so their mean is one of [v_1; …; v_n] / √n.

    Args:
        members: scores of the same images and captions, by retrievers with index vectors.
    """

    def __init__(self, members: Sequence[PairScores]) -> None:
        self.retriever = members[0].retriever
        self.shape = members[0].shape
        self.reranked = False
        vectors = [one.vectors for one in members if one.vectors is not None]
        weight = np.float32(len(members) ** -0.5)
        self._image_vectors = np.concatenate([images for images, _ in vectors], axis=1) * weight
        self._text_vectors = np.concatenate([texts for _, texts in vectors], axis=1) * weight
        self.rounding = float(np.mean([one.rounding for one in members]))


def check_members(runs: Sequence[Run]) -> None:
    """Refuse retrievers whose similarities cannot be averaged: without vectors, or trained on other data."""
    digest = runs[0].data.dataset.digest
    for run in runs:
        if not run.retriever.has_index_vectors:
            raise RunError(
                f"{run.folder}: '{run.retriever.name}' compares pair by pair; "
                "only retrievers with vectors make an ensemble"
            )
        if run.data.dataset.digest != digest:
            raise RunError(f"{run.folder}: was trained on other data than {runs[0].folder}; give runs on the same data")


def rank_ensemble(
    runs: Sequence[Run],
    split: str,
    fold_size: int | None = None,
    on_embedding: OnProgress | None = None,
    on_ranking: OnProgress | None = None,
) -> RankedSplit:
    """Ranks by the mean of the runs' similarities; see `rank_split`.

    Args:
        runs: trainings of retrievers that `check_members` allows.
        split: the images.
        fold_size, on_embedding, on_ranking: see `rank_split`; embedding is counted for each run anew.
    """
    gallery = Gallery.of_split(runs[0].data, split)
    gallery.check_folds(fold_size)
    members = []
    for run in runs:
        run.data.store.check(run.data.dataset, run.retriever.encoder)
        members.append(PairScores(run.retriever, run.data.store, gallery.rows, gallery.captions, on_embedding))
    return rank_scores(EnsembleScores(members), gallery, fold_size, on_ranking)
