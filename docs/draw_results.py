"""Draw the tables and plots of docs/results/ again from the scores beside them.

    python docs/draw_results.py                                                          # all of docs/results/*.json
    python docs/draw_results.py --keep studies/NAME/study.json --command "tellapart …" FILE   # first keep a study's

A file holds what `tellapart study` writes to `study.json`, without the paths of its runs, and the command that gave it:
figures of every arm and seed, and differences from the control with intervals. No captions and no pictures.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from tellapart.files import write_text
from tellapart.pages.base import as_svg, plotting, shown
from tellapart.studies.base import find_study
from tellapart.studies.columns import Column
from tellapart.studies.measure import measure_of

PANELS = 4  # of a plot, side by side
WIDEST = 10  # columns of a table that has an arm in each
MANY = 100  # seeds
FOLDER = Path(__file__).parent / "results"
Kept = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="a study.json to keep")
    parser.add_argument("--command", help="with --keep: the command that gave it")
    parser.add_argument("name", nargs="?", help="with --keep: its name in docs/results/")
    asked = parser.parse_args()
    if asked.keep:
        keep(asked.keep, asked.name, asked.command)
    for path in sorted(FOLDER.glob("*.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        write_text(path.with_suffix(".svg"), plot(kept))
        if "curves" in kept:
            write_text(path.with_name(f"{path.stem}-curves.svg"), plot_curves(kept))
        write_text(path.with_suffix(".md"), page(kept, path.stem))


def keep(study: Path, name: str, command: str) -> None:
    """Write the scores of a study to docs/results/, rounded, without paths."""
    kept = json.loads(study.read_text(encoding="utf-8"))
    for row in kept["rows"].values():
        del row["runs"]
    kept = {"command": command, **kept}
    write_text(FOLDER / f"{name}.json", json.dumps(rounded(kept), ensure_ascii=False, separators=(",", ":")) + "\n")


def page(kept: Kept, name: str) -> str:
    """The page of a study: its command, figures, differences, and how many seeds would decide."""
    study, columns = find_study(kept["study"]), _columns(kept)
    rows = [*kept["rows"].values(), *([kept["people"]] if "people" in kept else [])]
    seeds = len(next(iter(kept["rows"].values()))["figures"])
    lines = [
        f"# {study.title} {_about(kept)}",
        "",
        "Drawn by `python docs/draw_results.py` from the scores beside this page; do not edit it by hand.",
        "",
        f"```sh\n{kept['command']}\n```",
        "",
        f"{kept['data']}, split {kept['split']}, {_images(kept['images'])}, "
        + (f"mean ± standard deviation over {seeds} seeds." if seeds > 1 else "one seed."),
        "",
        *_fitting(
            ["", *(_short(kept, row["label"]) for row in rows)],
            [
                [column.heading, *(_cell(row, column) for row in rows)]
                for column in columns
                if any(column.figure in one for row in rows for one in row["figures"])
            ],
        ),
        "",
        "Differences from the control, with 95 % intervals over "
        + ("seeds and images" if seeds > 1 else "images only (one seed)")
        + "; * is significant after Holm's correction for all comparisons of the study. Shares are in points.",
        "",
        *_fitting(
            ["", *(_name(kept, key) for key in _compared(kept))], [_difference_row(kept, one) for one in columns]
        ),
        "",
        f"![Differences from the control with their intervals]({name}.svg)",
    ]
    if seeds > 1:
        lines += ["", _decided(kept, columns)]
    if "chosen" in kept:
        lines += ["", *_chosen(kept, columns)]
    if kept["searches"]:
        lines += ["", *_searches(kept)]
    if "curves" in kept:
        lines += [
            "",
            "Every model is diverse at a high temperature. So here is each diversity against quality, mean CIDEr of "
            "the best five captions, for samples at temperatures from 0.4 to 1.2 (mean over seeds):",
            "",
            f"![Diversity against quality over temperatures]({name}-curves.svg)",
        ]
    others = [one for one in study.columns if one.figure not in {column.figure for column in columns}]
    others = [one for one in others if any(one.figure in seed for row in rows for seed in row["figures"])]
    if others:
        lines += ["", "Further figures:", ""]
        lines += _fitting(
            ["", *(_short(kept, row["label"]) for row in rows)],
            [[one.heading, *(_cell(row, one) for row in rows)] for one in others],
        )
    quoted = {_short(kept, row["label"]): row["quoted"] for row in kept["rows"].values() if row["quoted"]}
    quoted |= {label: dict(figures) for label, figures in study.more_quoted.items()}
    named = [one for one in study.columns if any(one.figure in figures for figures in quoted.values())]
    if named:
        cells = [[one.heading, *(shown(of.get(one.figure), one.kind) for of in quoted.values())] for one in named]
        about = "other data, features and sizes: compare the direction of effects, not the values"
        lines += ["", f"Quoted, not measured here: {study.source}; {about}.", "", *_fitting(["", *quoted], cells)]
    if study.remark:
        lines += ["", study.remark]
    return "\n".join(lines) + "\n"


def _fitting(headings: list[str], rows: list[list[str]]) -> list[str]:
    """A table with an arm in each column, or in each row if there are too many to read."""
    if len(headings) > WIDEST:
        headings, *rows = (list(column) for column in zip(headings, *rows, strict=True))
    return table(headings, rows)


def plot(kept: Kept) -> str:
    """Differences from the control with their intervals, a panel per figure."""
    columns, keys = _columns(kept), _compared(kept)
    with plotting() as pyplot:
        down = -(-len(columns) // PANELS)
        figure, axes = pyplot.subplots(
            down, PANELS, figsize=(11.5, down * (0.9 + 0.26 * len(keys))), sharey=True, squeeze=False
        )
        for axis in axes.ravel()[len(columns) :]:
            axis.remove()
        for axis, column in zip(axes.ravel(), columns, strict=False):
            axis.axvline(0, color="#8a8f98", linewidth=1)
            for place, key in enumerate(keys):
                if (found := kept["differences"][key].get(column.figure)) is None:
                    continue
                low, middle, high = (column.scale * found[one] for one in ("low", "difference", "high"))
                sure = found["corrected_p_value"] < 0.05
                axis.plot([low, high], [place, place], color="#3b6ea8", linewidth=1.5)
                axis.plot(
                    middle, place, "o", markersize=4, color="#3b6ea8", markerfacecolor="#3b6ea8" if sure else "white"
                )
            axis.set_title(column.heading, fontsize=8, loc="left")
            axis.locator_params(axis="x", nbins=4)
        axes[0, 0].set_yticks(range(len(keys)), [_name(kept, key) for key in keys])
        axes[0, 0].invert_yaxis()
        # A picture does not know whether the page around it is dark.
        return as_svg(figure).replace("<svg ", '<svg style="background: white" ', 1)


def plot_curves(kept: Kept) -> str:
    """Diversity against quality over temperatures, a line per arm, a panel per figure; the mean over seeds."""
    headings = {
        one.figure.removeprefix("best_5_"): one.heading for one in measure_of(find_study(kept["study"])).compared
    }
    names = list(next(iter(kept["curves"].values()))[0])
    with plotting() as pyplot:
        figure, axes = pyplot.subplots(1, len(names), figsize=(11.5, 3.4), squeeze=False)
        for axis, name in zip(axes[0], names, strict=True):
            for key, seeds in kept["curves"].items():
                points = list(zip(*(one[name] for one in seeds), strict=True))  # of each temperature, by seed
                qualities, diversities = ([mean(point[place] for point in of) for of in points] for place in (1, 2))
                axis.plot(qualities, diversities, "o-", markersize=3, linewidth=1.2, label=_label(kept, key))
            axis.set_title(headings[name], fontsize=8, loc="left")
            axis.set_xlabel("mean CIDEr, best 5")
        axes[0, -1].legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
        return as_svg(figure).replace("<svg ", '<svg style="background: white" ', 1)


def _columns(kept: Kept) -> list[Column]:
    """The compared figures that were measured."""
    found = [figures for figures in kept["differences"].values() if figures]
    return [c for c in measure_of(find_study(kept["study"])).compared if any(c.figure in one for one in found)]


def _compared(kept: Kept) -> list[str]:
    return [key for key, figures in kept["differences"].items() if figures]


def _label(kept: Kept, key: str) -> str:
    row = kept["rows"].get(key) or kept["people"]
    return _short(kept, row["label"])


def _short(kept: Kept, label: str) -> str:
    """A row's name without the name of the captioner, if all rows have the same one."""
    captioner, _, rest = label.partition(", ")
    return rest if rest and captioner.lower() == (_captioner(kept) or "").lower() else label


