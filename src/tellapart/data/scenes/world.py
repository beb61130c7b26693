"""Scenes: their attributes, which ones are sensible, and random sampling of scenes and one-attribute variants."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tellapart.data.scenes.chance import likely, pick, pick_weighted, shuffled

PLACES = ("meadow", "beach", "snowfield", "desert", "street", "lake")
WEATHERS = ("sunny", "cloudy", "rainy", "snowing", "night", "sunset")
SIZES = ("small", "normal", "large")
SIDES = ("left", "middle", "right")
VARIATIONS = ("colour", "count", "size", "pattern", "weather", "place", "side", "kind")

BRIGHT = ("red", "orange", "yellow", "green", "blue", "purple", "white")
FUR = ("brown", "black", "white", "orange")

PLAIN = ("plain",)
CLOTH = ("plain", "striped", "spotted")

SHORES = ("beach", "lake")
INLAND = ("meadow", "snowfield", "desert", "street", "lake")
SETTLED = ("meadow", "snowfield", "street", "lake")
CAMPS = ("meadow", "beach", "snowfield", "desert", "lake")
WALKS = ("meadow", "beach", "street", "lake")
SEATS = ("meadow", "beach", "snowfield", "street", "lake")


@dataclass(frozen=True)
class ThingKind:
    """The possible looks and places of one kind of thing."""

    row: str
    """`back`, `mid` and `front` are on the ground, from far to near; `water` floats, `sky` flies."""
    width: float
    height: float
    colours: tuple[str, ...]
    patterns: tuple[str, ...]
    places: tuple[str, ...]
    most: int = 4


LEAVES = ("green", "orange", "red", "yellow")
FRAMES = ("red", "orange", "yellow", "green", "blue", "purple", "black")
BOARDS = ("brown", "red", "green", "blue", "yellow", "white")
PETALS = ("red", "yellow", "purple", "white", "orange", "blue")
FEATHERS = ("red", "yellow", "blue", "black", "white")

KINDS: dict[str, ThingKind] = {
    "house": ThingKind("back", 68, 68, BRIGHT, ("plain", "brick", "wooden"), SETTLED, 3),
    "tree": ThingKind("back", 56, 78, LEAVES, PLAIN, SETTLED),
    "tent": ThingKind("back", 70, 52, BRIGHT, CLOTH, CAMPS, 3),
    "boat": ThingKind("water", 62, 60, BRIGHT, ("plain", "striped", "wooden"), SHORES, 3),
    "car": ThingKind("mid", 76, 42, (*BRIGHT, "black"), CLOTH, INLAND, 3),
    "bicycle": ThingKind("mid", 64, 44, FRAMES, PLAIN, WALKS, 3),
    "bench": ThingKind("mid", 60, 40, BOARDS, PLAIN, SEATS, 3),
    "umbrella": ThingKind("mid", 62, 66, (*BRIGHT, "black"), CLOTH, WALKS),
    "ball": ThingKind("front", 42, 42, BRIGHT, CLOTH, PLACES),
    "flower": ThingKind("front", 40, 54, PETALS, PLAIN, ("meadow", "lake")),
    "dog": ThingKind("front", 58, 46, FUR, ("plain", "spotted"), PLACES),
    "cat": ThingKind("front", 48, 52, FUR, ("plain", "striped"), PLACES),
    "balloon": ThingKind("sky", 50, 66, BRIGHT, CLOTH, PLACES),
    "kite": ThingKind("sky", 50, 62, BRIGHT, CLOTH, PLACES),
    "bird": ThingKind("sky", 54, 42, FEATHERS, PLAIN, PLACES),
}

CLASHES = frozenset(
    {
        # Colours that would hardly be visible in the place or weather.
        ("white", "snowfield"),
        ("white", "snowing"),
        ("black", "night"),
        ("black", "rainy"),
        ("orange", "desert"),
        ("brown", "desert"),
    }
)
IMPOSSIBLE = frozenset({("desert", "snowing"), ("desert", "rainy"), ("beach", "snowing"), ("snowfield", "rainy")})
# Kinds that do not fit the weather.
UNUSUAL = {"rainy": ("kite",), "snowing": ("kite", "umbrella")}

SIZE_FACTOR = {"small": 0.6, "normal": 1.0, "large": 1.42}
COUNT_FACTOR = {1: 1.0, 2: 0.84, 3: 0.7, 4: 0.62}
SIDE_CENTRE = {"left": 46.0, "middle": 112.0, "right": 178.0}
ROW_BASE = {"back": 168.0, "mid": 189.0, "front": 210.0, "water": 143.0}
ROW_DEPTH = {"sky": 0, "water": 1, "back": 2, "mid": 3, "front": 4}
# Positions of the members of a group, in units of one member's width and height: a loose cluster.
CLUSTERS: dict[int, tuple[tuple[float, float], ...]] = {
    1: ((0.0, 0.0),),
    2: ((-0.56, -0.05), (0.56, 0.04)),
    3: ((-1.06, 0.04), (0.0, -0.10), (1.06, 0.05)),
    4: ((-1.32, -0.12), (-0.44, 0.08), (0.44, -0.12), (1.32, 0.08)),
}
EDGE = 5.0
MOST_HIDDEN = 0.3
MOST_MOVED = 30.0


@dataclass(frozen=True)
class Group:
    """One to four equal things side by side."""

    kind: str
    colour: str
    size: str
    pattern: str
    count: int
    side: str


@dataclass(frozen=True)
class Scene:
    place: str
    weather: str
    groups: tuple[Group, ...]
    seed: int
    """Seed of all jitter in the drawing; variants of a scene share it."""


@dataclass(frozen=True)
class Spot:
    """The box of one thing on a picture of 224 × 224."""

    group: int
    x: float
    y: float
    width: float
    height: float

    def hidden_by(self, other: Spot) -> float:
        across = min(self.x + self.width, other.x + other.width) - max(self.x, other.x)
        down = min(self.y + self.height, other.y + other.height) - max(self.y, other.y)
        return max(0.0, across) * max(0.0, down) / (self.width * self.height)


def member_size(group: Group) -> tuple[float, float]:
    kind = KINDS[group.kind]
    factor = SIZE_FACTOR[group.size] * COUNT_FACTOR[group.count]
    return kind.width * factor, kind.height * factor


def group_centre(group: Group) -> float:
    """The horizontal centre of the group: that of its side, moved inwards to stay off the edge."""
    reach = member_size(group)[0] * (max(dx for dx, _ in CLUSTERS[group.count]) + 0.5)
    return min(max(SIDE_CENTRE[group.side], EDGE + reach), 224 - EDGE - reach)


def group_spots(group: Group, index: int) -> list[Spot]:
    row = KINDS[group.kind].row
    width, height = member_size(group)
    centre = group_centre(group)
    # In the sky the middle of the thing is fixed, not its foot; large ones must stay inside the picture.
    foot = max(52 + height / 2, height * 1.1 + EDGE) if row == "sky" else ROW_BASE[row]
    lift = 1.6 if row == "sky" else 1.0
    return [
        Spot(index, centre + dx * width - width / 2, foot + dy * lift * height - height, width, height)
        for dx, dy in CLUSTERS[group.count]
    ]


def layout(scene: Scene) -> list[Spot]:
    """All things of the scene in drawing order, the farthest first."""
    spots = [spot for index, group in enumerate(scene.groups) for spot in group_spots(group, index)]
    return sorted(spots, key=lambda s: (ROW_DEPTH[KINDS[scene.groups[s.group].kind].row], s.y + s.height))


def is_crowded(scene: Scene) -> bool:
    """Whether a thing is partly outside the picture or too much hidden by things in front of it."""
    spots = layout(scene)
    if any(s.x < 0 or s.y < 0 or s.x + s.width > 224 or s.y + s.height > 224 for s in spots):
        return True
    return any(
        rear.group != front.group and rear.hidden_by(front) > MOST_HIDDEN
        for at, rear in enumerate(spots)
        for front in spots[at + 1 :]
    )


def group_is_sensible(group: Group, place: str, weather: str) -> bool:
    kind = KINDS[group.kind]
    return (
        place in kind.places
        and group.kind not in UNUSUAL.get(weather, ())
        and group.colour in kind.colours
        and group.pattern in kind.patterns
        and group.count <= kind.most
        # Larger groups are shrunk to fit, which would make "small" and "large" hard to judge.
        and (group.size == "normal" or group.count <= 2)
        # A group too wide for its side must be in the middle.
        and abs(group_centre(group) - SIDE_CENTRE[group.side]) <= MOST_MOVED
        and (group.colour, place) not in CLASHES
        and (group.colour, weather) not in CLASHES
    )


def is_sensible(scene: Scene) -> bool:
    kinds = {group.kind for group in scene.groups}
    stands = {(KINDS[group.kind].row, group.side) for group in scene.groups}
    return (
        (scene.place, scene.weather) not in IMPOSSIBLE
        # Two groups of one kind, or in one row and side, could not be distinguished in words.
        and len(kinds) == len(stands) == len(scene.groups)
        and all(group_is_sensible(group, scene.place, scene.weather) for group in scene.groups)
        and not is_crowded(scene)
    )


def salience(group: Group) -> float:
    width, height = member_size(group)
    return width * height * group.count


def sample_group(rng: random.Random, place: str, side: str) -> Group:
    name = pick(rng, [name for name, kind in KINDS.items() if place in kind.places])
    kind = KINDS[name]
    count = pick_weighted(rng, ((1, 5), (2, 2.2), (3, 1.6), (4, 1.2)))
    patterns = [(pattern, 1.0 if pattern == "plain" else 0.7) for pattern in kind.patterns]
    return Group(
        kind=name,
        colour=pick(rng, kind.colours),
        size=pick_weighted(rng, (("small", 2), ("normal", 4), ("large", 2))) if count <= 2 else "normal",
        pattern=pick_weighted(rng, patterns),
        count=count,
        side=side,
    )


def sample_scene(rng: random.Random) -> Scene:
    """Sample a sensible scene; its groups are ordered by salience."""
    how_many = pick_weighted(rng, ((1, 3), (2, 5), (3, 2.5)))
    place = pick(rng, PLACES)
    weather = pick(rng, [weather for weather in WEATHERS if (place, weather) not in IMPOSSIBLE])
    # Mostly side by side; otherwise two groups share a side, one in front of or above the other.
    together = likely(rng, 0.35)
    # Only the rest is redrawn if the scene is not sensible, so that the choices above keep their frequencies.
    while True:
        sides = shuffled(rng, SIDES)
        if together:
            sides = [sides[0], sides[0], sides[1]]
        groups = [sample_group(rng, place, side) for side in sides[:how_many]]
        groups.sort(key=salience, reverse=True)
        scene = Scene(place, weather, tuple(groups), seed=int(rng.random() * 1_000_000))
        if is_sensible(scene):
            return scene


def with_group(scene: Scene, index: int, group: Group) -> Scene:
    return replace(scene, groups=(*scene.groups[:index], group, *scene.groups[index + 1 :]))


def group_alternatives(group: Group, attribute: str) -> Iterator[Group]:
    if attribute == "colour":
        yield from (replace(group, colour=c) for c in KINDS[group.kind].colours if c != group.colour)
    elif attribute == "count":
        yield from (replace(group, count=n) for n in COUNT_FACTOR if n != group.count)
    elif attribute == "size":
        yield from (replace(group, size=s) for s in SIZES if s != group.size)
    elif attribute == "pattern":
        yield from (replace(group, pattern=p) for p in KINDS[group.kind].patterns if p != group.pattern)
    elif attribute == "side":
        yield from (replace(group, side=s) for s in SIDES if s != group.side)
    elif attribute == "kind":
        # Only within the row: a kite does not replace a house.
        row = KINDS[group.kind].row
        yield from (replace(group, kind=k) for k, kind in KINDS.items() if k != group.kind and kind.row == row)


def alternatives(scene: Scene, attribute: str) -> list[Scene]:
    """All sensible scenes that differ from `scene` in this one attribute (of one group)."""
    if attribute == "weather":
        found = [replace(scene, weather=w) for w in WEATHERS if w != scene.weather]
    elif attribute == "place":
        found = [replace(scene, place=p) for p in PLACES if p != scene.place]
    else:
        found = [
            with_group(scene, index, group)
            for index, old in enumerate(scene.groups)
            for group in group_alternatives(old, attribute)
        ]
    return [other for other in found if is_sensible(other)]


def sample_variant(rng: random.Random, base: Scene, is_new: Callable[[Scene], bool]) -> tuple[str, Scene] | None:
    """Sample a new variant of `base`; returns the attribute that varies and the scene."""
    for attribute in shuffled(rng, VARIATIONS):
        fresh = [scene for scene in alternatives(base, attribute) if is_new(scene)]
        if fresh:
            return attribute, pick(rng, fresh)
    return None


def content(scene: Scene) -> tuple[str, str, tuple[tuple[str, ...], ...]]:
    """The visible content, without jitter and the order of the groups."""
    groups = ((g.kind, g.colour, g.size, g.pattern, str(g.count), g.side) for g in scene.groups)
    return scene.place, scene.weather, tuple(sorted(groups))


def relation(scene: Scene, one: int, other: int) -> str:
    """The position of group `one` relative to group `other`: left, right, front, behind, above or below."""
    first, second = scene.groups[one], scene.groups[other]
    if first.side != second.side:
        return "left" if SIDES.index(first.side) < SIDES.index(second.side) else "right"
    rows = KINDS[first.kind].row, KINDS[second.kind].row
    if rows[0] == "sky":
        return "above"
    if rows[1] == "sky":
        return "below"
    return "front" if ROW_DEPTH[rows[0]] > ROW_DEPTH[rows[1]] else "behind"


def are_near(scene: Scene, one: int, other: int) -> bool:
    """Whether both are on the ground (or water) in adjacent thirds of the picture."""
    first, second = scene.groups[one], scene.groups[other]
    apart = abs(SIDES.index(first.side) - SIDES.index(second.side))
    return apart == 1 and "sky" not in (KINDS[first.kind].row, KINDS[second.kind].row)
