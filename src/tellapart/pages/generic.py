"""The most generic and the most specific captions of a data set: a table in the terminal, and a page with pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from tellapart.evaluation.generic_captions import Row, both_ends, describe_judges
from tellapart.evaluation.retrieval_entropy import RetrievalEntropy
from tellapart.files import GENERATOR, check_output, write_text
from tellapart.pages.base import Pictures, render
from tellapart.terminal import print_table

# Pictures beside each caption that fit it best.
FIRST = 5


def print_generic(rows: Sequence[Row], count: int, images: int) -> None:
    """The most generic and the most specific captions; a list of anyone's captions whole, in its order."""
    headings = ["caption", "entropy", f"fits as many as (of {images})"]
    if rows and "percentile" in rows[0]:
        headings.append("more generic than")
    if rows and "id" not in rows[0]:
        print_table(headings, map(_cells, rows))
        return
    for title, end in zip(("the most generic", "\nthe most specific"), both_ends(rows, count), strict=True):
        print_table(headings, map(_cells, end), title)


def _cells(row: Row) -> list[str]:
    share = [f"{100 * row['percentile']:.1f} %"] if "percentile" in row else []
    return [row["caption"], f"{row['entropy']:.3f}", _fits(row), *share]


def _fits(row: Row) -> str:
    """e^H: so many images that fit equally well have the same entropy."""
    return f"{math.exp(row['entropy']):.1f} images"


def check_page(path: Path) -> None:
    """Raise unless the page can be written."""
    check_output(path, GENERATOR)


def write_page(path: Path, found: RetrievalEntropy, rows: Sequence[Row], count: int) -> Path:
    """Write a page of captions with the pictures that fit them best; gives its path.

    An existing page is replaced if tellapart wrote it.

    Args:
        path: the page.
        found: measured entropies.
        rows: from `caption_rows` or `sentence_rows`.
        count: captions from each end; at most so many of anyone's captions.
    """
    check_page(path)
    dataset = found.judges[0].prepared.dataset
    pictures = Pictures(dataset)
    of_split = bool(rows) and "id" in rows[0]
    ends = both_ends(rows, count) if of_split else (list(rows[:count]),)
    titles = ("The most generic captions", "The most specific captions") if of_split else ("How generic are these?",)
    by_name = {judge.name: judge for judge in found.judges}
    sections = []
    for title, end in zip(titles, ends, strict=True):
        items = []
        for row in end:
            judge = by_name.get(row.get("retriever", ""), found.judges[0])
            images = judge.first_images([row["caption"]], FIRST)[0]
            shown = [{"picture": pictures[id], "own": id == row.get("id")} for id in images]
            own = pictures[row["id"]] if of_split else None
            items.append({**row, "picture": own, "fits": _fits(row), "images": shown})
        sections.append((title, items))
    text = render(
        "generic.html",
        data=dataset.name,
        captions=len(found.entropies),
        images=found.images,
        temperature=found.judges[0].temperature,
        mean=float(found.entropies.mean()) if len(found.entropies) else None,
        highest=math.log(found.images),
        judges=describe_judges(found),
        first=FIRST,
        sections=sections,
    )
    write_text(path, text)
    return path