def _captioner(kept: Kept) -> str | None:
    """The captioner whose name all rows begin with, in either case, if there is one."""
    names = [row["label"].partition(", ")[0] for row in kept["rows"].values()]
    return names[0] if len({name.lower() for name in names}) == 1 else None


def _images(measured: Kept) -> str:
    """What a study was measured on: of captioners the images they captioned, of retrievers images and captions."""
    if "captioned" not in measured:
        return f"{measured['images']} images and {measured['captions']} captions"
    captioned, ranked = measured["captioned"], measured["ranked"]
    limits = f", each caption ranks the first {ranked}" if ranked < captioned else ""
    if "with_many_captions" in measured:
        limits += f", several captions of the first {measured['with_many_captions']}"
    return f"{captioned} images{limits}"


def _about(kept: Kept) -> str:
    """The data, and the captioner if all rows have the same one, for the heading."""
    return f"({', '.join(filter(None, (kept['data'].partition('-')[0], _captioner(kept))))})"


def _name(kept: Kept, key: str) -> str:
    """A compared row, with its control if that is not the usual one."""
    against = [next(iter(kept["differences"][one].values()))["against"] for one in _compared(kept)]
    own = next(iter(kept["differences"][key].values()))["against"]
    usual = max(against, key=against.count)
    return _label(kept, key) + ("" if own == usual else f", against {_label(kept, own)}")


