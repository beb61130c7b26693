"""How varied the captions of a test set are, whatever their quality."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Diversity:
    """Figures over all captions of a test set.

    distinct:    different captions / captions
    novel:       captions that are no exact training caption / captions; None without training captions
    vocabulary:  number of different words used
    mean_length: words / captions
    """

    distinct: float
    novel: float | None
    vocabulary: int
    mean_length: float


def caption_diversity(captions: Sequence[str], training_captions: Iterable[str] | None = None) -> Diversity:
    """Diversity of at least one caption; captions are tokens joined by white space.

    The training captions must have gone through the same tokeniser, or all captions look novel. An empty
    caption counts as neither distinct nor novel: a model that says nothing must not gain by it.
    """
    if not captions:
        raise ValueError("diversity needs at least one caption")
    words = [tuple(caption.split()) for caption in captions]
    spoken = [caption for caption in words if caption]
    novel = None
    if training_captions is not None:
        known = {tuple(caption.split()) for caption in training_captions}
        novel = sum(caption not in known for caption in spoken) / len(words)
    return Diversity(
        distinct=len(set(spoken)) / len(words),
        novel=novel,
        vocabulary=len({word for caption in words for word in caption}),
        mean_length=sum(map(len, words)) / len(words),
    )
