"""The cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder for derived files: `$TELLAPART_CACHE`, else the user's cache folder."""
    chosen = os.environ.get("TELLAPART_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tellapart"


def cache_hint(path: str | Path) -> str:
    """What to add to an error about a file in the cache folder; nothing about another file."""
    inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(cache_folder()))
    hint = "; this is in the cache folder, choose another one with the environment variable TELLAPART_CACHE"
    return hint if inside else ""
