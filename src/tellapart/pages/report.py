"""One self-contained HTML page per comparison: table, plane, captions, attention, retrieved images, curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from tellapart.data.records import Record
from tellapart.engine.journal import read_journal
from tellapart.evaluation.compare import ComparedRun, Comparison
from tellapart.evaluation.evaluate import Evaluation
from tellapart.evaluation.people import PEOPLE
from tellapart.files import GENERATOR, check_output, write_json, write_text
from tellapart.metrics import PairedDifference, holm
from tellapart.metrics.bootstrap import LEVEL
from tellapart.pages.base import TITLE, Pictures, as_svg, curves, plotting, render, shown
from tellapart.pages.caption_gallery import KINDS, SHOWN, caption_attention, caption_gallery

COLUMNS = [  # figure, heading, what it means, how it is printed
    ("self_retrieval_R@1", "Finds its image", "share of captions that rank their own image first of all", "percent"),
    ("self_retrieval_mean_rank", "Mean rank", "mean rank of the own image; 1 is best", "number"),
    ("under_judge_R@1", "… ranked by {judge}", "the same when {judge} ranks", "percent"),
    (
        "under_listener_R@1",
        "… ranked by {listener}",
        "the same when {listener} ranks, an outsider",
        "percent",
    ),
    ("true_listener_R@1", "… by what is true", "the same when the known contents of the scenes decide", "percent"),
    ("truth", "Truth", "share of what captions claim that is right", "percent"),
    ("difference_named", "Names the difference", "of near-duplicates: share that rightly says what differs", "percent"),
    ("CIDEr", "CIDEr", "CIDEr-D: agreement with what people wrote", "figure"),
    ("Bleu_4", "BLEU-4", "agreement with what people wrote", "figure"),
    ("distinct", "Distinct", "share of captions that differ from all others", "percent"),
    ("novel", "Novel", "share of captions that are no training caption", "percent"),
    ("mean_length", "Length", "mean number of words", "number"),
]
CARDS = 9
FAMILIES = 4
QUERIES = 4


# The figure in the headline: the first of these that was measured, and what it is called.
HEADLINES = {
    "true_listener_R@1": "captions that find their picture, by what is true",
    "under_listener_R@1": "captions that find their picture under {listener}",
    "self_retrieval_R@1": "captions that find their picture",
}

# Figures whose differences from the control are printed: name, factor, unit, and whether more of it is better.
COMPARED = {
    "self_retrieval_R@1": ("finds its image", 100.0, " points", 1),
    "under_judge_R@1": ("finds its image under {judge}", 100.0, " points", 1),
    "under_judge_mean_rank": ("mean rank under {judge}", 1.0, "", -1),
    "under_listener_R@1": ("finds its image under {listener}", 100.0, " points", 1),
    "true_listener_R@1": ("finds its image by what is true", 100.0, " points", 1),
    "truth": ("truth", 100.0, " points", 1),
    "difference_named": ("names the difference", 100.0, " points", 1),
    "CIDEr": ("CIDEr", 1.0, "", 1),
}


def check_report_folder(folder: Path) -> None:
    """Raise unless the files of `write_report` can be written into the folder."""
    check_output(folder / "report.html", GENERATOR)
    check_output(folder / "comparison.json", "rows", "judge", "control", "treatment", "differences")


def write_report(comparison: Comparison, folder: str | Path, template: str = "report.html", **values: Any) -> Path:
    """Write `report.html` and `comparison.json` into a folder; gives the page's path.

    Existing files of these names are replaced if tellapart wrote them.

    Args:
        comparison: from `compare`.
        folder: where the files go.
        template: the report itself, or a page that extends it.
        values: what that page asks for.
    """
    folder = Path(folder)
    check_report_folder(folder)
    write_json(folder / "comparison.json", comparison.to_json())
    treatment, baseline = comparison.row(comparison.treatment), comparison.row(comparison.baseline)
    dataset = treatment.run.data.dataset
    pictures = Pictures(dataset)
    images = len(treatment.evaluation.ranked_rows)
    pair = (baseline, treatment)
    found = comparison.differences[treatment.label]
    headline = next(figure for figure in HEADLINES if figure in found)
    gallery = caption_gallery(pair, comparison.records, pictures)
    attention = caption_attention(treatment, comparison.records)
    text = render(
        template,
        **values,
        data=dataset.name,
        images=images,
        captioned=len(comparison.records),
        chance=1 / images,
        columns=_columns(comparison),
        rows=[(label, one.corpus, one.intervals) for label, one in comparison.evaluations.items()],
        control=comparison.control,
        baseline=baseline.label,
        treatment=treatment.label,
        differences={label: difference_rows(comparison, label) for label in comparison.differences},
        headline=found[headline],
        headline_name=_named(HEADLINES[headline], comparison),
        headline_values=[
            (label, evaluation.corpus[headline])
            for label, evaluation in comparison.evaluations.items()
            if headline in evaluation.corpus
        ],
        plane=_plane(comparison, headline),
        gallery=gallery,
        shown_pictures=SHOWN,
        kinds=[
            *((kind, name, sum(kind in item["places"] for item in gallery)) for kind, name in KINDS.items()),
            ("", "all of these", len(gallery)),
        ],
        attention=attention,
        sentinel=any(word["share"] is not None for item in attention for word in item["words"]),
        families=_families(pair, comparison.records, pictures),
        queries=_queries(pair, pictures),
        curves=curves(_journals(comparison)),
        made_from=[(row.label, row.run.recipe) for row in comparison.rows],
    )
    path = folder / "report.html"
    write_text(path, text)
    return path


def _journals(comparison: Comparison) -> dict[str, list[dict[str, Any]]]:
    """The journals of the rows that were trained; of all rows if none was."""
    found = {row.label: read_journal(row.run.folder) for row in comparison.rows}
    return {label: rows for label, rows in found.items() if any(row["split"] == "train" for row in rows)} or found


def _plane(comparison: Comparison, figure: str) -> str:
    """Accuracy (CIDEr) against a figure of distinctiveness, with 95 % intervals; nothing with less than two points."""
    names = ("CIDEr", figure)
    found = {
        label: [one.intervals[name] for name in names]
        for label, one in comparison.evaluations.items()
        if all(name in one.intervals for name in names)
    }
    if len(found) < 2:
        return ""
    with plotting() as pyplot:
        drawing, axis = pyplot.subplots(figsize=(9.6, 3.8))
        for place, (label, (accuracy, distinctiveness)) in enumerate(found.items()):
            x, y, colour = accuracy.mean, 100 * distinctiveness.mean, f"C{place % 10}"
            # Lines, not error bars: the interval of a skewed figure need not hold it.
            axis.plot([accuracy.low, accuracy.high], [y, y], color=colour, linewidth=1.2)
            axis.plot([x, x], [100 * distinctiveness.low, 100 * distinctiveness.high], color=colour, linewidth=1.2)
            axis.plot(x, y, "*" if label == PEOPLE else "o", color=colour, markersize=8, label=label)
        axis.set_xlabel("CIDEr")
        axis.set_ylabel(fill(f"{_named(HEADLINES[figure], comparison)}, %", TITLE))
        axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
        return as_svg(drawing)


def _named(text: str, comparison: Comparison) -> str:
    """A heading with the names of judge and listener in it."""
    return text.format(judge=comparison.judge, listener=comparison.listener)


def _columns(comparison: Comparison) -> list[tuple[str, str, str, str]]:
    """The table's columns that have a value in any row."""
    measured = {name for evaluation in comparison.evaluations.values() for name in evaluation.corpus}
    return [
        (figure, _named(heading, comparison), _named(meaning, comparison), kind)
        for figure, heading, meaning, kind in COLUMNS
        if figure in measured
    ]


