"""Penn Treebank tokens as in the COCO caption tool, without Java.

The tool runs Stanford's tokenizer (CoreNLP 3.4.1, lower case) and then drops punctuation tokens. The rules here
reproduce that tokenizer and are tested against its output. At each place the longest match of all rules wins, or the
first rule if several are equally long. Lookahead (the `'s` after a word) counts towards the length.

Kept as in the tool, since published scores depend on it:
    - only the tokens in `PUNCTUATION` are dropped: brackets become `-lrb-` and stay, and so do `!!`, `&`, `$`, `/`
    - "cannot" is two words, "can't" is `ca n't`, `double-decker` is one, "5 1/2" is one with a U+00A0 inside
    - characters unknown to the tokenizer, such as emoji, are dropped

Most tokens depend only on their piece between spaces, so pieces are split once and cached. A caption with a piece that
depends on its neighbours is split as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from tellapart.metrics.equal import distinct_words

PUNCTUATION = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])

# Captions, and pieces of them, cached before the cache is cleared: about 100 MB.
_REMEMBERED = 1 << 19
# Captions split at once; a few are split faster one by one.
_BLOCK = 1 << 15
_FEW = 50

# Not letters for the tokenizer: superscripts, fractions, circled and Roman numbers, all characters beyond U+FFFF.
_NO_LETTER = (
    r"_\u00B2\u00B3\u00B9\u00BC-\u00BE\u2070-\u208E\u2150-\u2189\u2460-\u24FF\u2776-\u2793\U00010000-\U0010FFFF"
)
# Combining marks; U+00AD, the soft hyphen, is part of a word and is dropped from it.
_MARK = r"[\u00AD\u0300-\u036F\u0591-\u05BD\u064B-\u065E\u0900-\u0903\u093C-\u094E\u0E31-\u0E3A\u0E47-\u0E4E]"
_LETTER = rf"(?:[^\W\d{_NO_LETTER}]|{_MARK})"
_ALNUM = rf"(?:[^\W{_NO_LETTER}]|{_MARK})"
_APOSTROPHE = r"(?:['\u0092\u2019]|&apos;)"
# Characters used as an apostrophe inside a word.
_INNER = rf"(?:{_APOSTROPHE}|[`\u0091\u2018\u201B])"
_HYPHEN = r"[-_\u058A\u2010\u2011]"
_BLANK = r"[ \u00A0]"
_WORD = rf"{_LETTER}{_ALNUM}*(?:[.!?]{_LETTER}{_ALNUM}*)*"
_CONTRACTED = rf"{_APOSTROPHE}(?:[msd]|re|ve|ll)"
_DIGITS = r"(?:\d*(?:[.:,]\d+)+|\d+)"
_NUMBER = rf"[-+]?{_DIGITS}"
_ACRONYM = r"[A-Za-z](?:\.[A-Za-z])+"
_ATTRIBUTE = r" +[A-Za-z][\w:.-]*(?: *= *(?:'[^'\n]*'|\"[^\"\n]*\"|\w+))?"
_TAG = rf"<(?:[!?][A-Za-z-][^>\n]*|/?[A-Za-z][\w:.-]*(?:{_ATTRIBUTE})* */?) *>"
# Looks like a new sentence: the period of an abbreviation then also ends the sentence before it.
# The end of the text counts as one, since the tool sees the start of the next caption, most often a capital.
_NEW_SENTENCE = rf"(?:{_BLANK}(?:{_BLANK}|[A-Z\u00C0-\u00DE]|{_TAG})|{_BLANK}*\n)"

# Abbreviations by what may follow them, found by experiments with the tokenizer.
_TITLES = (
    "mr mrs ms dr drs prof profs sen sens rep reps atty attys lt col gen messrs gov govs adm rev maj sgt cpl pvt capt "
    "st ste ave pres lieut hon brig cmdr comdr pfc spc supt supts det mt ft adj adv asst assoc ens insp mlle mme msgr "
    "sfc vs v alex wm jos cie cf treas ph invt elec natl mfg mtg dept a.k.a"
)
_SENTENCE_FINAL = (
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thurs fri ala ariz calif colo conn ct dak "
    "fla ga ind kan kans ky md mich minn mo mont neb nev okla penn tenn va vt wis wisc wyo inc co cos corp pty ptys "
    "pte ptes ltd plc rt bancorp bhd assn univ intl sys tel est ext sq jr sr bros ed.d ph.d esq etc al seq bldg blvd rd"
)
# Also words: abbreviations only with a capital.
_CAPITALISED = "[A]rk [A]z [D]el [I]ll [L]a [M]ass [M]iss [O]re [P]a [T]ex [W]ash"
_BEFORE_NUMBERS = "art ca fig figs no nos op pp prop"
_SENTENCE_STARTERS = (
    "A About According Additionally After An As At But Earlier He Her Here However If In It Last Many More Now Once "
    "Mr. Ms. One Other Our She Since So Some Such That The Their Then There These They This We What When While Yet You"
)


def _any_of(words: str) -> str:
    escaped = words.replace(".", r"\.").split()
    return "(?:" + "|".join(sorted(escaped, key=len, reverse=True)) + ")"


def _caseless(words: str) -> str:
    return f"(?i:{_any_of(words)})"


_WHITE_SPACE = re.compile(r"[^\S\u00A0]")
# Pieces whose tokens may depend on the next piece: numbers (5 1/2), abbreviations, spaced dots, tags.
_LOOKS_AHEAD = re.compile(r"\d\)?$|\.$|<")
# Most pieces are a word, maybe followed by a comma or period; they need no rules unless listed below.
_PLAIN = re.compile(r"([A-Za-z]{2,})[.,]?")
_NO_PLAIN_WORDS = frozenset(
    f"cannot gonna gotta lemme gimme wanna {_TITLES} {_SENTENCE_FINAL} {_CAPITALISED} {_BEFORE_NUMBERS}".lower()
    .translate({ord("["): None, ord("]"): None})
    .split()
)
_FINAL = f"(?:{_caseless(_SENTENCE_FINAL)}|{_any_of(_CAPITALISED)})"
_STARTER = rf"{_BLANK}*(?:{_BLANK}(?=[A-Z])(?i:{_any_of(_SENTENCE_STARTERS)})[ \u00A0\n]|{_BLANK}{_TAG}|\n)"

Action = Callable[[str], list[str]]


def _as_it_is(text: str) -> list[str]:
    return [text.replace("\u00ad", "") or "-"]


def _always(token: str) -> Action:
    return lambda text: [token]


def _with_period(text: str) -> list[str]:
    return [text, "."]


def _acronym_before_sentence(text: str) -> list[str]:
    """The period of an initial becomes the sentence's; a longer acronym keeps it."""
    return [text[:-1], "."] if len(text) == 2 else [text, "."]


