"""A captioner that reads each picture twice: as it is, and mirrored left to right."""

from __future__ import annotations

from typing import Any

import torch

from tellapart.data.features import FeatureStore
from tellapart.decoding.base import Decodable
from tellapart.decoding.ensemble import mean_log_prob
from tellapart.decoding.wrapped import Wrapped
from tellapart.text import Vocabulary, mirror_words


class BothViews(Wrapped):
    """The mean of a captioner's word probabilities for a picture I and for its mirror image I'.

    What is on the left in I is on the right in I'. So the mirrored picture is asked for the mirrored caption, in which
    "left" and "right" (and "leftmost", …) have changed places.

    ::

        p(w | w_1…w_t₋₁, I, I') = ½ p(w | w_1…w_t₋₁, I) + ½ p(σ(w) | σ(w_1)…σ(w_t₋₁), I')        σ: left ↔ right

    Args:
        captioner: any captioner or `Ensemble`, in eval mode.

    Example:
        >>> both = BothViews(captioner)                                          # doctest: +SKIP
        >>> decode(both, torch.from_numpy(store.views([0, 1])), settings)        # doctest: +SKIP
    """

    name = "both-views"

    def __init__(self, captioner: Decodable) -> None:
        super().__init__(captioner)
        self._mirrored = mirrored_tokens(captioner.vocabulary).to(captioner.device)

    def encode(self, features: torch.Tensor) -> tuple[Any, Any]:
        """Features of the pictures, then those of the mirrored ones: `[images, 2 regions, width]`."""
        plain, mirrored = features.chunk(2, dim=1)
        return self.captioner.encode(plain), self.captioner.encode(mirrored)

    def start(self, memory: tuple[Any, Any], image_of_row: torch.Tensor) -> tuple[Any, Any]:
        return self.captioner.start(memory[0], image_of_row), self.captioner.start(memory[1], image_of_row)

    def step(self, state: tuple[Any, Any], token: torch.Tensor) -> tuple[torch.Tensor, tuple[Any, Any]]:
        plain, of_plain = self.captioner.step(state[0], token)
        mirrored, of_mirrored = self.captioner.step(state[1], self._mirrored[token])
        return mean_log_prob([plain, mirrored[:, self._mirrored]]), (of_plain, of_mirrored)

    def log_prob(
        self, memory: tuple[Any, Any], tokens: torch.Tensor, image_of_row: torch.Tensor, per_token: bool = False
    ) -> torch.Tensor:
        """ln p(caption | both pictures) under the mean probability of each word; see `Captioner.log_prob`."""
        views = ((memory[0], tokens), (memory[1], self._mirrored[tokens]))
        scores = mean_log_prob(
            [self.captioner.log_prob(own, said, image_of_row, per_token=True) for own, said in views]
        )
        return scores if per_token else scores.sum(dim=1)


def read_both(captioner: Decodable, store: FeatureStore) -> Decodable:
    """The captioner for features by `store.views`: it reads both pictures if the store has mirrored ones."""
    return captioner if store.mirrored is None else BothViews(captioner)


def mirrored_tokens(vocabulary: Vocabulary) -> torch.Tensor:
    """The token for the other side for each token, `[tokens]`; itself if it names no side.

    >>> mirrored_tokens(Vocabulary(["a", "left", "leftover", "right"])).tolist()
    [0, 1, 2, 3, 4, 7, 6, 5]
    """
    row = {token: number for number, token in enumerate(vocabulary.tokens)}
    other = list(range(len(vocabulary)))
    for token, number in row.items():
        begins = "Ġ" if token.startswith("Ġ") else ""  # how some tokenizers write the blank before a word
        if not token.startswith("##"):  # the middle of a word
            other[number] = row.get(begins + mirror_words(token.removeprefix(begins)), number)
    return torch.tensor(other)
