"""Entropies of softmax distributions over many images, summed a block of scores at a time.

Similarities are computed in float32, a block of captions × images at a time. A block adds to Z and to Σ e^(s/τ) s/τ,
both relative to the largest score so far, and is dropped: memory holds one vector per image, and one block.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from tellapart.errors import DataError

# CLIP's own, by which the paper's retriever was trained.
TEMPERATURE = 0.01
# Captions × images compared at a time: 8 MB of scores, which is about as fast as the matrix product alone.
CAPTIONS, IMAGES = 1024, 2048

Vectors = NDArray[np.float32]
Entropies = NDArray[np.float64]


class EntropySums:
    """The entropies of captions, from their scores a block of images after the other.

    Args:
        captions: how many.
        device: where the scores are.

    Example:
        >>> sums = EntropySums(1)
        >>> for part in ([[0.0, 0.0]], [[0.0]], [[0.0]]):
        ...     sums.add(torch.tensor(part))
        >>> bool(abs(sums.entropies()[0] - np.log(4)) < 1e-6)
        True
    """

    def __init__(self, captions: int, device: torch.device | str = "cpu") -> None:
        self._top = torch.full((captions,), -torch.inf, device=device)
        self._mass, self._scored = (torch.zeros(captions, dtype=torch.float64, device=device) for _ in range(2))

    def add(self, scores: torch.Tensor, memory: torch.Tensor | None = None) -> None:
        """Count the images of a block.

        Args:
            scores: s / τ, `[captions, images]` in float32; they are overwritten.
            memory: as large as the scores, to be overwritten too. Fresh memory for each block costs more time than the
                sums.
        """
        top = torch.maximum(self._top, scores.amax(dim=1))
        if not torch.isfinite(top).all():
            raise DataError("a similarity is not a finite number; the retriever has diverged: train it again")
        # What is there is relative to the largest score before: e^(s−top) = e^(s−before) e^(before−top).
        fall = torch.where(torch.isfinite(self._top), self._top - top, 0.0).double()
        self._scored = (self._scored + fall * self._mass) * fall.exp()
        self._mass *= fall.exp()
        scores -= top[:, None]
        weights = torch.exp(scores, out=memory)
        self._mass += weights.sum(dim=1)
        self._scored += weights.mul_(scores).sum(dim=1)
        self._top = top

    def entropies(self) -> Entropies:
        """H of every caption, in nats."""
        found: Entropies = (self._mass.log() - self._scored / self._mass).clamp(min=0).cpu().numpy()
        return found


def vector_entropies(
    images: Vectors | torch.Tensor, captions: Vectors | torch.Tensor, temperature: float = TEMPERATURE
) -> Entropies:
    """Retrieval entropy of each caption over these images, from vectors whose inner products are the similarities.

    Args:
        images: `[images, width]`, float32.
        captions: `[captions, width]`, float32.
        temperature: τ.

    Example:
        >>> images = np.eye(3, dtype=np.float32)
        >>> captions = np.array([[1, 0, 0], [0.5, 0.5, 0], [0, 0, 0]], dtype=np.float32)
        >>> vector_entropies(images, captions).round(3).tolist()
        [0.0, 0.693, 1.099]
    """
    of_images, of_captions = (torch.as_tensor(vectors, dtype=torch.float32) for vectors in (images, captions))
    found = np.empty(len(of_captions))
    memory = torch.empty(2, CAPTIONS * IMAGES, device=of_captions.device)
    for start in range(0, len(of_captions), CAPTIONS):
        part = of_captions[start : start + CAPTIONS] / temperature
        sums = EntropySums(len(part), part.device)
        for first in range(0, len(of_images), IMAGES):
            block = of_images[first : first + IMAGES].t()
            scores, weights = memory[:, : len(part) * block.shape[1]].view(2, len(part), block.shape[1])
            sums.add(torch.mm(part, block, out=scores), weights)
        found[start : start + CAPTIONS] = sums.entropies()
    return found
