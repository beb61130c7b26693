"""Hard negatives by a retriever: the captions it likes best, and a training that draws from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from support.tiny import make_data, make_retriever
from tellapart.data.features import FeatureStore
from tellapart.data.negatives import CaptionPool, from_ranked_captions, wording
from tellapart.data.prepare import Prepared
from tellapart.data.records import Dataset
from tellapart.engine.journal import read_journal
from tellapart.errors import DataError, RecipeError
from tellapart.evaluation import hard_negatives
from tellapart.evaluation.hard_negatives import best_captions, compare_on_grid, likely_captions
from tellapart.files import read_json
from tellapart.models import model_digest
from tellapart.recipe import Recipe
from tellapart.recipe_files import recipes_folder
from tellapart.training import run_recipe

TINY = ["data.scenes={train: 12, val: 4, test: 3}", "data.min_count=1", "training.images_per_batch=4"]


def test_they_are_the_best_of_other_images(tmp_path: Path) -> None:
    retriever = make_retriever(seed=1)
    dataset, store = make_data()
    likely = likely_captions(retriever, Prepared(dataset, store, tmp_path), "train", top=0.2)
    records = [record for record in dataset.split("train") if record.captions]
    captions = [caption for record in records for caption in record.captions]
    owner = [number for number, record in enumerate(records) for _ in record.captions]
    assert likely.shape == (len(records), round(0.2 * len(captions)))
    texts = retriever.embed_texts(captions)
    for image, record in enumerate(records):
        grid = store.grid([dataset.row(record.id)])
        scores = retriever.similarity(retriever.embed_images(torch.from_numpy(grid)), texts)[0].tolist()
        others = [place for place in range(len(captions)) if owner[place] != image]
        best = sorted(others, key=lambda place: -scores[place])[: likely.shape[1]]
        assert sorted(scores[place] for place in likely[image]) == pytest.approx(
            sorted(scores[place] for place in best),
            abs=2e-3,  # vectors are rounded to 1/4096
        )
        assert all(owner[place] != image for place in likely[image])


def test_captions_that_read_like_the_images_own_are_left_out(tmp_path: Path) -> None:
    retriever = make_retriever(seed=1)
    dataset, store = make_data()
    changed = [
        replace(record, captions=("a red house", *record.captions)) if number % 2 else record
        for number, record in enumerate(dataset.records)
    ]
    dataset = Dataset(dataset.name, dataset.root, tuple(changed))
    store = FeatureStore(store._features, store.encoder, dataset.digest)
    likely = likely_captions(retriever, Prepared(dataset, store, tmp_path), "train", top=1.0)
    records = [record for record in dataset.split("train") if record.captions]
    captions = [caption for record in records for caption in record.captions]
    for record, row in zip(records, likely, strict=True):
        assert not {captions[place] for place in row} & set(record.captions)
        assert len(set(row.tolist())) == len(row)
    fewest = min(sum(caption not in record.captions for caption in captions) for record in records)
    assert likely.shape == (len(records), fewest)


class Coarse:
    """Scores with many ties, in place of a retriever's."""

    def __init__(
        self,
        retriever: object,
        store: object,
        rows: list[int],
        captions: list[str],
        *_: object,
        path: Path | None = None,
    ) -> None:
        self.shape = (len(rows), len(captions))
        self.vectors = None
        self.table = np.random.default_rng(4).integers(0, 3, self.shape).astype(np.float64)

    def __call__(self, rows: slice, columns: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.table[rows][:, columns]


@pytest.mark.parametrize("top", [0.05, 0.3, 0.6, 1.0])
@pytest.mark.parametrize(("images", "captions"), [(1, 1), (4, 3), (2, 5), (1024, 4096)])
def test_equal_ones_are_ordered_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, top: float, images: int, captions: int
) -> None:
    """As a whole table that is sorted, whatever the blocks; ties at the last place too."""
    monkeypatch.setattr(hard_negatives, "IMAGES", images)
    monkeypatch.setattr(hard_negatives, "CAPTIONS", captions)
    monkeypatch.setattr(hard_negatives, "PairScores", Coarse)
    dataset, store = make_data()
    likely = likely_captions(make_retriever(), Prepared(dataset, store, tmp_path), "train", top)
    pool = CaptionPool([record.captions for record in dataset.split("train")])
    table = Coarse(None, None, [0] * len(pool.counts), pool.captions).table
    for image, row in enumerate(likely.tolist()):
        own = {wording(pool.captions[place]) for place in pool.of_image(image)}
        others = [place for place, caption in enumerate(pool.captions) if wording(caption) not in own]
        assert row == sorted(others, key=lambda place: (-table[image, place], place))[: len(row)]


