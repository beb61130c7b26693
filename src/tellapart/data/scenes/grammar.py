"""Write captions of scenes, from generic ("a house in a meadow") to specific."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tellapart.data.scenes.chance import likely, pick, pick_weighted, shuffled
from tellapart.data.scenes.world import KINDS, Group, Scene, are_near, relation

MOST_WORDS = 18

NOUNS: dict[str, tuple[tuple[str, str, float], ...]] = {
    # Singular, plural, weight.
    "house": (("house", "houses", 4), ("cottage", "cottages", 1)),
    "tree": (("tree", "trees", 1),),
    "tent": (("tent", "tents", 1),),
    "boat": (("boat", "boats", 3), ("sailboat", "sailboats", 1)),
    "car": (("car", "cars", 1),),
    "bicycle": (("bicycle", "bicycles", 2), ("bike", "bikes", 1)),
    "bench": (("bench", "benches", 1),),
    "umbrella": (("umbrella", "umbrellas", 3), ("parasol", "parasols", 1)),
    "ball": (("ball", "balls", 1),),
    "flower": (("flower", "flowers", 1),),
    "dog": (("dog", "dogs", 1),),
    "cat": (("cat", "cats", 1),),
    "balloon": (("balloon", "balloons", 3), ("hot air balloon", "hot air balloons", 1)),
    "kite": (("kite", "kites", 1),),
    "bird": (("bird", "birds", 1),),
}
DOING: dict[str, tuple[str, ...]] = {
    "house": ("standing",),
    "tree": ("standing", "growing"),
    "tent": ("standing",),
    "boat": ("sailing", "floating"),
    "car": ("parked",),
    "bicycle": ("parked", "standing"),
    "bench": ("standing",),
    "umbrella": ("standing",),
    "ball": ("lying",),
    "flower": ("growing",),
    "dog": ("standing",),
    "cat": ("sitting",),
    "balloon": ("floating", "flying"),
    "kite": ("flying",),
    "bird": ("flying",),
}
SIZE_WORDS = {"small": (("small", 3), ("little", 1)), "large": (("large", 2), ("big", 2))}
# Said of large trees.
TALL = "tall"
NUMBERS = {2: "two", 3: "three", 4: "four"}

ON_GROUND: dict[str, tuple[str, ...]] = {
    "meadow": ("in a meadow", "in a meadow", "in a grassy field", "on the grass"),
    "beach": ("on a beach", "on the beach", "at the beach", "on the sand"),
    "snowfield": ("in a snowy field", "on snowy ground", "on the snow"),
    "desert": ("in a desert", "in the desert"),
    "street": ("on a street", "on the street", "on a city street", "in the city"),
    "lake": ("by a lake", "near a lake", "at the shore of a lake"),
}
IN_AIR: dict[str, tuple[str, ...]] = {
    "meadow": ("over a meadow", "above a grassy field"),
    "beach": ("over a beach", "above the beach"),
    "snowfield": ("over a snowy field", "above snowy ground"),
    "desert": ("over the desert", "above a desert"),
    "street": ("over a street", "over the city", "above a city street"),
    "lake": ("over a lake", "above a lake"),
}
ON_WATER: dict[str, tuple[str, ...]] = {
    "beach": ("on the sea", "near a beach", "on the water"),
    "lake": ("on a lake", "on the lake", "on the water"),
}
PLACE_NAMES: dict[str, tuple[str, ...]] = {
    "meadow": ("meadow", "grassy field"),
    "beach": ("beach",),
    "snowfield": ("snowy field",),
    "desert": ("desert",),
    "street": ("street", "city street"),
    "lake": ("lake",),
}
WEATHER: dict[str, tuple[str, ...]] = {
    "sunny": ("on a sunny day", "in the sunshine", "under a sunny sky"),
    "cloudy": ("on a cloudy day", "under a cloudy sky", "under grey clouds"),
    "rainy": ("in the rain", "on a rainy day", "while it rains"),
    "snowing": ("while it is snowing", "in falling snow", "under falling snow"),
    "night": ("at night", "under a starry sky", "on a starry night", "under the stars"),
    "sunset": ("at sunset", "under a sunset sky", "as the sun sets"),
}
OPENINGS: dict[str, str] = {
    "sunny": "on a sunny day",
    "cloudy": "on a cloudy day",
    "rainy": "on a rainy day",
    "snowing": "in falling snow",
    "night": "at night",
    "sunset": "at sunset",
}
SKY = {
    "sunny": "sunny",
    "cloudy": "cloudy",
    "rainy": "rainy",
    "snowing": "snowy",
    "night": "night",
    "sunset": "sunset",
}
RELATIONS: dict[str, tuple[str, ...]] = {
    "left": ("to the left of", "left of"),
    "right": ("to the right of", "right of"),
    "front": ("in front of",),
    "behind": ("behind",),
    "above": ("above", "over"),
    "below": ("below", "under"),
}
NEAR = ("next to", "beside", "near")
SIDE_PHRASES = {
    "left": ("on the left", "on the left side"),
    "right": ("on the right", "on the right side"),
    "middle": ("in the middle", "in the center"),
}
PICTURES = ("a picture of", "a photo of", "a view of")
SEEING = ("we see", "you can see")


@dataclass(frozen=True)
class Plan:
    """What a caption mentions."""

    mentioned: tuple[int, ...]
    details: frozenset[tuple[int, str]]
    """Pairs of a group's index and an attribute: `colour`, `size`, `pattern`, `count`."""
    place: bool
    weather: bool
    related: bool
    """Whether the caption states the relation of two groups; otherwise they are joined by "and"."""
    side: bool


