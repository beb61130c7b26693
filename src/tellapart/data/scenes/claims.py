"""What a caption says about a scene, claim by claim, and whether each claim is right.

    A red ball next to two dogs on the sand.

claims a ball, one ball, a red ball, dogs, two dogs, a ball near dogs, and a beach. The words come from the tables of
`grammar`, so that people's captions and their reading cannot drift apart. The captions of a model may be odd: a claim
is read wherever its words stand, whatever is around them, and a claim that is made twice counts once.

How captions are read:

- A noun claims that its kind is there and how many: a number is exact; a singular noun is one; a plural noun, with
  "some" or alone, is more than one. "a dogs" and "some dog" do not say how many.
- Colours, patterns and sizes before a noun belong to it. "on the left" belongs to the noun before it, or else to the
  next one. One word that no table has may stand between ("a pink ball").
- A relation ("behind", "next to", …) directly before a noun relates the noun before it to this one. A kind is not
  related to itself.
- Places and weather are read by their content words: "on the sand" and "in sand" are both a beach. "on the water" is
  the sea or a lake. An adjective of the sky alone ("a rainy street") also says the weather, unless places have it too
  ("snowy").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from tellapart.data.scenes import grammar
from tellapart.data.scenes.world import KINDS, SIDES, Group, Scene, relation

NEAR = "near"
# The largest group has four members.
MANY = (2, 3, 4)


# --- claims -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Present:
    """Things of this kind are in the scene."""

    kind: str

    def holds(self, scene: Scene) -> bool:
        return _find(scene, self.kind) is not None


@dataclass(frozen=True)
class Has:
    """The things of this kind have an attribute with one of these values; wrong if there are none of this kind.

    Attributes:
        kind: the kind of thing.
        attribute: `count`, `colour`, `pattern`, `size` or `side`.
        values: those that make the claim right.
    """

    kind: str
    attribute: str
    values: tuple[str | int, ...]

    def holds(self, scene: Scene) -> bool:
        at = _find(scene, self.kind)
        return at is not None and getattr(scene.groups[at], self.attribute) in self.values


@dataclass(frozen=True)
class Around:
    """The `place` or the `weather` is one of these values."""

    attribute: str
    values: tuple[str, ...]

    def holds(self, scene: Scene) -> bool:
        return getattr(scene, self.attribute) in self.values


@dataclass(frozen=True)
class Related:
    """Things of one kind are left, right, front, behind, above or below those of another kind, or near them."""

    kind: str
    relation: str
    other: str

    def holds(self, scene: Scene) -> bool:
        one, other = _find(scene, self.kind), _find(scene, self.other)
        if one is None or other is None:
            return False
        if self.relation == NEAR:
            return _near(scene.groups[one], scene.groups[other])
        return relation(scene, one, other) == self.relation


Claim = Present | Has | Around | Related


def check(claim: Claim, scene: Scene) -> bool:
    """Whether a claim is right in a scene.

    >>> check(Around("place", ("beach",)), Scene("beach", "sunny", (), 0))
    True
    """
    return claim.holds(scene)


def _find(scene: Scene, kind: str) -> int | None:
    """Which group of the scene has this kind; no kind has two groups."""
    return next((at for at, group in enumerate(scene.groups) if group.kind == kind), None)


def _near(one: Group, other: Group) -> bool:
    """In the same or adjacent thirds of the picture, and both in the sky or neither.

    The grammar says "near" only of adjacent thirds of the ground (`are_near`), where no other relation is better. It is
    also true of two things of which one is in front of the other, and of two things side by side in the sky.
    """
    in_sky = [KINDS[group.kind].row == "sky" for group in (one, other)]
    return in_sky[0] == in_sky[1] and abs(SIDES.index(one.side) - SIDES.index(other.side)) <= 1


# --- words ------------------------------------------------------------------------------------------------------------

ARTICLES = frozenset({"a", "an", "the"})
SOME = "some"
NUMBERS = {
    **{word: number for number, word in grammar.NUMBERS.items()},
    # A file of captions may have them; none of the larger ones is right in any scene.
    **{word: number for number, word in enumerate(("five", "six", "seven", "eight", "nine", "ten"), start=5)},
    "one": 1,
}
# Words of places and weather that do not tell them apart.
_SMALL_WORDS = frozenset(
    {"a", "an", "the", "in", "on", "at", "by", "near", "of", "over", "above", "under"}
) | frozenset({"while", "it", "is", "as", "side"})

Words = tuple[str, ...]


@dataclass(frozen=True)
class _Noun:
    kind: str
    plural: bool


@dataclass(frozen=True)
class _Quality:
    """A word that says an attribute of a thing: its colour, pattern, size or side."""

    attribute: str
    value: str


@dataclass(frozen=True)
class _Found:
    """What words `start` … `end` - 1 of a caption mean."""

    meaning: _Noun | _Quality | Around
    start: int
    end: int


def _content(phrase: str) -> Words:
    return tuple(word for word in phrase.split() if word not in _SMALL_WORDS)


def _around(attribute: str, *tables: Mapping[str, Iterable[str]]) -> dict[Words, Around]:
    """Content words -> what they say; a phrase of two places ("on the water") says that it is one of them."""
    values: dict[Words, dict[str, None]] = {}
    for table in tables:
        for value, phrases in table.items():
            for phrase in phrases:
                values.setdefault(_content(phrase), {})[value] = None
    return {words: Around(attribute, tuple(found)) for words, found in values.items()}


def _lexicon() -> dict[Words, _Noun | _Quality | Around]:
    """Content words -> their meaning, from the tables of the grammar."""
    places = _around("place", grammar.ON_GROUND, grammar.IN_AIR, grammar.ON_WATER, grammar.PLACE_NAMES)
    skies = {weather: (f"{word} sky",) for weather, word in grammar.SKY.items()}
    openings = {weather: (phrase,) for weather, phrase in grammar.OPENINGS.items()}
    weathers = _around("weather", grammar.WEATHER, openings, skies)
    of_places = set(chain.from_iterable(places))
    alone: dict[Words, Around] = {
        (word,): Around("weather", (sky,)) for sky, word in grammar.SKY.items() if word not in of_places
    }
    colours = {colour for kind in KINDS.values() for colour in kind.colours}
    patterns = {pattern for kind in KINDS.values() for pattern in kind.patterns}
    sizes = {word: size for size, words in grammar.SIZE_WORDS.items() for word, _ in words} | {grammar.TALL: "large"}
    nouns = {
        tuple(noun.split()): _Noun(kind, plural)
        for kind, forms in grammar.NOUNS.items()
        for form in forms
        for noun, plural in ((form[0], False), (form[1], True))
    }
    sides = {_content(phrase): side for side, phrases in grammar.SIDE_PHRASES.items() for phrase in phrases}
    return {
        **alone,
        **weathers,
        **places,
        **{(colour,): _Quality("colour", colour) for colour in colours},
        **{(pattern,): _Quality("pattern", pattern) for pattern in patterns},
        **{(word,): _Quality("size", size) for word, size in sizes.items()},
        **{words: _Quality("side", side) for words, side in sides.items()},
        **nouns,
    }


LEXICON = _lexicon()
_LONGEST = max(map(len, LEXICON))
# Relation -> its phrases without articles.
_RELATIONS: dict[Words, str] = {
    tuple(word for word in phrase.split() if word not in ARTICLES): name
    for name, phrases in {**grammar.RELATIONS, NEAR: grammar.NEAR}.items()
    for phrase in phrases
}
# All words that people use; others may be adjectives.
_KNOWN = _SMALL_WORDS.union(
    chain.from_iterable(LEXICON),
    chain.from_iterable(_RELATIONS),
    chain.from_iterable(grammar.DOING.values()),
    chain.from_iterable(phrase.split() for phrase in (*grammar.PICTURES, *grammar.SEEING)),
    ("and", "there", "are", "with", "sky"),
)


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Mention:
    """A noun with the words before it that belong to it."""

    noun: _Noun
    start: int
    end: int
    claims: tuple[Claim, ...]


def read_claims(caption: str) -> tuple[Claim, ...]:
    """The claims of a caption, each once, in the order of the sentence.

    >>> read_claims("Two dogs.")
    (Present(kind='dog'), Has(kind='dog', attribute='count', values=(2,)))
    """
    words = _words(caption)
    found = _look_up(words)
    qualities = {one.start: one.meaning for one in found if isinstance(one.meaning, _Quality)}
    mentions = [_mention(words, one, one.meaning, qualities) for one in found if isinstance(one.meaning, _Noun)]
    placed: list[tuple[int, Claim]] = [(mention.end, claim) for mention in mentions for claim in mention.claims]
    for before, after in pairwise(mentions):
        name = _relation_before(words, before.end, after.start)
        if name is not None and before.noun.kind != after.noun.kind:
            placed.append((after.end, Related(before.noun.kind, name, after.noun.kind)))
    for one in found:
        if isinstance(one.meaning, Around):
            placed.append((one.end, one.meaning))
        # "on the left of" is a relation.
        elif isinstance(one.meaning, _Quality) and one.meaning.attribute == "side" and words[one.end] != "of":
            owner = _owner(mentions, one.start)
            if owner is not None:
                placed.append((one.end, Has(owner, "side", (one.meaning.value,))))
    placed.sort(key=lambda pair: pair[0])
    return tuple(dict.fromkeys(claim for _, claim in placed))


def _words(caption: str) -> list[str]:
    """Lower case, without punctuation; a word that is repeated at once counts once. The last one is empty: the end."""
    words = re.findall(r"\w+", caption.lower())
    return [word for at, word in enumerate(words) if at == 0 or word != words[at - 1]] + [""]


def _look_up(words: Sequence[str]) -> list[_Found]:
    """The meanings of a caption's words, the longest phrases first; small words may stand inside a phrase."""
    at = [place for place, word in enumerate(words) if word and word not in _SMALL_WORDS]
    content = [words[place] for place in at]
    found: list[_Found] = []
    first = 0
    while first < len(content):
        for length in range(min(_LONGEST, len(content) - first), 0, -1):
            meaning = LEXICON.get(tuple(content[first : first + length]))
            if meaning is not None:
                found.append(_Found(meaning, at[first], at[first + length - 1] + 1))
                break
        first += length
    return found


