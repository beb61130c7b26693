"""Studies at the smoke budget through the command line, on little data, and what every finished study must have."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from typer.testing import CliRunner

from tellapart.cli.commands import app
from tellapart.studies.base import find_study
from tellapart.studies.columns import Column
from tellapart.studies.measure import measure_of
from tellapart.studies.run import trainable

COLOURS = ("red", "green", "blue", "white")
# Figures that a row may lack: captions after so little training may claim nothing, and a start has no teacher.
MAY_BE_MISSING = {"truth", "difference_named", "only_teacher"}


def study_arguments(name: str, place: Path, changes: Sequence[str], data: str | Path = "scenes") -> list[str]:
    """The command without `tellapart`; all studies in one place share their runs."""
    options = {"budget": "smoke", "data": data, "out": place / "smoke" / name}
    folders = {"runs": place / "runs", "prepared": place / "prepared"}
    given = [f"--{key}={value}" for key, value in {**options, **folders}.items()]
    return ["study", name, *given, *(f"--set={change}" for change in changes)]


def run_smoke(
    name: str, place: Path, changes: Sequence[str], data: str | Path = "scenes", options: Sequence[str] = ()
) -> Path:
    """Run a study to the end; gives the folder of its results."""
    arguments = [*study_arguments(name, place, changes, data), *options]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert f"# {name}: " in done.stdout, "the table is printed too"
    return place / "smoke" / name


def check_smoke(name: str, folder: Path) -> None:
    """Every arm has a row with finite figures in all measured columns, and is compared with its control."""
    study = find_study(name)
    found = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    rows = {key: row["figures"] for key, row in found["rows"].items()}
    arms, left_out = trainable(study.arms(study.captioner), {})
    assert list(rows) == [arm.key for arm in arms]
    assert set(left_out) <= set(found.get("left_out", []))
    columns = list(_measured((*measure_of(study).compared, *study.columns), rows))
    assert columns
    for key, seeds in rows.items():
        for figure in (column.figure for column in columns):
            for figures in seeds:
                assert math.isfinite(figures.get(figure, 0 if figure in MAY_BE_MISSING else math.nan)), (key, figure)
    compared = {arm.key: arm.control for arm in arms if arm.control is not None}
    assert compared
    for key, control in compared.items():
        differences = found["differences"][key]
        assert differences
        for figure, difference in differences.items():
            assert difference["against"] == control, (key, figure)
            assert all(math.isfinite(difference[one]) for one in ("difference", "low", "high", "p_value"))
    for file in ("table.md", "study.html"):
        text = (folder / file).read_text(encoding="utf-8")
        assert all(column.heading in text for column in columns), file


def _measured(columns: Sequence[Column], rows: dict[str, list[dict[str, Any]]]) -> Iterator[Column]:
    """The columns that at least one row has."""
    for column in columns:
        if any(column.figure in figures for seeds in rows.values() for figures in seeds):
            yield column


def write_coco(folder: Path) -> Path:
    """A data set with COCO's ids, and with more than five captions of each picture."""
    images = []
    for number, split in enumerate([*["train"] * 12, *["val"] * 4, *["test"] * 4], start=1):
        name, colour = f"COCO_val2014_{number:012}.jpg", COLOURS[number % 4]
        (folder / "images").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), colour).save(folder / "images" / name)
        said = [f"a {colour} wall", *(f"the {colour} wall number {n}" for n in range(5))]
        images.append({"filename": name, "split": split, "sentences": [{"raw": caption} for caption in said]})
    path = folder / "dataset_coco.json"
    path.write_text(json.dumps({"images": images, "dataset": "coco"}))
    return path


def write_instapic(folder: Path) -> Path:
    """Data in InstaPIC's layout: one caption per picture, with the signs of social media."""
    for split, count in (("train", 40), ("test1", 4)):
        posts = {f"{n}": {"caption": f"my {COLOURS[n % 4]} day! \U0001f600", "tags": []} for n in range(count)}
        path = folder / "json" / f"insta-caption-{split}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({f"user-{split}": posts}))
        for n in range(count):
            picture = folder / "images" / f"user-{split}_@_{n}.jpg"
            picture.parent.mkdir(exist_ok=True)
            Image.new("RGB", (64, 64), COLOURS[n % 4]).save(picture)
    return folder