def details_of(group: Group, index: int) -> list[tuple[int, str]]:
    found = [(index, "colour")]
    if group.count > 1:
        found.append((index, "count"))
    if group.size != "normal":
        found.append((index, "size"))
    if group.pattern != "plain":
        found.append((index, "pattern"))
    return found


def mention(rng: random.Random, scene: Scene, many: int) -> tuple[int, ...]:
    """Choose the groups to mention; the most salient one is the most likely."""
    left = list(range(len(scene.groups)))
    found: list[int] = []
    while left and len(found) < many:
        index = pick_weighted(rng, [(i, 3.0 if i == 0 else 1.4) for i in left])
        left.remove(index)
        found.append(index)
    return tuple(found)


def plan_generic(rng: random.Random, scene: Scene) -> Plan:
    many = pick_weighted(rng, ((1, 5), (2, 3), (3, 1)))
    return Plan(mention(rng, scene, many), frozenset(), likely(rng, 0.7), False, False, False)


def plan_medium(rng: random.Random, scene: Scene) -> Plan:
    mentioned = mention(rng, scene, 2 if likely(rng, 0.5) else 1)
    budget = 2 if likely(rng, 0.6) else 1
    chosen: list[tuple[int, str]] = []
    extra = ""
    if likely(rng, 0.5):
        extra = pick(rng, ("related", "related", "weather") if len(mentioned) > 1 else ("side", "weather", "weather"))
        budget -= 1
    for index, attribute in shuffled(rng, [d for i in mentioned for d in details_of(scene.groups[i], i)]):
        # People mention colours and numbers first.
        if budget > 0 and (attribute in ("colour", "count") or likely(rng, 0.7)):
            chosen.append((index, attribute))
            budget -= 1
    if not chosen and not extra:
        extra = "weather"
    return Plan(
        mentioned,
        frozenset(chosen),
        likely(rng, 0.5),
        extra == "weather",
        extra == "related",
        extra == "side",
    )


def plan_specific(rng: random.Random, scene: Scene) -> Plan:
    mentioned = mention(rng, scene, 2 if likely(rng, 0.75) else 1)
    details = [d for i in mentioned for d in details_of(scene.groups[i], i)]
    kept = [d for d in details if likely(rng, 0.85)]
    related = len(mentioned) > 1 and likely(rng, 0.75)
    side = len(mentioned) == 1 and likely(rng, 0.5)
    weather = likely(rng, 0.6)
    if len(kept) + related + side + weather < 3:
        kept, weather, side = details, True, len(mentioned) == 1
    return Plan(mentioned, frozenset(kept), likely(rng, 0.4), weather, related, side)


def noun_phrase(rng: random.Random, plan: Plan, scene: Scene, index: int) -> str:
    group = scene.groups[index]
    say = {attribute for i, attribute in plan.details if i == index}
    singular, plural, _ = pick_weighted(rng, [(noun, noun[2]) for noun in NOUNS[group.kind]])
    words: list[str] = []
    if "size" in say:
        tall = group.kind == "tree" and group.size == "large" and likely(rng, 0.5)
        words.append(TALL if tall else pick_weighted(rng, SIZE_WORDS[group.size]))
    if "pattern" in say and group.pattern in ("striped", "spotted"):
        words.append(group.pattern)
    if "colour" in say:
        words.append(group.colour)
    if "pattern" in say and group.pattern in ("brick", "wooden"):
        words.append(group.pattern)
    words.append(singular if group.count == 1 else plural)
    if group.count == 1:
        return " ".join(["an" if words[0][0] in "aeiou" else "a", *words])
    if "count" in say:
        return " ".join([NUMBERS[group.count], *words])
    return " ".join([*(["some"] if likely(rng, 0.75) else []), *words])


