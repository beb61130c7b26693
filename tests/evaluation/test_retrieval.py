"""Ranks of retrievers: streamed in blocks they equal those of the whole matrix, ties included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from support.tiny import IDENTITY, WORDS, make_retriever
from tellapart.data.features import FeatureStore
from tellapart.data.prepare import Prepared
from tellapart.data.records import Dataset, Record
from tellapart.errors import DataError, StoreError
from tellapart.evaluation import retrieval
from tellapart.evaluation.retrieval import (
    Gallery,
    PairScores,
    first_captions,
    first_images,
    rank_captions_under,
    rank_split,
    shown_queries,
)
from tellapart.retrievers.base import Raw, Retriever
from tellapart.retrievers.ranking import Ranking


class WordsToRegions(Ranking):
    """A stand-in for SCAN: the best region for every word, no vector per item, raw embeddings of several tensors."""

    has_index_vectors = False

    def embed_images(self, features: torch.Tensor) -> Any:
        return (features,)

    def embed_texts(self, captions: Any) -> Any:
        width = self.encoder.width
        rows = [self.word.weight[self.vocabulary.encode(caption)[:-1]] for caption in captions]
        words = torch.zeros(len(rows), max((len(row) for row in rows), default=0), width)
        mask = torch.zeros(words.shape[:2])
        for place, row in enumerate(rows):
            words[place, : len(row), : row.shape[1]] = row
            mask[place, : len(row)] = 1
        return words, mask

    def index_vectors(self, raw: Raw) -> torch.Tensor:
        raise AssertionError("there are none")

    def similarity(self, images: Any, texts: Any) -> torch.Tensor:
        (regions,), (words, mask) = images, texts
        best = torch.einsum("irw,ctw->icrt", regions, words).amax(dim=2)
        # As small as a tenth of a cosine: equal pictures stay ties whatever the rounding.
        return 0.1 * (best * mask).sum(dim=2) / mask.sum(dim=1).clamp(min=1)


def make_retrievers() -> dict[str, Retriever]:
    plain = make_retriever(seed=1)
    late = WordsToRegions(plain.settings, plain.vocabulary, plain.encoder).eval()
    return {"cosine": plain, "dot": make_retriever(seed=1, reading="dot"), "late": late}


def make_prepared(images: int = 24, seed: int = 0) -> Prepared:
    """Equal pictures, equal captions of different images, unequal numbers of captions, an image without any."""
    rng = np.random.default_rng(seed)
    grid = rng.normal(size=(images, IDENTITY.regions, IDENTITY.width))
    grid[images // 2] = grid[1]
    grid[images - 1] = grid[1]
    records = []
    for number in range(images):
        captions = [" ".join(rng.choice(WORDS, size=rng.integers(1, 5))) for _ in range(1 + number % 3)]
        captions = ["a red house" if number % 5 == 2 else captions[0], *captions[1:]]
        records.append(Record(str(number), f"{number}.png", "test", tuple(captions), f"family {number // 3}"))
    records.append(Record("silent", "silent.png", "test", ()))
    grid = np.concatenate([grid, grid[:1]])
    dataset = Dataset("tiny", Path(), tuple(records))
    features = np.concatenate([grid, grid.mean(axis=1, keepdims=True)], axis=1).astype(np.float16)
    return Prepared(dataset, FeatureStore(features, IDENTITY, dataset.digest), Path())


PREPARED = make_prepared()


def whole_matrix(retriever: Retriever, prepared: Prepared, gallery: Gallery) -> NDArray[np.float64]:
    with torch.no_grad():
        images = retriever.embed_images(torch.from_numpy(prepared.store.grid(gallery.rows)))
        return retriever.similarity(images, retriever.embed_texts(gallery.captions)).double().numpy()


def assert_tie_or_not(gaps: NDArray[np.float64], rounding: float) -> None:
    """Each is so far from the limit of a tie that another order of additions changes nothing."""
    assert (np.abs(np.abs(gaps) - rounding) > 0.5 * rounding).all()


def naive_ranks(scores: NDArray[np.float64], owner: NDArray[np.int64], rounding: float) -> tuple[list[int], list[int]]:
    """By counting, one pair at a time: whoever is not right and as good goes before."""
    image_to_text, text_to_image = [], []
    for image in range(len(scores)):
        best = max(scores[image, caption] for caption in range(len(owner)) if owner[caption] == image)
        assert_tie_or_not(scores[image] - best, rounding)
        before = [c for c in range(len(owner)) if owner[c] != image and scores[image, c] >= best - rounding]
        image_to_text.append(1 + len(before))
    for caption, image in enumerate(owner):
        mine = scores[image, caption]
        assert_tie_or_not(scores[:, caption] - mine, rounding)
        before = [i for i in range(len(scores)) if i != image and scores[i, caption] >= mine - rounding]
        text_to_image.append(1 + len(before))
    return image_to_text, text_to_image


@pytest.mark.parametrize("name", make_retrievers())
@pytest.mark.parametrize(("at_once", "columns"), [(128, 4096), (5, 3), (1, 1)])
def test_streamed_ranks_equal_those_of_the_whole_matrix(
    name: str, at_once: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval, "AT_ONCE", at_once)
    monkeypatch.setattr(retrieval, "COLUMNS", columns)
    retriever = make_retrievers()[name]
    ranked = rank_split(retriever, PREPARED, fold_size=6)
    gallery = ranked.gallery
    assert len(gallery.ids) == 24
    assert "silent" not in gallery.ids
    scores = whole_matrix(retriever, PREPARED, gallery)
    expected = naive_ranks(scores, gallery.image_of_caption, ranked.scores.rounding)
    assert ranked.ranks.image_to_text.tolist() == expected[0]
    assert ranked.ranks.text_to_image.tolist() == expected[1]
    for fold, within in enumerate(ranked.folds):
        rows = slice(6 * fold, 6 * fold + 6)
        here = (gallery.image_of_caption >= rows.start) & (gallery.image_of_caption < rows.stop)
        owner = gallery.image_of_caption[here] - rows.start
        found = naive_ranks(scores[rows][:, here], owner, ranked.scores.rounding)
        assert (within.image_to_text.tolist(), within.text_to_image.tolist()) == found


def test_equal_pictures_and_equal_captions_are_ties_that_count_against() -> None:
    ranked = rank_split(make_retrievers()["cosine"], PREPARED)
    copies = [1, 12, 23]
    mine = np.isin(ranked.gallery.image_of_caption, copies)
    assert (ranked.ranks.text_to_image[mine] >= 3).all()
    same = [place for place, caption in enumerate(ranked.gallery.captions) if caption == "a red house"]
    assert len(same) > 3
    alone = [image for image in range(24) if image % 5 == 2 and image % 3 == 0]  # it has this caption only
    assert (ranked.ranks.image_to_text[alone] >= len(same)).all()


def test_no_more_than_a_block_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = make_retrievers()["late"]
    monkeypatch.setattr(retrieval, "AT_ONCE", 4)
    compared: list[int] = []
    similarity = retriever.similarity

    def watched(images: Any, texts: Any) -> torch.Tensor:
        compared.append(len(images[0]) * len(texts[0]))
        return similarity(images, texts)

    monkeypatch.setattr(retriever, "similarity", watched)
    rank_split(retriever, PREPARED)
    assert max(compared) <= 16


def test_progress_is_told() -> None:
    embedded, ranked = [], []
    found = rank_split(
        make_retrievers()["cosine"],
        PREPARED,
        on_embedding=lambda done, of: embedded.append((done, of)),
        on_ranking=lambda done, of: ranked.append((done, of)),
    )
    items = 24 + len(found.gallery.captions)
    assert embedded[-1] == (items, items)
    assert ranked[-1] == (24, 24)


def test_folds_that_do_not_fit_and_other_features() -> None:
    with pytest.raises(DataError, match="24 images make no fold of 25 images"):
        rank_split(make_retrievers()["cosine"], PREPARED, fold_size=25)
    other = FeatureStore(np.zeros((25, 5, 6), np.float16), IDENTITY, "other records")
    with pytest.raises(StoreError, match="made from other records"):
        rank_split(make_retrievers()["cosine"], Prepared(PREPARED.dataset, other, Path()))


def test_a_diverged_retriever_is_told() -> None:
    retriever = make_retriever(seed=1)
    with torch.no_grad():
        retriever.image.bias.fill_(torch.nan)
    with pytest.raises(DataError, match="not a number"):
        rank_split(retriever, PREPARED)


@pytest.mark.parametrize("name", make_retrievers())
def test_captions_of_anyone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "AT_ONCE", 5)
    retriever = make_retrievers()[name]
    captions = ["a red house", "two", "", "tree", "a zebra", "two", "car near a tree"]
    rows = [3, 0, 5, 7, 11, 2, 9]
    gallery = Gallery([str(row) for row in rows], rows, captions, np.arange(7))
    scores = whole_matrix(retriever, PREPARED, gallery)
    ranked = rank_captions_under(retriever, PREPARED, rows, captions)
    expected = naive_ranks(scores, np.arange(7), PairScores(retriever, PREPARED.store, rows, captions).rounding)
    assert ranked.ranks.tolist() == expected[1]
    np.testing.assert_allclose(ranked.similarities, np.diagonal(scores), rtol=1e-5, atol=1e-6)
    assert set(ranked.summary().recalls) == {1, 5}


def test_the_first_that_queries_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them in order: by score, and what is right in the place of its rank, after its ties."""
    monkeypatch.setattr(retrieval, "AT_ONCE", 5)
    ranked = rank_split(make_retrievers()["cosine"], PREPARED)
    owner, captions = ranked.gallery.image_of_caption, len(ranked.gallery.captions)
    whole = ranked.scores(slice(0, 24), np.arange(captions))
    asked = [*range(captions)][::-1]
    for caption, found in zip(asked, first_images(ranked, asked, 24), strict=True):
        assert found.index(owner[caption]) + 1 == ranked.ranks.text_to_image[caption]
        assert (np.diff(whole[found, caption]) <= 1e-5).all()
    for image, found in enumerate(first_captions(ranked, range(24), captions)):
        assert [owner[caption] for caption in found].index(image) + 1 == ranked.ranks.image_to_text[image]
        assert (np.diff(whole[image, found]) <= 1e-5).all()
    assert [len(found) for found in first_captions(ranked, [3, 1])] == [5, 5]