def test_a_retriever_without_vectors_is_refused_where_pairs_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, store = make_data()
    prepared = Prepared(dataset, store, tmp_path)
    scan, pairs = make_retriever(name="scan"), len(dataset.split("train"))
    monkeypatch.setattr(hard_negatives, "MOST_PAIRS", pairs)
    with pytest.raises(RecipeError, match=r"roles.retriever: 'scan' compares pair by pair.*negatives.by: images"):
        likely_captions(scan, prepared, "train", top=0.2)
    assert len(likely_captions(make_retriever(name="coder"), prepared, "train", top=0.2)) == pairs


def whole_numbers(vectors: NDArray[np.float32], lengths: NDArray[np.float64]) -> list[list[int]]:
    """Vectors scaled to the length 4096, less what rounding may add, and rounded."""
    scaled = vectors * ((4095 - vectors.shape[1] ** 0.5 / 2) / lengths[:, None]).astype(np.float32)
    return [[round(float(value)) for value in row] for row in scaled]


@pytest.mark.parametrize(
    ("images", "captions", "buffer"), [(1, 1, 1), (3, 7, 200), (4, 64, 10**6), (1024, 4096, 10**6)]
)
@pytest.mark.parametrize(("count", "sample"), [(1, 8192), (1, 30), (5, 8192), (5, 45), (40, 8192)])
def test_vectors_give_the_order_of_whole_numbers(
    monkeypatch: pytest.MonkeyPatch, images: int, captions: int, buffer: int, count: int, sample: int
) -> None:
    """As Python's integers, sorted, whatever the blocks; with captions of equal vectors, and of other lengths."""
    for name, value in {"IMAGES": images, "CAPTIONS": captions, "BUFFER": buffer, "SAMPLE": sample}.items():
        monkeypatch.setattr(hard_negatives, name, value)
    rng = np.random.default_rng(7)
    pictures = rng.normal(size=(9, 6)).astype(np.float32)
    different = rng.normal(size=(30, 6)).astype(np.float32)
    texts = different[rng.integers(0, 30, 90)]  # about three of each
    pictures[3] = 0.0  # all captions are equal for it
    pool = CaptionPool([[f"caption {10 * image + number}" for number in range(10)] for image in range(9)])
    found = best_captions(compare_on_grid(pictures, texts), pool, slice(0, 9), count)
    lengths = [np.linalg.norm(vectors.astype(np.float64), axis=1) for vectors in (pictures, texts)]
    lengths[0][3] = 1.0
    rounded = whole_numbers(pictures, lengths[0]), whole_numbers(texts, np.full(90, lengths[1].max()))
    for image, row in enumerate(found.tolist()):
        scores = [sum(a * b for a, b in zip(rounded[0][image], text, strict=True)) for text in rounded[1]]
        others = [place for place in range(90) if place // 10 != image]
        assert row == sorted(others, key=lambda place: (-scores[place], place))[:count]


@pytest.mark.parametrize("first", [True, False])
def test_a_sample_that_misleads_changes_nothing(monkeypatch: pytest.MonkeyPatch, first: bool) -> None:
    """Every third caption is sampled: all good ones, or none of them."""
    monkeypatch.setattr(hard_negatives, "SAMPLE", 200)
    table = np.arange(600) % 7 + 100.0 * ((np.arange(600) % 3 == 0) == first)
    pool = CaptionPool([["mine"], [f"caption {number}" for number in range(599)]])
    compared: list[int] = []

    def compare(rows: slice, columns: slice) -> NDArray[np.float32]:
        compared.append(columns.step or 1)
        return np.repeat(table[None, columns].astype(np.float32), rows.stop - rows.start, axis=0)

    (found,) = best_captions(compare, pool, slice(0, 1), 3).tolist()
    assert found == sorted(range(1, 600), key=lambda place: (-table[place], place))[:3]
    assert compared[0] == 3, "a sample was looked at"


def test_a_limit_that_is_too_high_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hard_negatives, "_likely_limits", lambda *_: np.full((2, 1), 2.0, np.float32))
    table = np.array([[3, 3, 0, 1, 9, 2], [9, 9, 9, 0, 1, 2]], np.float32)
    pool = CaptionPool([["a", "b"], ["c", "d", "e", "f"]])
    found = best_captions(lambda rows, columns: table[rows, columns].copy(), pool, slice(0, 2), 2)
    assert found.tolist() == [[4, 5], [0, 1]]


