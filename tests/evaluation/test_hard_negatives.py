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
from tellapart.evaluation.hard_negatives import likely_captions
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
            sorted(scores[place] for place in best), rel=1e-5, abs=1e-5
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
        self.table = np.random.default_rng(4).integers(0, 3, self.shape).astype(np.float64)

    def __call__(self, rows: slice, columns: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.table[rows][:, columns]


@pytest.mark.parametrize("top", [0.05, 0.3, 0.6, 1.0])
@pytest.mark.parametrize(("images", "captions"), [(1, 1), (4, 3), (2, 5), (256, 16_384)])
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