def _in_two(tail: int) -> Action:
    return lambda text: [text[:-tail], text[-tail:]]


_QUOTES = str.maketrans(
    {
        **dict.fromkeys("\u0091\u2018\u201b\u2039", "`"),
        **dict.fromkeys("\u0092\u2019\u203a", "'"),
        **dict.fromkeys("\u0093\u201c\u00ab", "``"),
        **dict.fromkeys("\u0094\u201d\u00bb", "''"),
    }
)


def _quoted(text: str) -> list[str]:
    return [text.replace("&apos;", "'").translate(_QUOTES)]


def _bracketed(text: str) -> list[str]:
    return [text.replace("(", "-lrb-").replace(")", "-rrb-")]


def _unbroken(text: str) -> list[str]:
    """Spaces inside a token become U+00A0, since tokens are joined by spaces."""
    return [text.replace(" ", "\u00a0")]


def _telephone(text: str) -> list[str]:
    return _bracketed(text.replace(" ", "\u00a0"))


def _nothing(text: str) -> list[str]:
    return []


# Characters that are tokens; all others are dropped.
_SIGN = (
    r"[!-/:-@\[-`{-~\u0080\u00A1-\u00BF\u00D7\u00F7\u037E\u0387\u0589\u060C\u061B\u061F\u0964\u0965\u0E3F\u2013-\u2023"
    r"\u2026\u2030-\u2044\u2070-\u208E\u20A0\u20A4\u20AC\u2100-\u2BFF\u3001\u3002\u3012\u30FB\uFF01-\uFF0F\uFF1A-\uFF20"
    r"\uFF3B-\uFF40\uFF5B-\uFF65\uFFE0\uFFE1\uFFE5\uFFE6]"
)
_SIGNS = {
    **{"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"},
    **{"\u00bc": "1/4", "\u00bd": "1/2", "\u00be": "3/4", "\u2153": "1/3", "\u2154": "2/3"},
    **{"\u00a2": "cents", "\u00a3": "#", "\u00a4": "$", "\u20a0": "$", "\u20ac": "$", "\u0080": "$", "\u2026": "..."},
    **{"&amp;": "&", "&lt;": "<", "&gt;": ">"},
}


