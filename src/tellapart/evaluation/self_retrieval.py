"""Self-retrieval: does a caption find its own image? (CL paper, sec. 4.1.)

Each caption c_t queries all images, ranked by p(c_t | I_j) under a captioner: the one that wrote the captions, or
another one as an independent judge. A generic caption fits many images and ranks its own one low.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tellapart.captioners.base import Captioner
from tellapart.data.features import FeatureStore
from tellapart.metrics import RankSummary, rank_of_true, summarize_ranks

CAPTION_BLOCK = 32
IMAGE_BLOCK = 16
SHOWN = 5


@dataclass(frozen=True)
class SelfRetrieval:
    """Ranks of the true images (1 is best), and the first few images each caption retrieves.

    Attributes:
        ranks: `[captions]`; a tie counts against.
        first: `[captions, 5]`, positions of the best images, best first.
        images: how many images were ranked.
    """

    ranks: np.ndarray
    first: np.ndarray
    images: int

    def summary(self) -> RankSummary:
        return summarize_ranks(self.ranks, self.images)


def self_retrieval(
    captioner: Captioner,
    store: FeatureStore,
    rows: Sequence[int],
    captions: Sequence[str],
    on_progress: Callable[[int, int], None] | None = None,
) -> SelfRetrieval:
    """Rank all images for every caption; caption t belongs to image `rows[t]`.

    Args:
        captioner: whose p(c | I) ranks the images; in eval mode.
        store: features of the images.
        rows: the images' rows in the store.
        captions: one caption per image.
        on_progress: called with pairs done and pairs in all.
    """
    scores = log_prob_matrix(captioner, store, rows, captions, on_progress)
    first = np.argsort(-scores, axis=1, kind="stable")[:, :SHOWN]
    return SelfRetrieval(rank_of_true(scores, np.arange(len(rows))), first, len(rows))


@torch.no_grad()
def log_prob_matrix(
    captioner: Captioner,
    store: FeatureStore,
    rows: Sequence[int],
    captions: Sequence[str],
    on_progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """ln p(caption | image) of every caption against every image, `[captions, images]`; equal captions score once."""
    # Captions of one length together: no padding, and nothing depends on which captions share a block.
    distinct = sorted(set(captions), key=lambda caption: (len(captioner.vocabulary.encode(caption)), caption))
    matrix = np.empty((len(distinct), len(rows)), dtype=np.float32)
    for left in range(0, len(rows), IMAGE_BLOCK):
        block = rows[left : left + IMAGE_BLOCK]
        memory = captioner.encode(torch.from_numpy(store.grid(block)).to(captioner.device))
        for top in range(0, len(distinct), CAPTION_BLOCK):
            tokens = captioner.tokenize(distinct[top : top + CAPTION_BLOCK])
            image_of_row = torch.arange(len(block), device=tokens.device).repeat(len(tokens))
            scores = captioner.log_prob(memory, tokens.repeat_interleave(len(block), dim=0), image_of_row)
            matrix[top : top + len(tokens), left : left + len(block)] = scores.view(len(tokens), -1).cpu().numpy()
        if on_progress is not None:
            on_progress(min(left + IMAGE_BLOCK, len(rows)) * len(distinct), len(rows) * len(distinct))
    place = {caption: position for position, caption in enumerate(distinct)}
    return matrix[[place[caption] for caption in captions]]
