"""METEOR's own tokenisation (`-norm`), applied to captions that are already tokenised.

Unify quotation marks, separate punctuation from words, keep the full stop of abbreviations, lower case. On Penn
Treebank tokens this changes little, but it matters: "t-shirt" becomes two words, "n't" becomes "n" and "'t", "u.s."
becomes "us".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_LETTER = "A-Za-zÀ-ÖØ-öø-ž\u0400-\u0527\u1d00-\u1d7f\ua640-\ua66e\ua67e-\ua697"
# Applied in this order. A match consumes the characters on both sides, so "a-b-c" is split only once, as in METEOR.
_STEPS = tuple(
    (re.compile(pattern, re.ASCII), replacement)
    for pattern, replacement in (
        ("[`‘’]", "'"),
        ("[“”]|''", '"'),
        ("–", " - "),
        ("[\u00a0\u2000-\u200a\u202f\u205f\u3000]", " "),
        (rf"([^{_LETTER}0-9\s.',-])", r" \1 "),
        (r"(\.\.+)", r" \1 "),
        (r"([^0-9]),([^0-9])", r"\1 , \2"),
        (r"([0-9]),([^0-9])", r"\1 , \2"),
        (r"([^0-9]),([0-9])", r"\1 , \2"),
        ("--", "-"),
        (rf"([^{_LETTER}])'([^{_LETTER}])", r"\1 ' \2"),
        (rf"([^{_LETTER}0-9])'([{_LETTER}])", r"\1 ' \2"),
        (rf"([{_LETTER}])'([^{_LETTER}])", r"\1 ' \2"),
        (rf"([{_LETTER}])'([{_LETTER}])", r"\1 '\2"),
        (r"([0-9])'(s)", r"\1 '\2"),
        (rf"([{_LETTER}0-9.])-([{_LETTER}0-9])", r"\1 \2"),
    )
)
_FULL_STOP = re.compile(r".*[^.]\.").fullmatch
_HAS_LETTER = re.compile(f"[{_LETTER}]").search
_BLANKS = re.compile("[ \t\n\r\f]+")


def normalise(text: str, abbreviations: Mapping[str, bool]) -> list[str]:
    """The words that METEOR compares.

    `abbreviations` keep their full stop; the value says whether only before numbers.

    >>> normalise("the dog's t-shirt isn't from the u.s.", {})
    ['the', 'dog', "'s", 't', 'shirt', 'isn', "'t", 'from', 'the', 'us']
    """
    if text.isascii() and text.islower() and text.replace(" ", "").isalnum():
        return text.split()  # only plain words, as in most captions
    text = f" {text} "
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    words = [word for word in _BLANKS.split(text) if word]
    split: list[str] = []
    for word, following in zip(words, [*words[1:], ""], strict=False):
        split += _without_full_stop(word, following, abbreviations) if _FULL_STOP(word) else [word]
    return [word.lower() for word in split]


def _without_full_stop(word: str, following: str, abbreviations: Mapping[str, bool]) -> list[str]:
    """Split a word that ends in a full stop."""
    stem = word[:-1]
    if "." in stem and _HAS_LETTER(stem):
        return [word.replace(".", "")]
    before_numbers_only = abbreviations.get(stem)
    if before_numbers_only is False or "a" <= following[:1] <= "z":
        return [word]
    if before_numbers_only and "0" <= following[:1] <= "9":
        return [word]
    return [stem, "."]
