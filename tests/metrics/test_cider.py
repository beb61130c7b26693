"""CIDEr against the formula written as loops and sums by hand; test_pycocoevalcap.py has the reference tool."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tellapart.errors import DataError
from tellapart.metrics import DocumentFrequencies, bleu_scores, cider_scores, ngrams

Corpus = tuple[list[list[str]], list[str]]
Gram = tuple[str, ...]


def naive_grams(caption: str, n: int) -> list[Gram]:
    words = caption.split()
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def naive_cider(
    references: Sequence[Sequence[str]],
    candidates: Sequence[str],
    documents: Sequence[Sequence[str]] | None = None,
    *,
    plain: bool = False,
) -> list[float]:
    documents = references if documents is None else documents
    images = len(documents)

    def vector(caption: str, n: int) -> dict[Gram, float]:
        grams = naive_grams(caption, n)
        result = {}
        for gram in set(grams):
            frequency = sum(any(gram in naive_grams(r, n) for r in group) for group in documents)
            result[gram] = grams.count(gram) * (math.log(images) - math.log(max(1, frequency)))
        return result

    scores = []
    for group, candidate in zip(references, candidates, strict=True):
        total = 0.0
        for reference in group:
            gap = len(naive_grams(candidate, 2)) - len(naive_grams(reference, 2))
            for n in range(1, 5):
                c, r = vector(candidate, n), vector(reference, n)
                dot = sum((c[g] if plain else min(c[g], r[g])) * r[g] for g in c if g in r)
                norms = math.sqrt(sum(v * v for v in c.values())) * math.sqrt(sum(v * v for v in r.values()))
                total += (dot / norms if norms else 0.0) * (1.0 if plain else math.exp(-gap * gap / 72))
        scores.append(10 * total / 4 / len(group))
    return scores


@pytest.mark.parametrize("seed", range(25))
def test_equals_the_formula(random_corpus: Callable[[int], Corpus], seed: int) -> None:
    references, candidates = random_corpus(seed)
    scores = cider_scores(references, candidates)
    expected = naive_cider(references, candidates)
    np.testing.assert_allclose(scores.per_image, expected, rtol=0, atol=1e-9)
    assert scores.corpus == pytest.approx(sum(expected) / len(expected), abs=1e-9)


def test_by_hand() -> None:
    # Two images, "a" in both (idf 0), all else in one (idf log 2 =: w). Unigrams of image 1: candidate
    # (dog w, sits w), reference (dog w, runs w): cosine 1/2. Bigrams: candidate (a dog, dog sits), reference
    # (a dog, dog runs): 1/2. Trigrams: none shared. 4-grams: none exist. Equal lengths: no penalty.
    scores = cider_scores([["a dog runs"], ["a cat sleeps"]], ["a dog sits", "a cat sleeps"])
    assert scores.per_image[0] == pytest.approx(10 * (1 / 2 + 1 / 2) / 4, abs=1e-12)
    # Image 2 is a literal copy, but has no 4-grams: 3 of the 4 orders give 1.
    assert scores.per_image[1] == pytest.approx(10 * 3 / 4, abs=1e-12)
    assert scores.corpus == pytest.approx((2.5 + 7.5) / 2, abs=1e-12)


def test_length_penalty() -> None:
    # "x" against "x y z": two words too short. Only unigrams match: w·w / (w · √3·w).
    scores = cider_scores([["x y z"], ["q"]], ["x", "q"])
    assert scores.per_image[0] == pytest.approx(10 / 4 / math.sqrt(3) * math.exp(-4 / 72), abs=1e-12)


def test_repeating_a_good_word_does_not_pay() -> None:
    references = [["a brown dog", "the dog"], ["a red bus", "the bus"]]
    once = cider_scores(references, ["a dog", "a bus"]).per_image[0]
    often = cider_scores(references, ["a dog dog dog dog dog dog", "a bus"]).per_image[0]
    assert often < once


def test_one_image_scores_zero() -> None:
    assert cider_scores([["a dog runs fast"]], ["a dog runs fast"]).corpus == 0.0


@pytest.mark.parametrize(
    ("references", "candidates"),
    [
        ([["a dog"], ["a cat"]], ["", "a cat"]),
        ([["a dog"], ["a cat"]], ["", ""]),
        ([["", "a dog"], ["a cat"]], ["", "a cat"]),
        ([[""], [""]], ["", ""]),
    ],
)
def test_empty_caption_scores_zero(references: list[list[str]], candidates: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = cider_scores(references, candidates)
    assert scores.per_image[0] == 0.0
    assert (scores.per_image[1] > 0) == (candidates[1] != "")


def test_image_without_references_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one reference"):
        cider_scores([["a"], []], ["a", "b"])
    with pytest.raises(ValueError, match="at least one reference"):
        cider_scores([["a"]], ["a", "b"])


@pytest.mark.parametrize("seed", range(10))
def test_plain_cider_equals_the_formula(random_corpus: Callable[[int], Corpus], seed: int) -> None:
    references, candidates = random_corpus(seed)
    scores = cider_scores(references, candidates, variant="cider")
    np.testing.assert_allclose(scores.per_image, naive_cider(references, candidates, plain=True), rtol=0, atol=1e-9)


def test_unknown_variant() -> None:
    with pytest.raises(ValueError, match="'cider-d' or 'cider'"):
        cider_scores([["a"]], ["a"], variant="cidre")  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("variant", ["cider-d", "cider"])
def test_a_table_of_other_references(random_corpus: Callable[[int], Corpus], seed: int, variant: str) -> None:
    references, candidates = random_corpus(seed)
    # The table lacks some of the words scored, and has words that are not.
    documents = [*random_corpus(seed + 100)[0], ["a brown dog on the grass", "grass"]]
    table = DocumentFrequencies.count(documents)
    scores = cider_scores(references, candidates, variant=variant, frequencies=table)  # type: ignore[arg-type]
    expected = naive_cider(references, candidates, documents, plain=variant == "cider")
    np.testing.assert_allclose(scores.per_image, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_a_table_of_the_same_references_changes_nothing(random_corpus: Callable[[int], Corpus], seed: int) -> None:
    references, candidates = random_corpus(seed)
    table = DocumentFrequencies.count(references)
    given = cider_scores(references, candidates, frequencies=table).per_image
    np.testing.assert_allclose(given, cider_scores(references, candidates).per_image, rtol=0, atol=1e-12)


def test_table_counts_images_not_captions() -> None:
    table = DocumentFrequencies.count([["a dog runs fast", "a dog"], ["the dog", "a"], ["||||| a"]])
    assert table.images == 3
    assert [table[gram] for gram in ("a", "dog", "a dog", "a dog runs", "a dog runs fast")] == [3, 2, 1, 1, 1]
    assert (table["|||||"], table["||||| a"]) == (1, 1)
    assert [table[gram] for gram in ("cat", "dog a", "cat a", "a cat", "dog runs a", "fast a dog runs")] == [0] * 6
    with pytest.raises(ValueError, match="1 to 4 words"):
        table["a b c d e"]


def test_table_is_saved_and_loaded(tmp_path: Path) -> None:
    table = DocumentFrequencies.count([["a dög runs fast", "a dog"], ["the dog"]])
    path = tmp_path / "new" / "table.npz"
    table.save(path)
    assert [file.name for file in path.parent.iterdir()] == ["table.npz"]
    loaded = DocumentFrequencies.load(path)
    assert (loaded.images, loaded.words) == (table.images, table.words)
    for kept, read in ((table.keys, loaded.keys), (table.counts, loaded.counts)):
        assert [array.tolist() for array in kept] == [array.tolist() for array in read]
    empty = DocumentFrequencies.count([])
    empty.save(path)
    assert DocumentFrequencies.load(path).words == ()


def test_broken_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.npz: .* does not exist"):
        DocumentFrequencies.load(tmp_path / "none.npz")
    broken = tmp_path / "broken.npz"
    for content in (b"", b"PK rubbish", b"{}"):
        broken.write_bytes(content)
        with pytest.raises(DataError, match=r"broken\.npz: not a table"):
            DocumentFrequencies.load(broken)
    np.savez(broken, words=np.zeros(3, dtype=np.uint8))
    with pytest.raises(DataError, match="not a table"):
        DocumentFrequencies.load(broken)
    table = DocumentFrequencies.count([["a dog"]])
    DocumentFrequencies(1, ("a",), table.keys, table.counts).save(broken)
    with pytest.raises(DataError, match="damaged"):
        DocumentFrequencies.load(broken)


@pytest.mark.parametrize("seed", range(5))
def test_blocks_of_one_image_change_nothing(
    random_corpus: Callable[[int], Corpus], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    references, candidates = random_corpus(seed)
    table = DocumentFrequencies.count(references)
    expected = cider_scores(references, candidates).per_image, bleu_scores(references, candidates).per_image
    monkeypatch.setattr(ngrams, "_BLOCK", 1)
    np.testing.assert_allclose(cider_scores(references, candidates).per_image, expected[0], rtol=1e-12, atol=0)
    np.testing.assert_array_equal(bleu_scores(references, candidates).per_image, expected[1])
    by_blocks = DocumentFrequencies.count(references)
    assert by_blocks.words == table.words
    for one, other in zip((*by_blocks.keys, *by_blocks.counts), (*table.keys, *table.counts), strict=True):
        np.testing.assert_array_equal(one, other)
