"""All captions of a test set as arrays, and their n-grams counted by hashing.

BLEU and CIDEr need the same counts: which captions have an n-gram, and how often. Words become numbers, and captions
are in one flat array. They are ordered by image, the candidate before its references. An n-gram is a number too: it
is an (n-1)-gram and a word. Equal pairs of numbers are found by hashing (`equal.py`): equal n-grams, n-grams of one
caption, n-grams of one image.

An n-gram that occurs once in an image matches nothing there, nor does a longer one that contains it. So most
occurrences of the longer orders are not compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tellapart.metrics.equal import Numbers, distinct_words, first_equal, last_equal

ORDERS = 4
# Words of a block of images: its arrays stay in the processor's cache.
_BLOCK = 1 << 16
# Up to so many words, the words of a caption are compared each with each.
_SHORT = 16


class WordNumbers:
    """Numbers words from 1 in order of appearance.

    >>> vocabulary = WordNumbers()
    >>> vocabulary.number(["a dog sees a cat", "a cat"])[0].tolist()
    [1, 2, 3, 1, 4, 1, 4]
    """

    def __init__(self, words: Sequence[str] = ()) -> None:
        self._number: defaultdict[str, int] = defaultdict()
        self._number.default_factory = self._number.__len__
        # 0 is the number of no word: a space cannot be one.
        for word in (" ", *words):
            self._number[word]

    def __len__(self) -> int:
        """Numbers in use, including 0."""
        return len(self._number)

    @property
    def words(self) -> list[str]:
        """The words in the order of their numbers, from 1."""
        return list(self._number)[1:]

    def number(self, captions: Sequence[str], *, single_blanks: bool = False) -> tuple[Numbers, Numbers, bool]:
        """Word numbers of all captions, concatenated, and the number of words per caption.

        Words are separated by any white space, or by every single space (`single_blanks`): then two spaces have an
        empty word between them, and other white space is part of a word. The third value says whether the words are
        those between single spaces.
        """
        pieces, piece, lengths = distinct_words(captions)
        # White space other than a space is not printable; an empty piece is no word.
        if single_blanks or ("".join(pieces).isprintable() and "" not in pieces) or " ".join(pieces).split() == pieces:
            if len(self) == 1:  # no words before these
                self._number.update(zip(pieces, range(1, len(pieces) + 1), strict=True))
                return piece + 1, lengths, True
            return np.array(list(map(self._number.__getitem__, pieces)), dtype=np.int64).take(piece), lengths, True
        words = [one.split() for one in pieces]
        found = np.array([self._number[word] for some in words for word in some], dtype=np.int64)
        # Pieces with other white space inside are several words, empty ones none.
        counts = np.array(list(map(len, words)), dtype=np.int64)
        of_piece = counts[piece]
        numbers = found[ranges((np.cumsum(counts) - counts)[piece], of_piece)]
        return numbers, np.add.reduceat(of_piece, np.cumsum(lengths) - lengths), False


@dataclass(frozen=True)
class Captions:
    """Captions as word numbers, image by image: the candidate, then its references.

    words:      the words of all captions, concatenated
    lengths:    words per caption
    references: references per image
    vocabulary: the numbers of the words
    single_blanks: whether these are the words between single spaces (needed by ROUGE)
    """

    words: Numbers
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
    def start(self) -> Numbers:
        """Where each caption begins among the words; the last entry is the number of words."""
        return np.append(0, np.cumsum(self.lengths))

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

    @cached_property
    def image_of_word(self) -> Numbers:
        return self.image_of.take(self.caption_of)

    @cached_property
    def of_candidate(self) -> NDArray[np.bool_]:
        """Of each word, whether it is a candidate's."""
        return self.is_candidate.take(self.caption_of)

    @cached_property
    def left(self) -> Numbers:
        """Of each word, the words from there to the end of its caption."""
        return self.start[1:].take(self.caption_of) - np.arange(len(self.words))


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
    # Image by image its candidate, which `zip` makes a tuple, and its references.
    captions = list(chain.from_iterable(chain.from_iterable(zip(zip(candidates), references, strict=True))))
    vocabulary = WordNumbers() if vocabulary is None else vocabulary
    words, lengths, by_single_blanks = vocabulary.number(captions, single_blanks=single_blanks)
    counts = np.fromiter(map(len, references), dtype=np.int64, count=len(references))
    return Captions(words, lengths, counts, vocabulary, by_single_blanks)