def _sign(text: str) -> list[str]:
    return [_SIGNS.get(text, text)]


_JOINED = rf"(?:[dolDOL]{_INNER}{_ALNUM})?{_ALNUM}+(?:{_HYPHEN}(?:[dolDOL]{_INNER}{_ALNUM})?{_ALNUM}+)*"
_SLASHED = r"[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}(?:\\?/[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}){1,2}"
_PATH = r"(?:/[^\s\"<>|()]+[^\s\"<>|.!?(){},-])?"
_PHONE_END = r"\d{3,4}[- \u00A0]?\d{3,5}"
_PHONE_START = r"(?:\d{2,4}[- \u00A0])?\d{2,4}[- \u00A0]"

# Each rule: what it can begin with (l: letter, d: digit, o: other), its pattern (group 1 is the token, the rest is
# lookahead), and the action on the token. The order decides between matches of equal length.
_RULES: list[tuple[str, str, Action]] = [
    ("l", r"((?i:cannot))", _in_two(3)),
    ("l", r"((?i:gonna|gotta|lemme|gimme|wanna))", _in_two(2)),
    ("o", rf"({_APOSTROPHE}(?i:twas))", _in_two(3)),
    ("o", rf"({_APOSTROPHE}(?i:tis))", _in_two(2)),
    ("o", rf"({_TAG})", _unbroken),
    ("o", r"([\u0096\u0097\u2013-\u2015]|&(?:MD|mdash|ndash);)", _always("--")),
    # Words, and their contractions: dog|'s, do|n't.
    ("l", rf"({_WORD})(?i:{_CONTRACTED})", _as_it_is),
    ("l", rf"([A-Za-z]*[A-MO-Za-mo-z])[nN]{_INNER}[tT]", _as_it_is),
    ("l", rf"({_WORD})", _as_it_is),
    ("l", rf"({_WORD}\.)[,;:]", _as_it_is),
    # Words that contain an apostrophe: 'em, '90s, ol', O'Neil, ma'am, c'mon, y'|all.
    ("o", rf"({_APOSTROPHE}(?i:n{_APOSTROPHE}?|em|till?|cause|[2-9]0s))", _as_it_is),
    ("l", rf"((?i:[ldj]|dunkin|somethin|ol){_APOSTROPHE})", _quoted),
    ("l", rf"([A-HJ-XZn]{_INNER}{_LETTER}{{2,}})", _as_it_is),
    ("l", rf"({_LETTER}+[aeiouyAEIOUY]{_INNER}[aeiouA-Z]{_LETTER}*)", _as_it_is),
    ("l", r"((?i:cont'd\.?|c'mon|e'er|s'mores|ev'ry|li'l|nat'l|nor'easter))", _as_it_is),
    ("l", rf"((?i:cap{_APOSTROPHE}n|c{_APOSTROPHE}est))", _quoted),
    ("l", rf"([yY]{_APOSTROPHE}){_LETTER}", _quoted),
    # Addresses.
    ("l", r"((?i:https?|ftp)://[^\s\"<>|()]+[^\s\"'<>|.!?(){},;:&-])", _as_it_is),
    ("l", rf"((?i:www)\.(?:[^\s\"<>|.!?(){{}},]+\.)+[A-Za-z]{{2,4}}{_PATH})", _as_it_is),
    ("l", rf"((?:[a-z]+\.)+(?:com|net|org|edu){_PATH})", _as_it_is),
    ("ld", r"([A-Za-z0-9][^\s\"<>|()]{0,100}@(?:[^\s\"<>|().]+\.)*[^\s\"<>|().,;:]+)", _as_it_is),
    ("o", rf"(@[A-Za-z_][A-Za-z0-9_]*|#{_LETTER}+)", _as_it_is),
    ("o", rf"((?i:{_CONTRACTED}))[^A-Za-z]", _quoted),
    ("o", r"([\u0092\u2019](?i:[msd]|re|ve|ll))", _quoted),
    ("l", rf"([nN]{_INNER}[tT])[^A-Za-z]", _quoted),
    # Numbers: dates, fractions (5 1/2), times, telephones.
    ("d", r"(\d{1,2}[-/]\d{1,2}[-/]\d{2,4})", _as_it_is),
    ("d", r"((?:\d{1,4}[- \u00A0])?\d{1,4}\\?/\d{1,4})", _unbroken),
    ("do", rf"({_NUMBER})", _as_it_is),
    ("d", rf"({_PHONE_START}{_PHONE_END})", _unbroken),
    ("d", r"((?:\d{2,4}\.)?\d{2,4}\.\d{3,4}\.\d{3,5})", _as_it_is),
    ("o", rf"((?:\(\d{{2,3}}\){_BLANK}?|\+\+?{_PHONE_START}){_PHONE_END})", _telephone),
    ("l", r"([A-Z]+\$)", _as_it_is),
    # Words and numbers joined by hyphens, slashes, ampersands.
    ("ld", rf"({_JOINED})", _quoted),
    ("ld", rf"({_JOINED}\.)[,;:]", _quoted),
    ("l", r"([A-Z]+(?:(?:[+&]|&amp;)[A-Z]+)+)", _as_it_is),
    ("ld", rf"({_SLASHED})", _as_it_is),
    ("ld", rf"({_ALNUM}(?:{_ALNUM}|[.,])*(?:-(?:{_ACRONYM}\.|{_ALNUM}+))+)", _as_it_is),
    ("l", r"((?i:c\+\+|[cf]#|pro-|anti-))", _as_it_is),
    # Abbreviations.
    ("l", rf"((?:{_ACRONYM}|[A-Za-z])\.){_STARTER}", _acronym_before_sentence),
    ("l", rf"((?:{_ACRONYM}|{_caseless(_TITLES)}|[A-Za-z])\.)", _as_it_is),
    ("l", rf"((?i:pty)\.){_BLANK}+(?i:ltd)", _as_it_is),
    ("l", rf"({_FINAL}\.){_NEW_SENTENCE}", _with_period),
    ("l", rf"({_FINAL}\.)(?s:.{{0,2}})", _as_it_is),
    ("l", rf"({_caseless(_BEFORE_NUMBERS)}\.){_BLANK}*\d", _as_it_is),
    # Punctuation.
    ("o", rf"(\.\.\.+|\.(?:{_BLANK}\.){{2,}})", _always("...")),
    ("o", r"(-(?i:[lr][rcs]b)-)", _as_it_is),
    ("o", r"([<>]?[:;=][-o*']?[()DPdpO\\{@|\[\]])[^A-Za-z0-9]", _bracketed),
    ("o", r"([-^x=~<>']_[-^x=~<>']|\([-^x=~<>'][_.]?[-^x=~<>']\))", _bracketed),
    ("o", rf"({_APOSTROPHE}\d\d)\s", _quoted),
    ("o", r"(\"|&quot;)[A-Za-z0-9$]", _always("``")),
    ("o", r"(\"|&quot;|'')", _always("''")),
    ("o", r"(')[A-Za-z]\S", _always("`")),
    ("o", rf"({_APOSTROPHE}|[`\u2018\u2019\u201B-\u201D\u0091-\u0094\u2039\u203A\u00AB\u00BB]{{1,2}})", _quoted),
    ("o", r"(--+)", _always("--")),
    ("o", r"([?!]+|@+|#+|_+|\*+|(?:\\\*){1,3}|<<|>>)", _as_it_is),
    ("o", r"(&(?:[aeiouAEIOU](?:acute|grave|uml)|#[0-9]+);)", _as_it_is),
    ("o", r"(&nbsp;)", _nothing),
    ("o", rf"(&amp;|&lt;|&gt;|{_SIGN})", _sign),
]
_IS_LETTER, _IS_DIGIT = re.compile(_LETTER), re.compile(r"\d")


