"""The generic or the specific part of the training captions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.tiny import make_data
from tellapart.data.batches import BatchSource
from tellapart.data.records import Dataset, Record
from tellapart.data.selection import highest, keep_captions
from tellapart.data.settings import NegativeSettings
from tellapart.errors import RecipeError
from tellapart.recipe import Recipe


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.99])
def test_the_highest_share_is_chosen_and_the_rest_is_its_complement(share: float) -> None:
    values = np.random.default_rng(0).normal(size=31)
    chosen = highest(values, share)
    assert chosen.sum() == min(30, max(1, round(share * 31)))
    assert values[chosen].min() > values[~chosen].max()


def test_halves_are_complete_and_disjoint() -> None:
    values = np.random.default_rng(1).normal(size=20)
    assert (highest(values, 0.5) ^ highest(-values, 0.5)).all()


def test_captions_of_other_splits_and_all_rows_stay() -> None:
    records = (
        Record("a", "a.jpg", "train", ("one", "two")),
        Record("b", "b.jpg", "val", ("three",)),
        Record("c", "c.jpg", "train", ()),
        Record("d", "d.jpg", "train", ("four", "five", "six")),
    )
    dataset = Dataset("few", Path("."), records)
    kept = keep_captions(dataset, ["a", "d"], np.array([0, 0, 1, 1, 1]), np.array([False, False, True, False, True]))
    assert [record.captions for record in kept] == [(), ("three",), (), ("four", "six")]
    assert [record.id for record in kept] == [record.id for record in dataset]


def test_generic_negatives() -> None:
    """All hard ones come from the given captions, unless they are the image's own."""
    dataset, store = make_data()
    settings = NegativeSettings(by="generic", hard=1.0, ramp_epochs=0)
    generic = np.array([1, 4, 7])
    source = BatchSource(
        dataset, store, "train", 6, negatives=3, negative_settings=settings, likely_captions=generic, seed=1
    )
    batch = source.at(0)
    assert batch.places is not None
    images = source.numbers(batch.ids)[batch.pairs.image_row[batch.pairs.kind == 1]].numpy()
    drawn = batch.places[batch.pairs.caption_row[batch.pairs.kind == 1]].numpy()
    assert not source.pool.is_own(images, drawn).any()
    assert set(drawn.tolist()) == set(generic.tolist())


# --- recipes ----------------------------------------------------------------------------------------------------------


def test_the_default_changes_no_key_and_a_selection_does() -> None:
    whole = Recipe.load("scenes/transformer-mle.yaml", budget="smoke")
    assert not {"captions", "entropy"} & set(whole.for_key()["data"])
    teacher = "scenes/unkt-negative-teacher.yaml"
    changes = ([], ["data.captions=specific"], ["data.entropy.share=0.3"], ["data.entropy.temperature=0.05"])
    digests = {Recipe.load(teacher, change, "smoke").digest for change in changes}
    assert len(digests | {whole.digest}) == 5


def test_a_selection_is_passed_on_to_no_other_recipe(tmp_path: Path) -> None:
    assert Recipe.load("scenes/unkt-negative-teacher.yaml").data.captions == "generic"
    assert Recipe.load("scenes/unkt.yaml").data.captions == "all", "by a role"
    (tmp_path / "more.yaml").write_text(
        "name: more\nextends: scenes/unkt-continued.yaml\nstart: {from: scenes/unkt-negative-teacher.yaml}\n"
    )
    assert Recipe.load(tmp_path / "more.yaml").data.captions == "all", "by a start"


def test_what_a_selection_needs() -> None:
    with pytest.raises(RecipeError, match=r"roles\.entropy\.from: data\.captions needs a retriever here"):
        Recipe.load("scenes/transformer-mle.yaml", ["data.captions=generic"])
    with pytest.raises(RecipeError, match=r"roles\.entropy\.from: negatives\.by 'specific' needs a retriever here"):
        Recipe.load("scenes/adaptive-cl.yaml", ["negatives.by=specific"])
    with pytest.raises(RecipeError, match=r"data\.half: not available with data\.captions"):
        Recipe.load("scenes/unkt-negative-teacher.yaml", ["data.half=1"])
    with pytest.raises(RecipeError, match=r"negatives\.by: set it to images where data\.captions is not all"):
        Recipe.load("scenes/unkt-negative-teacher.yaml", ["negatives.by=generic"])
    with pytest.raises(RecipeError, match=r"roles\.entropy: the likelihood objective has no such role"):
        Recipe.load("scenes/unkt-negative-teacher.yaml", ["data.captions=all"])