@dataclass(frozen=True)
class Ngrams:
    """The n-grams of one order: those that begin at each word.

    order:     n
    number:    of the n-gram: its word, or if n > 1 one of the places where it begins; equal ones are equal
    images:    per number, the images whose references have the n-gram
    count:     occurrences in the caption, at the first of these; 0 at the others, and where no n-gram begins
    reference: words of references whose n-gram is in the image's candidate too; the first of each caption
    candidate: the candidate's word of each of those
    """

    order: int
    number: Numbers
    images: Numbers
    count: NDArray[np.float64]
    reference: Numbers
    candidate: Numbers


def count_ngrams(captions: Captions) -> Iterator[Ngrams]:
    """For n = 1…4, the n-grams of all captions."""
    words, size = captions.words, len(captions.vocabulary)
    number = words
    # Of each word: whether the image, and the caption, may have the n-gram that begins there more than once.
    # An n-gram is two (n-1)-grams that overlap: most are alone because one of these was.
    in_image, in_caption = np.ones(len(words), dtype=np.bool_), _may_repeat(captions)
    for order in range(1, ORDERS + 1):
        present = captions.left >= order
        if order > 1:
            # An n-gram is an (n-1)-gram and a word. Where none begins all keys are 0, which no n-gram has.
            key = number * size
            key[: 1 - order] += words[order - 1 :]
            key *= present
            number = last_equal(key)
            for several in (in_image, in_caption):
                several[:-1] &= several[1:]
                several &= present
        # The image's first word with the n-gram: the candidate's, if it has it.
        later, first = _repeats_in_images(in_image, number, captions)
        in_caption &= in_image
        again, same = _repeats(in_caption, number, captions.caption_of, len(captions.lengths))
        count = present.astype(np.float64)
        count[again] = 0
        np.add.at(count, same, 1.0)
        # Each image counts once for an n-gram of its references: at its first word with it.
        counted = present & ~captions.of_candidate
        of_reference = np.flatnonzero(counted.take(later))
        counted[later] = False
        later, first = later.take(of_reference), first.take(of_reference)
        counted[first] = True
        images = np.bincount(number.take(np.flatnonzero(counted)), minlength=size if order == 1 else len(words))
        matched = np.flatnonzero(captions.of_candidate.take(first) & (count.take(later) > 0))
        yield Ngrams(order, number, images, count, later.take(matched), first.take(matched))


def _may_repeat(captions: Captions) -> NDArray[np.bool_]:
    """Of each word, whether its caption may have it more than once; longer captions have their words all marked."""
    several = (captions.lengths > _SHORT).take(captions.caption_of)
    # Equal only in one caption. 32 bits are enough, since captions as near as these differ by less.
    key = (captions.caption_of * len(captions.vocabulary) + captions.words).astype(np.uint32)
    for distance in range(1, min(_SHORT, int(captions.lengths.max(initial=0)))):
        same = key[distance:] == key[:-distance]
        several[distance:] |= same
        several[:-distance] |= same
    return several


def _repeats_in_images(may_repeat: NDArray[np.bool_], gram: Numbers, captions: Captions) -> tuple[Numbers, Numbers]:
    """`_repeats` of images, some images after the other."""
    images = max(1, _BLOCK * captions.images // max(1, len(captions.words)))
    ends = captions.start.take([0, *captions.candidate[images::images].tolist(), len(captions.lengths)]).tolist()
    found = [np.zeros((2, 0), dtype=np.int64)]
    for some in map(slice, ends[:-1], ends[1:]):
        repeats = _repeats(may_repeat[some], gram[some], captions.image_of_word[some], captions.images)
        found.append(np.add(repeats, some.start))
    later, first = np.concatenate(found, axis=1)
    return later, first


def _repeats(may_repeat: NDArray[np.bool_], gram: Numbers, unit: Numbers, units: int) -> tuple[Numbers, Numbers]:
    """The words whose n-gram begins before in their unit, an image or a caption, and the first word with it.

    Only words that may repeat are compared; the flags of those that do not are cleared.
    """
    rows = np.flatnonzero(may_repeat)
    if len(rows) < len(gram):  # all of them at first
        gram, unit = gram.take(rows), unit.take(rows)
    first = first_equal(gram * units + unit)
    again = np.flatnonzero(first != np.arange(len(first)))
    later, first = rows.take(again), rows.take(first.take(again))
    may_repeat[:] = False
    may_repeat[later] = True
    may_repeat[first] = True
    return later, first


def ranges(starts: Numbers, counts: Numbers) -> Numbers:
    """The ranges start, start + 1, … of these lengths, one after the other.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    return np.asarray(np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum()))