def test_right_and_wrong_queries_are_shown() -> None:
    ranks = np.array([1, 5, 1, 1, 2, 1, 9, 1, 1, 3])
    assert shown_queries(ranks, 4) == [0, 8, 1, 9]
    assert shown_queries(np.array([1, 1, 2]), 4) == [0, 1, 2]
    assert shown_queries(np.array([2, 3, 2, 2]), 2) == [0, 3]
    assert shown_queries(np.ones(3, dtype=np.int64), 8) == [0, 1, 2]


def test_each_branch_alone_is_ranked_by_its_own_vectors() -> None:
    retriever = make_retriever(seed=1, name="coder", instance_share=0.7)
    ranked = rank_split(retriever, PREPARED)
    gallery = ranked.gallery
    with torch.no_grad():
        images = retriever.embed_images(torch.from_numpy(PREPARED.store.grid(gallery.rows)))
        texts = retriever.embed_texts(gallery.captions)
    assert list(ranked.branches) == ["instance", "concept"]
    for branch, (name, found) in enumerate(ranked.branches.items()):
        scores = (images[branch] @ texts[branch].t()).double().numpy()
        expected = naive_ranks(scores, gallery.image_of_caption, retrieval.ROUNDING)
        assert found.image_to_text.tolist() == expected[0]
        assert found.text_to_image.tolist() == expected[1]
        recalls = sum((np.array(ranks) <= k).mean() for ranks in expected for k in (1, 5, 10))
        assert ranked.figures()[f"{name}_R@sum"] == pytest.approx(recalls)
    assert list(rank_split(make_retriever(name="coder", instance_share=1.0), PREPARED).branches) == ["instance"]
    assert rank_split(make_retrievers()["cosine"], PREPARED).branches == {}


