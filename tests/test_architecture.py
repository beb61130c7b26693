"""docs/architecture.md shows the layers as they are."""

from __future__ import annotations

import pytest

pytest.importorskip("grimp", reason="comes with import-linter, a dev dependency")

from support.layers import ROOT, diagram, layers


def test_the_diagram_in_the_docs_is_drawn_from_the_imports() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = text.split("<!-- layers -->\n```\n")[1].split("```\n<!-- /layers -->")[0]
    assert block.strip() == diagram(), "run: python tests/support/layers.py, and paste its output"


def test_every_package_has_a_layer() -> None:
    package = ROOT / "src" / "tellapart"
    there = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert there - {"__init__"} == {name for row in layers() for name in row}