@pytest.mark.parametrize("width", [3, 256, 2048])
def test_products_of_rounded_vectors_are_exact(width: int) -> None:
    """Also of a vector with itself, the largest sum that there is; and they are near the similarities."""
    rng = np.random.default_rng(width)
    vectors = (5 * rng.normal(size=(20, width))).astype(np.float32)
    vectors[0] = 4.0  # every number is rounded the same way
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = compare_on_grid(vectors, vectors)(slice(0, 20), slice(0, 20))
    assert found.max() <= 2**24
    assert np.array_equal(found, np.rint(found))
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    numbers = np.array(whole_numbers(vectors, lengths)), np.array(whole_numbers(vectors, np.full(20, lengths.max())))
    assert np.array_equal(found, numbers[0] @ numbers[1].T)
    wrong = np.abs(found / (4095 - width**0.5 / 2) ** 2 - vectors @ vectors.T)
    assert np.median(wrong) < 3e-4
    assert wrong.max() < 1.1 * width**0.5 / 4096, "if all numbers are rounded the same way"


def test_they_are_kept_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hard_negatives, "IMAGES", 2)
    retriever = make_retriever(seed=1)
    prepared = Prepared(*make_data(), tmp_path)
    whole = likely_captions(retriever, prepared, "train", 0.3)

    def stop(what: str, done: int, of: int) -> None:
        if what.startswith("ranking") and done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        likely_captions(retriever, prepared, "train", 0.3, tmp_path / "kept", stop)
    shown: list[tuple[int, int]] = []
    found = likely_captions(
        retriever,
        prepared,
        "train",
        0.3,
        tmp_path / "kept",
        lambda what, done, of: shown.append((done, of)) if what.startswith("ranking") else None,
    )
    assert shown == [(4, 6), (6, 6)], "two of three blocks were there"
    assert found.dtype == np.int32
    assert isinstance(found, np.memmap)
    assert np.array_equal(found, whole)
    monkeypatch.setattr(hard_negatives, "PairScores", None)
    assert np.array_equal(likely_captions(retriever, prepared, "train", 0.3, tmp_path / "kept"), whole)
    drawn = from_ranked_captions(found)(np.array([0, 3]), 5, np.random.default_rng(0))
    assert drawn.shape == (2, 5)
    assert set(drawn[1].tolist()) <= set(whole[3].tolist())


def test_other_retrievers_shares_and_captions_have_their_own(tmp_path: Path) -> None:
    prepared = Prepared(*make_data(), tmp_path)
    for number, (seed, top) in enumerate([(1, 0.3), (2, 0.3), (1, 0.5)], start=1):
        likely_captions(make_retriever(seed=seed), prepared, "train", top, tmp_path / "kept")
        assert len(list((tmp_path / "kept").glob("*.npy"))) == number


def test_the_table_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = Prepared(*make_data(), tmp_path)
    whole = likely_captions(make_retriever(), prepared, "train", 0.5)
    monkeypatch.setattr(hard_negatives, "LARGEST", 6 * 2 + 1)
    assert np.array_equal(likely_captions(make_retriever(), prepared, "train", 0.5), whole[:, :2])


