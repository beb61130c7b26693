"""Word vectors from the captions at hand, for concepts and words that have no file of vectors such as GloVe's.

Words that occur in the same company get similar vectors: co-occurrence with the most frequent words, positive pointwise
mutual information, and the leading singular vectors (Levy and Goldberg, 2014). Nothing is drawn at random.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

# Words on each side that count as company.
WINDOW = 5
# Company is counted by the most frequent words, so that the table stays small.
CONTEXTS = 1000
# Standard deviation of GloVe's vectors, which these replace.
DEVIATION = 0.4
# Captions counted at a time.
AT_ONCE = 50_000


def cooccurrences(
    captions: Iterable[Sequence[int]], words: int, contexts: int = CONTEXTS, window: int = WINDOW
) -> NDArray[np.int64]:
    """How often each word stands within `window` words of each of the most frequent words, `[words, contexts]`.

    Args:
        captions: the words of each caption as numbers from 0 to `words` − 1; −1 for a word that has no vector.
        words: number of words.
        contexts: number of the most frequent words, of equals the first; all words if there are fewer.
        window: largest distance.

    Example:
        >>> cooccurrences([[0, 1], [1, 0, 1]], words=2, window=1)   # the columns: word 1, then word 0
        array([[3, 0],
               [0, 3]])
    """
    parts = []
    source = iter(captions)
    while part := list(islice(source, AT_ONCE)):
        rows = np.full((len(part), max(map(len, part))), -1, np.int32)
        for row, caption in enumerate(part):
            rows[row, : len(caption)] = caption
        parts.append(rows)
    frequency = sum((np.bincount(rows[rows >= 0], minlength=words) for rows in parts), np.zeros(words, np.int64))
    column = np.full(words + 1, -1, np.int64)  # the last one is for −1
    contexts = min(contexts, words)
    column[np.argsort(-frequency, kind="stable")[:contexts]] = np.arange(contexts)
    counts = np.zeros(words * contexts, np.int64)
    for rows in parts:
        for distance in range(1, min(window, rows.shape[1] - 1) + 1):
            for word, context in (
                (rows[:, :-distance], rows[:, distance:]),
                (rows[:, distance:], rows[:, :-distance]),
            ):
                known = (word >= 0) & (column[context] >= 0)
                counts += np.bincount(word[known] * contexts + column[context[known]], minlength=len(counts))
    return counts.reshape(words, contexts)


def caption_vectors(captions: Iterable[Sequence[int]], words: int, width: int) -> torch.Tensor:
    """Vectors of words from the captions in which they occur, `[words, width]`, with the deviation of GloVe's.

    ::

        M_ij = max(0, log( #(i, j) · N / (#(i) · #(j)) )),   M = U Σ Vᵀ,   x_i = row i of the first columns of U Σ^½

    #(i, j) is from `cooccurrences`; #(i), #(j) and N are its sums. The sign of each column is such that its number of
    largest size is positive. A word that occurs with no frequent word has a zero vector, and columns beyond the rank of
    M are zero.

    Args:
        captions: the words of each caption as numbers; −1 for a word that has no vector.
        words: number of words.
        width: width of the vectors.

    Example:
        >>> vectors = caption_vectors([[0, 2], [1, 2], [0, 3], [1, 3]], words=4, width=2)
        >>> torch.cosine_similarity(vectors[0], vectors[1], dim=0).round(decimals=3)   # in the same company
        tensor(1.)
    """
    counts = torch.from_numpy(cooccurrences(captions, words)).double()
    expected = counts.sum(dim=1, keepdim=True) * counts.sum(dim=0) / counts.sum().clamp(min=1)
    information = (counts / expected).log().clamp(min=0)
    information[counts == 0] = 0
    # The decomposition by MᵀM, which is small: its eigenvalues are Σ², and U Σ^½ = M V Σ^-½.
    squares, right = torch.linalg.eigh(information.T @ information)
    squares, right = squares.flip(0)[:width], right.flip(1)[:, :width]
    there = squares > 1e-12 * squares.max() if len(squares) else squares > 0  # the others are rounding errors
    found = (information @ right[:, there]) * squares[there].pow(-0.25)
    found *= found.gather(0, found.abs().argmax(dim=0, keepdim=True)).sign() if found.numel() else 1.0
    vectors = torch.zeros(words, width)
    if found.numel():
        vectors[:, : found.shape[1]] = (found * (DEVIATION / found.std(correction=0))).float()
    return vectors
