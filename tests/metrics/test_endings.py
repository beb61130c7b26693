"""Captions that stop in the middle."""

from __future__ import annotations

from tellapart.metrics.endings import UNFINISHED, bad_endings, ends_badly


def test_the_share() -> None:
    assert bad_endings(["a man with a", "a man with a hat", "a cat on top of", "", " "]) == 2 / 5
    assert bad_endings([]) == 0.0


def test_only_the_last_word_counts() -> None:
    for word in UNFINISHED:
        assert ends_badly(f"a man {word}")
        assert ends_badly(f"{word} ")
        assert not ends_badly(f"a {word} man")