def test_a_diverged_retriever_is_told(tmp_path: Path) -> None:
    retriever = make_retriever()
    with torch.no_grad():
        next(retriever.parameters()).fill_(float("nan"))
    with pytest.raises(DataError, match="the retriever has diverged"):
        likely_captions(retriever, Prepared(*make_data(), tmp_path), "train", 0.3)


def test_a_recipe_names_the_retriever(tmp_path: Path) -> None:
    """The retriever is trained first where need be, and is part of the run's key."""
    recipe = Recipe.load(
        recipes_folder() / "scenes" / "adaptive-cl-hard.yaml",
        [*TINY, f"data.prepared={tmp_path / 'prepared'}", "training.steps=2"],
        "smoke",
    )
    run = run_recipe(recipe, tmp_path / "runs")
    upstreams = read_json(run.folder / "run.json")["made_from"]["upstreams"]
    (retriever,) = (tmp_path / "runs").glob("scenes-ranking-*")
    assert upstreams["retriever"] == model_digest(retriever)
    assert set(Recipe.load(run.folder).roles) == {"reference", "retriever"}
    assert len(list((retriever / "scores").glob("likely-captions-*.npy"))) == 1


def test_those_of_a_model_folder_are_kept_in_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written into the model folder; what was found before an interruption is found again."""
    monkeypatch.setattr(hard_negatives, "IMAGES", 4)
    data = [*TINY, f"data.prepared={tmp_path / 'prepared'}", "training.steps=2"]
    trained = run_recipe(Recipe.load("scenes/ranking.yaml", data, "smoke"), tmp_path / "runs")
    trained.model.save_pretrained(tmp_path / "model")
    before = sorted(path.name for path in (tmp_path / "model").iterdir())
    recipe = Recipe.load("scenes/adaptive-cl-hard.yaml", [*data, f"roles.retriever.from={tmp_path / 'model'}"], "smoke")
    shown: list[tuple[int, int]] = []

    def stop(what: str, done: int, of: int) -> None:
        if what.startswith("ranking captions"):
            shown.append((done, of))
            if shown == [(0, 12), (4, 12)]:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe, tmp_path / "runs", on_progress=stop)
    (vectors,) = (tmp_path / "runs").glob("*/scores/vectors-*.npy")
    folder = vectors.parent.parent
    shown.clear()
    run = run_recipe(Recipe.load(folder), folder.parent, folder, stop)  # as `--resume` does
    assert shown == [(4, 12), (8, 12), (12, 12)], "a block of three was there"
    assert run.folder == folder
    assert [path.name for path in (folder / "scores").glob("*.npy")] == [
        path.name for path in (folder / "scores").glob("likely-captions-*.npy")
    ]
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == before


@pytest.mark.parametrize("contrast", ["images", "both"])
def test_recipes_against_other_images(tmp_path: Path, contrast: str) -> None:
    """Trained for a few steps with hard images by features; validation draws uniform ones."""
    overrides = [f"data.prepared={tmp_path / 'prepared'}", "negatives={hard: 0.5, top: 0.2}", "training.steps=4"]
    overrides += ["training.validate_every=2", "training.log_every=1"]
    recipe = Recipe.load(f"scenes/adaptive-cl-{contrast}.yaml", [*TINY, *overrides], "smoke")
    rows = read_journal(run_recipe(recipe, tmp_path / "runs").folder)
    assert len(rows) == 6, "four steps and two validations"
    for row in rows:
        assert "log_ratio_image_negative" in row
        assert ("log_ratio_negative" in row) == (contrast == "both")


def test_without_a_retriever_it_is_a_mistake() -> None:
    with pytest.raises(RecipeError, match=r"roles.retriever.from: negatives.by 'retriever' needs a retriever here"):
        Recipe.load(recipes_folder() / "scenes" / "adaptive-cl.yaml", ["negatives.by=retriever"])
