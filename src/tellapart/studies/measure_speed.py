"""Accuracy against speed (figure 4 of the CODER paper): items embedded and pairs compared per second."""

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
from tellapart.studies.columns import SPEEDS
from tellapart.studies.measure_retrieval import RetrievalMeasure
from tellapart.studies.result import ArmResult, Result

# Number of images, with all their captions, that are embedded and compared in a round.
IMAGES = 256
ROUNDS = 3
# Comparing vectors is fast, so it is repeated for at least this much CPU time.
SECONDS = 0.2


class SpeedMeasure(RetrievalMeasure):
    """Retrieval and speed. All arms are timed in the same process, by CPU time on one thread of torch.

    Embedding (images, captions) and comparing are timed separately: an index embeds an item once and compares it many
    times. Each speed is the best of a few rounds in which the arms take turns, on the first images of the split. Image
    features come from the feature store; the time of the image encoder is not counted.
    """

    def finish(self, rows: Sequence[ArmResult], folder: Path) -> dict[str, Any]:
        models = [one for row in rows for one in row.seeds]
        prepared = models[0].run.data
        gallery = Gallery.of_split(prepared, self.study.split)
        captions = int((gallery.image_of_caption < IMAGES).sum())
        retrievers = [one.run.retriever for one in models]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            found = np.zeros((len(models), len(SPEEDS)))
            for _ in range(ROUNDS):
                for place, retriever in enumerate(retrievers):
                    rates = _rates(retriever, prepared.store, gallery, captions)
                    found[place] = np.maximum(found[place], rates)
        finally:
            torch.set_num_threads(threads)
        for one, rates in zip(models, found.tolist(), strict=True):
            one.figures.update({column.figure: rate for column, rate in zip(SPEEDS, rates, strict=True)})
        return {"timed": {"images": min(IMAGES, len(gallery.rows)), "captions": captions, "rounds": ROUNDS}}

    def conclusion(self, result: Result) -> list[str]:
        timed = result.more["timed"]
        return [
            f"Speeds are per second of CPU time, the best of {timed['rounds']} rounds in which the arms take turns, "
            f"on {timed['images']} images and {timed['captions']} captions; image features are computed beforehand."
        ]


def _rates(retriever: Retriever, store: FeatureStore, gallery: Gallery, captions: int) -> list[float]:
    """Images embedded, captions embedded, and pairs compared (ranked in both directions) per second."""
    rows, sentences, owner = gallery.rows[:IMAGES], gallery.captions[:captions], gallery.image_of_caption[:captions]
    seconds = []
    nothing: tuple[list[int], list[str]] = ([], [])
    for images, texts in ((rows, nothing[1]), (nothing[0], sentences)):
        began = time.process_time()
        PairScores(retriever, store, images, texts)
        seconds.append(max(time.process_time() - began, 1e-9))
    scores = PairScores(retriever, store, rows, sentences)
    compared, began = 0, time.process_time()
    while (spent := time.process_time() - began) < SECONDS or not compared:
        scores.ranks(owner)
        compared += len(rows) * len(sentences)
    return [len(rows) / seconds[0], len(sentences) / seconds[1], compared / spent]
