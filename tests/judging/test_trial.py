"""What raters see: which pictures, in which order, which caption on which side."""

from __future__ import annotations

from pathlib import Path

import pytest

from tellapart.data.records import Dataset
from tellapart.errors import DataError
from tellapart.judging.trial import Item, Trial, names_of, new_trial, rater_key, rater_name


def many(items: int, seed: int = 0) -> Trial:
    return Trial(
        names=("a", "b"),
        made_from="",
        seed=seed,
        secret="0",
        items=tuple(Item(id=f"{number}.jpg", a="one", b="other") for number in range(items)),
    )


def test_identical_captions_are_not_asked(trial: Trial) -> None:
    assert len(trial.items) == 8
    asked = {trial.items[place].id for place in trial.asked("Anna")}
    assert len(asked) == 6
    assert asked.isdisjoint({"black.jpg", "white.jpg"})


def test_orders_and_sides_differ_between_raters_and_are_balanced() -> None:
    trial = many(400)
    orders = [trial.asked(rater) for rater in ("Anna", "Ben", "Carla")]
    assert all(sorted(order) == list(range(400)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    sides = [[trial.a_is_left(rater, item.id) for item in trial.items] for rater in ("Anna", "Ben")]
    assert sides[0] != sides[1]
    for one in sides:
        assert 140 < sum(one) < 260  # six standard deviations around half
    assert many(400, seed=1).asked("Anna") != orders[0]


def test_a_file_of_answers_means_the_same_for_ever() -> None:
    """If this fails, old files of answers are read wrongly: raise FORMAT and keep reading the old one."""
    trial = many(8)
    assert trial.asked("Anna") == [7, 0, 4, 2, 1, 6, 3, 5]
    assert [int(trial.a_is_left("Anna", item.id)) for item in trial.items] == [1, 1, 0, 0, 0, 1, 1, 1]


def test_a_choice_is_unblinded_by_the_side() -> None:
    trial = many(20)
    for item in trial.items:
        shown_left = "a" if trial.a_is_left("Ben", item.id) else "b"
        assert trial.winner("Ben", item.id, "left") == shown_left
        assert {trial.winner("Ben", item.id, "left"), trial.winner("Ben", item.id, "right")} == {"a", "b"}
        assert trial.winner("Ben", item.id, "tie") == "tie"


def test_names_are_the_same_rater_however_they_are_typed() -> None:
    assert rater_key(" anna  MARIA") == rater_key("Anna Maria")
    trial = many(50)
    assert trial.asked("anna") == trial.asked(" Anna ")
    for bad in ("", "   ", "x" * 61, "a\x00b"):
        with pytest.raises(DataError, match="name"):
            rater_name(bad)


def test_a_draw_is_the_same_for_the_same_seed(files: tuple[Path, Path], dataset: Dataset) -> None:
    drawn = [
        [item.id for item in new_trial(("a", files[0]), ("b", files[1]), dataset, count=5, seed=seed).items]
        for seed in (0, 0, 3)
    ]
    assert len(drawn[0]) == 5
    assert drawn[0] == drawn[1] != drawn[2]


def test_broken_pictures_and_lonely_captions_are_left_out(
    files: tuple[Path, Path], pictures: Path, dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    (pictures / "red.jpg").write_bytes((pictures / "red.jpg").read_bytes()[:100])
    files[0].write_text("".join(line + "\n" for line in files[0].read_text().splitlines() if "blue" not in line))
    trial = new_trial(("a", files[0]), ("b", files[1]), dataset)
    assert {item.id for item in trial.items}.isdisjoint({"red.jpg", "blue.jpg"})
    told = capsys.readouterr().err
    assert "red.jpg" in told
    assert "1 of its captions" in told


def test_files_that_share_no_picture_are_refused(files: tuple[Path, Path], dataset: Dataset) -> None:
    with pytest.raises(DataError, match="nothing to judge"):
        new_trial(("a", files[0]), ("b", files[0]), dataset)
    files[1].write_text('{"id": "elsewhere.jpg", "caption": "a dog"}\n')
    with pytest.raises(DataError, match="no picture of"):
        new_trial(("a", files[0]), ("b", files[1]), dataset)


def test_two_systems_need_two_names() -> None:
    with pytest.raises(DataError, match="NAME=FILE"):
        names_of(["captions.jsonl", "captions.json"])
