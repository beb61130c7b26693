"""The true listener: ranks by claims that are right, against a count of all orders, and known captions."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from tellapart.data.records import Dataset, Record
from tellapart.data.scenes import SceneRecord, make_scenes, make_split
from tellapart.data.scenes.chance import seeded
from tellapart.data.scenes.claims import check, read_claims
from tellapart.data.scenes.grammar import write_caption
from tellapart.data.scenes.world import Group, Scene
from tellapart.data.settings import DataSettings, ScenesSettings
from tellapart.errors import DataError
from tellapart.evaluation.true_listener import TrueListener, open_true_listener

IMAGES = 240

BALL = Group("ball", "red", "normal", "plain", 1, "left")
BEACH = Scene("beach", "sunny", (BALL,), 0)
# The red ball, the same in blue, the same as two; and a single scene.
SCENES = [
    BEACH,
    replace(BEACH, groups=(replace(BALL, colour="blue"),)),
    replace(BEACH, groups=(replace(BALL, count=2),)),
    Scene("desert", "night", (Group("dog", "black", "normal", "plain", 3, "middle"),), 0),
]
FAMILY = ["balls", "balls", "balls", "dogs"]


@pytest.fixture(scope="module")
def records() -> list[SceneRecord]:
    return make_split("test", IMAGES, 0, set())


@pytest.fixture(scope="module")
def listener(records: list[SceneRecord]) -> TrueListener:
    return TrueListener([record.scene for record in records], [record.family for record in records])


def expected(captions: list[str], k: int) -> tuple[list[float], list[float]]:
    """Mean hit at k and mean rank over all orders of scenes that are sorted by right claims."""
    hits, ranks = [], []
    for number, caption in enumerate(captions):
        scores = [sum(check(claim, scene) for claim in read_claims(caption)) for scene in SCENES]
        orders = [
            order
            for order in permutations(range(len(SCENES)))
            if [scores[one] for one in order] == sorted(scores, reverse=True)
        ]
        found = [1 + order.index(number) for order in orders]
        hits.append(sum(rank <= k for rank in found) / len(found))
        ranks.append(sum(found) / len(found))
    return hits, ranks


@pytest.mark.parametrize(
    "captions",
    [
        ["a red ball", "a blue ball", "two balls", "some dogs"],
        ["a ball", "a ball on the beach", "a ball", ""],
        ["", "", "", ""],
        ["a dog", "two blue balls", "a red ball in a desert", "a ball at night"],
    ],
)
def test_equal_scores_are_in_random_order(captions: list[str]) -> None:
    figures = TrueListener(SCENES, FAMILY).figures(captions)
    hits, ranks = expected(captions, 1)
    np.testing.assert_allclose(figures["true_listener_R@1"], hits, rtol=1e-12)
    np.testing.assert_allclose(figures["true_listener_mean_rank"], ranks, rtol=1e-12)
    assert "true_listener_R@5" not in figures  # of four scenes all are among the first five


def test_hits_among_the_first_five(records: list[SceneRecord], listener: TrueListener) -> None:
    """With b scenes above and m level, the own one is among the first five with probability (5 - b) / m."""
    captions = [record.captions[0] for record in records]
    hits = listener.figures(captions)["true_listener_R@5"]
    found = []
    for number, caption in enumerate(captions):
        scores = [sum(check(claim, scene) for claim in read_claims(caption)) for scene in listener.scenes]
        above, level = sum(s > scores[number] for s in scores), scores.count(scores[number])
        found.append(sum(above < place <= 5 for place in range(above + 1, above + level + 1)) / level)
    np.testing.assert_allclose(hits, found, rtol=1e-12)
    assert 0 < (hits < 1).mean() < 1


def test_truth_and_claims() -> None:
    figures = TrueListener(SCENES, FAMILY).figures(
        ["a red ball on the beach", "a red ball on the beach", "a small dog", ""]
    )
    np.testing.assert_allclose(figures["truth"], [1, 3 / 4, 0, np.nan], rtol=1e-12)
    assert figures["claims"].tolist() == [4, 4, 3, 0]


@pytest.mark.parametrize(
    ("captions", "named"),
    [
        # What all members have is no difference; what one other does not have is one.
        (["a ball on the beach", "a ball on the beach", "balls on the beach", "three dogs"], [1, 1, 1, np.nan]),
        (["on the beach", "on the beach", "on the beach", "in the desert"], [0, 0, 0, np.nan]),
        (["a red", "red ball on the left", "a ball on the left", ""], [0, 1, 0, np.nan]),
        # A wrong claim names nothing.
        (["two blue balls", "two red balls", "a blue ball", "a cat"], [0, 0, 0, np.nan]),
        (["some red balls", "two blue balls", "two balls", "a cat"], [1, 1, 1, np.nan]),
    ],
)
def test_the_difference_from_near_duplicates(captions: list[str], named: list[float]) -> None:
    np.testing.assert_array_equal(TrueListener(SCENES, FAMILY).figures(captions)["difference_named"], named)


def test_how_many_scenes_fit(records: list[SceneRecord], listener: TrueListener) -> None:
    captions = [caption for record in records[:40] for caption in record.captions]
    counts = [sum(all(check(c, r.scene) for c in read_claims(caption)) for r in records) for caption in captions]
    assert listener.fitting(captions).tolist() == counts
    assert min(counts) >= 1  # a person's caption is right of its own scene
    assert max(counts) > 1


def test_people_tell_the_truth(records: list[SceneRecord], listener: TrueListener) -> None:
    for choice in range(5):
        figures = listener.figures([record.captions[choice] for record in records])
        assert np.nanmin(figures["truth"]) == 1.0
        assert (figures["true_listener_R@1"] > 0).all()


def test_specific_captions_find_their_scene_more_often(records: list[SceneRecord], listener: TrueListener) -> None:
    found = {}
    for level in ("generic", "medium", "specific"):
        captions = [write_caption(seeded(record.id, level), record.scene, level) for record in records]
        found[level] = listener.figures(captions)
    assert (found["specific"]["true_listener_R@1"] > 0).mean() >= 0.9
    for figure in ("true_listener_R@1", "claims", "difference_named"):
        generic, medium, specific = (np.nanmean(found[level][figure]) for level in found)
        assert generic + 0.05 < medium < specific - 0.05


def test_shuffled_captions_are_at_chance(records: list[SceneRecord], listener: TrueListener) -> None:
    """Every caption belongs to each scene once: the mean over all shifts is exactly chance."""
    captions = [record.captions[0] for record in records][:40]
    small = TrueListener(listener.scenes[:40], listener.families[:40])
    shifted = [small.figures([*captions[by:], *captions[:by]]) for by in range(40)]
    assert np.mean([one["true_listener_R@1"] for one in shifted]) == pytest.approx(1 / 40)
    assert np.mean([one["true_listener_mean_rank"] for one in shifted]) == pytest.approx(41 / 2)
    figures = listener.figures([record.captions[0] for record in reversed(records)])
    assert figures["true_listener_R@1"].mean() < 0.02
    assert np.nanmean(figures["truth"]) < 0.3


def test_only_the_first_images_are_ranked(records: list[SceneRecord], listener: TrueListener) -> None:
    captions = [record.captions[0] for record in records]
    figures, whole = listener.figures(captions, images=10), listener.figures(captions)
    first = TrueListener(listener.scenes[:10], listener.families[:10]).figures(captions[:10])
    for name in ("true_listener_R@1", "true_listener_R@5", "true_listener_mean_rank"):
        np.testing.assert_array_equal(figures[name], [*first[name], *[np.nan] * (IMAGES - 10)])
    for name in ("truth", "claims", "difference_named"):
        np.testing.assert_array_equal(figures[name], whole[name])


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_scenes_are_made_again(split: str) -> None:
    made = make_scenes(6, 4, 5, seed=3)
    dataset = dataset_of(made)
    settings = DataSettings(source="scenes", scenes=ScenesSettings(train=6, val=4, test=5, seed=3))
    listener = open_true_listener(settings, dataset, split)
    assert listener is not None
    assert listener.scenes == [record.scene for record in made if record.split == split]
    skipped = next(record for record in made if record.split == split)
    without = open_true_listener(settings, replace(dataset, skipped=frozenset({skipped.id})), split)
    assert without is not None
    assert without.scenes == listener.scenes[1:]


def test_other_captions_are_refused() -> None:
    made = make_scenes(6, 4, 5, seed=3)
    settings = DataSettings(source="scenes", scenes=ScenesSettings(train=6, val=4, test=5, seed=4))
    with pytest.raises(DataError, match="'test-00000' does not have the captions of the scene that is made now"):
        open_true_listener(settings, dataset_of(made), "test")


def test_other_data_have_no_true_listener() -> None:
    dataset = dataset_of(make_scenes(1, 1, 2))
    assert open_true_listener(DataSettings(source="dataset.json"), dataset, "test") is None


def dataset_of(made: list[SceneRecord]) -> Dataset:
    records = (Record(one.id, f"{one.id}.png", one.split, one.captions, one.family) for one in made)
    return Dataset("scenes", Path(), tuple(records))
