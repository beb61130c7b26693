"""The embedded scenes: frozen, exact in their families, true in their captions."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image, ImageChops

from tellapart.data import scenes
from tellapart.data.scenes import Scene, SceneRecord, make_scenes, render, scenes_digest, write_scenes
from tellapart.data.scenes.world import VARIATIONS, is_sensible, layout
from tellapart.errors import DataError

FROZEN_DIGEST = "c39574b3e3e9a2caf140176c9b5b4bded4cc9374334ea5cab3e971e84cfc8e80"
FROZEN_PIXELS = "b72839dc07c17bdb1fcb7cc1efa80725b27630bb115796b397971657d76995c0"

# Written down a second time, on purpose: the checker must not believe the grammar.
COLOURS = {"red", "orange", "yellow", "green", "blue", "purple", "white", "black", "brown"}
NUMBERS = {"a": 1, "an": 1, "two": 2, "three": 3, "four": 4}
SIZES = {"small": "small", "little": "small", "large": "large", "big": "large", "tall": "large"}
PATTERNS = {"striped", "spotted", "brick", "wooden"}
SYNONYMS = {
    "cottage": "house",
    "sailboat": "boat",
    "bike": "bicycle",
    "parasol": "umbrella",
    "benche": "bench",
}
KINDS = {
    "house",
    "tree",
    "tent",
    "boat",
    "car",
    "bicycle",
    "bench",
    "umbrella",
    "ball",
    "flower",
    "dog",
    "cat",
    "balloon",
    "kite",
    "bird",
}
WEATHER = {
    "sunny": "sunny",
    "sunshine": "sunny",
    "cloudy": "cloudy",
    "clouds": "cloudy",
    "rain": "rainy",
    "rainy": "rainy",
    "rains": "rainy",
    "snowing": "snowing",
    "falling": "snowing",
    "night": "night",
    "starry": "night",
    "stars": "night",
    "sunset": "sunset",
    "sets": "sunset",
}
PLACE = {
    "meadow": "meadow",
    "grassy": "meadow",
    "grass": "meadow",
    "beach": "beach",
    "sand": "beach",
    "sea": "beach",
    "desert": "desert",
    "street": "street",
    "city": "street",
    "lake": "lake",
    "shore": "lake",
}
ACROSS = {"left": 0, "middle": 1, "center": 1, "right": 2}
LINKS = r"(left of|right of|in front of|behind|above|over|below|under|next to|beside|near)"
AIRBORNE = {"balloon", "kite", "bird"}


def words_of(caption: str) -> list[str]:
    return re.findall(r"[a-z]+", caption.lower())


def kind_of(word: str) -> tuple[str, bool] | None:
    """The kind a noun names, and whether it is a plural."""
    for form, plural in ((word, False), (word[:-1], True)):
        form = SYNONYMS.get(form, form)
        if form in KINDS and (not plural or word.endswith("s")):
            return form, plural
    return None


def check_noun_phrases(words: list[str], scene: Scene) -> list[str]:
    """Every noun with the adjectives before it must fit a group of the scene; returns the kinds in order."""
    kinds: list[str] = []
    groups = {group.kind: group for group in scene.groups}
    used: set[int] = set()
    for at, word in enumerate(words):
        found = kind_of(word)
        if found is None:
            continue
        kind, plural = found
        assert kind in groups, f"no {kind}"
        group = groups[kind]
        kinds.append(kind)
        assert plural == (group.count > 1), f"number of {word}"
        before = at - 1
        while before >= 0 and words[before] in COLOURS | set(SIZES) | PATTERNS | set(NUMBERS) | {
            "hot",
            "air",
        }:
            said = words[before]
            used.add(before)
            if said in COLOURS:
                assert group.colour == said, f"{said} {word}"
            elif said in SIZES:
                assert group.size == SIZES[said], f"{said} {word}"
            elif said in PATTERNS:
                assert group.pattern == said, f"{said} {word}"
            elif said in NUMBERS:
                assert group.count == NUMBERS[said], f"{said} {word}"
                break
            before -= 1
    loose = [w for i, w in enumerate(words) if w in COLOURS | set(SIZES) | PATTERNS and i not in used]
    assert not loose, f"adjectives of nothing: {loose}"
    return kinds


def check_relation(caption: str, scene: Scene) -> None:
    text = " ".join(words_of(caption))
    nouns = [m for m in re.finditer(r"[a-z]+", text) if kind_of(m.group())]
    groups = {group.kind: group for group in scene.groups}
    for one, other in pairwise(nouns):
        link = re.match(rf" (?:to the )?{LINKS} ", text[one.end() : other.start()])
        if link is None:
            continue
        first, second = (kind_of(m.group()) for m in (one, other))
        assert first is not None
        assert second is not None
        a, b = groups[first[0]], groups[second[0]]
        step = ACROSS[a.side] - ACROSS[b.side]
        feet = {spot.group: spot.y + spot.height for spot in layout(scene)}
        lower = feet[scene.groups.index(a)] - feet[scene.groups.index(b)]
        says = link.group(1)
        if says in ("left of", "right of"):
            assert step < 0 if says == "left of" else step > 0
        elif says in ("next to", "beside", "near"):
            assert abs(step) == 1
        elif says in ("in front of", "below", "under"):
            assert step == 0
            assert lower > 0
        else:
            assert step == 0
            assert lower < 0
        if says in ("above", "over", "below", "under"):
            assert (a if says in ("above", "over") else b).kind in AIRBORNE


def check_caption(caption: str, scene: Scene) -> None:
    words = words_of(caption)
    kinds = check_noun_phrases(words, scene)
    assert kinds, "says nothing"
    assert len(kinds) == len(set(kinds)), "says something twice"
    for word in words:
        if word in WEATHER:
            assert scene.weather == WEATHER[word], word
        if word in PLACE:
            assert scene.place == PLACE[word], word
    text = " ".join(words)
    if re.search(r"snowy (field|ground)|on the snow", text):
        assert scene.place == "snowfield"
    if "snowy sky" in text:
        assert scene.weather == "snowing"
    side = re.search(r"(?:on|in) the (left|right|middle|center)\b", text)
    if side is not None:
        assert len(kinds) == 1
        group = next(g for g in scene.groups if g.kind == kinds[0])
        assert ACROSS[group.side] == ACROSS[side.group(1)]
    check_relation(caption, scene)
    assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", text), "a or an"
    assert not re.search(r"\b(is (some|two|three|four)|are an?)\b", text), "is or are"


def details_in(caption: str) -> int:
    words = words_of(caption)
    text = " ".join(words)
    telling = COLOURS | set(SIZES) | PATTERNS | {"two", "three", "four"}
    links = re.search(r"\b(left|right|middle|center|front|behind|next|beside|below)\b", text)
    weather = any(word in WEATHER for word in words) or "snowy sky" in text
    return sum(word in telling for word in words) + (links is not None) + weather


def differences(one: Scene, other: Scene) -> list[str]:
    found = [name for name in ("place", "weather", "seed") if getattr(one, name) != getattr(other, name)]
    assert len(one.groups) == len(other.groups)
    for a, b in zip(one.groups, other.groups, strict=True):
        found += [name for name in vars(a) if getattr(a, name) != getattr(b, name)]
    return found


def pairs(records: list[SceneRecord]) -> list[tuple[SceneRecord, SceneRecord]]:
    """Every variant with the first scene of its family."""
    bases = {record.family: record for record in records if record.varies is None}
    return [(bases[record.family], record) for record in records if record.varies is not None]


@pytest.fixture(scope="module")
def records() -> list[SceneRecord]:
    return make_scenes(500, 60, 60, seed=3)


def test_digest_is_frozen() -> None:
    assert scenes_digest(make_scenes(60, 20, 20, seed=0)) == FROZEN_DIGEST


def test_pixels_are_frozen() -> None:
    """Fails too if a new Pillow draws differently: then the pictures changed, and `VERSION` must say so."""
    together = hashlib.sha256()
    for record in make_scenes(60, 20, 20, seed=0)[::9]:
        together.update(render(record.scene).tobytes())
    assert together.hexdigest() == FROZEN_PIXELS


def test_same_seed_same_scenes_other_seed_other_scenes() -> None:
    digest = scenes_digest(make_scenes(30, 5, 5, seed=1))
    assert digest == scenes_digest(make_scenes(30, 5, 5, seed=1))
    assert digest != scenes_digest(make_scenes(30, 5, 5, seed=2))


def test_digest_sees_every_field() -> None:
    made = make_scenes(4, 1, 1)
    changed = [
        replace(made[0], captions=(*made[0].captions[:4], "a house")),
        replace(made[0], family="other"),
        replace(made[0], split="val"),
        replace(made[0], varies="size"),
        replace(made[0], scene=replace(made[0].scene, seed=made[0].scene.seed + 1)),
    ]
    assert len({scenes_digest([first, *made[1:]]) for first in [made[0], *changed]}) == 6


def test_counts_ids_and_order(records: list[SceneRecord]) -> None:
    assert Counter(record.split for record in records) == {"train": 500, "val": 60, "test": 60}
    assert records[12].id == "train-00012"
    assert len({record.id for record in records}) == len(records)
    assert all(record.id.startswith(record.split + "-") for record in records)
    assert make_scenes(0, 0, 0) == []


def test_test_scenes_do_not_depend_on_the_number_of_training_scenes(records: list[SceneRecord]) -> None:
    few = make_scenes(10, 60, 60, seed=3)
    assert [r for r in few if r.split == "test"] == [r for r in records if r.split == "test"]


def test_families_stay_within_a_split_and_no_scene_is_there_twice(records: list[SceneRecord]) -> None:
    splits: dict[str, set[str]] = {}
    for record in records:
        splits.setdefault(record.family, set()).add(record.split)
    assert all(len(where) == 1 for where in splits.values())
    contents = [(r.scene.place, r.scene.weather, frozenset(r.scene.groups)) for r in records]
    assert len(set(contents)) == len(contents)


def test_about_half_of_the_scenes_have_relatives(records: list[SceneRecord]) -> None:
    sizes = Counter(record.family for record in records)
    assert set(sizes.values()) <= {1, 2, 3, 4}
    assert 0.4 < sum(n for n in sizes.values() if n > 1) / len(records) < 0.6


def test_a_variant_differs_in_exactly_the_named_attribute(records: list[SceneRecord]) -> None:
    for base, variant in pairs(records):
        assert differences(base.scene, variant.scene) == [variant.varies]
    assert {variant.varies for _, variant in pairs(records)} == set(VARIATIONS)


def test_scenes_are_sensible(records: list[SceneRecord]) -> None:
    assert all(is_sensible(record.scene) for record in records)
    for record in records:
        if any(group.kind == "boat" for group in record.scene.groups):
            assert record.scene.place in ("beach", "lake")
    assert Counter(len(r.scene.groups) for r in records).keys() == {1, 2, 3}


def test_captions_are_true(records: list[SceneRecord]) -> None:
    for record in records:
        for caption in record.captions:
            try:
                check_caption(caption, record.scene)
            except AssertionError as error:
                pytest.fail(f"{caption!r} of {record.scene}: {error}")


@pytest.mark.parametrize(
    "caption",
    [
        "a blue house",
        "two red houses",
        "a small red house",
        "a striped red house",
        "a red house at night",
        "a red house in the desert",
        "a red house on the right",
        "a red car",
        "a dog to the left of a house",
        "a house in front of a dog",
        "a red dog",
        "an red house",
        "there are a house",
        "there is two dogs",
    ],
)
def test_the_checker_notices_false_captions(caption: str) -> None:
    house = scenes.Group("house", "red", "normal", "plain", 1, "left")
    dogs = scenes.Group("dog", "brown", "normal", "plain", 2, "middle")
    with pytest.raises(AssertionError):
        check_caption(caption, Scene("meadow", "sunny", (house, dogs), 1))


def test_five_different_captions_of_at_most_eighteen_words(records: list[SceneRecord]) -> None:
    for record in records:
        spoken = [" ".join(words_of(caption)) for caption in record.captions]
        assert len(spoken) == len(set(spoken)) == 5
        assert all(1 <= len(caption.split()) <= 18 for caption in spoken)


def test_mix_of_specificity(records: list[SceneRecord]) -> None:
    counts = [details_in(caption) for record in records for caption in record.captions]
    share = [sum(lo <= n <= hi for n in counts) / len(counts) for lo, hi in ((0, 0), (1, 2), (3, 99))]
    assert 0.33 < share[0] < 0.42
    assert 0.33 < share[1] < 0.45
    assert 0.18 < share[2] < 0.30


def test_vocabulary_and_styles(records: list[SceneRecord]) -> None:
    captions = [caption for record in records for caption in record.captions]
    assert 120 <= len({word for caption in captions for word in words_of(caption)}) <= 220
    assert 0.3 < sum(caption[0].isupper() for caption in captions) / len(captions) < 0.7
    assert 0.5 < sum(caption.endswith(".") for caption in captions) / len(captions) < 0.9


def test_the_first_group_is_mentioned_first_more_often_but_not_always(records: list[SceneRecord]) -> None:
    firsts: Counter[int] = Counter()
    for record in records:
        if len(record.scene.groups) == 2:
            order = [group.kind for group in record.scene.groups]
            for caption in record.captions:
                firsts[order.index(check_noun_phrases(words_of(caption), record.scene)[0])] += 1
    assert 0.52 < firsts[0] / firsts.total() < 0.8


@pytest.mark.parametrize("size", [64, 224, 300])
def test_picture_size(records: list[SceneRecord], size: int) -> None:
    picture = render(records[0].scene, size)
    assert picture.mode == "RGB"
    assert picture.size == (size, size)


def test_rendering_is_the_same_each_time(records: list[SceneRecord]) -> None:
    assert render(records[1].scene).tobytes() == render(records[1].scene).tobytes()
    other = replace(records[1].scene, seed=records[1].scene.seed + 1)
    assert render(other).tobytes() != render(records[1].scene).tobytes()


@pytest.mark.parametrize("attribute", VARIATIONS)
def test_every_variation_is_visible(records: list[SceneRecord], attribute: str) -> None:
    found = [pair for pair in pairs(records) if pair[1].varies == attribute][:5]
    assert found
    for base, variant in found:
        change = ImageChops.difference(render(base.scene), render(variant.scene)).convert("L")
        assert sum(change.histogram()[20:]) > 90, (base.id, variant.id)


def test_a_variant_in_colour_changes_nothing_else(records: list[SceneRecord]) -> None:
    for base, variant in [pair for pair in pairs(records) if pair[1].varies == "colour"][:5]:
        changed = [i for i, g in enumerate(base.scene.groups) if g != variant.scene.groups[i]]
        spots = [spot for spot in layout(base.scene) if spot.group == changed[0]]
        box = ImageChops.difference(render(base.scene), render(variant.scene)).getbbox()
        assert box is not None
        assert box[0] >= min(s.x for s in spots) - 8
        assert box[2] <= max(s.x + s.width for s in spots) + 8
        assert box[1] >= min(s.y for s in spots) - 8
        assert box[3] <= max(s.y + s.height for s in spots) + 8


def test_written_data_set_has_the_karpathy_layout(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    path = write_scenes(tmp_path / "set", 6, 2, 2, seed=5, on_progress=lambda at, of: steps.append((at, of)))
    made = make_scenes(6, 2, 2, seed=5)
    assert path == tmp_path / "set" / "dataset.json"
    assert steps == [(n, 10) for n in range(1, 11)]
    data = json.loads(path.read_text())
    assert data["dataset"] == "scenes-v1"
    assert data["digest"] == scenes_digest(made)
    assert [image["imgid"] for image in data["images"]] == list(range(10))
    sentids = [sentid for image in data["images"] for sentid in image["sentids"]]
    assert sentids == list(range(50))
    for image, record in zip(data["images"], made, strict=True):
        assert (image["split"], image["family"], image["varies"]) == (
            record.split,
            record.family,
            record.varies,
        )
        assert image["filename"] == f"{record.id}.png"
        assert [s["raw"] for s in image["sentences"]] == list(record.captions)
        assert [s["sentid"] for s in image["sentences"]] == image["sentids"]
        for sentence in image["sentences"]:
            assert sentence["imgid"] == image["imgid"]
            assert sentence["tokens"] == sentence["raw"].lower().replace(".", "").replace(",", "").split()
        with Image.open(path.parent / image["filepath"] / image["filename"]) as picture:
            assert picture.convert("RGB").tobytes() == render(record.scene).tobytes()
    assert not list(path.parent.rglob(".tellapart-*"))


def test_interrupted_writing_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[Scene] = []

    def counted(scene: Scene) -> Image.Image:
        rendered.append(scene)
        return render(scene)

    def stop(at: int, of: int) -> None:
        if at == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(scenes, "render", counted)
    with pytest.raises(KeyboardInterrupt):
        write_scenes(tmp_path, 8, 1, 1, on_progress=stop)
    assert not (tmp_path / "dataset.json").exists()
    assert len(rendered) >= 4, "threads may be ahead"
    path = write_scenes(tmp_path, 8, 1, 1)
    assert len(rendered) == 10, "each once"
    before = path.stat().st_mtime_ns
    assert write_scenes(tmp_path, 8, 1, 1) == path
    assert path.stat().st_mtime_ns == before
    assert len(rendered) == 10


def test_several_processes_write_the_same_scenes(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from tellapart.data.scenes import write_scenes
write_scenes(Path({str(tmp_path / "many")!r}), 60, 10, 10)
"""
    running = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in running:
        assert process.communicate()[1] == ""
        assert process.returncode == 0
    write_scenes(tmp_path / "one", 60, 10, 10)
    one, many = (
        {str(path.relative_to(tmp_path / name)): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in ("one", "many")
    )
    assert one == many


def test_files_of_the_users_are_not_removed(tmp_path: Path) -> None:
    mine = tmp_path / "mine" / "dataset.json"
    mine.parent.mkdir()
    mine.write_text('{"dataset": "mine", "images": []}', encoding="utf-8")
    with pytest.raises(DataError, match=r"dataset\.json: exists and was not written by tellapart"):
        write_scenes(mine.parent, 3, 1, 1)
    picture = tmp_path / "other" / "images" / "val-00000.png"
    picture.parent.mkdir(parents=True)
    picture.write_bytes(b"mine")
    with pytest.raises(DataError, match=r"val-00000\.png: exists and was not written by tellapart"):
        write_scenes(tmp_path / "other", 3, 1, 1)
    assert mine.read_text(encoding="utf-8") == '{"dataset": "mine", "images": []}'
    assert picture.read_bytes() == b"mine"


def test_images_of_another_seed_are_not_kept(tmp_path: Path) -> None:
    write_scenes(tmp_path, 3, 1, 1, seed=0)
    write_scenes(tmp_path, 3, 1, 1, seed=1)
    for record in make_scenes(3, 1, 1, seed=1):
        with Image.open(tmp_path / "images" / f"{record.id}.png") as picture:
            assert picture.convert("RGB").tobytes() == render(record.scene).tobytes()
