"""The result type of metrics whose corpus figure is the mean over the images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ImageScores:
    """A metric's score of each image, `per_image` of shape [images]."""

    per_image: NDArray[np.float64]

    @property
    def corpus(self) -> float:
        """The mean over the images."""
        return float(self.per_image.mean())
