"""CIDEr-D of token numbers against the same captions as strings, against the reference tool, and at the edges."""

from __future__ import annotations

import random

import numpy as np
import pytest

from metrics.test_pairwise import naive
from tellapart.metrics import DocumentFrequencies, cider_scores
from tellapart.metrics.token_cider import TokenCaptions, TokenReferences, token_cider

WORDS = ["a", "dog", "cat", "on", "grass", "red"]
UNKNOWN = len(WORDS)  # a number that no reference has


def captions_of(texts: list[str]) -> TokenCaptions:
    rows = [[WORDS.index(word) if word in WORDS else UNKNOWN for word in text.split()] for text in texts]
    return TokenCaptions(
        np.array([w for row in rows for w in row], dtype=np.int32), np.array([len(r) for r in rows], dtype=int)
    )


def references_of(references: list[list[str]]) -> TokenReferences:
    flat = [text for texts in references for text in texts]
    return TokenReferences(captions_of(flat), np.array([len(texts) for texts in references]))


def make(seed: int, images: int = 6) -> tuple[list[list[str]], list[str]]:
    """Ragged references and candidates of few words, so that n-grams repeat; some candidates are empty or unknown."""
    generator = random.Random(seed)

    def caption(shortest: int, words: list[str]) -> str:
        return " ".join(generator.choices(words, k=generator.randint(shortest, 9)))

    known = WORDS[: generator.randint(2, 6)]
    references = [[caption(1, known) for _ in range(generator.randint(1, 4))] for _ in range(images)]
    return references, ["", "zebra", *(caption(0, [*known, "zebra"]) for _ in range(images - 2))]


@pytest.mark.parametrize("seed", range(8))
def test_any_pairs_equal_loops(seed: int) -> None:
    references, candidates = make(seed)
    given = references_of(references)
    candidate, image = np.array([5, 0, 1, 2, 3, 3, 4, 4]), np.array([0, 2, 2, 5, 1, 2, 4, 1])
    found = token_cider(captions_of(candidates), given, candidate, image, given.frequencies(WORDS))
    expected = [
        np.mean([naive(candidates[c], reference, references, clipped=True) for reference in references[i]])
        for c, i in zip(candidate, image, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_equals_the_reference_tool(seed: int) -> None:
    tool = pytest.importorskip("pycocoevalcap.cider.cider")
    references, candidates = make(seed, images=12)
    given, every = references_of(references), np.arange(12)
    found = token_cider(captions_of(candidates), given, every, every, given.frequencies(WORDS))
    _, expected = tool.Cider().compute_score(dict(enumerate(references)), {i: [c] for i, c in enumerate(candidates)})
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_frequencies_of_tokens_equal_those_of_words() -> None:
    references, candidates = make(1)
    table, by_word = references_of(references).frequencies(WORDS), DocumentFrequencies.count(references)
    grams = {
        " ".join(text.split()[i : i + n])
        for texts in references
        for text in texts
        for n in range(1, 5)
        for i in range(9)
    }
    assert {gram: table[gram] for gram in grams if gram} == {gram: by_word[gram] for gram in grams if gram}
    assert table["red"] == 0, "a word that no reference has is in the table"
    one, other = (cider_scores(references, candidates, frequencies=f).per_image for f in (table, by_word))
    np.testing.assert_allclose(one, other, rtol=1e-12)


def test_frequencies_of_other_images() -> None:
    """Of a validation split: the table is that of the training split, and lacks some n-grams."""
    training, (references, candidates) = [["a dog"], ["a cat on a cat"], ["grass"]], make(3)
    given, every = references_of(references), np.arange(6)
    found = token_cider(captions_of(candidates), given, every, every, references_of(training).frequencies(WORDS))
    table = DocumentFrequencies.count(training)
    expected = cider_scores(references, candidates, frequencies=table).per_image
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_nothing_to_score() -> None:
    given, none = references_of([["a dog"], ["a cat"]]), np.arange(0)
    table = given.frequencies(WORDS)
    assert token_cider(captions_of([]), given, none, none, table).shape == (0,)
    assert token_cider(captions_of([""]), given, none, none, table).shape == (0,)
    assert token_cider(captions_of([""]), given, np.array([0]), np.array([1]), table).tolist() == [0.0]


def test_padded_rows() -> None:
    rows = np.array([[4, 5, 2, 0], [2, 0, 0, 0]])
    captions = TokenCaptions.of_rows(rows, rows != 0)
    assert (captions.tokens.tolist(), captions.lengths.tolist()) == ([4, 5, 2, 2], [3, 1])
    taken = captions.take(np.array([1, 0, 1]))
    assert (taken.tokens.tolist(), taken.lengths.tolist()) == ([2, 4, 5, 2, 2], [1, 3, 1])
