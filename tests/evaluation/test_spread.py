"""The spread of negatives against a loop over pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.tiny import make_data, make_retriever
from tellapart.data.prepare import Prepared
from tellapart.evaluation import spread as spread_module
from tellapart.evaluation.retrieval import Gallery
from tellapart.evaluation.spread import drawn, measure_spread, negative_spread, split_spread
from tellapart.recipe import Recipe
from tellapart.run import Run


@pytest.mark.parametrize("chunk", [1, 3, 256])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_it_is_the_deviation_of_what_belongs_to_other_images(chunk: int, offset: float) -> None:
    rng = np.random.default_rng(0)
    owner = np.array([0, 0, 1, 2, 2, 2, 3, 4, 4])
    scores = rng.normal(size=(5, 9)) + offset  # a common offset must not cancel the digits
    asked: list[int] = []

    def block(rows: slice, columns: np.ndarray) -> np.ndarray:
        asked.append(rows.stop - rows.start)
        return scores[rows][:, columns]

    spread = negative_spread(block, owner, 5, chunk=chunk)
    assert max(asked) <= chunk
    for image in range(5):
        assert spread.image_to_text[image] == pytest.approx(scores[image][owner != image].std(), rel=1e-6)
    for caption in range(9):
        others = np.arange(5) != owner[caption]
        assert spread.text_to_image[caption] == pytest.approx(scores[others, caption].std(), rel=1e-6)
    assert spread.figures()["image_to_text_negative_SD"] == pytest.approx(spread.image_to_text.mean())


def test_an_anchor_without_negatives_has_none() -> None:
    spread = negative_spread(lambda rows, columns: np.ones((1, 2)), np.array([0, 0]), 1)
    assert spread.image_to_text.tolist() == [0.0]
    assert spread.text_to_image.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("anchors", "expected"), [(1, 1), (4, 4), (1000, None)])
def test_anchors_of_a_sample_are_compared_with_all_negatives(anchors: int, expected: int | None) -> None:
    dataset, store = make_data()
    gallery = Gallery.of_split(Prepared(dataset, store, Path()), "train")
    scan = make_retriever(seed=1, name="scan")
    whole, some = split_spread(scan, store, gallery), split_spread(scan, store, gallery, anchors)
    for name, values in vars(whole).items():
        places = drawn(len(values), anchors)
        assert len(places) == (expected or len(values))
        assert vars(some)[name] == pytest.approx(values[places], rel=1e-5)


@pytest.mark.parametrize("name", ["scan", "ranking"])
def test_only_many_pairs_without_vectors_have_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """`spread.json` of all anchors is not taken for that of a sample."""
    monkeypatch.setattr(spread_module, "ANCHORS", 2)
    dataset, store = make_data()
    run = Run(tmp_path, Recipe.load("scenes/ranking.yaml", budget="smoke"))
    model = make_retriever(seed=1, name=name)
    vars(run).update(data=Prepared(dataset, store, tmp_path), model=model, model_digest="none")
    whole = measure_spread(run, "train")
    images = sum(bool(record.captions) for record in dataset.split("train"))
    assert len(whole.image_to_text) == images > 2
    monkeypatch.setattr(spread_module, "EXACT_PAIRS", 1)
    some = measure_spread(run, "train")
    if name == "scan":
        assert len(some.image_to_text) == len(some.text_to_image) == 2
    else:
        assert np.array_equal(some.image_to_text, whole.image_to_text)
        assert np.array_equal(some.text_to_image, whole.text_to_image)
