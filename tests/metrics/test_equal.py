"""Equal integers and words against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tellapart.metrics.equal import distinct_words, first_equal, last_equal


def naive_first_equal(keys: list[int]) -> list[int]:
    first: dict[int, int] = {}
    return [first.setdefault(key, place) for place, key in enumerate(keys)]


@pytest.mark.parametrize("largest", [1, 30, 10**6, 2**63 - 1])
@pytest.mark.parametrize("size", [0, 1, 2, 1000])
def test_first_equal(size: int, largest: int) -> None:
    keys = np.random.default_rng(0).integers(0, largest, size, endpoint=True)
    assert first_equal(keys).tolist() == naive_first_equal(keys.tolist())


def test_last_equal() -> None:
    keys = np.random.default_rng(1).integers(0, 300, 1000)
    last = {key: place for place, key in enumerate(keys.tolist())}
    assert last_equal(keys).tolist() == [last[key] for key in keys.tolist()]


def test_keys_that_share_all_but_their_upper_bits() -> None:
    keys = np.repeat(np.arange(500, dtype=np.uint64) << np.uint64(54), 3)
    assert first_equal(keys).tolist() == naive_first_equal(keys.tolist())


# Words of seven to seventeen bytes, which begin alike, end where eight bytes do, or have bytes of other scripts.
PARTS = ["a", "b", "abcdefg", "abcdefgh", "é", "中", "\0", "\n", "\xa0", "\ud800", "\U0001f600", " ", " "]


@given(st.lists(st.lists(st.sampled_from(PARTS), max_size=8).map("".join), max_size=8))
def test_words_are_those_between_single_spaces(captions: list[str]) -> None:
    words, number, lengths = distinct_words(captions)
    expected = [caption.split(" ") for caption in captions]
    flat = [word for split in expected for word in split]
    assert [words[place] for place in number] == flat
    assert words == list(dict.fromkeys(flat))
    assert lengths.tolist() == list(map(len, expected))
