"""ln p(caption | image) of many captions against many images, computed without redundant work.

- Captions with a common prefix share its states (`PrefixTree`): LSTM states or caches of keys and values, through the
  captioner's own `step` and `select`.
- ln p of a prefix can only fall as the prefix grows. So an image is dropped from a prefix as soon as its score is below
  the *floor* of every caption with this prefix: lower scores are not needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tellapart.data.features import FeatureStore
from tellapart.decoding.base import Decodable
from tellapart.errors import DataError
from tellapart.evaluation.prefix_tree import NO_CAPTION, PrefixTree
from tellapart.text import END

# Log probabilities computed by one call, rows × vocabulary (32 MB), and images encoded at once.
LOG_PROBS = 2**23
IMAGES = 16


@dataclass(frozen=True)
class Reached:
    """Scores of (caption, image) at or above the caption's floor; all others are below it.

    Attributes:
        caption, image: positions, `[pairs]` each.
        score: ln p, `[pairs]`, float64.
        steps: how many (prefix, image) the captioner was run on.
    """

    caption: NDArray[np.int64]
    image: NDArray[np.int64]
    score: NDArray[np.float64]
    steps: int

    @staticmethod
    def join(several: list[Reached]) -> Reached:
        return Reached(
            caption=np.concatenate([one.caption for one in several]),
            image=np.concatenate([one.image for one in several]),
            score=np.concatenate([one.score for one in several]),
            steps=sum(one.steps for one in several),
        )


@dataclass(frozen=True)
class _Rows:
    """Rows of the next step: (node, image) pairs, each with the row of the state that it continues."""

    state: Any
    place: torch.Tensor
    node: torch.Tensor
    image: torch.Tensor
    score: torch.Tensor

    def cut(self, rows: slice) -> _Rows:
        return _Rows(self.state, self.place[rows], self.node[rows], self.image[rows], self.score[rows])


class TreeScorer:
    """Scores all captions of a prefix tree against images.

    Scores are kept on the CPU in float64; the captioner runs on its own device. A step has at most `rows_at_once` rows.
    Waiting rows hold the state of the previous step, at most one state per level of the tree, so memory does not grow
    with the number of captions and images.

    Args:
        captioner: in eval mode.
        tree: of the captions' tokens.
        floors: `[captions]`, the score below which a pair is not needed; -inf keeps all pairs.

    Example:
        >>> scorer = TreeScorer(captioner, PrefixTree.of(rows), floors)         # doctest: +SKIP
        >>> reached = scorer.scores(torch.from_numpy(store.grid([0, 1, 2])))    # doctest: +SKIP
    """

    def __init__(self, captioner: Decodable, tree: PrefixTree, floors: NDArray[np.float64]) -> None:
        self.captioner = captioner
        self.floor = torch.from_numpy(tree.lowest(floors))
        self.floor_of_caption = torch.from_numpy(floors)
        self.token = torch.from_numpy(tree.token)
        self.first_child = torch.from_numpy(tree.first_child)
        self.children = torch.from_numpy(tree.children)
        self.caption = torch.from_numpy(tree.caption)
        self.rows_at_once = rows_at_once(captioner)
        # The widest level of a block of images must fit into one step: attention lays rows out as [images, most rows of
        # one image], which wastes memory where a level is cut into pieces of few images.
        self.images_at_once = min(IMAGES, max(1, self.rows_at_once // tree.widest))

    @torch.no_grad()
    def scores(self, features: torch.Tensor) -> Reached:
        """Scores against images with these region features `[images, regions, width]`, encoded some at a time."""
        found = []
        for first in range(0, len(features), self.images_at_once):
            block = features[first : first + self.images_at_once].to(self.captioner.device)
            found.append(self._walk(block, first))
        return Reached.join(found)

    def _walk(self, features: torch.Tensor, first: int) -> Reached:
        """Depth first from the root, so that few states are held at a time."""
        images = torch.arange(len(features))
        state = self.captioner.start(self.captioner.encode(features), images.to(features.device))
        zero = torch.zeros(len(features), dtype=torch.float64)
        waiting = [_Rows(state, images, torch.zeros_like(images), images, zero)]
        ended: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        steps = 0
        while waiting:
            rows = waiting.pop()
            if len(rows.node) > self.rows_at_once:
                waiting.append(rows.cut(slice(self.rows_at_once, None)))
                rows = rows.cut(slice(0, self.rows_at_once))
            steps += len(rows.node)
            log_probs, state = self._step(rows)
            ended.append(self._end(rows, log_probs))
            rows = self._children(rows, log_probs, state)
            if len(rows.node):
                waiting.append(rows)
        caption, image, score = (torch.cat(column).numpy() for column in zip(*ended, strict=True))
        return Reached(caption, image + first, score, steps)

    def _step(self, rows: _Rows) -> tuple[torch.Tensor, Any]:
        device = self.captioner.device
        state = self.captioner.select(rows.state, rows.place.to(device))
        return self.captioner.step(state, self.token[rows.node].to(device))

    def _end(self, rows: _Rows, log_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Captions that end here, their images and scores."""
        here = (self.caption[rows.node] != NO_CAPTION).nonzero()[:, 0]
        caption = self.caption[rows.node[here]]
        score = rows.score[here] + _picked(log_probs, here, torch.full_like(here, END))
        wanted = score >= self.floor_of_caption[caption]
        return caption[wanted], rows.image[here][wanted], score[wanted]

    def _children(self, rows: _Rows, log_probs: torch.Tensor, state: Any) -> _Rows:
        """One row for each child whose score is not below its floor."""
        counts = self.children[rows.node]
        place = torch.arange(len(counts)).repeat_interleave(counts)
        of_siblings = torch.arange(len(place)) - (counts.cumsum(0) - counts)[place]
        node = self.first_child[rows.node[place]] + of_siblings
        score = rows.score[place] + _picked(log_probs, place, self.token[node])
        alive = score >= self.floor[node]
        place = place[alive]
        return _Rows(state, place, node[alive], rows.image[place], score[alive])


