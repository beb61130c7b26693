"""The concepts of CODER (sec. 3.2): the most frequent nouns, adjectives and verbs of the *training* captions.

Words are counted by their lemma, "dog" for "dogs" and "run" for "running": 400 concepts are then 400 meanings, and what
occurs together is not scattered over inflections. A concept carries all its forms, so that it is found in a caption
without a tagger: a trained model needs none.

The tagger is HanTa (Hanover Tagger), whose English model is inside its wheel, with the tags of the British National
Corpus. It sees words in their sentence, so that "orange" and "running" are what they mostly are in these captions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from tellapart.errors import DataError, MissingExtraError
from tellapart.text import plain_words

# Shares of the parts of speech among the concepts, as in CVSE (Wang et al., ECCV 2020), which CODER follows.
PARTS: Mapping[str, float] = {"noun": 0.7, "adjective": 0.2, "verb": 0.1}
# First letters of the BNC's tags. Not: proper names (NP0), and be, do and have (VB, VD, VH), which show nothing.
_TAGS = {"NN": "noun", "AJ": "adjective", "VV": "verb"}
# Captions that are tagged, at one or two milliseconds each; of Flickr8k's 400 concepts, all 30,000 change six.
TAGGED = 10_000


class TaggedWord(NamedTuple):
    """A word as it stands, its lemma, and its part of speech: one of `PARTS`, or `None` for all others."""

    word: str
    lemma: str
    part: str | None


Item = TypeVar("Item", str, tuple[str, str])
Tagger = Callable[[Sequence[str]], list[TaggedWord]]


@dataclass(frozen=True)
class Concept:
    """A concept: its name (a lemma), its part of speech, and the forms it has in captions."""

    name: str
    part: str
    forms: tuple[str, ...]


def hanover_tagger() -> Tagger:
    """The tagger of English sentences; it needs the extra `concepts`.

    Example:
        >>> hanover_tagger()(["two", "dogs", "running"])   # doctest: +SKIP
        [TaggedWord('two', 'two', None), TaggedWord('dogs', 'dog', 'noun'), TaggedWord('running', 'run', 'verb')]
    """
    try:
        from HanTa.HanoverTagger import HanoverTagger
    except ImportError:
        raise MissingExtraError("HanTa", "concepts") from None
    tagger = HanoverTagger("morphmodel_en.pgz")

    def tag(words: Sequence[str]) -> list[TaggedWord]:
        found = tagger.tag_sent(list(words))
        return [TaggedWord(word, lemma.lower(), _TAGS.get(tag[:2])) for word, lemma, tag in found]

    return tag


def mine_concepts(
    captions: Iterable[str],
    count: int = 400,
    tagger: Tagger | None = None,
    words: Callable[[str], Sequence[str]] = plain_words,
    tagged: int = TAGGED,
) -> list[Concept]:
    """The concepts of a data set: the most frequent lemmas, 70 % nouns, 20 % adjectives and 10 % verbs.

    Each word has the lemma and the part of speech that it has most often; a lemma's part is the one of most of its
    occurrences. What one part of speech lacks the most frequent lemmas of the others fill. Concepts come by falling
    count, equal ones alphabetically.

    Args:
        captions: of the training split only: test captions would leak.
        count: g, how many.
        tagger: by default `hanover_tagger`.
        words: splits a caption into words.
        tagged: at most this many distinct captions, evenly spaced, are tagged; words are counted in all of them.

    Example:
        >>> def tagger(words):
        ...     return [TaggedWord(word, word.rstrip("s"), "noun") for word in words]
        >>> [concept.name for concept in mine_concepts(["dogs cats", "dog"], count=1, tagger=tagger)]
        ['dog']
    """
    if count < 1:
        raise ValueError(f"{count} concepts cannot be mined; ask for at least one")
    sentences = [tuple(words(caption)) for caption in captions]
    counts = Counter(word for sentence in sentences for word in sentence)
    readings = _readings(sentences, tagger or hanover_tagger(), tagged)
    # All that is said of a lemma, with how often it is said: its parts of speech and its forms.
    parts: dict[str, Counter[str]] = {}
    forms: dict[str, list[str]] = {}
    for word, (lemma, part) in sorted(readings.items()):
        parts.setdefault(lemma, Counter())[part] += counts[word]
        forms.setdefault(lemma, []).append(word)
    frequency = {lemma: of_parts.total() for lemma, of_parts in parts.items()}
    ordered = sorted(frequency, key=lambda lemma: (-frequency[lemma], lemma))
    if len(ordered) < count:
        raise DataError(
            f"the training captions have {len(ordered)} nouns, adjectives and verbs, fewer than {count} concepts; "
            f"ask for at most {len(ordered)}"
        )
    part_of = {lemma: _most_common(of_parts) for lemma, of_parts in parts.items()}
    chosen = _choose(ordered, part_of, count)
    return [Concept(lemma, part_of[lemma], tuple(forms[lemma])) for lemma in ordered if lemma in chosen]


def concepts_in(captions: Iterable[Sequence[str]], concepts: Sequence[Concept]) -> list[list[int]]:
    """The rows of the concepts that each caption, split into words, mentions: ascending, each once.

    Example:
        >>> concepts = [Concept("dog", "noun", ("dog", "dogs")), Concept("red", "adjective", ("red",))]
        >>> concepts_in([["two", "red", "dogs"], ["a", "cat"]], concepts)
        [[0, 1], []]
    """
    row = {form: number for number, concept in enumerate(concepts) for form in concept.forms}
    return [sorted({row[word] for word in caption if word in row}) for caption in captions]


def _readings(sentences: Sequence[tuple[str, ...]], tagger: Tagger, limit: int) -> dict[str, tuple[str, str]]:
    """The lemma and part of speech that each word has most often, of words that are mostly of some part in `PARTS`."""
    distinct = list(dict.fromkeys(sentences))
    size = min(limit, len(distinct))
    seen: dict[str, Counter[tuple[str, str]]] = {}
    for number in range(size):
        for word, lemma, part in tagger(distinct[number * len(distinct) // size]):
            seen.setdefault(word, Counter())[lemma, part or ""] += 1
    readings = {word: _most_common(found) for word, found in seen.items()}
    # A single letter is what is left of a possessive, not a thing.
    return {word: (lemma, part) for word, (lemma, part) in readings.items() if part and len(lemma) > 1}


def _most_common(counts: Counter[Item]) -> Item:
    """The item counted most often; of equals the first in order, so that nothing depends on the order of captions."""
    return min(counts, key=lambda item: (-counts[item], item))


def _choose(ordered: Sequence[str], part_of: Mapping[str, str], count: int) -> set[str]:
    """The first lemmas of each part of speech by its share, then the first of those that remain."""
    room = {part: round(share * count) for part, share in PARTS.items()}
    chosen: list[str] = []
    for lemma in ordered:
        if room[part_of[lemma]] > 0 and len(chosen) < count:
            room[part_of[lemma]] -= 1
            chosen.append(lemma)
    taken = set(chosen)
    rest = [lemma for lemma in ordered if lemma not in taken]
    return taken.union(rest[: count - len(chosen)])
