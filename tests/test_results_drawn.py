"""The tables of docs/results/ are those that its scores give."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"
KEPT = sorted((DOCS / "results").glob("*.json"))
SCORES = sorted((DOCS / "results" / "scores").glob("*.json"))


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def draw() -> ModuleType:
    return load("draw_results")


def test_tables_of_coco_are_drawn_from_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)  # as python docs/draw_tables.py does
    tables = load("draw_tables")
    page = (DOCS / "results" / "coco.md").read_text(encoding="utf-8")
    assert page.count("<!-- drawn: ") == len(tables.TABLES)
    assert tables.draw(page) == page
    assert tables.draw(page.replace("1.085", "9.999")) == page


def texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in values for text in texts(one)]


@pytest.mark.parametrize("path", SCORES, ids=lambda path: path.stem)
def test_kept_figures_have_no_captions_and_no_paths(path: Path) -> None:
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert not any("/" in text and "runs" in text for text in texts(kept))
    assert "captions" not in kept
    assert "shown" not in kept


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_pages_are_drawn_from_the_scores(path: Path, draw: ModuleType) -> None:
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert path.with_suffix(".md").read_text(encoding="utf-8") == draw.page(kept, path.stem)
    assert "<svg" in path.with_suffix(".svg").read_text(encoding="utf-8")
    assert kept["command"].startswith("tellapart study ")


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_kept_scores_have_no_captions_and_no_paths(path: Path) -> None:
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert not any(text.startswith("/") or "runs/" in text for text in texts(kept) if text != kept["command"])
    assert not any("captions" in key for row in kept["rows"].values() for key in row)


def test_seeds_that_would_decide(draw: ModuleType) -> None:
    """Two seeds give 2 ± 3: it is decided when the interval is 1.5 times narrower, with 2 × 1.5² = 4.5 seeds."""
    figures = {"CIDEr": 0.0}
    kept = {
        "study": "cl-table4",
        "rows": {
            "control": {"label": "control", "figures": [figures, figures]},
            "cl": {"label": "CL", "figures": [{"CIDEr": 1.0}, {"CIDEr": 3.0}]},
        },
        "differences": {"cl": {"CIDEr": {"against": "control", "low": -1, "high": 5, "difference": 2}}},
    }
    columns = [column for column in draw.measure_of(draw.find_study("cl-table4")).compared if column.figure == "CIDEr"]
    assert draw._decided(kept, columns).endswith("- CIDEr: CL 5")
    kept["differences"]["cl"]["CIDEr"] |= {"low": -0.1, "high": 4.1}
    assert draw._decided(kept, columns).endswith("- CIDEr: CL 3"), "more than were measured"
