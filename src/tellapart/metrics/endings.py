"""Captions that stop in the middle, such as "a man with a": a known fault of captioners trained by CIDEr."""

from __future__ import annotations

from collections.abc import Sequence

# Words that hardly ever end a caption of a person.
UNFINISHED = frozenset(
    ("a", "an", "the", "with", "on", "in", "of", "and", "to", "at", "by", "for", "is", "are", "next", "top", "front")
)


def bad_endings(captions: Sequence[str]) -> float:
    """Share of the captions whose last word is in `UNFINISHED`; captions are words joined by white space.

    An empty caption has no last word, so it is not counted as bad; 0 without captions.

    >>> bad_endings(["a man with a", "a red car", ""]).__round__(3)
    0.333
    """
    return sum(ends_badly(caption) for caption in captions) / max(1, len(captions))


def ends_badly(caption: str) -> bool:
    """Whether the last word of a caption is in `UNFINISHED`.

    >>> ends_badly("a man on top"), ends_badly("a man on a horse")
    (True, False)
    """
    words = caption.split()
    return bool(words) and words[-1] in UNFINISHED
