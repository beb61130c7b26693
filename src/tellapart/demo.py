"""The demo: caption photographs, tell similar ones apart, train captioners on scenes and compare them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tellapart.captioning import caption
from tellapart.data.images import load_image
from tellapart.evaluation.compare import compare
from tellapart.pages.base import data_address
from tellapart.pages.report import check_report_folder, write_report
from tellapart.pages.tables import print_comparison
from tellapart.progress import duration
from tellapart.recipe import Recipe
from tellapart.recipe_files import recipes_folder
from tellapart.run import Run
from tellapart.samples import ALIKE, PHOTOGRAPHS
from tellapart.telling_apart.output import page_values
from tellapart.telling_apart.settings import TellApartSettings
from tellapart.telling_apart.tell import tell_apart
from tellapart.terminal import print_table
from tellapart.training import run_recipe

USUAL, CONTROL, TREATMENT = "MLE, usual decoding", "MLE", "CL"
# All start from the same model; usual decoding has the weights of the control.
START = "scenes/adaptive-mle.yaml"
RECIPES = {CONTROL: "scenes/adaptive-mle-continued.yaml", TREATMENT: "scenes/adaptive-cl-images.yaml"}
USUAL_RECIPE = "scenes/adaptive-mle-usual-decoding.yaml"
# At the laptop budget the demo has fewer scenes and updates than the recipes, the same for all arms.
FEWER_SCENES = ("data.scenes.train=3200",)
FEWER_UPDATES = ("training.steps=200",)


def run_demo(folder: Path, budget: str = "laptop") -> Path:
    """Caption the sample photographs, train and compare recipes on scenes, write one page; returns its path.

    Everything is written to `folder`; an interrupted demo continues when called again.

    Args:
        folder: gets scenes, runs and the page.
        budget: `laptop` (minutes) or `smoke` (seconds).
    """
    check_report_folder(folder)
    began = time.monotonic()
    scenes, updates = (FEWER_SCENES, FEWER_UPDATES) if budget == "laptop" else ((), ())

    def load(name: str, *changes: str) -> Recipe:
        overrides = [f"data.prepared={folder / 'prepared'}", *scenes, *changes]
        return Recipe.load(recipes_folder() / name, overrides, budget)

    def train(name: str, *changes: str) -> Run:
        return run_recipe(load(name, *changes), folder / "runs")

    load(START)  # a mistake in the budget is told before the work
    print("1. Photographs, captioned by the shipped model")
    photographs = _caption_samples()
    print("\n2. Similar photographs, told apart")
    alike = tell_apart([ALIKE], settings=TellApartSettings(one_group=True))
    told = [[Path(one.id).name, one.plain, one.caption] for one in alike.pictures]
    print_table(["photograph", "plain caption", "tells it apart"], told)
    print("\n3. Captioners, trained on scenes")
    start = train(START)
    trained = {label: train(name, *updates) for label, name in RECIPES.items()}
    usual = train(USUAL_RECIPE, f"start.from={trained[CONTROL].folder}")
    comparison = compare({USUAL: usual, **trained}, control=CONTROL, treatment=TREATMENT, baseline=USUAL, judge=[start])
    report = write_report(comparison, folder, "demo.html", photographs=photographs, **page_values(alike))
    print_comparison(comparison)
    print(f"\nThe demo took {duration(time.monotonic() - began)}.")
    return report


def _caption_samples() -> list[dict[str, Any]]:
    """The sample photographs and their captions, for the page; they are printed too."""
    rows = caption([PHOTOGRAPHS])
    print_table(["photograph", "caption"], [[Path(row["id"]).name, row["caption"]] for row in rows])
    return [
        {
            "name": Path(row["id"]).name,
            "picture": data_address(load_image(Path(row["id"]))),
            "caption": row["caption"],
        }
        for row in rows
    ]
