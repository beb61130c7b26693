"""Tables in the terminal: of an evaluation and of a comparison."""

from __future__ import annotations

from pathlib import Path

from tellapart.evaluation.compare import Comparison
from tellapart.evaluation.evaluate import Evaluation
from tellapart.metrics import Interval, PairedDifference
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
        print(f"\n{label} against {comparison.control} (paired bootstrap, 95 % interval):")
        for name, change, verdict in difference_rows(comparison, label):
            print(f"  {name}: {change} ({verdict})")


def _interval(interval: Interval | None) -> str:
    return "–" if interval is None else f"[{interval.low:.4f}, {interval.high:.4f}]"


def _difference(found: PairedDifference | None) -> list[str]:
    if found is None:
        return ["–", "–", "–"]
    return [f"{found.difference:+.4f}", f"[{found.low:+.4f}, {found.high:+.4f}]", f"{found.p_value:.4f}"]
