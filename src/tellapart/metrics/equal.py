"""Equal integers, and equal words, among many, by hashing in NumPy: several times faster than sorting or a dictionary.

All keys are written into a table, each at the slot its hash says, and read back. Of the keys of one slot the last one
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
_LINE_END = 0x0A
_CODE = ("utf-8", "surrogatepass")
# Memory used at once for each word of all captions, and the largest piece that changes what glibc keeps.
_MEMORY_FOR_A_WORD = 128
_LARGEST_PIECE = 31 << 20
# For words with 0…8 bytes left: the bits of the bytes after their end, all 1. 0xFF is no byte of a text.
_AFTER = np.array([(1 << _BITS) - (1 << 8 * left) for left in range(_BYTES + 1)], dtype=np.uint64)


def first_equal(keys: NDArray[np.int64] | NDArray[np.uint64]) -> Numbers:
    """For each key, the place of the first key equal to it.

    >>> first_equal(np.array([7, 3, 7, 7, 3])).tolist()
    [0, 1, 0, 0, 1]
    """
    return len(keys) - 1 - last_equal(keys[::-1])[::-1]


def last_equal(keys: NDArray[np.int64] | NDArray[np.uint64]) -> Numbers:
    """For each key, the place of the last key equal to it. A little faster than `first_equal`.

    >>> last_equal(np.array([7, 3, 7, 7, 3])).tolist()
    [3, 4, 3, 3, 4]
    """
    key = np.ascontiguousarray(keys).view(np.uint64)
    # Small integers: the table is read and written in no order, and half of it is in the processor's cache sooner.
    left = np.arange(len(key), dtype=np.int32 if len(key) < 1 << 31 else np.int64)
    bits = max(1, len(key).bit_length())
    table = np.empty(1 << bits, dtype=left.dtype)
    last, mine, factor = np.zeros(0, dtype=np.int64), key, _ODD
    while len(left):
        hashed = mine * np.uint64(factor)
        hashed >>= np.uint64(_BITS - bits)
        slot = hashed.view(np.int64)
        # Of equal slots the last one written stays.
        table[slot] = left
        # Indices of eight bytes, which NumPy would make anyway; `take` is faster than brackets.
        owner = table.take(slot).astype(np.int64)
        if mine is key:
            last = owner
        else:
            last[left] = owner
        other = (key.take(owner) != mine).nonzero()[0]
        left, mine, factor = left.take(other), mine.take(other), factor * _ODD % (1 << _BITS)
    return last


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
    # A line end after every caption, and what is read as the last word's next eight bytes.
    joined = "\n".join(captions) + "\n" + " " * _BYTES
    text = joined.encode(*_CODE)
    byte = np.frombuffer(text, dtype=np.uint8)[:-_BYTES]
    if joined.count("\n") == len(captions):
        end = np.flatnonzero((byte == _BLANK) | (byte == _LINE_END))
        last = np.flatnonzero(byte.take(end) == _LINE_END)
    else:
        # Some captions have line ends of their own.
        ends = np.cumsum([len(caption.encode(*_CODE)) + 1 for caption in captions]) - 1
        is_end = byte == _BLANK
        is_end[ends] = True
        end = np.flatnonzero(is_end)
        last = np.searchsorted(end, ends)
    keep_freed_memory(_MEMORY_FOR_A_WORD * len(end))
    start = np.empty_like(end)
    start[0] = 0
    np.add(end[:-1], 1, out=start[1:])
    length = end - start
    first = _first_equal_word(text, start, length)
    new = np.flatnonzero(first == np.arange(len(first)))
    words = _pieces(byte, start.take(new), length.take(new))
    number = np.empty_like(first)
    number[new] = np.arange(len(new))
    return words, number.take(first), np.diff(last, prepend=-1)


def _pieces(byte: NDArray[np.uint8], start: Numbers, length: Numbers) -> list[str]:
    """Pieces of a text without spaces, which have a character of one byte after each."""
    size = length + 1
    after = np.cumsum(size)
    some = byte.take(np.repeat(start - (after - size), size) + np.arange(after[-1]))
    some[after - 1] = _BLANK
    return some[:-1].tobytes().decode(*_CODE).split(" ")


def keep_freed_memory(size: int) -> None:
    """Have C's allocator keep so many bytes of freed memory for the arrays to come.

    glibc gives freed memory back to the system, from which it is slow to touch again, unless it is less than twice the
    largest piece of up to 32 MB that was freed before. This piece is never touched, so it costs nothing.
    """
    np.empty(min(size // 2, _LARGEST_PIECE), dtype=np.uint8)


def _first_equal_word(text: bytes, start: Numbers, length: Numbers) -> Numbers:
    """For each word, given by its first byte and number of bytes, the place of the first equal word.

    Words are compared eight bytes at a time, as one integer.
    """
    # Every eight bytes in a row, as an integer each.
    eight = np.ndarray(len(text) - _BYTES + 1, dtype="<u8", buffer=text, strides=(1,))
    first = first_equal(eight[start] | _AFTER.take(length, mode="clip"))
    done = _BYTES
    # Words of exactly eight bytes take part in the next round: their end has not been seen.
    longer = np.flatnonzero(length >= done)
    while len(longer):
        rest = first_equal(eight[start[longer] + done] | _AFTER.take(length[longer] - done, mode="clip"))
        first[longer] = longer[first_equal(first[longer] * len(first) + rest)]
        done += _BYTES
        longer = longer[length[longer] >= done]
    return first
