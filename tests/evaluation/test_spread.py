"""The spread of negatives against a loop over pairs."""

from __future__ import annotations

import numpy as np
import pytest

from tellapart.evaluation.spread import negative_spread


@pytest.mark.parametrize("chunk", [1, 3, 256])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_it_is_the_deviation_of_what_belongs_to_other_images(chunk: int, offset: float) -> None:
    rng = np.random.default_rng(0)
    owner = np.array([0, 0, 1, 2, 2, 2, 3, 4, 4])
    scores = rng.normal(size=(5, 9)) + offset  # a common offset must not cancel the digits
    asked: list[int] = []

    def block(rows: slice, columns: np.ndarray) -> np.ndarray:
        asked.append(rows.stop - rows.start)
        return scores[rows][:, columns]

    spread = negative_spread(block, owner, 5, chunk=chunk)
    assert max(asked) <= chunk
    for image in range(5):
        assert spread.image_to_text[image] == pytest.approx(scores[image][owner != image].std(), rel=1e-6)
    for caption in range(9):
        others = np.arange(5) != owner[caption]
        assert spread.text_to_image[caption] == pytest.approx(scores[others, caption].std(), rel=1e-6)
    assert spread.figures()["image_to_text_negative_SD"] == pytest.approx(spread.image_to_text.mean())


def test_an_anchor_without_negatives_has_none() -> None:
    spread = negative_spread(lambda rows, columns: np.ones((1, 2)), np.array([0, 0]), 1)
    assert spread.image_to_text.tolist() == [0.0]
    assert spread.text_to_image.tolist() == [0.0, 0.0]
