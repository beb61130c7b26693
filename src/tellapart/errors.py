"""One small exception tree. Every message names the file or key, says what is wrong and what to do.

The command line prints these as one line and exits with status 2; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TellapartError(Exception):
    """Base of everything a user can cause and mend."""


class RecipeError(TellapartError):
    """A recipe does not say what it must, or says what nobody understands."""


class DataError(TellapartError):
    """A data set, an image or a caption file cannot be used."""


class StoreError(TellapartError):
    """A feature store is missing, incomplete, or made from something else."""


class RunError(TellapartError):
    """A run folder or checkpoint cannot be used, or a training had to stop."""


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
