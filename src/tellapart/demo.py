"""The demo: from pictures to captions that tell them apart, in one command."""

from __future__ import annotations

import time
from pathlib import Path

from tellapart.cli import recipes_folder
from tellapart.engine.progress import duration
from tellapart.engine.run import Run, run_recipe
from tellapart.errors import RecipeError, did_you_mean
from tellapart.evaluation.compare import compare
from tellapart.recipe import Recipe
from tellapart.report import comparison_table, write_report

RECIPES = {
    "MLE": "scenes/adaptive-mle.yaml",
    "MLE continued": "scenes/adaptive-mle-continued.yaml",
    "CL": "scenes/adaptive-cl.yaml",
}
# What the smoke budget changes in a recipe's data and training, and nothing else.
SMOKE_DATA = {"train": 48, "val": 12, "test": 24, "seed": 0}
SMOKE_STEPS = {"MLE": 30, "MLE continued": 6, "CL": 6}
BUDGETS = ("laptop", "smoke")


def run_demo(folder: Path, budget: str = "laptop") -> Path:
    """Render the scenes, train the three recipes, compare them; gives the report's path.

    Everything goes into `folder`; an interrupted demo continues when it is called again.
    """
    if budget not in BUDGETS:
        raise RecipeError(f"there is no budget '{budget}'{did_you_mean(budget, BUDGETS)}")
    began = time.monotonic()
    runs: dict[str, Run] = {}
    for label, name in RECIPES.items():
        overrides = _overrides(label, folder, budget)
        if label != "MLE":
            overrides.append(f"start.from={runs['MLE'].folder}")
        if label == "CL":
            overrides.append(f"reference.from={runs['MLE'].folder}")
        runs[label] = run_recipe(Recipe.load(recipes_folder() / name, overrides), folder / "runs")
    comparison = compare(runs, control="MLE continued")
    report = write_report(comparison, folder)
    print(f"\n{comparison_table(comparison)}")
    print(f"\nThe demo took {duration(time.monotonic() - began)}.")
    return report


def _overrides(label: str, folder: Path, budget: str) -> list[str]:
    """Data below the demo's folder; less of everything for the smoke budget."""
    overrides = [f"data.prepared={folder / 'prepared'}"]
    if budget == "smoke":
        overrides += [f"data.scenes.{key}={value}" for key, value in SMOKE_DATA.items()]
        overrides += ["training.epochs=null", f"training.steps={SMOKE_STEPS[label]}", "training.log_every=2"]
    return overrides
