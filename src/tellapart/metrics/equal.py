"""Equal integers, and equal words, among many, by hashing in NumPy: several times faster than sorting or a dictionary.

All keys are written into a table, each at the slot its hash says, and read back. Of the keys of one slot the first one
owns it, and all equal to the owner are done. The few others go through another round with another hash.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

_ODD = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: a product with it spreads keys over its upper bits
_BITS = 64
_BYTES = 8
_BLANK = 0x20
_CODE = ("utf-8", "surrogatepass")
# For words with 0…8 bytes left: the bits of the bytes after their end, all 1. 0xFF is no byte of a text.
_AFTER = np.array([(1 << _BITS) - (1 << 8 * left) for left in range(_BYTES + 1)], dtype=np.uint64)


def first_equal(keys: NDArray[np.int64] | NDArray[np.uint64]) -> Numbers:
    """For each key, the place of the first key equal to it.

    >>> first_equal(np.array([7, 3, 7, 7, 3])).tolist()
    [0, 1, 0, 0, 1]
    """
    key = keys.view(np.uint64)
    # Small integers: the table is read and written in no order, and half of it is in the processor's cache sooner.
    left = np.arange(len(key), dtype=np.int32 if len(key) < 1 << 31 else np.int64)
    bits = max(1, len(key).bit_length())
    table = np.empty(1 << bits, dtype=left.dtype)
    first, mine, factor = left, key, _ODD
    while len(left):
        hashed = mine * np.uint64(factor)
        hashed >>= np.uint64(_BITS - bits)
        slot = hashed.view(np.int64)
        # Of equal slots the last one written stays.
        table[slot[::-1]] = left[::-1]
        owner = table[slot]
        if mine is key:
            first = owner
        else:
            first[left] = owner
        other = (key[owner] != mine).nonzero()[0]
        left, mine, factor = left[other], mine[other], factor * _ODD % (1 << _BITS)
    return first.astype(np.int64)


def distinct_words(captions: Sequence[str]) -> tuple[list[str], Numbers, Numbers]:
    """The different words of captions split at every single space, like `str.split(" ")`.

    Returns:
        The words in order of appearance, the place among them of every word of all captions, concatenated, and the
        number of words per caption.

    Example:
        >>> words, number, lengths = distinct_words(["a dog sees a cat", "a  cat"])
        >>> words, number.tolist(), lengths.tolist()
        (['a', 'dog', 'sees', 'cat', ''], [0, 1, 2, 0, 3, 0, 4, 3], [5, 3])
    """
    if not captions:
        return [], np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    # A space after every caption, and what is read as the last word's next eight bytes.
    text = (" ".join(captions) + " " * (1 + _BYTES)).encode(*_CODE)
    end = np.flatnonzero(np.frombuffer(text, dtype=np.uint8)[:-_BYTES] == _BLANK)
    # One array for three: C's allocator keeps freed memory for the arrays to come, instead of giving it back to the
    # system each time, only up to twice the largest piece it has freed. Memory from the system is slow to touch.
    start, length, key = np.empty((3, len(end)), dtype=np.int64)
    start[0] = 0
    np.add(end[:-1], 1, out=start[1:])
    np.subtract(end, start, out=length)
    first = _first_equal_word(text, start, length, key.view(np.uint64))
    is_first = first == np.arange(len(first))
    new = np.flatnonzero(is_first)
    bounds = zip(start[new].tolist(), end[new].tolist(), strict=True)
    words = b" ".join([text[one:other] for one, other in bounds]).decode(*_CODE).split(" ")
    number = (np.cumsum(is_first) - 1)[first]
    sizes = map(len, captions) if text.isascii() else (len(caption.encode(*_CODE)) for caption in captions)
    ends = np.cumsum(np.fromiter(sizes, dtype=np.int64, count=len(captions)) + 1) - 1
    return words, number, np.diff(np.searchsorted(end, ends), prepend=-1)


def _first_equal_word(text: bytes, start: Numbers, length: Numbers, key: NDArray[np.uint64]) -> Numbers:
    """For each word, given by its first byte and number of bytes, the place of the first equal word.

    Words are compared eight bytes at a time, as one integer. `key` is room for those.
    """
    # Every eight bytes in a row, as an integer each.
    eight = np.ndarray(len(text) - _BYTES + 1, dtype="<u8", buffer=text, strides=(1,))
    np.bitwise_or(eight[start], _AFTER[np.minimum(length, _BYTES)], out=key)
    first = first_equal(key)
    done = _BYTES
    # Words of exactly eight bytes take part in the next round: their end has not been seen.
    longer = np.flatnonzero(length >= done)
    while len(longer):
        rest = first_equal(eight[start[longer] + done] | _AFTER[np.minimum(length[longer] - done, _BYTES)])
        first[longer] = longer[first_equal(first[longer] * len(first) + rest)]
        done += _BYTES
        longer = longer[length[longer] >= done]
    return first
