"""Diversity figures counted by hand."""

from __future__ import annotations

import pytest

from tellapart.metrics import caption_diversity

CAPTIONS = ["a dog runs", "a dog runs", "a cat", "the cat sleeps here"]


def test_by_hand() -> None:
    figures = caption_diversity(CAPTIONS, ["a cat", "a red bus"])
    assert figures.distinct == 3 / 4
    assert figures.novel == 3 / 4
    assert figures.vocabulary == 7
    assert figures.mean_length == 12 / 4


def test_without_training_captions_novelty_is_unknown() -> None:
    assert caption_diversity(CAPTIONS).novel is None
    # An empty list is an answer, not a missing one: nothing was seen in training.
    assert caption_diversity(CAPTIONS, []).novel == 1.0


def test_white_space_makes_no_difference() -> None:
    figures = caption_diversity(["a  dog", "a dog "], [" a dog"])
    assert figures.distinct == 1 / 2
    assert figures.novel == 0.0


def test_empty_captions_gain_nothing() -> None:
    figures = caption_diversity(["", " "], ["a dog"])
    assert (figures.distinct, figures.novel, figures.vocabulary, figures.mean_length) == (0.0, 0.0, 0, 0.0)


def test_no_captions_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one caption"):
        caption_diversity([])
