"""All captions of a test set as arrays, and their n-grams counted in one sort per order.

BLEU and CIDEr ask the same of every n-gram: which captions hold it, and how often? Words become numbers, all captions
lie in one flat array, and the occurrences of the n-grams are sorted by (n-gram, place). Captions are laid out image by
image, the candidate before its references; so in that order the occurrences of one n-gram in one caption, those in one
image, and those in all images are neighbours, and every count is the distance between two borders.

An n-gram that occurs once in the whole corpus matches nothing, and neither does a longer one around it: most
occurrences are dropped before the longer orders are sorted.
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

# Captions split as one string: one call instead of one per caption, and their words stay in the processor's cache.
_BLOCK = 1 << 10
# Number 0 stands between two captions of a block, and is no word's number.
_BORDER = "|||||"
# Captions remembered before everything is forgotten: some 100 MB.
_REMEMBERED = 1 << 19
_SORTABLE_BITS = 63
_SIZE = np.dtype(np.int32).itemsize

Numbers = NDArray[np.int64]


class Vocabulary:
    """Numbers words, counted from 1 in the order in which they come, and remembers the captions it has numbered.

    References are scored again and again, against every new set of candidates: they are split once.

    >>> vocabulary = Vocabulary()
    >>> vocabulary.number(["a dog sees a cat", "a cat"])[0].tolist()
    [1, 2, 3, 1, 4, 1, 4]
    """

    def __init__(self, words: Sequence[str] = ()) -> None:
        self._number: defaultdict[str, int] = defaultdict()
        self._number.default_factory = self._number.__len__
        for word in (_BORDER, *words):
            self._number[word]
        self._captions: dict[str, bytes] = {}
        # Captions that single blanks separate into other words than any white space does.
        self._uneven: set[str] = set()
        # Two threads must not give the same number to two words.
        self._lock = Lock()

    def __len__(self) -> int:
        """Numbers in use, the 0 of the border among them."""
        return len(self._number)

    @property
    def words(self) -> list[str]:
        """In the order of their numbers, from 1 on."""
        return list(self._number)[1:]

    @property
    def captions(self) -> int:
        """How many captions are remembered."""
        return len(self._captions)

    def number(self, captions: Sequence[str], *, single_blanks: bool = False) -> tuple[NDArray[np.int32], Numbers]:
        """Word numbers of all captions, one after the other, and words per caption.

        Words are separated by any white space, or by every single blank (`single_blanks`): then two blanks have an
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
        """Whether single blanks separate these numbered captions into the same words as any white space does."""
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
            # A caption says the border's word.
            rows = [self._number_words(caption.split()) for caption in captions]
        self._captions.update(zip(captions, rows, strict=True))
        if not _is_even(text, len(words)):
            lengths = (len(row) // _SIZE for row in rows)
            self._uneven.update(c for c, length in zip(captions, lengths, strict=True) if not _is_even(c, length))

    def _number_words(self, words: Sequence[str]) -> bytes:
        # The border's own word is renamed: " " can be none.
        return np.array([self._number[word if word != _BORDER else " "] for word in words], dtype=np.int32).tobytes()


def _is_even(text: str, words: int) -> bool:
    """Whether single blanks, and nothing else, separate the words: of all white space only the blank is printable."""
    return text.count(" ") + 1 == words and text.isprintable()


_shared = Vocabulary()


def _shared_vocabulary() -> Vocabulary:
    """The one that remembers captions from call to call; a full one is replaced."""
    if _shared.captions > _REMEMBERED:
        forget()
    return _shared


def forget() -> None:
    """Drop the captions remembered from earlier calls, and their memory."""
    global _shared
    _shared = Vocabulary()


@dataclass(frozen=True)
class Captions:
    """Captions as word numbers, image by image: the candidate, then its references.

    words:      the words of all captions, one after the other
    lengths:    words per caption
    references: references per image
    vocabulary: the numbers of the words
    single_blanks: whether these are the words that single blanks separate (as ROUGE wants them)
    """

    words: NDArray[np.int32]
    lengths: Numbers
    references: Numbers
    vocabulary: Vocabulary
    single_blanks: bool

    @property
    def images(self) -> int:
        return len(self.references)

    @cached_property
    def candidate(self) -> Numbers:
        """Each image's candidate: its place among the captions."""
        return np.arange(self.images) + np.cumsum(self.references) - self.references

    @cached_property
    def image_of(self) -> Numbers:
        """Each caption's image."""
        return np.repeat(np.arange(self.images), self.references + 1)

    @cached_property
    def is_candidate(self) -> NDArray[np.bool_]:
        flags = np.zeros(len(self.lengths), dtype=np.bool_)
        flags[self.candidate] = True
        return flags

    @cached_property
    def caption_of(self) -> Numbers:
        """Each word's caption."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


def number_captions(
    references: Sequence[Sequence[str]],
    candidates: Sequence[str],
    vocabulary: Vocabulary | None = None,
    *,
    single_blanks: bool = False,
) -> Captions:
    """Split captions into numbered words; `references[i]` (one or more) belong to `candidates[i]`.

    Words are separated by any white space (BLEU, CIDEr), or by every single blank (`single_blanks`, ROUGE: then an
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
    count:      how often the caption has it
    group:      where each (n-gram, image) begins among the rows; the image's candidate, if it has it, comes first
    group_gram: the n-gram of each group
    place:      where each n-gram first occurs among the words
    key:        each n-gram as (number of its first n-1 words) · vocabulary + last word, rising
    said:       the candidates' rows in groups that have reference rows too
    others:     how many reference rows follow each of those
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
    # gram[i]: the number of the n-gram that begins at word i, or -1 when there is none or it was dropped.
    gram = words.astype(np.int64)
    for order in range(1, ORDERS + 1):
        if order == 1:
            place, key = np.arange(len(words)), gram
        else:
            # An n-gram is the one before it and a word; a dropped one, at either end, cannot be part of a kept one.
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
    """Both, sorted by key; equal keys keep the rising order of their places."""
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
    """Occurrences, sorted by n-gram and place, gathered into rows and groups."""
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
