"""All captions of a test set as arrays, and their n-grams counted with one sort per order.

BLEU and CIDEr need the same counts: which captions have an n-gram, and how often. Words become numbers, all captions
are in one flat array, and the occurrences of n-grams are sorted by (n-gram, place). Captions are ordered by image, the
candidate before its references. So occurrences of an n-gram in one caption, in one image and in all images are
contiguous, and every count is the distance between two borders.

An n-gram that occurs once in the corpus matches nothing, nor does a longer one that contains it. So most occurrences
are dropped before the longer orders are sorted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

import numpy as np
from numpy.typing import NDArray

ORDERS = 4

# Captions split as one string, which is faster than one call per caption; the words stay in the processor's cache.
_BLOCK = 1 << 10
# The separator of captions in a block; it has number 0, which no word has.
_BORDER = "|||||"
# Captions cached before the cache is cleared: about 100 MB.
_REMEMBERED = 1 << 19
_SORTABLE_BITS = 63
_SIZE = np.dtype(np.int32).itemsize

Numbers = NDArray[np.int64]


class WordNumbers:
    """Numbers words from 1 in order of appearance, and caches the captions it has numbered.

    References are scored again with every set of candidates; the cache splits them only once.

    >>> vocabulary = WordNumbers()
    >>> vocabulary.number(["a dog sees a cat", "a cat"])[0].tolist()
    [1, 2, 3, 1, 4, 1, 4]
    """

    def __init__(self, words: Sequence[str] = ()) -> None:
        self._number: defaultdict[str, int] = defaultdict()
        self._number.default_factory = self._number.__len__
        for word in (_BORDER, *words):
            self._number[word]
        self._captions: dict[str, bytes] = {}
        # Captions that split differently at single spaces than at any white space.
        self._uneven: set[str] = set()
        # Keeps two threads from giving the same number to two words.
        self._lock = Lock()

    def __len__(self) -> int:
        """Numbers in use, including the border's 0."""
        return len(self._number)

    @property
    def words(self) -> list[str]:
        """The words in the order of their numbers, from 1."""
        return list(self._number)[1:]

    @property
    def captions(self) -> int:
        """Number of cached captions."""
        return len(self._captions)

    def number(self, captions: Sequence[str], *, single_blanks: bool = False) -> tuple[NDArray[np.int32], Numbers]:
        """Word numbers of all captions, concatenated, and the number of words per caption.

        Words are separated by any white space, or by every single space (`single_blanks`): then two spaces have an
        empty word between them, and other white space is part of a word.
        """
        with self._lock:
            return self._number_all(captions, single_blanks)

    def _number_all(self, captions: Sequence[str], single_blanks: bool) -> tuple[NDArray[np.int32], Numbers]:
        known = self._captions
        new = [caption for caption in dict.fromkeys(captions) if caption not in known]
        for start in range(0, len(new), _BLOCK):
            self._learn(new[start : start + _BLOCK])
        if single_blanks and not self.same_by_single_blanks(captions):
            uneven = {
                caption: self._number_words(caption.split(" ")) for caption in self._uneven.intersection(captions)
            }
            found = [uneven.get(caption, known[caption]) for caption in captions]
        else:
            found = [known[caption] for caption in captions]
        numbers = np.frombuffer(b"".join(found), dtype=np.int32)
        return numbers, np.fromiter(map(len, found), dtype=np.int64, count=len(found)) // _SIZE

    def same_by_single_blanks(self, captions: Sequence[str]) -> bool:
        """Whether these captions split into the same words at single spaces as at any white space."""
        return self._uneven.isdisjoint(captions)

    def _learn(self, captions: Sequence[str]) -> None:
        """Number the words of new captions, split as one string."""
        text = f" {_BORDER} ".join(captions)
        words = text.split()
        numbers = np.fromiter(map(self._number.__getitem__, words), dtype=np.int32, count=len(words))
        borders = np.flatnonzero(numbers == 0)
        if len(borders) == len(captions) - 1:
            stored = numbers.tobytes()
            begins, ends = [0, *((borders + 1) * _SIZE).tolist()], [*(borders * _SIZE).tolist(), len(stored)]
            rows = [stored[begin:end] for begin, end in zip(begins, ends, strict=True)]
        else:
            # A caption contains the border's word.
            rows = [self._number_words(caption.split()) for caption in captions]
        self._captions.update(zip(captions, rows, strict=True))
        if not _is_even(text, len(words)):
            lengths = (len(row) // _SIZE for row in rows)
            self._uneven.update(c for c, length in zip(captions, lengths, strict=True) if not _is_even(c, length))

    def _number_words(self, words: Sequence[str]) -> bytes:
        # The border's word is renamed to " ", which cannot be a word.
        return np.array([self._number[word if word != _BORDER else " "] for word in words], dtype=np.int32).tobytes()


def _is_even(text: str, words: int) -> bool:
    """Whether the words are separated by single spaces only: of all white space only the space is printable."""
    return text.count(" ") + 1 == words and text.isprintable()


_shared = WordNumbers()


def _shared_vocabulary() -> WordNumbers:
    """The instance shared by all calls; a full one is replaced."""
    if _shared.captions > _REMEMBERED:
        forget()
    return _shared


def forget() -> None:
    """Clear the cache of captions."""
    global _shared
    _shared = WordNumbers()


@dataclass(frozen=True)
class Captions:
    """Captions as word numbers, image by image: the candidate, then its references.

    words:      the words of all captions, concatenated
    lengths:    words per caption
    references: references per image
    vocabulary: the numbers of the words
    single_blanks: whether these are the words between single spaces (needed by ROUGE)
    """

    words: NDArray[np.int32]
    lengths: Numbers
    references: Numbers
    vocabulary: WordNumbers
    single_blanks: bool

    @property
    def images(self) -> int:
        return len(self.references)

    @cached_property
    def candidate(self) -> Numbers:
        """Position of each image's candidate among the captions."""
        return np.arange(self.images) + np.cumsum(self.references) - self.references

    @cached_property
    def image_of(self) -> Numbers:
        """Image of each caption."""
        return np.repeat(np.arange(self.images), self.references + 1)

    @cached_property
    def is_candidate(self) -> NDArray[np.bool_]:
        flags = np.zeros(len(self.lengths), dtype=np.bool_)
        flags[self.candidate] = True
        return flags

    @cached_property
    def caption_of(self) -> Numbers:
        """Caption of each word."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


def number_captions(
    references: Sequence[Sequence[str]],
    candidates: Sequence[str],
    vocabulary: WordNumbers | None = None,
    *,
    single_blanks: bool = False,
) -> Captions:
    """Split captions into numbered words; `references[i]` (one or more) belong to `candidates[i]`.

    Words are separated by any white space (BLEU, CIDEr), or by every single space (`single_blanks`, for ROUGE: then an
    empty caption is one empty word).
    """
    if len(references) != len(candidates) or not all(references):
        raise ValueError("every candidate needs a list of at least one reference")
    captions: list[str] = []
    for candidate, group in zip(candidates, references, strict=True):
        captions.append(candidate)
        captions += group
    vocabulary = _shared_vocabulary() if vocabulary is None else vocabulary
    words, lengths = vocabulary.number(captions, single_blanks=single_blanks)
    counts = np.fromiter(map(len, references), dtype=np.int64, count=len(references))
    return Captions(words, lengths, counts, vocabulary, single_blanks or vocabulary.same_by_single_blanks(captions))


@dataclass(frozen=True)
class Rows:
    """The n-grams of one order: one row per n-gram and caption, sorted by n-gram, then by caption.

    order:      n
    gram:       number of the row's n-gram, from 0 without gaps
    caption:    its caption
    count:      occurrences in the caption
    group:      where each (n-gram, image) begins among the rows; the image's candidate, if it has it, comes first
    group_gram: the n-gram of each group
    place:      where each n-gram first occurs among the words
    key:        each n-gram as (number of its first n-1 words) · vocabulary + last word, sorted
    said:       the candidates' rows in groups that have reference rows too
    others:     number of reference rows after each of those
    """

    order: int
    gram: Numbers
    caption: Numbers
    count: Numbers
    group: Numbers
    group_gram: Numbers
    place: Numbers
    key: Numbers
    said: Numbers
    others: Numbers


def ngram_rows(captions: Captions, *, repeated_only: bool) -> Iterator[Rows]:
    """For n = 1…4, the n-grams of all captions; with `repeated_only`, those that occur at least twice in the corpus."""
    words, caption_of = captions.words, captions.caption_of
    # gram[i]: number of the n-gram that begins at word i, or -1 if there is none or it was dropped.
    gram = words.astype(np.int64)
    for order in range(1, ORDERS + 1):
        if order == 1:
            place, key = np.arange(len(words)), gram
        else:
            # An n-gram is an (n-1)-gram and a word; one that contains a dropped (n-1)-gram cannot be kept.
            whole = (gram[:-1] >= 0) & (gram[1:] >= 0)
            place = np.flatnonzero(whole)
            last = place + (order - 1)
            fits = last < len(words)
            place, last = place[fits], last[fits]
            same = caption_of[place] == caption_of[last]
            place, last = place[same], last[same]
            key = gram[place] * len(captions.vocabulary) + words[last]
        key, place = _sorted_by_key(key, place)
        starts_gram = np.ones(len(key), dtype=np.bool_)
        np.not_equal(key[1:], key[:-1], out=starts_gram[1:])
        if repeated_only:
            repeated = ~starts_gram
            repeated[:-1] |= repeated[1:]
            key, place, starts_gram = key[repeated], place[repeated], starts_gram[repeated]
        number = np.cumsum(starts_gram) - 1
        gram = np.full(len(words), -1, dtype=np.int64)
        gram[place] = number
        yield _rows(order, key, place, starts_gram, number, captions)


def _sorted_by_key(key: Numbers, place: Numbers) -> tuple[Numbers, Numbers]:
    """Both, sorted by key; equal keys stay in order of place."""
    bits = int(place.max(initial=0)).bit_length()
    if int(key.max(initial=0)).bit_length() + bits <= _SORTABLE_BITS:
        # One sort of plain integers is several times faster than an argsort.
        packed = (key << bits) | place
        packed.sort()
        return packed >> bits, packed & ((1 << bits) - 1)
    order = np.argsort(key, kind="stable")
    return key[order], place[order]


def _rows(
    order: int, key: Numbers, place: Numbers, starts_gram: NDArray[np.bool_], number: Numbers, captions: Captions
) -> Rows:
    """Gather occurrences, sorted by n-gram and place, into rows and groups."""
    caption = captions.caption_of[place]
    starts_row = starts_gram.copy()
    starts_row[1:] |= caption[1:] != caption[:-1]
    row = np.flatnonzero(starts_row)
    image = captions.image_of[caption[row]]
    starts_group = starts_gram[row]
    starts_group[1:] |= image[1:] != image[:-1]
    group = np.flatnonzero(starts_group)
    count, size = _distances(row, len(caption)), _distances(group, len(row))
    caption = caption[row]
    matched = captions.is_candidate[caption[group]] & (size > 1)
    return Rows(
        order=order,
        gram=number[row],
        caption=caption,
        count=count,
        group=group,
        group_gram=number[row[group]],
        place=place[starts_gram],
        key=key[starts_gram],
        said=group[matched],
        others=size[matched] - 1,
    )


def _distances(starts: Numbers, end: int) -> Numbers:
    """From each start to the next, and from the last to the end."""
    distances = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=distances[:-1])
    distances[-1:] = end - starts[-1:]
    return distances


def ranges(starts: Numbers, counts: Numbers) -> Numbers:
    """The ranges start, start + 1, … of these lengths, one after the other.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    return np.asarray(np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum()))
