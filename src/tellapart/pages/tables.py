"""Tables in the terminal: of an evaluation, of a comparison and of retrieval."""

from __future__ import annotations

from pathlib import Path

from tellapart.evaluation.compare import Comparison
from tellapart.evaluation.evaluate import Evaluation
from tellapart.evaluation.evaluate_retrieval import RetrievalEvaluation
from tellapart.metrics import Interval, PairedDifference
from tellapart.metrics.ranks import KS
from tellapart.pages.report import comparison_table, difference_rows
from tellapart.terminal import print_table


def print_evaluation(evaluation: Evaluation) -> None:
    """Name, figure, 95 % interval; with another evaluation its figure, the difference and p."""
    print_table(*evaluation_table(evaluation))
    for name, why in evaluation.not_reported.items():
        print(f"{name} is not reported: {why}")


def evaluation_table(evaluation: Evaluation) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the table."""
    other = evaluation.against
    headings = ["", Path(evaluation.label).name, "95 % interval"]
    if other is not None:
        headings += [Path(other.label).name, "difference", "95 % interval", "p"]
    rows = []
    for name, figure in evaluation.corpus.items():
        row = [name, f"{figure:.4f}", _interval(evaluation.intervals.get(name))]
        if other is not None:
            row.append(f"{other.corpus[name]:.4f}" if name in other.corpus else "–")
            row += _difference(evaluation.differences.get(name))
        rows.append(row)
    return headings, rows


def print_comparison(comparison: Comparison) -> None:
    """The table, and every row's differences from the control."""
    print_table(*comparison_table(comparison))
    for label in comparison.differences:
        print(f"\n{label} against {comparison.control} (95 % interval over images; verdict corrected by Holm):")
        for name, change, verdict in difference_rows(comparison, label):
            print(f"  {name}: {change} ({verdict})")


def print_retrieval(measured: RetrievalEvaluation) -> None:
    """Recalls in percent, median and mean rank, in both directions and for folds."""
    rows: list[list[str]] = []
    for suffix, figures in (("", measured.figures), (", mean of folds", measured.folds)):
        if not figures:
            continue
        for direction, name in (("image_to_text", "image→text"), ("text_to_image", "text→image")):
            recalls = [f"{100 * figures[f'{direction}_R@{k}']:.1f}" for k in KS]
            ranks = [f"{figures[f'{direction}_median_rank']:.1f}", f"{figures[f'{direction}_mean_rank']:.2f}"]
            rows.append([name + suffix, *recalls, *ranks])
        rows.append([f"R@sum{suffix}", f"{100 * figures['R@sum']:.1f}", "", "", "", ""])
        alone = {branch: figures.get(f"{branch}_R@sum") for branch in ("instance", "concept")}
        rows += [
            [f"R@sum, {branch} branch alone", f"{100 * value:.1f}", "", "", "", ""]
            for branch, value in alone.items()
            if value is not None
        ]
        rows.append([f"R@sum by chance{suffix}", f"{100 * figures['chance_R@sum']:.1f}", "", "", "", ""])
    print_table(["", *(f"R@{k}" for k in KS), "median", "mean rank"], rows)
    if measured.how_reranked:
        print(f"\n{measured.how_reranked} --exact compares all.")


def print_retrieval_differences(differences: dict[str, PairedDifference], compared: str, control: str) -> None:
    """Differences of recalls in points and of ranks, with interval and p value."""
    rows = []
    for name, found in differences.items():
        scale = 1.0 if name.endswith("rank") else 100.0
        interval = f"[{scale * found.low:+.2f}, {scale * found.high:+.2f}]"
        rows.append([name, f"{scale * found.difference:+.2f}", interval, f"{found.p_value:.4f}"])
    title = f"\n{compared} against {control} (paired bootstrap over images; recalls in points)"
    print_table(["", "difference", "95 % interval", "p"], rows, title)


def _interval(interval: Interval | None) -> str:
    return "–" if interval is None else f"[{interval.low:.4f}, {interval.high:.4f}]"


def _difference(found: PairedDifference | None) -> list[str]:
    if found is None:
        return ["–", "–", "–"]
    return [f"{found.difference:+.4f}", f"[{found.low:+.4f}, {found.high:+.4f}]", f"{found.p_value:.4f}"]
