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

USUAL, CONTROL, TREATMENT = "MLE, usual decoding", "MLE", "CL"
# In table order. All start from the same model; the first has the weights of the second.
RECIPES = {
    USUAL: "scenes/adaptive-mle-usual-decoding.yaml",
    CONTROL: "scenes/adaptive-mle-continued.yaml",
    TREATMENT: "scenes/adaptive-cl-images.yaml",
}
# The judge: the frozen model that all start from.
START = "scenes/adaptive-mle.yaml"


def run_demo(folder: Path, budget: str = "laptop") -> Path:
    """Render the scenes, train the recipes, compare them; returns the report's path.

    Everything is written to `folder`; an interrupted demo continues when called again.
    """
    check_report_folder(folder)
    began = time.monotonic()

    def train(name: str) -> Run:
        overrides = [f"data.prepared={folder / 'prepared'}"]
        return run_recipe(Recipe.load(recipes_folder() / name, overrides, budget), folder / "runs")

    start = train(START)
    runs = {label: train(name) for label, name in RECIPES.items()}
    comparison = compare(runs, control=CONTROL, treatment=TREATMENT, baseline=USUAL, judge=[start])
    report = write_report(comparison, folder)
    print_comparison(comparison)
    print(f"\nThe demo took {duration(time.monotonic() - began)}.")
    return report
