"""Halves of the training images: disjoint, complete, and what a recipe with `data.half` is trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.tiny import make_data
from tellapart.data.halves import half_of, keep_half
from tellapart.data.records import Dataset, Record
from tellapart.errors import DataError
from tellapart.recipe import Recipe

DATASET = Dataset(
    "many", Path("."), tuple(Record(f"{n}", f"{n}.jpg", "test" if n % 5 == 4 else "train", ("a",)) for n in range(500))
)


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_they_are_disjoint_and_complete(seed: int) -> None:
    halves = [keep_half(DATASET, half, seed) for half in (1, 2)]
    one, other = ({record.id for record in half.split("train")} for half in halves)
    assert not one & other
    assert one | other == {record.id for record in DATASET.split("train")}
    assert 150 < len(one) < 250, "of 400; the chance of less is 1 in a million"
    for half in halves:
        assert half.split("test") == DATASET.split("test")
        assert half.digest == DATASET.digest, "so that its feature store fits"


def test_they_depend_on_seed_and_id_alone() -> None:
    records = DATASET.split("train")
    of = {seed: [half_of(record, seed) for record in records] for seed in (0, 1)}
    assert of[0] != of[1]
    backwards = Dataset("fewer", Path("elsewhere"), DATASET.records[::-2])
    kept = {record.id for record in keep_half(backwards, 2).split("train")}
    assert kept == {record.id for record in keep_half(DATASET, 2).split("train")} & {r.id for r in backwards}


def test_near_duplicates_stay_together() -> None:
    record = DATASET.records[0]
    assert len({half_of(replace(record, id=str(n), family="one")) for n in range(20)}) == 1
    assert len({half_of(replace(record, id=str(n))) for n in range(20)}) == 2


def test_an_empty_half_is_an_error() -> None:
    alone = Dataset("alone", Path("."), (Record("a", "a.jpg", "train", ("a",)),))
    assert keep_half(alone, 2).split("train")
    with pytest.raises(DataError, match="none of its 1 training images is in half 1"):
        keep_half(alone, 1)


def test_pictures_that_cannot_be_read_stay_out() -> None:
    dataset, _ = make_data()
    first = dataset.split("train")[0]
    assert first.id not in {r.id for r in keep_half(replace(dataset, skipped=frozenset([first.id])), 1).split("train")}


def test_the_default_changes_no_key() -> None:
    whole = Recipe.load("scenes/ranking.yaml", budget="smoke")
    assert "half" not in whole.for_key()["data"]
    keys = {Recipe.load("scenes/ranking.yaml", ch, "smoke").digest for ch in (["data.half=1"], ["data.half=2"])}
    assert len(keys | {whole.digest}) == 3


def test_a_role_keeps_its_half_and_does_not_give_it(tmp_path: Path) -> None:
    (tmp_path / "half.yaml").write_text("extends: scenes/ranking.yaml\nname: half\ndata: {half: 2}\n")
    objective = "name: cl\nextends: scenes/specificity.yaml\nroles: {retriever: {from: half.yaml}}\n"
    (tmp_path / "target.yaml").write_text(objective)
    assert Recipe.load(tmp_path / "half.yaml").data.half == 2
    assert Recipe.load(tmp_path / "target.yaml").data.half is None
    (tmp_path / "started.yaml").write_text("name: more\nextends: scenes/ranking.yaml\nstart: {from: half.yaml}\n")
    assert Recipe.load(tmp_path / "started.yaml").data.half == 2, "or it would see what its start must not"