def ordered(plan: Plan, scene: Scene) -> tuple[int, ...]:
    """The mentioned groups in sentence order."""
    if plan.related:
        return plan.mentioned
    # Groups on the ground come last, so that "in a meadow" refers to them.
    rank = {"sky": 0, "water": 1}
    return tuple(sorted(plan.mentioned, key=lambda i: rank.get(KINDS[scene.groups[i].kind].row, 2)))


def subject_phrase(rng: random.Random, plan: Plan, scene: Scene, order: tuple[int, ...]) -> str:
    phrases = [noun_phrase(rng, plan, scene, index) for index in order]
    if plan.related:
        beside = are_near(scene, *order) and likely(rng, 0.45)
        link = pick(rng, NEAR if beside else RELATIONS[relation(scene, *order)])
        return f"{phrases[0]} {link} {phrases[1]}"
    if len(phrases) == 1:
        return phrases[0]
    return ", ".join(phrases[:-1]) + " and " + phrases[-1]


def place_phrase(rng: random.Random, scene: Scene, index: int) -> str:
    row = KINDS[scene.groups[index].kind].row
    table = IN_AIR if row == "sky" else ON_WATER if row == "water" else ON_GROUND
    return pick(rng, table[scene.place])


def realise(rng: random.Random, plan: Plan, scene: Scene) -> str:
    order = ordered(plan, scene)
    subject = subject_phrase(rng, plan, scene, order)
    group = scene.groups[order[-1]]
    alone = len(order) == 1
    flies = KINDS[group.kind].row == "sky"
    # "in a meadow on the left" would refer to the meadow, so a place and a side are not combined.
    place = place_phrase(rng, scene, order[-1]) if plan.place and not plan.side else ""
    weather = pick(rng, WEATHER[scene.weather]) if plan.weather else ""
    side = pick(rng, SIDE_PHRASES[group.side]) if plan.side else ""
    if flies and alone and not plan.place and likely(rng, 0.5):
        # "in the sky" adds nothing, but people say it.
        if plan.weather:
            word = SKY[scene.weather]
            place, weather = f"in {'the' if word == 'night' else 'a'} {word} sky", ""
        else:
            place = "in the sky"
    doing = pick(rng, DOING[group.kind]) if alone and likely(rng, 0.5) else ""
    tail = [place, side, weather]
    frame = pick_weighted(
        rng, (("bare", 4), ("there", 1.4), ("picture", 1.2), ("see", 0.5), ("with", 1.0), ("opening", 1.0))
    )
    # The verb agrees with the nearest noun: "there is a bird and two cats".
    be = "are" if scene.groups[order[0]].count > 1 else "is"
    if frame == "there":
        words = ["there", be, subject, *tail]
    elif frame == "picture":
        words = [pick(rng, PICTURES), subject, *tail]
    elif frame == "see":
        words = [pick(rng, SEEING), subject, *tail]
    elif frame == "with" and plan.place:
        name = pick(rng, PLACE_NAMES[scene.place])
        words = ["a", name, "with", subject, side, weather]
    elif frame == "opening" and weather:
        words = [OPENINGS[scene.weather], "there", be, subject, place, side]
    elif doing and (place or side):
        words = [subject, *([be] if likely(rng, 0.4) else []), doing, *tail]
    else:
        words = [subject, *tail]
    return " ".join(word for word in words if word)


def write_caption(rng: random.Random, scene: Scene, level: str) -> str:
    planners = {"generic": plan_generic, "medium": plan_medium, "specific": plan_specific}
    while True:
        caption = realise(rng, planners[level](rng, scene), scene)
        if len(caption.split()) <= MOST_WORDS:
            return caption


def styled(rng: random.Random, caption: str) -> str:
    """With or without a capital letter and a full stop, as in crowd-sourced data."""
    style = rng.random()
    if style < 0.5:
        return caption[0].upper() + caption[1:] + "."
    return caption + "." if style < 0.7 else caption


def write_captions(rng: random.Random, scene: Scene) -> tuple[str, ...]:
    """Five different captions: two generic, two medium and one specific, or one more specific one."""
    levels = ["generic", "generic", "medium", "medium", "specific"]
    if likely(rng, 0.25):
        levels[pick(rng, (0, 2))] = "specific"
    captions: list[str] = []
    for level in shuffled(rng, levels):
        caption = write_caption(rng, scene, level)
        while caption in captions:
            caption = write_caption(rng, scene, level)
        captions.append(caption)
    return tuple(styled(rng, caption) for caption in captions)
