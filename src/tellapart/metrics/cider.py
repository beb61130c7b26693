"""CIDEr-D, which the COCO caption tool prints as "CIDEr", and plain CIDEr.

The cosine between the tf-idf vectors of candidate and reference n-grams: n-grams of all images weigh nothing, rare
ones weigh much. CIDEr-D's clipping and length penalty keep repetition from raising the score.

    g_n(x)        = count of each n-gram in x · (log N - log max(1, df)),   df = images whose references have it
    CIDEr:   sim_n = Σ g_n(c) · g_n(r) / (‖g_n(c)‖ ‖g_n(r)‖)
    CIDEr-D: sim_n = Σ min(g_n(c), g_n(r)) · g_n(r) / (‖g_n(c)‖ ‖g_n(r)‖) · exp(-(l_c - l_r)² / (2·6²))
    score          = 10 · mean over n = 1…4 and over the references of sim_n

N and df come from the given references, so that a score depends on which images are scored together, and a single image
always scores 0; or from a saved table (`DocumentFrequencies`). l is the length in words. (The tool counts bigrams, with
the same result: both lengths are one less, except for empty captions, whose similarity is 0 anyway.)
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tellapart.errors import DataError
from tellapart.files import new_file
from tellapart.metrics.equal import Numbers
from tellapart.metrics.image_scores import ImageScores
from tellapart.metrics.ngrams import ORDERS, Captions, Ngrams, WordNumbers, count_ngrams, number_captions

Variant = Literal["cider-d", "cider"]

SIGMA = 6.0  # of CIDEr-D's length penalty


def cider_scores(
    references: Sequence[Sequence[str]],
    candidates: Sequence[str],
    *,
    variant: Variant = "cider-d",
    frequencies: DocumentFrequencies | None = None,
) -> ImageScores:
    """CIDEr-D (or plain CIDEr) of one candidate per image against its references, one or more each.

    Captions are tokens joined by white space; `references[i]` belongs to `candidates[i]`. The document frequencies are
    those of the references unless a table is given.

    >>> scores = cider_scores([["a dog runs"], ["a red bus"]], ["a dog runs", "a cat"])
    >>> scores.per_image.round(3).tolist()
    [7.5, 0.0]
    """
    vocabulary = None if frequencies is None else frequencies.vocabulary()
    captions = number_captions(references, candidates, vocabulary)
    cider = Cider(captions, variant, frequencies)
    for ngrams in count_ngrams(captions):
        cider.add(ngrams)
    return cider.scores()


class Cider:
    """CIDEr of numbered captions, order by order: `add` the n-grams of each n = 1…4, then call `scores`.

    With `frequencies`, the captions must be numbered by that table's `vocabulary()`.
    """

    def __init__(self, captions: Captions, variant: Variant, frequencies: DocumentFrequencies | None) -> None:
        if variant not in ("cider-d", "cider"):
            raise ValueError(f"variant must be 'cider-d' or 'cider', got '{variant}'")
        self._captions = captions
        self._clipped = variant == "cider-d"
        self._images = captions.images if frequencies is None else frequencies.images
        self._lookup = None if frequencies is None else _images_by_place(frequencies, captions)
        self._similarity = np.zeros(len(captions.lengths))

    def add(self, ngrams: Ngrams) -> None:
        """The (clipped) tf-idf cosine of every reference with the candidate of its image, for one n."""
        captions = self._captions
        size = len(captions.lengths)
        found = ngrams.images.take(ngrams.number) if self._lookup is None else next(self._lookup)
        # Of each number of images: few logarithms, and a table that stays in the processor's cache.
        idf = np.log(max(1, self._images)) - np.log(np.maximum(1, np.arange(found.max(initial=0) + 1)))
        weight = idf.take(found)
        weight *= ngrams.count
        norm = np.sqrt(np.bincount(captions.caption_of, np.square(weight), minlength=size))
        in_candidate, in_reference = weight.take(ngrams.candidate), weight.take(ngrams.reference)
        if self._clipped:
            np.minimum(in_candidate, in_reference, out=in_candidate)
        in_candidate *= in_reference
        dot = np.bincount(captions.caption_of.take(ngrams.reference), in_candidate, minlength=size)
        scale = norm.take(captions.candidate).take(captions.image_of) * norm
        self._similarity += np.divide(dot, scale, out=np.zeros(size), where=scale > 0)

    def scores(self) -> ImageScores:
        captions = self._captions
        similarity = self._similarity
        if self._clipped:
            gap = captions.lengths[captions.candidate][captions.image_of] - captions.lengths
            similarity = similarity * np.exp(-(gap**2) / (2 * SIGMA**2))
        # Only references have a similarity; a candidate's own entry is 0.
        total = np.bincount(captions.image_of, similarity, minlength=captions.images)
        return ImageScores(10.0 * total / (ORDERS * captions.references))


@dataclass(frozen=True)
class DocumentFrequencies:
    """Number of images whose references have each n-gram (n = 1…4), so that CIDEr is independent of the images scored.

    images: number of images counted
    words:  the words, in the order of their numbers 0, 1, …
    keys:   for n = 2, 3, 4: each n-gram as (number of its first n-1 words) · len(words) + number of the last, sorted;
            the n-gram's own number is its position here
    counts: for n = 1…4: images per n-gram

    >>> table = DocumentFrequencies.count([["a dog runs", "a dog"], ["a cat"]])
    >>> table["a"], table["a dog"], table["dog a"]
    (2, 1, 0)
    """

    images: int
    words: tuple[str, ...]
    keys: tuple[Numbers, ...]
    counts: tuple[Numbers, ...]

    @classmethod
    def count(cls, references: Sequence[Sequence[str]]) -> DocumentFrequencies:
        """Count the references of each image, given as tokens joined by white space."""
        captions = number_captions(references, [""] * len(references), WordNumbers())
        return cls._count(captions)

    @classmethod
    def count_tokens(
        cls, tokens: NDArray[np.integer], lengths: Numbers, references: Numbers, words: Sequence[str]
    ) -> DocumentFrequencies:
        """Count references given as token numbers, such as the rows of a captioner's vocabulary.

        Args:
            tokens: those of all references, one after the other, image by image; 0 … len(words) - 1.
            lengths: tokens per reference.
            references: references per image.
            words: the word of each token number, all different.

        Example:
            >>> tokens, two, one = np.array([0, 1, 0, 2]), np.array([2, 2]), np.array([1, 1])
            >>> table = DocumentFrequencies.count_tokens(tokens, two, one, ["a", "dog", "cat"])
            >>> table["a"], table["a dog"], table["dog a"]
            (2, 1, 0)
        """
        # Every image has an empty candidate before its references; word numbers start at 1.
        first = np.cumsum(references) - references
        captions = Captions(
            tokens.astype(np.int64) + 1, np.insert(lengths, first, 0), references, WordNumbers(words), True
        )
        return cls._count(captions)

    @classmethod
    def _count(cls, captions: Captions) -> DocumentFrequencies:
        # Word numbers of captions start at 1, those of the table at 0.
        size = len(captions.vocabulary)
        # The (n-1)-gram at each word, and the table's number of each of these.
        shorter, number = captions.words, np.arange(size) - 1
        keys, counts = [], []
        for ngrams in count_ngrams(captions):
            if ngrams.order == 1:
                counts.append(ngrams.images[1:])
                continue
            # The number of an n-gram is a place where it begins.
            found = np.flatnonzero(ngrams.images)
            key = number[shorter[found]] * (size - 1) + captions.words[found + (ngrams.order - 1)] - 1
            order = np.argsort(key)
            keys.append(key[order])
            counts.append(ngrams.images[found[order]])
            number = np.empty(len(ngrams.images), dtype=np.int64)
            number[found[order]] = np.arange(len(order))
            shorter = ngrams.number
        return cls(captions.images, tuple(captions.vocabulary.words), tuple(keys), tuple(counts))

    def vocabulary(self) -> WordNumbers:
        """A new numbering of words that starts with this table's words, in its order."""
        return WordNumbers(self.words)

    def find(self, prefix: Numbers, word: Numbers, order: int) -> Numbers:
        """Numbers of n-grams, n = `order` > 1, from those of the first n-1 words and the last word; -1 if unknown."""
        keys = self.keys[order - 2]
        wanted = np.where((prefix >= 0) & (word < len(self.words)), prefix * len(self.words) + word, -1)
        # The keys are not copied: a table may have millions, and the reward of a training step looks up few.
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[place] == wanted, place, -1) if len(keys) else np.full(len(wanted), -1)

    def images_with(self, number: Numbers, order: int) -> Numbers:
        """Number of images that have each n-gram, by its number; 0 for -1."""
        found = np.zeros(len(number), dtype=np.int64)
        known = number >= 0
        found[known] = self.counts[order - 1][number[known]]
        return found

    def __getitem__(self, ngram: str) -> int:
        """Number of images that have an n-gram of one to four words, given as tokens joined by white space."""
        words = ngram.split()
        if not 1 <= len(words) <= ORDERS:
            raise ValueError(f"an n-gram has 1 to {ORDERS} words, got {len(words)}")
        numbers = self.vocabulary().number([ngram])[0] - 1
        number = np.where(numbers[:1] < len(self.words), numbers[:1], -1)
        for order in range(2, len(words) + 1):
            number = self.find(number, numbers[order - 1 : order], order)
        return int(self.counts[len(words) - 1][number[0]]) if number[0] >= 0 else 0

    def save(self, path: Path) -> None:
        """Write one `.npz` file (no pickle), atomically."""
        arrays = {f"keys_{n}": array for n, array in enumerate(self.keys, start=2)}
        arrays |= {f"counts_{n}": array for n, array in enumerate(self.counts, start=1)}
        # Words have no white space, so one per line is safe.
        words = np.frombuffer("\n".join(self.words).encode("utf-8"), dtype=np.uint8)
        with new_file(path) as temporary, open(temporary, "wb") as handle:
            np.savez_compressed(handle, allow_pickle=False, images=np.array(self.images), words=words, **arrays)

    @classmethod
    def load(cls, path: Path) -> DocumentFrequencies:
        """Read a file written by `save`; any other file is a `DataError`."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                words = tuple(bytes(stored["words"]).decode("utf-8").split("\n"))
                keys = tuple(stored[f"keys_{n}"] for n in range(2, ORDERS + 1))
                counts = tuple(stored[f"counts_{n}"] for n in range(1, ORDERS + 1))
                images = int(stored["images"])
        except FileNotFoundError:
            raise DataError(f"{path}: this table of document frequencies does not exist; check the path") from None
        except (KeyError, ValueError, TypeError, EOFError, OSError, AttributeError, zipfile.BadZipFile):
            raise DataError(f"{path}: not a table of document frequencies; save it again") from None
        words = words if words != ("",) else ()
        sizes = [len(words), *map(len, keys)]
        if sizes != [len(array) for array in counts]:
            raise DataError(f"{path}: this table of document frequencies is damaged; save it again")
        return cls(images, words, keys, counts)


def _images_by_place(table: DocumentFrequencies, captions: Captions) -> Iterator[Numbers]:
    """For n = 1…4, the table's number of images of the n-gram that begins at each word, if one does."""
    # Word numbers of captions start at 1, those of the table at 0.
    words = captions.words - 1
    number = np.where(words < len(table.words), words, -1)
    yield table.images_with(number, 1)
    for order in range(2, ORDERS + 1):
        last = words[order - 1 :]
        number[: len(last)] = table.find(number[: len(last)], last, order)
        number[len(last) :] = -1
        yield table.images_with(number, order)
