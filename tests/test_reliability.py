"""docs/reliability.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_test_named_in_the_docs_exists() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]*(?:\.py)?)::(\w+)`", text)
    assert len(named) > 40
    path = ""
    for file, test in named:
        path = file or path  # without a file: that of the test before
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{test}"