def _mention(words: Sequence[str], found: _Found, noun: _Noun, qualities: Mapping[int, _Quality]) -> _Mention:
    """Read from a noun to the left: adjectives, at most one unknown word, and what says how many."""
    start, unknown = found.start, 0
    claims: list[Claim] = []
    while start > 0:
        word = words[start - 1]
        quality = qualities.get(start - 1)
        if quality is not None and quality.attribute != "side":
            claims.append(Has(noun.kind, quality.attribute, (quality.value,)))
        elif word in _KNOWN or word == SOME or _number(word) is not None or unknown:
            break
        else:
            unknown += 1
        start -= 1
    before = words[start - 1] if start > 0 else ""
    if before in ARTICLES or before == SOME or _number(before) is not None:
        start -= 1
    count = _count(before, noun)
    counted = () if count is None else (Has(noun.kind, "count", count),)
    return _Mention(noun, start, found.end, (Present(noun.kind), *counted, *reversed(claims)))


def _number(word: str) -> int | None:
    return int(word) if re.fullmatch("[0-9]{1,3}", word) else NUMBERS.get(word)


def _count(word: str, noun: _Noun) -> tuple[int, ...] | None:
    """The numbers that a noun after this word may mean; None if the two do not agree."""
    number = _number(word)
    if number is not None:
        return (number,)
    if noun.plural:
        return None if word in ("a", "an") else MANY
    return None if word == SOME else (1,)


def _relation_before(words: Sequence[str], after: int, end: int) -> str | None:
    """The relation whose words are the last ones in words `after` … `end` - 1."""
    between = [word for word in words[after:end] if word not in ARTICLES]
    for phrase, name in _RELATIONS.items():
        if tuple(between[-len(phrase) :]) == phrase:
            return name
    return None


def _owner(mentions: Sequence[_Mention], at: int) -> str | None:
    """The kind of thing that a side at this place belongs to: of the noun before it, or else of the next one."""
    before = [mention.noun.kind for mention in mentions if mention.end <= at]
    after = [mention.noun.kind for mention in mentions if mention.end > at]
    return before[-1] if before else after[0] if after else None