@cache
def _rules_for(start: str) -> list[tuple[re.Pattern[str], Action]]:
    # Compiled on first use, to keep the import fast.
    return [(re.compile(rule), action) for kinds, rule, action in _RULES if start in kinds]


def tokenize(captions: Sequence[str]) -> list[str]:
    """Each caption as the COCO caption tool's tokens (Penn Treebank, lower case, no punctuation) joined by spaces.

    >>> tokenize(["A man's T-shirt, and a double-decker bus.", "They can't!"])
    ["a man 's t-shirt and a double-decker bus", "they ca n't"]
    """
    global _tokenized
    if len(_tokenized) > _REMEMBERED:
        _tokenized = {}
    known = _tokenized
    new = [caption for caption in dict.fromkeys(captions) if caption not in known]
    for start in range(0, len(new), _BLOCK):
        some = new[start : start + _BLOCK]
        known.update(zip(some, _at_once(some) if len(some) > _FEW else map(_by_pieces, some), strict=True))
    return [known[caption] for caption in captions]


def scan(caption: str) -> list[str]:
    """All tokens of a caption in lower case, including punctuation, by trying all rules at every place.

    >>> scan("The dog's ball can't roll, etc.")
    ['the', 'dog', "'s", 'ball', 'ca', "n't", 'roll', ',', 'etc.', '.']
    """
    # The line end serves rules that look at the character after the last one.
    text = _WHITE_SPACE.sub(" ", caption) + "\n"
    tokens: list[str] = []
    place, end = 0, len(text) - 1
    while place < end:
        if text[place] in " \u00a0":
            place += 1
            continue
        start = "l" if _IS_LETTER.match(text, place) else "d" if _IS_DIGIT.match(text, place) else "o"
        longest: re.Match[str] | None = None
        action: Action = _nothing
        for rule, do in _rules_for(start):
            match = rule.match(text, place)
            if match and (longest is None or match.end() > longest.end()):
                longest, action = match, do
        if longest is None:
            place += 1  # a character unknown to the tokenizer
            continue
        tokens += action(longest[1])
        place = longest.end(1)
    return [token.lower() for token in tokens]


