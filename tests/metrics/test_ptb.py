"""The tokenizer against the Java tool's output on our own sentences and, if available, on 66,000 captions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tellapart.metrics import ptb, tokenize

OWN: list[tuple[str, str]] = json.loads((Path(__file__).parent / "ptb_own.json").read_text(encoding="utf-8"))

PIECES = "a The dog man's can't St. U.S. t.v. etc. No. no. 5 1/2 (555) 12\" '90s ... . , - & <b> x@y.z :) 'a' end. ½ 😀"


@pytest.mark.parametrize(("caption", "tokens"), OWN)
def test_equals_the_java_tool(caption: str, tokens: str) -> None:
    assert tokenize([caption]) == [tokens]


def test_punctuation_tokens() -> None:
    assert " ".join(ptb.scan('A "red" dog, (x) runs...')) == "a `` red '' dog , -lrb- x -rrb- runs ..."
    assert ptb.scan(" ") == []


def test_equals_the_java_tool_on_many_captions(stored: Callable[[str], Any]) -> None:
    pairs = stored("metrics/ptb_pairs_hard46k_easy20k.json.gz")
    bare = [" ".join(token for token in tokens.split(" ") if token not in ptb.PUNCTUATION) for _, tokens in pairs]
    found = tokenize([raw for raw, _ in pairs])
    assert sum(one != other for one, other in zip(bare, found, strict=True)) <= 0.0001 * len(pairs)


@given(st.lists(st.sampled_from(PIECES.split()) | st.text(alphabet="aT.5' -/,\u00a0", max_size=4), max_size=6))
def test_caching_pieces_changes_nothing(pieces: list[str]) -> None:
    caption = " ".join(pieces)
    assert tokenize([caption])[0].split(" ") == [t for t in ptb.scan(caption) if t not in ptb.PUNCTUATION] or [""]


@given(st.text(max_size=40))
def test_any_text_can_be_split(text: str) -> None:
    for token in ptb.scan(text):
        assert token.strip() == token != ""


# Pieces that depend on the next one, white space of all kinds, characters that are dropped.
PIECES = [
    "a ",
    "dog",
    "St. ",
    "5 ",
    "1/2",
    ". ",
    "...",
    "can't ",
    "(",
    "<b>",
    "\xa0",
    "\xad",
    "\n",
    "\t",
    "\ud800",
    " ",
    "!",
]


def test_a_full_cache_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    ptb.forget()
    monkeypatch.setattr(ptb, "_REMEMBERED", 3)
    captions = [caption for caption, _ in OWN]
    for _ in range(2):
        assert tokenize(captions) == [tokens for _, tokens in OWN]


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), min_size=1, max_size=8))
def test_many_captions_at_once_are_split_like_one(captions: list[str]) -> None:
    assert ptb._at_once(captions) == [ptb._by_pieces(caption) for caption in captions]


def test_a_very_long_caption() -> None:
    # Rules must not go back and forth over it: this takes a moment, not minutes.
    for text in (
        "dog's " * 20_000,
        "a'" * 20_000,
        "1/" * 20_000,
        "a" * 50_000,
        "a-" * 20_000,
        "<a " * 5_000,
        "5 " * 20_000,
        "." * 50_000,
    ):
        assert isinstance(tokenize([text])[0], str)
