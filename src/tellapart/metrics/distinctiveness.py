"""How well a caption fits its own image and no other: by words (CIDErBtw) and by embeddings (CLIPScore).

    CIDErBtw(c)     = mean over the K images most similar to c's of CIDEr-D(c, references of that image)
    CLIPScore(c)    = 2.5 · max(cos(c, image), 0)
    RefCLIPScore(c) = harmonic mean of CLIPScore(c) and max(cos(c, reference), 0) of the closest reference

CIDErBtw (Wang et al. 2020, K = 5) is low if a caption says what only its image shows. CLIPScore (Hessel et al. 2021)
was defined for CLIP embeddings. Any retriever's embeddings can be used here, but figures of different retrievers are
not comparable.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tellapart.errors import DataError
from tellapart.metrics.cider import DocumentFrequencies
from tellapart.metrics.image_scores import ImageScores
from tellapart.metrics.pairwise import CaptionPairs

Embeddings = NDArray[np.floating]

# Scales the cosines of CLIP embeddings to about 0 … 1.
CLIP_WEIGHT = 2.5


def cider_between(
    references: Sequence[Sequence[str]],
    candidates: Sequence[str],
    similar: Sequence[Sequence[int]] | NDArray[np.integer],
    frequencies: DocumentFrequencies | None = None,
) -> ImageScores:
    """CIDErBtw of one candidate per image; lower is more distinctive.

    Args:
        references: one or more per image; tokens joined by white space.
        candidates: one caption per image, in the same form.
        similar: for each image, the positions of similar other images, e.g. from
            `tellapart.data.neighbours.nearest_images(features, 5)`.
        frequencies: document frequencies; by default those of the references.

    Example:
        >>> references = [["a dog runs"], ["a dog sits"], ["a red bus"]]
        >>> cider_between(references, ["a dog runs", "a dog", "a red bus"], [[1], [0], [1]]).per_image.round(2).tolist()
        [0.6, 1.71, 0.0]
    """
    images = len(candidates)
    if len(references) != images or len(similar) != images:
        raise DataError(
            f"{len(references)} references and {len(similar)} lists of similar images for {images} captions"
        )
    counts = np.array([len(texts) for texts in references], dtype=np.int64)
    if not counts.all():
        raise DataError("every image needs at least one reference")
    pairs = CaptionPairs(
        [*candidates, *(text for texts in references for text in texts)],
        DocumentFrequencies.count(references) if frequencies is None else frequencies,
    )
    first = images + np.cumsum(counts) - counts
    per_image = np.empty(images)
    for image, others in enumerate(similar):
        _check_similar(image, others, images)
        rows = [np.arange(first[other], first[other] + counts[other]) for other in others]
        values = pairs.cider_d(np.array([image]), np.concatenate(rows))[0]
        starts = np.cumsum([0, *(len(row) for row in rows[:-1])])
        # The mean over each image's references, then over the images.
        per_image[image] = np.mean(np.add.reduceat(values, starts) / [len(row) for row in rows])
    return ImageScores(per_image)


def _check_similar(image: int, others: Sequence[int] | NDArray[np.integer], images: int) -> None:
    if len(others) == 0:
        raise DataError(f"image {image} has no similar images; give at least one")
    if image in others:
        raise DataError(f"image {image} is in its own list of similar images; remove it")
    if min(others) < 0 or max(others) >= images:
        raise DataError(f"similar images of image {image}: positions are 0 … {images - 1}")


def clip_scores(images: Embeddings, captions: Embeddings, weight: float = CLIP_WEIGHT) -> NDArray[np.float64]:
    """CLIPScore of each caption with its image; both embeddings `[captions, width]`, normalised or not.

    >>> clip_scores(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[3.0, 4.0], [0.0, -1.0]])).tolist()
    [1.5, 0.0]
    """
    if images.shape != captions.shape:
        raise ValueError(f"images and captions must have the same shape, got {images.shape} and {captions.shape}")
    return np.asarray(weight * np.maximum(np.sum(_unit(images) * _unit(captions), axis=1), 0.0))


def reference_clip_scores(
    images: Embeddings,
    captions: Embeddings,
    references: Embeddings,
    caption_of_reference: NDArray[np.integer],
    weight: float = CLIP_WEIGHT,
) -> NDArray[np.float64]:
    """RefCLIPScore of each caption with its image and its references.

    Args:
        images, captions: embeddings `[captions, width]`.
        references: embeddings `[references, width]` of the references of all captions.
        caption_of_reference: `[references]`, the caption that each belongs to; every caption has one or more.
        weight: weight of the cosine with the image.

    Example:
        >>> images, captions = np.array([[1.0, 0.0]]), np.array([[3.0, 4.0]])
        >>> references = np.array([[4.0, 3.0], [0.0, -1.0]])
        >>> reference_clip_scores(images, captions, references, np.array([0, 0])).round(4).tolist()
        [1.1707]
    """
    if references.shape[:1] != caption_of_reference.shape or references.ndim != 2:
        raise ValueError(f"every reference needs a caption, got {references.shape} and {caption_of_reference.shape}")
    with_image = clip_scores(images, captions, weight)
    count = np.bincount(caption_of_reference, minlength=len(captions))
    if len(count) != len(captions) or not count.all():
        raise ValueError("every caption needs at least one reference, and every reference an existing caption")
    cosine = np.sum(_unit(captions)[caption_of_reference] * _unit(references), axis=1)
    closest = np.zeros(len(captions))
    np.maximum.at(closest, caption_of_reference, cosine)
    total = with_image + closest
    return np.divide(2 * with_image * closest, total, out=np.zeros(len(total)), where=total > 0)


def _unit(embeddings: Embeddings) -> NDArray[np.float64]:
    """Rows scaled to length 1; a row of zeros stays zero, and its cosines are 0."""
    if embeddings.ndim != 2 or not np.isfinite(embeddings).all():
        raise ValueError("embeddings must be finite numbers, [items, width]")
    wide = embeddings.astype(np.float64)
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), np.finfo(np.float64).tiny))
