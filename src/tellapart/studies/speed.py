"""Accuracy against speed (figure 4 of the CODER paper): how many items a second are embedded, and pairs compared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tellapart.data.features import FeatureStore
from tellapart.evaluation.retrieval import Gallery, PairScores
from tellapart.retrievers.base import Retriever
from tellapart.studies.base import Column, Study
from tellapart.studies.measure_retrieval import Retrieval
from tellapart.studies.result import Result, Row

# Images, with all their captions, that are embedded and compared in a round; rounds alternate between the models.
IMAGES = 256
ROUNDS = 3
# Comparing vectors is so quick that it is repeated until so much CPU time has passed.
SECONDS = 0.2

COLUMNS = (
    Column("images_per_second", "images embedded / s", "count"),
    Column("captions_per_second", "captions embedded / s", "count"),
    Column("pairs_per_second", "pairs compared / s", "count"),
)


class Speed(Retrieval):
    """Retrieval, and speed: all models of the study side by side in one run, by CPU time on one thread of torch.

    Embedding (images, captions) and comparing are timed apart: an index embeds an item once and compares it for ever.
    Each is the best of a few rounds, in which the models take turns, on the first images of the split. Image features
    are those of the store: the encoder's time is everyone's.
    """

    def finish(self, study: Study, rows: Sequence[Row], folder: Path) -> dict[str, Any]:
        models = [one for row in rows for one in row.seeds]
        prepared = models[0].run.data
        gallery = Gallery.of_split(prepared, study.split)
        captions = int((gallery.image_of_caption < IMAGES).sum())
        retrievers = [one.run.retriever for one in models]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            found = np.zeros((len(models), len(COLUMNS)))
            for _ in range(ROUNDS):
                for place, retriever in enumerate(retrievers):
                    rates = _rates(retriever, prepared.store, gallery, captions)
                    found[place] = np.maximum(found[place], rates)
        finally:
            torch.set_num_threads(threads)
        for one, rates in zip(models, found.tolist(), strict=True):
            one.figures.update({column.figure: rate for column, rate in zip(COLUMNS, rates, strict=True)})
        return {"timed": {"images": min(IMAGES, len(gallery.rows)), "captions": captions, "rounds": ROUNDS}}

    def conclusion(self, result: Result) -> list[str]:
        timed = result.more["timed"]
        return [
            f"Speeds are per second of CPU time, the best of {timed['rounds']} rounds in which the models take turns, "
            f"on {timed['images']} images and {timed['captions']} captions; image features are at hand."
        ]


def _rates(retriever: Retriever, store: FeatureStore, gallery: Gallery, captions: int) -> list[float]:
    """Images and captions embedded a second, and pairs compared: ranked both ways."""
    rows, said, owner = gallery.rows[:IMAGES], gallery.captions[:captions], gallery.image_of_caption[:captions]
    seconds = []
    nothing: tuple[list[int], list[str]] = ([], [])
    for images, texts in ((rows, nothing[1]), (nothing[0], said)):
        began = time.process_time()
        PairScores(retriever, store, images, texts)
        seconds.append(max(time.process_time() - began, 1e-9))
    scores = PairScores(retriever, store, rows, said)
    compared, began = 0, time.process_time()
    while (spent := time.process_time() - began) < SECONDS or not compared:
        scores.ranks(owner)
        compared += len(rows) * len(said)
    return [len(rows) / seconds[0], len(said) / seconds[1], compared / spent]
