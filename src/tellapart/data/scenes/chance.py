"""Random choices that are the same on every Python version.

Only `random.Random.random()` is documented never to change for a given seed; `choice`, `shuffle` and `sample` may.
So all random choices of scenes use these functions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def seeded(*parts: object) -> random.Random:
    """A generator that depends only on the text of `parts` (string seeds do not use `hash()`)."""
    return random.Random("/".join(str(part) for part in parts))


def pick(rng: random.Random, options: Sequence[T]) -> T:
    return options[int(rng.random() * len(options))]


def pick_weighted(rng: random.Random, options: Sequence[tuple[T, float]]) -> T:
    at = rng.random() * sum(weight for _, weight in options)
    for option, weight in options:
        at -= weight
        if at < 0:
            return option
    return options[-1][0]


def shuffled(rng: random.Random, options: Sequence[T]) -> list[T]:
    left = list(options)
    return [left.pop(int(rng.random() * len(left))) for _ in range(len(left))]


def between(rng: random.Random, low: float, high: float) -> float:
    return low + (high - low) * rng.random()


def likely(rng: random.Random, probability: float) -> bool:
    return rng.random() < probability
