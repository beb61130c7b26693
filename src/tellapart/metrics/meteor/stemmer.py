"""The Snowball stemmer for English ("Porter 2"), after its published definition (Porter, 2001).

Endings are removed in steps, but only within the part of a word after its first vowel and consonant (region 1), or
within the part of region 1 after its first vowel and consonant (region 2). METEOR matches words with equal stems.
"""

from __future__ import annotations

import re
from functools import lru_cache

_VOWELS = "aeiouy"
_DOUBLES = ("bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt")
_WHOLE = {
    "skis": "ski",
    "skies": "sky",
    "dying": "die",
    "lying": "lie",
    "tying": "tie",
    "idly": "idl",
    "gently": "gentl",
    "ugly": "ugli",
    "early": "earli",
    "only": "onli",
    "singly": "singl",
    **dict.fromkeys(("sky", "news", "howe", "atlas", "cosmos", "bias", "andes")),
}
_AFTER_PLURAL = {"inning", "outing", "canning", "herring", "earring", "proceed", "exceed", "succeed"}
_REGION = re.compile(f"[{_VOWELS}][^{_VOWELS}]")
_VOWEL = re.compile(f"[{_VOWELS}]")
_CONSONANT_Y = re.compile(f"(^|[{_VOWELS}])y")
_FINAL_Y = re.compile(f"(?<=.[^{_VOWELS}])[yY]$")
_SHORT_SYLLABLE = re.compile(f"(?:^[{_VOWELS}][^{_VOWELS}]|[^{_VOWELS}][{_VOWELS}][^{_VOWELS}wxY])$")

# Longest first where one is the end of another.
_STEP_2 = (
    ("ational", "ate"),
    ("fulness", "ful"),
    ("iveness", "ive"),
    ("ization", "ize"),
    ("ousness", "ous"),
    ("biliti", "ble"),
    ("lessli", "less"),
    ("tional", "tion"),
    ("alism", "al"),
    ("aliti", "al"),
    ("ation", "ate"),
    ("entli", "ent"),
    ("fulli", "ful"),
    ("iviti", "ive"),
    ("ousli", "ous"),
    ("abli", "able"),
    ("alli", "al"),
    ("anci", "ance"),
    ("ator", "ate"),
    ("enci", "ence"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("ogi", "og"),
    ("li", ""),
)
_STEP_3 = (
    ("ational", "ate"),
    ("tional", "tion"),
    ("alize", "al"),
    ("ative", ""),
    ("icate", "ic"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ness", ""),
    ("ful", ""),
)
_STEP_4 = (
    *("ement", "able", "ance", "ence", "ible", "ment", "ant", "ate", "ent", "ion", "ism", "iti", "ive", "ize", "ous"),
    *("al", "er", "ic"),
)


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """
    >>> [stem(word) for word in ("running", "generously", "skies", "by")]
    ['run', 'generous', 'sky', 'by']
    """
    if word in _WHOLE:
        return _WHOLE[word] or word
    if len(word) <= 2:
        return word
    word = word.removeprefix("'")
    # A "y" that is a consonant is written "Y" while the steps run.
    if "y" in word:
        word = _CONSONANT_Y.sub(r"\1Y", word)
    region_1, region_2 = _regions(word)
    word = _take_plural(word)
    if word not in _AFTER_PLURAL:
        word = _take_past(word, region_1)
        word = _FINAL_Y.sub("i", word)
        word = _take_step_2(word, region_1)
        word = _take_step_3(word, region_1, region_2)
        word = _take_step_4(word, region_2)
        word = _take_final(word, region_1, region_2)
    return word.replace("Y", "y")


def _regions(word: str) -> tuple[int, int]:
    """Where regions 1 and 2 begin."""
    begin = len(word)
    for prefix in ("gener", "commun", "arsen"):
        if word.startswith(prefix):
            begin = len(prefix)
            break
    else:
        found = _REGION.search(word)
        begin = found.end() if found else len(word)
    found = _REGION.search(word, begin)
    return begin, found.end() if found else len(word)


def _take_plural(word: str) -> str:
    for ending in ("'s'", "'s", "'"):
        if word.endswith(ending):
            word = word.removesuffix(ending)
            break
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > 4 else word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")) and _VOWEL.search(word[:-2]):
        return word[:-1]
    return word


def _take_past(word: str, region_1: int) -> str:
    for ending in ("eedly", "eed"):
        if word.endswith(ending):
            return word[: -len(ending)] + "ee" if len(word) - len(ending) >= region_1 else word
    for ending in ("ingly", "edly", "ing", "ed"):
        if word.endswith(ending):
            rest = word[: -len(ending)]
            if not _VOWEL.search(rest):
                return word
            if rest.endswith(("at", "bl", "iz")):
                return rest + "e"
            if rest.endswith(_DOUBLES):
                return rest[:-1]
            return rest + "e" if len(rest) <= region_1 and _SHORT_SYLLABLE.search(rest) else rest
    return word


def _take_step_2(word: str, region_1: int) -> str:
    for ending, replacement in _STEP_2:
        if word.endswith(ending):
            rest = word[: -len(ending)]
            refused = (ending == "ogi" and not rest.endswith("l")) or (ending == "li" and rest[-1:] not in "cdeghkmnrt")
            return word if len(rest) < region_1 or refused or (ending == "li" and not rest) else rest + replacement
    return word


def _take_step_3(word: str, region_1: int, region_2: int) -> str:
    for ending, replacement in _STEP_3:
        if word.endswith(ending):
            rest = word[: -len(ending)]
            return rest + replacement if len(rest) >= (region_2 if ending == "ative" else region_1) else word
    return word


def _take_step_4(word: str, region_2: int) -> str:
    for ending in _STEP_4:
        if word.endswith(ending):
            rest = word[: -len(ending)]
            return word if len(rest) < region_2 or (ending == "ion" and not rest.endswith(("s", "t"))) else rest
    return word


def _take_final(word: str, region_1: int, region_2: int) -> str:
    rest = word[:-1]
    if word.endswith("e"):
        in_region_1 = len(rest) >= region_1 and not _SHORT_SYLLABLE.search(rest)
        return rest if len(rest) >= region_2 or in_region_1 else word
    return rest if word.endswith("ll") and len(rest) >= region_2 else word
