"""Base of captioners whose next word is chosen by other scores than their own probabilities."""

from __future__ import annotations

from typing import Any

import torch

from tellapart.captioners.base import words_before
from tellapart.decoding.wrapped import Wrapped
from tellapart.text import PAD


class Reweighted(Wrapped):
    """A captioner with other probabilities of the next word.

    It can replace a captioner in decoding; `log_prob` is that of the new probabilities, and `own_log_prob` that of the
    captioner.
    """

    def log_prob(
        self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor, per_token: bool = False
    ) -> torch.Tensor:
        """The new ln p(caption | image), word by word: teacher forcing does not give all words' probabilities."""
        state, columns = self.start(memory, image_of_row), []
        for token, word in zip(words_before(tokens).unbind(dim=1), tokens.unbind(dim=1), strict=True):
            log_probs, state = self.step(state, token)
            columns.append(log_probs.gather(1, word[:, None]).squeeze(1))
        scores = torch.stack(columns, dim=1).masked_fill(tokens == PAD, 0.0)
        return scores if per_token else scores.sum(dim=1)

    def own_log_prob(self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        """The captioner's own ln p(caption | image)."""
        return self.captioner.log_prob(self.own_memory(memory), tokens, image_of_row)
