"""The tables of docs/results/ are those that its scores give."""

from __future__ import annotations

import importlib.util
import json
import sys
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
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def draw() -> ModuleType:
    return load("draw_results")


def test_tables_of_single_trainings_are_drawn_from_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)  # as python docs/draw_tables.py does
    tables = load("draw_tables")
    pages = [page.read_text(encoding="utf-8") for page in tables.PAGES]
    assert sum(page.count("<!-- drawn: ") for page in pages) == len(tables.TABLES)
    assert [tables.draw(page) for page in pages] == pages
    assert [tables.draw(page.replace("1.085", "9.999")) for page in pages] == pages


def test_claims_are_drawn_from_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    claims = load("draw_claims")
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    assert page.count("<!-- drawn: ") == len(claims.TABLES)
    assert claims.draw(page) == page
    for headings, rows in claims.TABLES.values():
        assert all(len(claim.cells) == len(headings) for claim in rows)


@pytest.mark.parametrize(
    ("interval", "seeds", "higher", "gain", "expected"),
    [
        ((0.01, 0.02, 0.03), 3, True, 0.1, "**confirmed**"),
        ((0.01, 0.02, 0.03), 3, False, None, "**not confirmed**"),
        ((-0.03, -0.02, -0.01), 1, True, None, "**not confirmed**"),
        ((-0.03, -0.02, -0.01), 1, False, None, "**confirmed**"),
        ((-0.01, 0.02, 0.05), 3, True, 0.06, "**not confirmed**, less than the paper"),
        ((-0.01, 0.02, 0.05), 3, True, 0.04, "too noisy, 7 seeds"),  # 3 × 1.5² = 6.75
        ((-0.1, 0.1, 0.3), 1, True, None, "too noisy, one seed"),
        ((-0.05, -0.02, 0.01), 3, True, None, "too noisy, 7 seeds, leaning against"),
        ((-0.2, 0.001, 0.2), 5, True, None, "too noisy, over 100 seeds"),
        ((-0.2, 0.0, 0.2), 5, True, None, "too noisy, over 100 seeds"),
    ],
)
def test_verdicts(
    interval: tuple[float, float, float],
    seeds: int,
    higher: bool,
    gain: float | None,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(DOCS)
    claims = load("draw_claims")
    claim = claims.Claim("a figure changes", "", (), higher, gain)
    assert claims.verdict(*interval, seeds, claim) == expected


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
