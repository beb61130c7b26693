"""CIDEr-D, which the COCO caption tool prints as "CIDEr".

Idea: the cosine between the tf-idf vectors of candidate and reference n-grams. What every image's references
say weighs nothing, what few say weighs much; clipping and a length penalty keep repetition from paying.

    g_n(x)     = count of each n-gram in x · (log N - log max(1, df)),   df = images whose references have it
    sim_n(c,r) = Σ min(g_n(c), g_n(r)) · g_n(r) / (‖g_n(c)‖ ‖g_n(r)‖) · exp(-(l_c - l_r)² / (2·6²))
    CIDEr      = 10 · mean over n = 1…4 and over the references of sim_n

N is the number of images given, so a figure depends on which images are scored together, and a single image
always scores 0. l is the length in words. (The tool counts bigrams, which comes to the same: both lengths are
one less, except that of an empty caption, and that has similarity 0 anyway.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ORDERS = 4
_SIGMA = 6.0


@dataclass(frozen=True)
class CiderScores:
    """CIDEr-D: `per_image` has shape [images], `corpus` is its mean."""

    corpus: float
    per_image: NDArray[np.float64]


def cider_scores(references: Sequence[Sequence[str]], candidates: Sequence[str]) -> CiderScores:
    """CIDEr-D of one candidate per image, document frequencies from the references given (one or more each).

    Both come as tokens joined by white space, and `references[i]` belongs to `candidates[i]`.
    """
    images = len(candidates)
    reference_counts = np.array([len(texts) for texts in references], dtype=np.int64)
    if len(reference_counts) != images or not reference_counts.all():
        raise ValueError("every candidate needs a list of at least one reference")
    captions = [text.split() for text in candidates]
    captions += [text.split() for texts in references for text in texts]
    # Captions are numbered candidates first: caption i < images is image i's candidate.
    image_of = np.concatenate([np.arange(images), np.repeat(np.arange(images), reference_counts)])
    reference_image = image_of[images:]

    similarity = np.zeros(len(reference_image))
    for caption, gram in _ngrams(captions):
        similarity += _similarities(caption, gram, image_of, images)

    length = np.array([len(words) for words in captions])
    gap = length[reference_image] - length[images:]
    similarity *= np.exp(-(gap**2) / (2 * _SIGMA**2))
    total = np.bincount(reference_image, similarity, minlength=images)
    per_image = 10.0 * total / (ORDERS * reference_counts)
    return CiderScores(corpus=float(per_image.mean()), per_image=per_image)


def _ngrams(captions: Sequence[Sequence[str]]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """For n = 1…4, two aligned arrays with one entry per n-gram occurrence: its caption and its number.

    All captions lie in one flat array of word numbers. An (n+1)-gram is the n-gram starting at the same place
    and the word after it, so each order is numbered afresh from pairs: numbers stay small and never overflow.
    """
    vocabulary: dict[str, int] = {}
    words = np.array(
        [vocabulary.setdefault(word, len(vocabulary)) for caption in captions for word in caption],
        dtype=np.int64,
    )
    caption_of = np.repeat(np.arange(len(captions)), [len(caption) for caption in captions])
    start, gram = np.arange(len(words)), words
    for n in range(1, ORDERS + 1):
        yield caption_of[start], gram
        fits = start + n < len(words)
        start, gram = start[fits], gram[fits]
        same = caption_of[start] == caption_of[start + n]
        start, gram = start[same], gram[same]
        gram = np.unique(gram * len(vocabulary) + words[start + n], return_inverse=True)[1]


def _similarities(
    caption: NDArray[np.int64], gram: NDArray[np.int64], image_of: NDArray[np.int64], images: int
) -> NDArray[np.float64]:
    """Clipped tf-idf cosine, for one n, of every reference with the candidate of its image: [references]."""
    grams = int(gram.max(initial=0)) + 1
    rows, count = np.unique(caption * grams + gram, return_counts=True)
    caption, gram = np.divmod(rows, grams)
    candidates = int(np.searchsorted(caption, images))  # rows are sorted, the candidates' come first

    key = image_of[caption] * grams + gram
    candidate_key, reference_key = key[:candidates], key[candidates:]
    frequency = np.bincount(np.unique(reference_key) % grams, minlength=grams)
    idf = np.log(images) - np.log(np.maximum(1, frequency))
    weight = count * idf[gram]
    norm = np.sqrt(np.bincount(caption, weight**2, minlength=len(image_of)))

    # Each reference n-gram looks up its weight in the candidate: 0 when absent. The extra entry stands for
    # "beyond the last key" and matches nothing.
    place = np.searchsorted(candidate_key, reference_key)
    found = np.append(candidate_key, -1)[place] == reference_key
    in_candidate = np.where(found, np.append(weight[:candidates], 0.0)[place], 0.0)
    in_reference = weight[candidates:]
    dot = np.bincount(
        caption[candidates:] - images,
        np.minimum(in_candidate, in_reference) * in_reference,
        minlength=len(image_of) - images,
    )
    scale = norm[image_of[images:]] * norm[images:]
    cosine = np.zeros(len(scale))
    np.divide(dot, scale, out=cosine, where=scale > 0)
    return cosine
