"""The concepts of CODER (sec. 3.2): the most frequent nouns, adjectives and verbs of the *training* captions.

Words are counted by lemma ("dog" for "dogs", "run" for "running"), so that 400 concepts are 400 meanings. A concept
stores all its forms, so that a trained model finds it in a caption without a tagger.

The tagger is HanTa (Hanover Tagger), which ships its English model in the wheel and uses the tags of the British
National Corpus. It tags words in their sentence, which matters for words such as "orange" or "running".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from tellapart.errors import DataError, MissingExtraError
from tellapart.text import plain_words

# Share of each part of speech among the concepts, as in CVSE (Wang et al., ECCV 2020).
PARTS: Mapping[str, float] = {"noun": 0.7, "adjective": 0.2, "verb": 0.1}
# Prefixes of BNC tags. Left out: proper names (NP0), and be, do and have (VB, VD, VH), which are not visible.
_TAGS = {"NN": "noun", "AJ": "adjective", "VV": "verb"}
# Number of captions to tag, at 1 to 2 ms each. Tagging all 30,000 of Flickr8k changes 6 of its 400 concepts.
TAGGED = 10_000


class TaggedWord(NamedTuple):
    """A word, its lemma, and its part of speech: one of `PARTS`, or `None`."""

    word: str
    lemma: str
    part: str | None


Item = TypeVar("Item", str, tuple[str, str])
Tagger = Callable[[Sequence[str]], list[TaggedWord]]


@dataclass(frozen=True)
class Concept:
    """A concept: its name (a lemma), its part of speech, and its forms in captions."""

    name: str
    part: str
    forms: tuple[str, ...]


def hanover_tagger() -> Tagger:
    """A tagger of English sentences; needs the extra `concepts`.

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

    Each word gets its most frequent lemma and part of speech; each lemma gets the part of speech of most of its
    occurrences. If a part of speech has too few lemmas, the most frequent ones of the others fill in. Concepts are
    sorted by falling count, then alphabetically.

    Args:
        captions: captions of the training split only, to avoid leaking test captions.
        count: g, number of concepts.
        tagger: by default `hanover_tagger`.
        words: splits a caption into words.
        tagged: number of distinct captions to tag, evenly spaced; words are counted in all captions.

    Example:
        >>> def tagger(words):
        ...     return [TaggedWord(word, word.rstrip("s"), "noun") for word in words]
        >>> [concept.name for concept in mine_concepts(["dogs cats", "dog"], count=1, tagger=tagger)]
        ['dog']
    """
    if count < 1:
        raise ValueError(f"count is {count}; it must be at least 1")
    sentences = [tuple(words(caption)) for caption in captions]
    counts = Counter(word for sentence in sentences for word in sentence)
    readings = _readings(sentences, tagger or hanover_tagger(), tagged)
    # Parts of speech (with counts) and forms of each lemma.
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
            f"set retriever.concepts to at most {len(ordered)}"
        )
    part_of = {lemma: _most_common(of_parts) for lemma, of_parts in parts.items()}
    chosen = _choose(ordered, part_of, count)
    return [Concept(lemma, part_of[lemma], tuple(forms[lemma])) for lemma in ordered if lemma in chosen]


def concepts_in(captions: Iterable[Sequence[str]], concepts: Sequence[Concept]) -> list[list[int]]:
    """Numbers of the concepts in each caption (split into words), ascending, without repeats.

    Example:
        >>> concepts = [Concept("dog", "noun", ("dog", "dogs")), Concept("red", "adjective", ("red",))]
        >>> concepts_in([["two", "red", "dogs"], ["a", "cat"]], concepts)
        [[0, 1], []]
    """
    row = {form: number for number, concept in enumerate(concepts) for form in concept.forms}
    return [sorted({row[word] for word in caption if word in row}) for caption in captions]


def _readings(sentences: Sequence[tuple[str, ...]], tagger: Tagger, limit: int) -> dict[str, tuple[str, str]]:
    """The most frequent lemma and part of speech of each word; only words whose part of speech is in `PARTS`."""
    distinct = list(dict.fromkeys(sentences))
    size = min(limit, len(distinct))
    seen: dict[str, Counter[tuple[str, str]]] = {}
    for number in range(size):
        for word, lemma, part in tagger(distinct[number * len(distinct) // size]):
            seen.setdefault(word, Counter())[lemma, part or ""] += 1
    readings = {word: _most_common(found) for word, found in seen.items()}
    # Single letters are remains of possessives.
    return {word: (lemma, part) for word, (lemma, part) in readings.items() if part and len(lemma) > 1}


def _most_common(counts: Counter[Item]) -> Item:
    """The item with the highest count; of equals the first in sort order, independent of the order of captions."""
    return min(counts, key=lambda item: (-counts[item], item))


def _choose(ordered: Sequence[str], part_of: Mapping[str, str], count: int) -> set[str]:
    """The first lemmas of each part of speech up to its share, then the first of the rest."""
    room = {part: round(share * count) for part, share in PARTS.items()}
    chosen: list[str] = []
    for lemma in ordered:
        if room[part_of[lemma]] > 0 and len(chosen) < count:
            room[part_of[lemma]] -= 1
            chosen.append(lemma)
    taken = set(chosen)
    rest = [lemma for lemma in ordered if lemma not in taken]
    return taken.union(rest[: count - len(chosen)])
