"""Digests (sha256) of values and files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tellapart.files.reading import check_regular


def digest_of(value: Any) -> str:
    """sha256 of a value's canonical JSON: equal values have equal digests on every machine."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def digest_of_file(path: Path) -> str:
    check_regular(path)
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
