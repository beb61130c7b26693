"""CIDEr-D of captions given as token numbers: the reward of self-critical training, in batches.

It is the score of cider.py, with fixed document frequencies, for chosen pairs of a caption and an image:

    score(c, I) = mean over the references r of I of CIDEr-D(c, r)

Only the tokens of the references are kept, 4 bytes each. The tf-idf vectors of the captions and references of a batch
are made when they are needed, which takes one sort of their n-grams for each n.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tellapart.metrics.cider import SIGMA, DocumentFrequencies
from tellapart.metrics.equal import Numbers
from tellapart.metrics.ngrams import ORDERS, ranges
from tellapart.metrics.pairwise import NgramVectors, ngram_vectors

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class TokenCaptions:
    """Captions as token numbers, one after the other.

    tokens:  the tokens of all captions
    lengths: tokens per caption
    """

    tokens: NDArray[np.int32]
    lengths: Numbers

    @classmethod
    def of_rows(cls, rows: NDArray[np.integer], kept: NDArray[np.bool_]) -> TokenCaptions:
        """From padded rows `[captions, longest]` and which of their entries are tokens."""
        return cls(rows[kept].astype(np.int32), kept.sum(axis=1))

    def take(self, captions: Numbers) -> TokenCaptions:
        """These captions, in this order."""
        lengths = self.lengths[captions]
        return TokenCaptions(self.tokens[ranges(self.starts[captions], lengths)], lengths)

    @cached_property
    def starts(self) -> Numbers:
        """Where each caption begins among the tokens."""
        return np.cumsum(self.lengths) - self.lengths

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True)
class TokenReferences:
    """The references of the images of a split.

    captions: all references, image by image
    counts:   references per image, at least one
    """

    captions: TokenCaptions
    counts: Numbers

    @cached_property
    def starts(self) -> Numbers:
        """Where the references of each image begin among the captions."""
        return np.cumsum(self.counts) - self.counts

    def frequencies(self, words: list[str]) -> DocumentFrequencies:
        """In how many images each n-gram occurs; `words` names the tokens."""
        return DocumentFrequencies.count_tokens(self.captions.tokens, self.captions.lengths, self.counts, words)


def token_cider(
    candidates: TokenCaptions,
    references: TokenReferences,
    candidate: Numbers,
    image: Numbers,
    frequencies: DocumentFrequencies,
) -> Scores:
    """CIDEr-D of pairs of a candidate and an image, `[pairs]`.

    Args:
        candidates: tokens that are not in `frequencies`, those from `len(frequencies.words)` on, match nothing.
        references: of all images.
        candidate: which candidate, `[pairs]`.
        image: the image whose references it is compared with, `[pairs]`.
        frequencies: the document frequencies of the training split.

    Example:
        >>> numbers = np.array([0, 1, 2, 0, 3, 4], dtype=np.int32)    # "a dog runs", "a red bus"
        >>> references = TokenReferences(TokenCaptions(numbers, np.array([3, 3])), np.array([1, 1]))
        >>> said = TokenCaptions(np.array([0, 1, 2], dtype=np.int32), np.array([3]))
        >>> table = references.frequencies(["a", "dog", "runs", "red", "bus"])
        >>> token_cider(said, references, np.array([0, 0]), np.array([0, 1]), table).round(3).tolist()
        [7.5, 0.0]
    """
    # The references of each image that is named, once, and where they are after the candidates.
    used, place = np.unique(image, return_inverse=True)
    sizes, counts = references.counts[used], references.counts[image]
    given = references.captions.take(ranges(references.starts[used], sizes))
    first = len(candidates) + np.cumsum(sizes) - sizes
    pair = np.repeat(np.arange(len(image)), counts)
    one, other = candidate[pair], ranges(first[place], counts)

    words = np.concatenate([candidates.tokens, given.tokens]).astype(np.int64)
    lengths = np.concatenate([candidates.lengths, given.lengths])
    similarity = np.zeros(len(pair))
    for vectors in ngram_vectors(words, lengths, frequencies):
        similarity += _clipped_cosines(vectors, one, other)
    gap = lengths[one] - lengths[other]
    similarity *= np.exp(-(gap**2) / (2 * SIGMA**2))
    return np.asarray(10.0 / ORDERS * np.bincount(pair, similarity, minlength=len(image)) / counts)


def _clipped_cosines(vectors: NgramVectors, one: Numbers, other: Numbers) -> Scores:
    """Σ min(w_a, w_b) w_b / (‖w_a‖ ‖w_b‖) of the captions a = one[i] and b = other[i], for each i."""
    size = max(1, len(vectors.idf))
    caption_of = np.repeat(np.arange(len(vectors.norm)), np.diff(vectors.start))
    # Entries are sorted by caption and n-gram; a last one keeps the search inside.
    key = np.append(caption_of * size + vectors.gram, -1)
    pair, entry = vectors.entries(other)
    wanted = one[pair] * size + vectors.gram[entry]
    found = np.searchsorted(key[:-1], wanted)
    both = key[found] == wanted
    pair, entry, found = pair[both], entry[both], found[both]
    product = np.minimum(vectors.count[found], vectors.count[entry]) * vectors.count[entry]
    dot = np.bincount(pair, product * vectors.idf[vectors.gram[entry]] ** 2, minlength=len(one))
    scale = vectors.norm[one] * vectors.norm[other]
    return np.divide(dot, scale, out=np.zeros(len(scale)), where=scale > 0)