@torch.no_grad()
def pair_scores(
    captioner: Decodable,
    store: FeatureStore,
    rows: NDArray[np.int64],
    tokens: torch.Tensor,
    caption: NDArray[np.int64],
    image: NDArray[np.int64],
) -> NDArray[np.float64]:
    """ln p(caption | image) of single pairs, by teacher forcing; efficient when the pairs are sorted by image.

    Args:
        captioner: in eval mode; `read_both` of it if the store has mirrored images.
        store: features of the images.
        rows: the images' rows in the store.
        tokens: `[captions, longest]`, on the captioner's device.
        caption, image: the pairs, `[pairs]` each.
    """
    at_once = max(1, rows_at_once(captioner) // tokens.shape[1])
    scores = [np.zeros(0)]
    for first in range(0, len(caption), at_once):
        pairs = slice(first, first + at_once)
        block, image_of_row = np.unique(image[pairs], return_inverse=True)
        memory = captioner.encode(torch.from_numpy(store.views(rows[block].tolist())).to(captioner.device))
        said = tokens[torch.from_numpy(caption[pairs]).to(captioner.device)]
        of_row = torch.from_numpy(image_of_row).to(captioner.device)
        # Summed in float64: rounding in the sum of a long caption could change a rank.
        scores.append(_checked(captioner.log_prob(memory, said, of_row, per_token=True)).sum(dim=1).numpy())
    return np.concatenate(scores)


def rows_at_once(captioner: Decodable) -> int:
    """Number of rows whose log probabilities fit into one call."""
    return max(1, LOG_PROBS // len(captioner.vocabulary))


def _picked(log_probs: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """`log_probs[rows, tokens]` on the CPU in float64."""
    return _checked(log_probs[rows.to(log_probs.device), tokens.to(log_probs.device)])


def _checked(log_probs: torch.Tensor) -> torch.Tensor:
    """Checked for NaN, and moved to the CPU as float64 (not every device has float64)."""
    if bool(log_probs.isnan().any()):
        raise DataError("a score is not a number (NaN); the model has diverged: train it again")
    return log_probs.cpu().double()
