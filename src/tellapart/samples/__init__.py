"""Photographs that come with tellapart, for the demo; `NOTICE.md` has their sources and terms."""

from __future__ import annotations

from pathlib import Path

# A few photographs of different things, and one photograph with parts of it.
PHOTOGRAPHS = Path(__file__).parent / "photographs"
ALIKE = Path(__file__).parent / "alike"
