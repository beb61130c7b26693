"""One self-contained HTML page per comparison: the table, captions side by side, retrieved images, curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tellapart.data.records import Record
from tellapart.engine.journal import read_journal
from tellapart.evaluation.compare import ComparedRun, Comparison
from tellapart.evaluation.evaluate import Evaluation
from tellapart.files import GENERATOR, check_output, write_json, write_text
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


# Figures whose differences from the control are printed: name, factor, unit, and whether more of it is better.
COMPARED = {
    "self_retrieval_R@1": ("finds its image", 100.0, " points", 1),
    "under_judge_R@1": ("finds its image under {judge}", 100.0, " points", 1),
    "under_judge_mean_rank": ("mean rank under {judge}", 1.0, "", -1),
    "CIDEr": ("CIDEr", 1.0, "", 1),
}


def check_report_folder(folder: Path) -> None:
    """Raise unless the files of `write_report` can be written into the folder."""
    check_output(folder / "report.html", GENERATOR)
    check_output(folder / "comparison.json", "rows", "judge", "control", "treatment", "differences")


def write_report(comparison: Comparison, folder: str | Path) -> Path:
    """Write `report.html` and `comparison.json` into a folder; gives the page's path.

    Existing files of these names are replaced if tellapart wrote them.
    """
    folder = Path(folder)
    check_report_folder(folder)
    write_json(folder / "comparison.json", comparison.to_json())
    treatment, baseline = comparison.row(comparison.treatment), comparison.row(comparison.baseline)
    dataset = treatment.run.data.dataset
    pictures = Pictures(dataset)
    images = len(treatment.evaluation.ranked_rows)
    pair = (baseline, treatment)
    text = render(
        "report.html",
        data=dataset.name,
        images=images,
        captioned=len(comparison.records),
        chance=1 / images,
        columns=_columns(comparison),
        rows=[(row.label, row.evaluation.corpus) for row in comparison.rows],
        control=comparison.control,
        baseline=baseline.label,
        treatment=treatment.label,
        differences={label: difference_rows(comparison, label) for label in comparison.differences},
        headline=comparison.differences[treatment.label]["self_retrieval_R@1"],
        gained=cards(pair, comparison.records, pictures, gained=True),
        lost=cards(pair, comparison.records, pictures, gained=False),
        families=_families(pair, comparison.records, pictures),
        queries=_queries(pair, pictures),
        curves=curves({row.label: read_journal(row.run.folder) for row in comparison.rows}),
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


def comparison_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the table."""
    headings = ["", *(heading for _, heading, _, _ in _columns(comparison))]
    return headings, [
        [row.label, *(shown(row.evaluation.corpus.get(name), kind) for name, _, _, kind in COLUMNS)]
        for row in comparison.rows
    ]


def difference_rows(comparison: Comparison, label: str) -> list[tuple[str, str, str]]:
    """Of one row: figure, difference from the control with its interval, and a verdict in words."""
    rows = []
    for key, (name, scale, unit, better) in COMPARED.items():
        found = comparison.differences[label][key]
        digits = 1 if scale > 1 else 3
        change = (
            f"{scale * found.difference:+.{digits}f}{unit} "
            f"[{scale * found.low:+.{digits}f}, {scale * found.high:+.{digits}f}]"
        )
        rows.append((name.format(judge=comparison.judge), change, _verdict(found, better)))
    return rows


def _verdict(found: PairedDifference, better: int) -> str:
    if found.low <= 0 <= found.high:
        return "no significant difference"
    return "significantly better" if found.difference * better > 0 else "significantly worse"


def _captions_at(rows: Iterable[ComparedRun], position: int) -> list[dict[str, Any]]:
    found = [(row.label, row.evaluation.rows[position]) for row in rows]
    return [{"label": label, "caption": item["caption"], "rank": item.get("rank")} for label, item in found]


def cards(
    pair: tuple[ComparedRun, ComparedRun], records: Sequence[Record], pictures: Pictures, gained: bool
) -> list[dict[str, Any]]:
    """Images whose rank changed most between two runs: the best gains, or a few losses."""
    ranks = [row.evaluation.values("rank") for row in pair]
    change = (ranks[0] - ranks[1]) if gained else (ranks[1] - ranks[0])
    chosen = [int(i) for i in (-change).argsort(kind="stable") if change[i] > 0][: CARDS if gained else 3]
    return [{"picture": pictures[records[i].id], "says": _captions_at(pair, i)} for i in chosen]


def _families(
    pair: tuple[ComparedRun, ComparedRun], records: Sequence[Record], pictures: Pictures
) -> list[list[dict[str, Any]]]:
    """Near-duplicates side by side: the families where the second run finds most members that the first does not."""
    members: dict[str, list[int]] = {}
    for position, record in enumerate(records[: len(pair[1].evaluation.ranked_rows)]):
        if record.family is not None:
            members.setdefault(record.family, []).append(position)
    groups = [group for group in members.values() if len(group) > 1]

    def hits(evaluation: Evaluation, group: list[int]) -> int:
        return sum(evaluation.rows[position]["rank"] == 1 for position in group)

    groups.sort(key=lambda group: hits(pair[0].evaluation, group) - hits(pair[1].evaluation, group))
    return [
        [{"picture": pictures[records[position].id], "says": _captions_at(pair, position)} for position in group]
        for group in groups[:2]
    ]


def _queries(pair: tuple[ComparedRun, ComparedRun], pictures: Pictures) -> list[list[dict[str, Any]]]:
    """For a few images: the captions of both runs, and the images each caption retrieves."""
    gain = pair[0].evaluation.values("rank") - pair[1].evaluation.values("rank")
    chosen = [int(i) for i in (-gain).argsort(kind="stable")][:QUERIES]
    queries = []
    for position in chosen:
        asked = []
        for row in pair:
            item = row.evaluation.rows[position]
            retrieved = [{"picture": pictures[id], "own": id == item["id"]} for id in item["retrieved"]]
            asked.append({"label": row.label, "caption": item["caption"], "rank": item["rank"], "retrieved": retrieved})
        queries.append(asked)
    return queries
