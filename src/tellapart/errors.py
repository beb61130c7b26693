"""The exceptions. Every message names the file or key, what is wrong, and what to do.

The command line prints them as one line and exits with status 2. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Sequence


class TellapartError(Exception):
    """Base class of errors that a user can cause and fix."""


class RecipeError(TellapartError):
    """A recipe lacks a key, has an unknown key or an invalid value."""


class DataError(TellapartError):
    """A data set, an image or a caption file is missing, broken or inconsistent."""


class LimitError(DataError):
    """An input is over a documented limit."""


class StoreError(TellapartError):
    """A feature store is missing, incomplete, or made from other data or by another encoder."""


class RunError(TellapartError):
    """A run folder or checkpoint cannot be used, or training had to stop."""


class MissingExtraError(TellapartError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; it comes with: pip install 'tellapart[{extra}]'")


_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80
_short.maxlevel = 3


def quote(value: object) -> str:
    """A value as Python writes it, cut to a length and depth that fit in a message.

    >>> len(quote("a" * 1000)) <= 82
    True
    """
    try:
        return _short.repr(value)
    except ValueError:  # an integer with more digits than Python converts
        return f"<{type(value).__name__}>"


def shorten(text: str, most: int = 200) -> str:
    """A text on one line, cut to a length that fits in a message."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most and len(text) <= 4 * most else line[: most - 1] + "…"


def some(items: Sequence[object], most: int = 3) -> str:
    """The first items of a list, and how many more there are.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    named = ", ".join(shorten(str(item), 80) for item in items[:most])
    return f"{named} and {len(items) - most:,} more" if len(items) > most else named


def out_of_memory(error: BaseException) -> bool:
    """Whether torch or Python ran out of memory, or a size overflowed."""
    words = ("not enough memory", "can't allocate memory", "out of memory", "multiplication overflow", "Storage size")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"`, or the known names when nothing is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; known: {some(known, 30)}" if known else ""