def _cell(row: Kept, column: Column) -> str:
    values = [one[column.figure] for one in row["figures"] if column.figure in one]
    if len(values) < 2:
        return shown(values[0] if values else None, column.kind)
    kind = "points" if column.kind == "percent" else column.kind
    return f"{shown(mean(values), kind)} ± {shown(stdev(values), kind)}" + (" %" if column.kind == "percent" else "")


def _difference_row(kept: Kept, column: Column) -> list[str]:
    """A figure, and how each compared arm differs in it."""
    cells = [column.heading]
    for key in _compared(kept):
        found = kept["differences"][key].get(column.figure)
        if found is None:
            cells.append("–")
            continue
        digits = 1 if column.scale != 1 else 3
        middle, low, high = (f"{column.scale * found[one] + 0.0:+.{digits}f}" for one in ("difference", "low", "high"))
        cells.append(f"{middle} [{low}, {high}]" + ("*" if found["corrected_p_value"] < 0.05 else ""))
    return cells


def _decided(kept: Kept, columns: list[Column]) -> str:
    """For differences whose interval holds 0: the seeds at which half of its width would equal the difference.

    The interval is over seeds and images, and its width falls with the root of the seeds at best: images do not grow.
    """
    lines = []
    for column in columns:
        needed = []
        for key in _compared(kept):
            found = kept["differences"][key].get(column.figure)
            if key not in kept["rows"] or found is None or not found["low"] <= 0 <= found["high"]:
                continue
            measured, half = len(kept["rows"][key]["figures"]), (found["high"] - found["low"]) / 2
            seeds = measured * (half / found["difference"]) ** 2 if found["difference"] else math.inf
            least = max(measured + 1, math.ceil(seeds)) if seeds <= MANY else f"over {MANY}"
            needed.append(f"{_label(kept, key)} {least}")
        if needed:
            lines.append(f"- {column.heading}: {', '.join(needed)}")
    heading = "Seeds that would decide, if a difference stays as it is and its interval shrinks with their root:"
    return "\n".join([heading, "", *lines]) if lines else "No interval holds 0."


def _chosen(kept: Kept, columns: list[Column]) -> list[str]:
    """The arm that was chosen on another split, and the figures of all candidates there."""
    chosen = kept["chosen"]
    named = [column for column in columns if column.figure in chosen["means"][chosen["key"]]]
    headings = {column.figure: column.heading for column in named}
    kept_shares = " and ".join(f"{share:.0%} of {headings[name]}" for name, share in chosen["keeps"].items())
    rows = [
        [
            f"**{_label(kept, key)}**" if key == chosen["key"] else _label(kept, key),
            *(shown(means.get(column.figure), column.kind) for column in named),
            "keeps too little" if key in chosen["left_out"] else "",
        ]
        for key, means in chosen["means"].items()
    ]
    best, by = _label(kept, chosen["key"]), headings[chosen["by"]]
    return [
        f"Chosen on the split {chosen['split']}: **{best}**, the best by {by} of the arms that keep {kept_shares} "
        "of the control's. All candidates on that split, mean over seeds:",
        "",
        *table(["", *(column.heading for column in named), ""], rows),
    ]


def _searches(kept: Kept) -> list[str]:
    """The learning rates that were tried for each arm."""
    rows = []
    for key, tried in kept["searches"].items():
        found = sorted((float(rate), figure) for rate, figure in tried.items())
        rows.append([_label(kept, key), *(f"{rate:g}: {figure:.3f}" for rate, figure in found)])
    most = max(map(len, rows))
    return [
        "Learning rates tried, first seed, a quarter of the updates each, with the validation figure that decided:",
        "",
        *table([""] * most, [row + [""] * (most - len(row)) for row in rows]),
    ]


def table(headings: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a table."""
    return ["| " + " | ".join(cells) + " |" for cells in (headings, ["---"] * len(headings), *rows)]


def rounded(value: Any) -> Any:
    """Numbers with six digits, however deep they are."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