def _join(tokens: Sequence[str]) -> str:
    return " ".join(token for token in tokens if token and token not in PUNCTUATION)


def _at_once(captions: Sequence[str]) -> list[str]:
    """The same as `_by_pieces` of every caption, several times faster: each different piece is looked up once."""
    pieces, number, lengths = distinct_words(captions)
    end = np.cumsum(lengths) - 1
    last = np.zeros(len(number), dtype=np.int64)
    last[end] = 1
    used = np.zeros((2, len(pieces)), dtype=np.bool_)
    used[last, number] = True
    table: list[str] = []
    unsure: list[bool] = []
    for tokens_of, after, flags in ((_inner, " ", used[0]), (_last, "\n", used[1])):
        for piece, is_used in zip(pieces, flags.tolist(), strict=True):
            # Other white space than single spaces is not printable.
            tokens = "" if not is_used else tokens_of[piece] if piece.isprintable() else None
            unsure.append(tokens is None)
            table.append(tokens + after if tokens else after.lstrip(" "))
    entry = number + len(pieces) * last
    # Where the last piece has no tokens, a space is left before the line's end.
    rows = "".join(map(table.__getitem__, entry.tolist())).replace(" \n", "\n").split("\n")[:-1]
    for caption in np.unique(np.searchsorted(end, np.flatnonzero(np.array(unsure)[entry]))).tolist():
        rows[caption] = _by_pieces(captions[caption])
    return rows


def _by_pieces(caption: str) -> str:
    """The caption's tokens without punctuation, joined by spaces; pieces between white space are scanned once."""
    pieces = caption.split()
    if not pieces:
        return ""
    last = pieces.pop()
    found = list(map(_inner.__getitem__, pieces))
    if None in found:
        return _join(scan(caption))
    found.append(_last[last])
    return " ".join(filter(None, found))


class _Pieces(dict[str, str | None]):
    """Piece of a caption → its tokens, joined; None if they may depend on the next piece."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self._is_last = last

    def __missing__(self, piece: str) -> str | None:
        if len(self) >= _REMEMBERED:
            self.clear()
        found: str | None
        plain = _PLAIN.fullmatch(piece)
        if plain and (word := plain[1].lower()) not in _NO_PLAIN_WORDS:
            found = word  # the comma or period is dropped
        elif not self._is_last and _LOOKS_AHEAD.search(piece):
            found = None
        else:
            found = _join(scan(piece))
        self[piece] = found
        return found


_inner, _last = _Pieces(last=False), _Pieces(last=True)
# Caption → its tokens; references are scored many times.
_tokenized: dict[str, str] = {}


def forget() -> None:
    """Clear the caches of captions and pieces."""
    for remembered in (_tokenized, _inner, _last):
        remembered.clear()
