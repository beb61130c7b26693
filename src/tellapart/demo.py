"""The demo: render pictures, train captioners, compare their captions, in one command."""

from __future__ import annotations

import time
from pathlib import Path

from tellapart.evaluation.compare import compare
from tellapart.pages.report import check_report_folder, write_report
from tellapart.pages.tables import print_comparison
from tellapart.progress import duration
from tellapart.recipe import Recipe, recipes_folder
from tellapart.run import Run
from tellapart.training import run_recipe

RECIPES = {
    "MLE": "scenes/adaptive-mle.yaml",
    "MLE continued": "scenes/adaptive-mle-continued.yaml",
    "CL": "scenes/adaptive-cl.yaml",
}


def run_demo(folder: Path, budget: str = "laptop") -> Path:
    """Render the scenes, train the three recipes, compare them; returns the report's path.

    Everything is written to `folder`; an interrupted demo continues when called again.
    """
    check_report_folder(folder)
    began = time.monotonic()
    runs: dict[str, Run] = {}
    for label, name in RECIPES.items():
        overrides = [f"data.prepared={folder / 'prepared'}"]
        if label != "MLE":
            overrides.append(f"start.from={runs['MLE'].folder}")
        if label == "CL":
            overrides.append(f"roles.reference.from={runs['MLE'].folder}")
        runs[label] = run_recipe(Recipe.load(recipes_folder() / name, overrides, budget), folder / "runs")
    comparison = compare(runs, control="MLE continued", treatment="CL", baseline="MLE", judge="MLE")
    report = write_report(comparison, folder)
    print_comparison(comparison)
    print(f"\nThe demo took {duration(time.monotonic() - began)}.")
    return report
