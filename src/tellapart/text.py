"""Words and vocabulary.

A *normaliser* splits a sentence into words; `NORMALISERS` has the rules of both papers. A `Vocabulary` is built from
the training captions only, so that no test word leaks into a model.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path

from pydantic import Field

from tellapart.errors import DataError, did_you_mean
from tellapart.files import Stored, read_model, write_json

PAD, START, END, UNKNOWN = 0, 1, 2, 3
SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")

_WORD = re.compile(r"[^\W_]+")
# Apostrophes are dropped: "dog's" becomes one word, as in the papers.
_APOSTROPHE = re.compile(r"(?<=\w)['’](?=\w)")


def alphabetic_words(sentence: str) -> list[str]:
    """The CL paper's rule: lower case, only letters and emoji kept.

    >>> alphabetic_words("Two dogs, 3 cats 🐈!")
    ['two', 'dogs', 'cats', '🐈']
    """
    kept = [" "]
    for character in _APOSTROPHE.sub("", _lower(sentence)):
        category = unicodedata.category(character)
        # A combining mark belongs to the letter before it; an emoji's variation selector is dropped.
        if category[0] == "L" or (category[0] == "M" and not kept[-1].endswith(" ")):
            kept.append(character)
        elif category == "So":  # each emoji is a word
            kept.append(f" {character} ")
        else:
            kept.append(" ")
    return "".join(kept).split()


def plain_words(sentence: str) -> list[str]:
    """The specificity paper's rule: lower case, letters and digits kept.

    >>> plain_words("The dog's No. 7 shirt.")
    ['the', 'dogs', 'no', '7', 'shirt']
    """
    text = _lower(sentence)
    return _WORD.findall(_APOSTROPHE.sub("", text) if "'" in text or "’" in text else text)


def _lower(sentence: str) -> str:
    """Lower case in NFC: an accent stored as a separate mark would split its word in two."""
    text = sentence.lower()
    return text if text.isascii() else unicodedata.normalize("NFC", text)


_SIDE = re.compile(r"(?<![^\W_])(left|right)")
_OTHER_SIDE = {"left": "right", "right": "left"}


def mirror_words(text: str) -> str:
    """A text in lower case about the mirrored picture: words that begin with "left" and "right" change places.

    >>> mirror_words("a man on the left in bright light, a dog at the rightmost tree")
    'a man on the right in bright light, a dog at the leftmost tree'
    """
    return _SIDE.sub(lambda found: _OTHER_SIDE[found[1]], text)


def names_a_side(caption: str) -> bool:
    """Whether a caption has a word that begins with "left" or "right", so that it may be false for a mirrored picture.

    >>> names_a_side("Two dogs. Left: a man"), names_a_side("an upright piano in bright light")
    (True, False)
    """
    return _SIDE.search(caption.lower()) is not None


NORMALISERS: dict[str, Callable[[str], list[str]]] = {"alphabetic": alphabetic_words, "plain": plain_words}


@lru_cache(maxsize=1 << 18)
def _words(sentence: str, normaliser: str) -> tuple[str, ...]:
    return tuple(NORMALISERS[normaliser](sentence))


class _StoredVocabulary(Stored):
    """`vocabulary.json`."""

    normaliser: str
    max_words: int = Field(ge=1, le=100_000)
    words: list[str]


class Vocabulary:
    """The words a model knows, and the normaliser that splits a sentence into them.

    Row order: `<pad>`, `<start>`, `<end>`, `<unk>`, then words by falling count, ties in alphabetical order.

    Args:
        words: the words after the four specials.
        normaliser: a name from `NORMALISERS`.
        max_words: maximum number of words; longer captions are cut (CL paper: 18).

    Example:
        >>> vocabulary = Vocabulary.build(["A red car.", "a blue car"], min_count=2)
        >>> vocabulary.encode("a green car")
        [4, 3, 5, 2]
        >>> vocabulary.decode([4, 3, 5, 2])
        'a <unk> car'
    """

    def __init__(self, words: Sequence[str], normaliser: str = "plain", max_words: int = 18) -> None:
        if normaliser not in NORMALISERS:
            raise DataError(f"there is no normaliser '{normaliser}'{did_you_mean(normaliser, NORMALISERS)}")
        self.tokens = [*SPECIALS, *words]
        self.normaliser = normaliser
        self.max_words = max_words
        self._row = {token: row for row, token in enumerate(self.tokens)}
        if len(self._row) != len(self.tokens):
            raise DataError("a vocabulary has the same word twice; build it again from the training captions")

    @classmethod
    def build(
        cls, captions: Iterable[str], min_count: int = 5, normaliser: str = "plain", max_words: int = 18
    ) -> Vocabulary:
        """Build from the *training* captions; words seen fewer than `min_count` times become `<unk>`."""
        empty = cls((), normaliser, max_words)
        counts = Counter(chain.from_iterable(map(empty.words, captions)))
        kept = sorted((word for word, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))
        return cls(kept, normaliser, max_words)

    def __len__(self) -> int:
        return len(self.tokens)

    def words(self, sentence: str) -> list[str]:
        """The sentence's words by the normaliser, cut to `max_words`; unknown words are kept."""
        return list(_words(sentence, self.normaliser)[: self.max_words])

    def encode(self, sentence: str) -> list[int]:
        """Rows of the sentence's words, then the end token."""
        return [self._row.get(word, UNKNOWN) for word in self.words(sentence)] + [END]

    def decode(self, rows: Iterable[int]) -> str:
        """Words up to the end token, joined by blanks."""
        words = []
        for row in rows:
            if row == END:
                break
            if row not in (PAD, START):
                words.append(self.tokens[row])
        return " ".join(words)

    def save(self, path: Path) -> None:
        settings = {"normaliser": self.normaliser, "max_words": self.max_words, "words": self.tokens[len(SPECIALS) :]}
        write_json(path, settings)

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        remedy = "save the model again, or use another checkpoint"
        stored = read_model(path, _StoredVocabulary, "vocabulary", remedy)
        try:
            return cls(stored.words, stored.normaliser, stored.max_words)
        except DataError as error:
            raise DataError(f"{path}: this vocabulary is damaged ({error}); {remedy}") from None


def unknown_words(vocabulary: object, text: str) -> list[str]:
    """The words of a text that a model does not know, each once; of a model with pieces of words none is unknown."""
    if type(vocabulary) is not Vocabulary:
        return []
    known = zip(vocabulary.words(text), vocabulary.encode(text), strict=False)
    return list(dict.fromkeys(word for word, row in known if row == UNKNOWN))
