"""The exceptions. Every message names the file or key, what is wrong, and what to do.

The command line prints them as one line and exits with status 2. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TellapartError(Exception):
    """Base class of errors that a user can cause and fix."""


class RecipeError(TellapartError):
    """A recipe lacks a key, has an unknown key or an invalid value."""


class DataError(TellapartError):
    """A data set, an image or a caption file is missing, broken or inconsistent."""


class StoreError(TellapartError):
    """A feature store is missing, incomplete, or made from other data or by another encoder."""


class RunError(TellapartError):
    """A run folder or checkpoint cannot be used, or training had to stop."""


class MissingExtraError(TellapartError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; it comes with: pip install 'tellapart[{extra}]'")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"`, or the known names when nothing is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; known: {', '.join(known)}" if known else ""
