"""One self-contained HTML page per comparison: the table, what each model says, who retrieves what, curves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tellapart.evaluation.compare import Comparison, Row
from tellapart.files import read_jsonl, write_json, write_text
from tellapart.metrics import PairedDifference
from tellapart.pages.base import Pictures, curves, render, shown

COLUMNS = [  # figure, heading, what it means, how it is printed
    ("self_retrieval_R@1", "Finds its image", "share of captions that rank their own image first of all", "percent"),
    ("self_retrieval_mean_rank", "Mean rank", "mean rank of the own image; 1 is best", "number"),
    ("under_judge_R@1", "… ranked by {judge}", "the same when {judge} ranks", "percent"),
    ("CIDEr", "CIDEr", "CIDEr-D: agreement with what people wrote", "figure"),
    ("Bleu_4", "BLEU-4", "agreement with what people wrote", "figure"),
    ("distinct", "Distinct", "share of captions that differ from all others", "percent"),
    ("novel", "Novel", "share of captions that are no training caption", "percent"),
    ("vocabulary", "Words used", "different words in all captions", "count"),
    ("mean_length", "Length", "mean number of words", "number"),
]
CARDS = 9
QUERIES = 4


def write_report(comparison: Comparison, folder: str | Path) -> Path:
    """Write `report.html` and `comparison.json` into a folder; gives the page's path."""
    folder = Path(folder)
    write_json(folder / "comparison.json", comparison.to_json())
    pictures = Pictures(comparison.prepared.dataset)
    first, last = comparison.rows[0], comparison.rows[-1]
    text = render(
        "report.html",
        data=comparison.prepared.dataset.name,
        images=len(last.under_judge),
        captioned=len(comparison.records),
        chance=1 / len(last.under_judge),
        columns=_columns(comparison),
        rows=[(row.label, row.figures()) for row in comparison.rows],
        control=comparison.control,
        first=first.label,
        last=last.label,
        differences=_difference_rows(comparison),
        headline=comparison.differences["self_retrieval_R@1"],
        gained=cards(comparison, pictures, gained=True),
        lost=cards(comparison, pictures, gained=False),
        families=_families(comparison, pictures),
        queries=_queries(comparison, pictures),
        curves=curves({row.label: read_jsonl(row.run.folder / "metrics.jsonl") for row in comparison.rows}),
        made_from=[(row.label, row.run.recipe) for row in comparison.rows],
    )
    path = folder / "report.html"
    write_text(path, text)
    return path


def _columns(comparison: Comparison) -> list[tuple[str, str, str, str]]:
    """The table's columns, with the judge's name in them."""
    return [
        (figure, heading.format(judge=comparison.judge), meaning.format(judge=comparison.judge), kind)
        for figure, heading, meaning, kind in COLUMNS
    ]


def comparison_table(comparison: Comparison) -> str:
    """The table as plain text, with the differences from the control below."""
    headings = ["", *(heading for _, heading, _, _ in _columns(comparison))]
    lines = [headings]
    for row in comparison.rows:
        figures = row.figures()
        lines.append([row.label, *(shown(figures.get(name), kind) for name, _, _, kind in COLUMNS)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    table.append(f"\n{comparison.rows[-1].label} against {comparison.control} (paired bootstrap, 95 % interval):")
    table += [f"  {name}: {change} ({verdict})" for name, change, verdict in _difference_rows(comparison)]
    return "\n".join(table)


def _difference_rows(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Name, difference with its interval, and a verdict in words."""
    kinds = {
        "self_retrieval_R@1": ("finds its image", 100.0, " points", 1),
        "under_judge_R@1": (f"finds its image under {comparison.judge}", 100.0, " points", 1),
        "under_judge_rank": (f"mean rank under {comparison.judge}", 1.0, "", -1),
        "CIDEr": ("CIDEr", 1.0, "", 1),
    }
    rows = []
    for key, (name, scale, unit, better) in kinds.items():
        found = comparison.differences[key]
        digits = 1 if scale > 1 else 3
        change = (
            f"{scale * found.difference:+.{digits}f}{unit} "
            f"[{scale * found.low:+.{digits}f}, {scale * found.high:+.{digits}f}]"
        )
        rows.append((name, change, _verdict(found, better)))
    return rows


def _verdict(found: PairedDifference, better: int) -> str:
    if found.low <= 0 <= found.high:
        return "no significant difference"
    return "significantly better" if found.difference * better > 0 else "significantly worse"


def _says(rows: Iterable[Row], position: int) -> list[dict[str, Any]]:
    found = [(row.label, row.evaluation.rows[position]) for row in rows]
    return [{"label": label, "caption": item["caption"], "rank": item.get("rank")} for label, item in found]


def cards(comparison: Comparison, pictures: Pictures, gained: bool) -> list[dict[str, Any]]:
    """Images whose rank changed most between the first and the last model; for losses, a few."""
    first, last = comparison.rows[0], comparison.rows[-1]
    ranks = first.evaluation.values("rank"), last.evaluation.values("rank")
    change = (ranks[0] - ranks[1]) if gained else (ranks[1] - ranks[0])
    chosen = [int(i) for i in (-change).argsort(kind="stable") if change[i] > 0][: CARDS if gained else 3]
    ids = [record.id for record in comparison.records]
    return [{"picture": pictures[ids[i]], "says": _says((first, last), i)} for i in chosen]


def _families(comparison: Comparison, pictures: Pictures) -> list[list[dict[str, Any]]]:
    """Near-duplicates side by side: families where the last model tells most members apart that the first did not."""
    first, last = comparison.rows[0], comparison.rows[-1]
    judged = len(last.under_judge)
    members: dict[str, list[int]] = {}
    for position, record in enumerate(comparison.records[:judged]):
        if record.family is not None:
            members.setdefault(record.family, []).append(position)
    groups = [group for group in members.values() if len(group) > 1]

    def hits(row: Row, group: list[int]) -> int:
        return sum(row.evaluation.rows[position]["rank"] == 1 for position in group)

    groups.sort(key=lambda group: hits(first, group) - hits(last, group))
    ids = [record.id for record in comparison.records]
    return [
        [{"picture": pictures[ids[position]], "says": _says((first, last), position)} for position in group]
        for group in groups[:2]
    ]


def _queries(comparison: Comparison, pictures: Pictures) -> list[list[dict[str, Any]]]:
    """For a few images: the caption of the first and of the last model, and the images each retrieves."""
    first, last = comparison.rows[0], comparison.rows[-1]
    gain = first.evaluation.values("rank") - last.evaluation.values("rank")
    chosen = [int(i) for i in (-gain).argsort(kind="stable")][:QUERIES]
    queries = []
    for position in chosen:
        asked = []
        for row in (first, last):
            item = row.evaluation.rows[position]
            retrieved = [{"picture": pictures[id], "own": id == item["id"]} for id in item["retrieved"]]
            asked.append({"label": row.label, "caption": item["caption"], "rank": item["rank"], "retrieved": retrieved})
        queries.append(asked)
    return queries
