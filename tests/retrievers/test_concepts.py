"""Mining concepts from captions, with a toy tagger by hand and with the real one."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from tellapart.errors import DataError, MissingExtraError
from tellapart.retrievers.concepts import Concept, TaggedWord, concepts_in, hanover_tagger, mine_concepts
from tellapart.text import alphabetic_words, plain_words

CAPTIONS = [
    "A black dog is running through the snow.",
    "Two dogs run on a snowy field.",
    "A little girl in a red dress plays with dogs.",
    "The girl's red ball rolls over the field.",
    "A man runs by the field with a red ball.",
]
# What a toy tagger knows; everything else is of no part.
KNOWN = {
    **dict.fromkeys(("dog", "dogs"), ("dog", "noun")),
    **{word: (word, "noun") for word in ("snow", "field", "girl", "ball", "man", "dress")},
    **dict.fromkeys(("run", "runs", "running"), ("run", "verb")),
    **{word: (word, "adjective") for word in ("red", "black", "snowy", "little")},
}


def toy_tagger(words: Sequence[str]) -> list[TaggedWord]:
    return [TaggedWord(word, *KNOWN.get(word, (word, None))) for word in words]


def test_lemmas_are_counted_and_shares_kept() -> None:
    """10 concepts: 7 nouns are wanted, 7 there are; 2 adjectives; 1 verb."""
    concepts = mine_concepts(CAPTIONS, 10, toy_tagger)
    assert [(concept.name, concept.part) for concept in concepts] == [
        ("dog", "noun"),
        ("field", "noun"),
        ("red", "adjective"),
        ("run", "verb"),
        ("ball", "noun"),
        ("black", "adjective"),
        ("dress", "noun"),
        ("girl", "noun"),
        ("man", "noun"),
        ("snow", "noun"),
    ]
    assert concepts[0].forms == ("dog", "dogs")
    assert concepts[3].forms == ("run", "running", "runs")


def test_what_one_part_lacks_the_others_fill() -> None:
    names = [concept.name for concept in mine_concepts(CAPTIONS, 12, toy_tagger)]
    assert len(names) == 12
    assert {"little", "snowy"} < set(names)
    with pytest.raises(
        DataError,
        match=r"have 12 nouns, .* fewer than 13 concepts; set retriever\.concepts to at most",
    ):
        mine_concepts(CAPTIONS, 13, toy_tagger)
    with pytest.raises(DataError, match="have 0 nouns"):
        mine_concepts([], 1, toy_tagger)
    with pytest.raises(ValueError, match="at least 1"):
        mine_concepts(CAPTIONS, 0, toy_tagger)


def test_the_order_of_captions_does_not_matter() -> None:
    assert mine_concepts(CAPTIONS, 8, toy_tagger) == mine_concepts(CAPTIONS[::-1], 8, toy_tagger)


def test_a_word_is_what_it_mostly_is() -> None:
    def tagger(words: Sequence[str]) -> list[TaggedWord]:
        parts = {"an": "adjective", "the": "noun"}
        return [TaggedWord("orange", "orange", parts[words[0]])]

    captions = ["an orange car", "an orange bus", "the orange"]
    assert mine_concepts(captions, 1, tagger) == [Concept("orange", "adjective", ("orange",))]


def test_a_bounded_number_of_captions_is_tagged_and_all_are_counted() -> None:
    asked: list[Sequence[str]] = []

    def tagger(words: Sequence[str]) -> list[TaggedWord]:
        asked.append(words)
        return toy_tagger(words)

    captions = ["a dog", "a dog", "a girl", "a girl", "a field", "the field", "the girl"]
    assert mine_concepts(captions, 1, tagger, tagged=3)[0].name == "girl"
    assert asked == [("a", "dog"), ("a", "girl"), ("the", "field")]


def test_concepts_are_found_in_captions_by_their_forms() -> None:
    concepts = mine_concepts(CAPTIONS, 10, toy_tagger)
    found = concepts_in((plain_words(caption) for caption in CAPTIONS), concepts)
    assert [[concepts[row].name for row in rows] for rows in found][:2] == [
        ["dog", "run", "black", "snow"],
        ["dog", "field", "run"],
    ]
    assert concepts_in([["dog", "dogs"]], concepts) == [[0]]


def test_the_real_tagger() -> None:
    pytest.importorskip("HanTa", reason="the extra 'concepts' is not installed")
    tagged = hanover_tagger()(["two", "dogs", "are", "running", "through", "the", "snowy", "field"])
    assert [(word.lemma, word.part) for word in tagged if word.part] == [
        ("dog", "noun"),
        ("run", "verb"),
        ("snowy", "adjective"),
        ("field", "noun"),
    ]
    assert hanover_tagger()([]) == []
    concepts = mine_concepts(CAPTIONS, 10)
    assert concepts == mine_concepts(CAPTIONS, 10)
    assert concepts == mine_concepts(CAPTIONS, 10, words=alphabetic_words)
    assert {"dog", "run", "red", "field"} <= {concept.name for concept in concepts}
    assert not {"be", "s", "with"} & {concept.name for concept in mine_concepts([*CAPTIONS, "a man 's hat"], 13)}


def test_without_the_tagger_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "HanTa.HanoverTagger", None)
    with pytest.raises(MissingExtraError, match=r"tellapart\[concepts\]"):
        mine_concepts(CAPTIONS)
