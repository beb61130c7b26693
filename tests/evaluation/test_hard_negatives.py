"""Hard negatives by a retriever: the captions it likes best, and a training that draws from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.tiny import make_data, make_retriever
from tellapart.data.prepare import Prepared
from tellapart.errors import RecipeError
from tellapart.evaluation.hard_negatives import likely_captions
from tellapart.files import read_json
from tellapart.models import model_digest
from tellapart.recipe import Recipe, recipes_folder
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


def test_without_a_retriever_it_is_a_mistake() -> None:
    with pytest.raises(RecipeError, match=r"roles.retriever.from: negatives.by 'retriever' needs a retriever here"):
        Recipe.load(recipes_folder() / "scenes" / "adaptive-cl.yaml", ["negatives.by=retriever"])
