"""Words and vocabulary: the two rules, the order of the rows, and files that are no vocabulary."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tellapart.errors import DataError
from tellapart.text import END, NORMALISERS, PAD, SPECIALS, START, UNKNOWN, Vocabulary, alphabetic_words, plain_words

NFC, NFD = "Café crème à Zürich", unicodedata.normalize("NFD", "Café crème à Zürich")


@pytest.mark.parametrize(
    ("sentence", "plain", "alphabetic"),
    [
        ("Two dogs, one CAT!", "two dogs one cat", "two dogs one cat"),
        ("No. 7 at 10:30", "no 7 at 10 30", "no at"),
        ("a 3rd b2b", "a 3rd b2b", "a rd b b"),
        ("the dog's ball isn’t here", "the dogs ball isnt here", "the dogs ball isnt here"),
        ("'quoted' dogs' toys", "quoted dogs toys", "quoted dogs toys"),
        ("black-and-white T-shirt", "black and white t shirt", "black and white t shirt"),
        ("snake_case", "snake case", "snake case"),
        ("a cat 🐈and🐕dog", "a cat and dog", "a cat 🐈 and 🐕 dog"),
        ("love ❤\ufe0f you", "love you", "love ❤ you"),
        (NFC, "café crème à zürich", "café crème à zürich"),
        (NFD, "café crème à zürich", "café crème à zürich"),
        (unicodedata.normalize("NFD", "the café's door"), "the cafés door", "the cafés door"),
        (" \t\n ...", "", ""),
        ("", "", ""),
    ],
)
def test_both_rules(sentence: str, plain: str, alphabetic: str) -> None:
    assert plain_words(sentence) == plain.split()
    assert alphabetic_words(sentence) == alphabetic.split()


def test_the_accents_above_are_really_written_in_two_ways() -> None:
    assert NFC != NFD
    assert len(NFD) == len(NFC) + 4


def test_rows_are_specials_then_words_by_falling_count_and_alphabet() -> None:
    vocabulary = Vocabulary.build(["b a", "c a b", "a d c"], min_count=1)
    assert vocabulary.tokens == [*SPECIALS, "a", "b", "c", "d"]
    assert (PAD, START, END, UNKNOWN) == (0, 1, 2, 3)
    assert Vocabulary.build(["a d c", "b a", "c a b"], min_count=1).tokens == vocabulary.tokens


def test_rare_words_are_unknown() -> None:
    captions = ["a dog", "a cat", "a dog"]
    assert Vocabulary.build(captions, min_count=2).tokens[4:] == ["a", "dog"]
    assert Vocabulary.build(captions, min_count=3).tokens[4:] == ["a"]
    assert Vocabulary.build(captions, min_count=2).encode("a cat") == [4, UNKNOWN, END]


def test_long_captions_are_cut_when_counting_and_when_encoding() -> None:
    vocabulary = Vocabulary.build(["one two three four"], min_count=1, max_words=3)
    assert vocabulary.tokens[4:] == ["one", "three", "two"]
    assert vocabulary.words("one two three four") == ["one", "two", "three"]
    assert vocabulary.encode("one two three four") == [4, 6, 5, END]


def test_encode_and_decode() -> None:
    vocabulary = Vocabulary(["a", "dog"])
    assert len(vocabulary) == 6
    assert vocabulary.encode("A dog, a CAT.") == [4, 5, 4, UNKNOWN, END]
    assert vocabulary.encode("") == [END]
    assert vocabulary.decode([START, 4, 5, PAD, END, 4]) == "a dog"
    assert vocabulary.decode([4, UNKNOWN, 5]) == "a <unk> dog"
    assert vocabulary.decode([END]) == ""


def test_the_words_given_out_are_a_copy() -> None:
    vocabulary = Vocabulary(["a"])
    vocabulary.words("a dog").append("cat")
    assert vocabulary.words("a dog") == ["a", "dog"]


@given(sentence=st.text(max_size=80), normaliser=st.sampled_from(sorted(NORMALISERS)), max_words=st.integers(1, 12))
def test_decoding_gives_the_words_back(sentence: str, normaliser: str, max_words: int) -> None:
    vocabulary = Vocabulary.build([sentence], min_count=1, normaliser=normaliser, max_words=max_words)
    words = vocabulary.words(sentence)
    assert len(words) <= max_words
    assert vocabulary.decode(vocabulary.encode(sentence)) == " ".join(words)
    assert UNKNOWN not in vocabulary.encode(sentence)


@given(sentence=st.text(max_size=80), normaliser=st.sampled_from(sorted(NORMALISERS)))
def test_words_are_visible_and_whole(sentence: str, normaliser: str) -> None:
    words = NORMALISERS[normaliser](sentence)
    assert "".join(words).split() == (["".join(words)] if words else []), "no blank is inside a word"
    for word in words:
        assert unicodedata.category(word[0])[0] in "LNS", f"{word!r} begins with no letter, digit or emoji"
        assert word == unicodedata.normalize("NFC", word)


def test_file_round_trip(tmp_path: Path) -> None:
    vocabulary = Vocabulary(["ein", "hündchen", "🐕"], "alphabetic", 7)
    vocabulary.save(tmp_path / "vocabulary.json")
    again = Vocabulary.load(tmp_path / "vocabulary.json")
    assert (again.tokens, again.normaliser, again.max_words) == (vocabulary.tokens, "alphabetic", 7)
    assert "hündchen" in (tmp_path / "vocabulary.json").read_text(encoding="utf-8"), "a person can read it"


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "null",
        '{"words": ["a"]}',
        '{"words": null, "normaliser": "plain", "max_words": 18}',
        '{"words": "abc", "normaliser": "plain", "max_words": 18}',
        '{"words": ["a", 5], "normaliser": "plain", "max_words": 18}',
        '{"words": ["a"], "normaliser": "plain", "max_words": "18"}',
        '{"words": ["a"], "normaliser": ["plain"], "max_words": 18}',
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "vocabulary.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"vocabulary\.json"):
        Vocabulary.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.json: this vocabulary does not exist"):
        Vocabulary.load(tmp_path / "nowhere.json")


def test_a_word_twice_and_an_unknown_rule(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="same word twice"):
        Vocabulary(["a", "b", "a"])
    with pytest.raises(DataError, match="same word twice"):
        Vocabulary(["<unk>"])
    with pytest.raises(DataError, match="'plane'; did you mean 'plain'"):
        Vocabulary([], normaliser="plane")
    path = tmp_path / "vocabulary.json"
    path.write_text(json.dumps({"words": ["a"], "normaliser": "plane", "max_words": 3}), encoding="utf-8")
    with pytest.raises(DataError, match="'plane'"):
        Vocabulary.load(path)
