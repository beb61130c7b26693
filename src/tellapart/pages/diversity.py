"""n captions per image of several captioners: tables, and a page with the curves of quality and diversity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tellapart.evaluation.many_captions import (
    DIVERSITY,
    LOWER,
    QUALITY,
    ManyCaptions,
    ManyCaptionsScorer,
    matched_differences,
    shared_quality,
)
from tellapart.files import GENERATOR, check_output, write_json, write_text
from tellapart.metrics import PairedDifference
from tellapart.pages.base import as_svg, plotting, render
from tellapart.terminal import print_table

# Figures that are drawn.
DRAWN = ("Div_1", "Div_2", "SelfCIDEr_Luo", "mBLEU_4_sentence")
# Columns of the table: heading -> figure; `best` stands for the prefix of the re-ranked captions.
ORACLE = {f"oracle {name}": f"oracle_{name}" for name in ("Bleu_4", "METEOR", "ROUGE_L", "CIDEr")}
AMONG = {
    "CIDEr": "mean_CIDEr",
    "Div-1": "Div_1",
    "Div-2": "Div_2",
    "SelfCIDEr": "SelfCIDEr_Luo",
    "mBLEU-4": "mBLEU_4_corpus",
}

Arms = Mapping[str, ManyCaptions]


def check_diversity_folder(folder: Path) -> None:
    """Raise unless the files can be written."""
    check_output(folder / "diversity.json", "captions_per_image", "runs")
    check_output(folder / "diversity.html", GENERATOR)


def diversity_table(arms: Arms) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: a row for each run and way."""
    first = next(iter(arms.values()))
    prefix = f"best_{first.best}_"
    columns = {name: figure for name, figure in ORACLE.items() if figure in first.ways["beam"].figures}
    columns |= {f"best {first.best}: {name}": prefix + figure for name, figure in AMONG.items()}
    rows = [
        [label, way, *(f"{of.figures[figure]:.4f}" for figure in columns.values())]
        for label, one in arms.items()
        for way, of in one.ways.items()
    ]
    return ["run", "way", *columns], rows


def compare_at_equal_quality(arms: Arms, control: str) -> dict[str, dict[str, PairedDifference] | None]:
    """Differences from the control in the diversity of the best captions: label -> figures.

    It is `None` for a run that shares no quality with the control.
    """
    return {
        label: None if shared_quality(arms[control], one) is None else matched_differences([arms[control]], [one])
        for label, one in arms.items()
        if label != control
    }


def matched_table(
    arms: Arms, control: str, compared: Mapping[str, dict[str, PairedDifference] | None]
) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: a row for each run and figure."""
    rows = []
    for label, differences in compared.items():
        if differences is None:
            rows.append([label, "no quality that both have; add temperatures", "–", "–", "–", "–"])
            continue
        low, high = shared_quality(arms[control], arms[label]) or (0.0, 0.0)
        for name, found in differences.items():
            better = "lower" if name in LOWER else "higher"
            interval = f"[{found.low:+.4f}, {found.high:+.4f}]"
            cells = [f"{name} ({better} is more diverse)", f"{low:.3f} to {high:.3f}", f"{found.difference:+.4f}"]
            rows.append([label, *cells, interval, f"{found.p_value:.4f}"])
    return ["run", "figure", "at CIDEr", f"difference from {control}", "95 % interval", "p"], rows


def print_diversity(arms: Arms, control: str) -> None:
    """Print both tables."""
    print_table(*diversity_table(arms))
    compared = compare_at_equal_quality(arms, control)
    if compared:
        title = f"\ndiversity of the best {arms[control].best} captions where the samples of both have the same CIDEr"
        print_table(*matched_table(arms, control, compared), title)


def write_diversity(arms: Arms, control: str, scorer: ManyCaptionsScorer, folder: Path) -> Path:
    """Write `diversity.json` and `diversity.html`; gives the path of the page.

    Args:
        arms: label -> what was measured.
        control: label of the run that the others are compared with.
        scorer: that measured them.
        folder: gets the files; those that tellapart wrote are replaced.
    """
    check_diversity_folder(folder)
    compared = compare_at_equal_quality(arms, control)
    first = arms[control]
    content: dict[str, Any] = {
        "data": first.run.data.dataset.name,
        "split": scorer.split,
        "images": len(first.ids),
        "captions_per_image": scorer.captions,
        "best": scorer.best,
        "control": control,
        "runs": {label: {way: of.figures for way, of in one.ways.items()} for label, one in arms.items()},
        "at_equal_quality": {
            label: None if found is None else {name: asdict(one) for name, one in found.items()}
            for label, found in compared.items()
        },
    }
    path = folder / "diversity.html"
    text = render(
        "diversity.html",
        **{key: content[key] for key in ("data", "split", "images", "captions_per_image", "best", "control")},
        curves=draw_curves(arms),
        table_rows=diversity_table(arms),
        matched=matched_table(arms, control, compared) if compared else None,
    )
    write_json(folder / "diversity.json", content)
    write_text(path, text)
    return path


def draw_curves(arms: Arms, figures: tuple[str, ...] = DRAWN) -> str:
    """Quality against diversity as inline SVG: a line over temperatures and two beams for each run.

    The first row of panels is of the re-ranked best captions, the second of all n.

    Args:
        arms: label -> what was measured.
        figures: names of `DIVERSITY`, one panel each.
    """
    assert set(figures) <= set(DIVERSITY)
    first = next(iter(arms.values()))
    groups = {f"best {first.best}": f"best_{first.best}_", "all captions": ""}
    with plotting() as pyplot:
        shape = (len(groups), len(figures))
        figure, axes = pyplot.subplots(*shape, figsize=(3.1 * shape[1], 2.7 * shape[0]), squeeze=False)
        for line, (name, prefix) in zip(axes, groups.items(), strict=True):
            for axis, diversity in zip(line, figures, strict=True):
                for place, (label, one) in enumerate(arms.items()):
                    _draw(axis, one, prefix, diversity, f"C{place % 10}", label)
                axis.set_xlabel(f"CIDEr, {name}")
                axis.set_title(f"{diversity}{' (lower is more diverse)' if diversity in LOWER else ''}")
        axes[0, -1].legend(frameon=False, fontsize=8)
        return as_svg(figure)


def _draw(axis: Any, one: ManyCaptions, prefix: str, diversity: str, colour: str, label: str) -> None:
    points = one.curve(diversity, of_best=bool(prefix))
    axis.plot([point[1] for point in points], [point[2] for point in points], "o-", color=colour, ms=3, label=label)
    for heat, x, y in points:
        axis.annotate(f"{heat:g}", (x, y), fontsize=6, color=colour, xytext=(2, 2), textcoords="offset points")
    for way, marker in (("beam", "s"), ("diverse", "D")):
        found = one.ways[way].figures
        axis.scatter([found[prefix + QUALITY]], [found[prefix + diversity]], marker=marker, color=colour, s=22)
