"""The Dockerfile agrees with the Makefile, and names no other server."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_dockerfile() -> None:
    text = (ROOT / "Dockerfile").read_text()
    (torch,) = re.findall(r"torch==\S+", text)
    assert f"TORCH := {torch}\n" in (ROOT / "Makefile").read_text()
    assert set(re.findall(r"https?://([^/:]+)", text)) == {"127.0.0.1"}
    last = text.split("\nFROM ")[-1]
    assert re.search(r"^USER \d+$", last, re.MULTILINE)
    assert "HEALTHCHECK" in last
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for copied in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE):
        for name in copied.split():
            assert (ROOT / name).exists()
            assert f"!{name}" in ignored