def comparison_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the table."""
    columns = _columns(comparison)
    return ["", *(heading for _, heading, _, _ in columns)], [
        [label, *(shown(evaluation.corpus.get(name), kind) for name, _, _, kind in columns)]
        for label, evaluation in comparison.evaluations.items()
    ]


def difference_rows(comparison: Comparison, label: str) -> list[tuple[str, str, str]]:
    """Of one row: figure, difference from the control with its interval, and a verdict in words.

    The verdict is corrected by Holm for all rows and figures printed.
    """
    p_values = holm(
        {
            (row, figure): found[figure].p_value
            for row, found in comparison.differences.items()
            for figure in COMPARED
            if figure in found
        }
    )
    rows = []
    for figure, (name, scale, unit, better) in COMPARED.items():
        if figure not in comparison.differences[label]:  # people's captions have no self-retrieval
            continue
        found = comparison.differences[label][figure]
        digits = 1 if scale > 1 else 3
        change = (
            f"{scale * found.difference:+.{digits}f}{unit} "
            f"[{scale * found.low:+.{digits}f}, {scale * found.high:+.{digits}f}]"
        )
        rows.append((_named(name, comparison), change, _verdict(found, p_values[label, figure], better)))
    return rows


def _verdict(found: PairedDifference, p_value: float, better: int) -> str:
    if p_value >= LEVEL:
        return "no significant difference"
    return "significantly better" if found.difference * better > 0 else "significantly worse"


def _captions_at(rows: Iterable[ComparedRun], position: int, by: str = "rank") -> list[dict[str, Any]]:
    found = [(row.label, row.evaluation.rows[position]) for row in rows]
    return [{"label": label, "caption": item["caption"], "rank": item.get(by)} for label, item in found]


def cards(
    pair: tuple[ComparedRun, ComparedRun], records: Sequence[Record], pictures: Pictures, gained: bool, by: str = "rank"
) -> list[dict[str, Any]]:
    """Images whose rank changed most between two runs: the best gains, or a few losses.

    Args:
        pair: the runs, the earlier one first.
        records: the images.
        pictures: their pictures.
        gained: gains, or else losses.
        by: which rank: `rank` (own model), `rank_under_judge` or `rank_under_listener`.
    """
    ranks = [row.evaluation.values(by) for row in pair]
    change = (ranks[0] - ranks[1]) if gained else (ranks[1] - ranks[0])
    chosen = [int(i) for i in (-change).argsort(kind="stable") if change[i] > 0][: CARDS if gained else 3]
    return [card(pair, records[i], i, pictures, by) for i in chosen]


def card(
    rows: Iterable[ComparedRun], record: Record, position: int, pictures: Pictures, by: str = "rank"
) -> dict[str, Any]:
    """A picture, what people wrote of it, and the captions of these runs.

    Args:
        rows: the runs.
        record: the image.
        position: its place in their evaluations.
        pictures: all pictures.
        by: which rank is shown, see `cards`.
    """
    people = [{"label": "people", "caption": caption, "rank": None} for caption in record.captions[:1]]
    return {"picture": pictures[record.id], "says": [*people, *_captions_at(rows, position, by)]}


def _families(
    pair: tuple[ComparedRun, ComparedRun], records: Sequence[Record], pictures: Pictures
) -> list[list[dict[str, Any]]]:
    """Near-duplicates side by side: families that the second run tells apart."""
    members: dict[str, list[int]] = {}
    for position, record in enumerate(records[: len(pair[1].evaluation.ranked_rows)]):
        if record.family is not None:
            members.setdefault(record.family, []).append(position)
    groups = [group for group in members.values() if len(group) > 1]

    def told(evaluation: Evaluation, group: list[int]) -> float:
        """Share of a family whose captions tell it apart: by what is true if that is known, else by their model."""
        return sum(_tells_apart(evaluation.rows[position]) for position in group) / len(group)

    # First families that the second run tells apart as a whole and the first does not. In a pair, each caption that
    # tells apart does so from the only other scene; in a larger family perhaps from one of several.
    before, after = (row.evaluation for row in pair)
    groups.sort(key=lambda group: (-told(after, group), len(group), told(before, group)))
    return [
        [{"picture": pictures[records[position].id], "says": _captions_at(pair, position)} for position in group]
        for group in groups[:FAMILIES]
    ]


def _tells_apart(row: dict[str, Any]) -> bool:
    if "difference_named" in row:
        return bool(row["difference_named"] == 1 and row.get("truth", 0) == 1)
    return bool(row["rank"] == 1)


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