def test_many_pairs_of_scan_are_searched_in_two_stages_unless_asked_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "AT_ONCE", 7)
    scan = make_retriever(seed=1, name="scan")
    exact = rank_split(scan, PREPARED)
    assert not exact.scores.reranked
    monkeypatch.setattr(retrieval, "EXACT_PAIRS", 100)
    asked = rank_split(scan, PREPARED, exact=True)
    assert not asked.scores.reranked
    assert asked.ranks.text_to_image.tolist() == exact.ranks.text_to_image.tolist()
    all_first = rank_split(scan, PREPARED, fold_size=12)
    assert all_first.scores.reranked
    assert all_first.ranks.image_to_text.tolist() == exact.ranks.image_to_text.tolist(), "100 are more than all"
    assert all_first.ranks.text_to_image.tolist() == exact.ranks.text_to_image.tolist()
    halves = [exact.scores.ranks(exact.gallery.image_of_caption, range(start, start + 12)) for start in (0, 12)]
    for found, expected in zip(all_first.folds, halves, strict=True):
        assert found.text_to_image.tolist() == expected.text_to_image.tolist()
    monkeypatch.setattr(retrieval, "RERANKED", 3)
    assert rank_split(scan, PREPARED).ranks.text_to_image.tolist() != exact.ranks.text_to_image.tolist()


def test_the_first_images_alone() -> None:
    ranked = rank_split(make_retrievers()["cosine"], PREPARED, images=5)
    assert ranked.gallery.ids == ["0", "1", "2", "3", "4"]


def test_mirrored_images_are_averaged(tmp_path: Path) -> None:
    """By the mean of both embeddings, and for SCAN by the regions of both; kept on the disk or not."""
    plain = PREPARED.store
    other = np.random.default_rng(5).normal(size=plain._features.shape).astype(np.float16)
    mirrored = FeatureStore(other, IDENTITY, plain.records)
    store = FeatureStore(plain._features, IDENTITY, plain.records, mirrored=mirrored)
    rows, captions = [0, 3, 4, 7], ["a red house", "two", "blue tree near a car"]
    for name in ("ranking", "coder", "scan"):
        retriever = make_retriever(seed=1, name=name)
        with torch.no_grad():
            one, two = (retriever.embed_images(torch.from_numpy(s.grid(rows))) for s in (plain, mirrored))
            texts = retriever.embed_texts(captions)
            if name == "coder":  # its embeddings are unit vectors: the mean of both similarities
                expected = (retriever.similarity(one, texts) + retriever.similarity(two, texts)) / 2
            elif name == "ranking":
                expected = retriever.similarity((one + two) / 2, texts)
            else:
                expected = retriever.similarity((torch.cat([one[0], two[0]], dim=1),), texts)
        columns = np.arange(len(captions))
        for path in (None, tmp_path / name):
            found = PairScores(retriever, store, rows, captions, path=path)(slice(0, len(rows)), columns)
            assert found == pytest.approx(expected.double().numpy(), rel=1e-5, abs=1e-6)
        assert not np.allclose(PairScores(retriever, plain, rows, captions)(slice(0, len(rows)), columns), found)
