"""Every study runs to the end at the smoke budget, by the command that users give; those of UNKT in test_unkt.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from support.smoke import check_smoke, run_smoke, write_coco, write_instapic
from tellapart.run import open_run
from tellapart.studies.base import all_studies, find_study
from tellapart.studies.measure import measure_of

# Few scenes and short trainings, so that a study takes seconds; models and all other settings are those of the recipes.
TINY = ("data.min_count=1", "training.epochs=null", "training.steps=2", "training.validate_every=2")
CAPTIONERS = (
    *TINY,
    *("data.scenes.train=12", "data.scenes.val=4", "data.scenes.test=4"),
    "training.images_per_batch=4",
    "decoding.max_words=4",
    "decoding.length_penalty=3.0",  # so that captions have words after so little training
)
# As many pairs as clusters; and batches that can be divided by four.
RETRIEVERS = (
    *TINY,
    *("data.scenes.train=24", "data.scenes.val=6", "data.scenes.test=8"),
    "training.images_per_batch=8",
    "training.warmup_steps=0",
)
NAMES = [name for name in all_studies() if not name.startswith("unkt-")]
# Studies of other data than scenes.
WRITE = {"cl-table2": write_coco, "cl-table3": write_instapic}
Finished = Callable[[str], Path]


@pytest.fixture(scope="module")
def finished(place: Path) -> Finished:
    """A study's results; it is run once, and arms are shared."""

    @cache
    def run(name: str) -> Path:
        retrievers = measure_of(find_study(name)).trains == "retriever"
        data = WRITE[name](place / "data" / name) if name in WRITE else "scenes"
        return run_smoke(name, place, RETRIEVERS if retrievers else CAPTIONERS, data)

    return run


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_to_the_end(name: str, finished: Finished) -> None:
    check_smoke(name, finished(name))


def test_the_best_arm_is_chosen_on_validation(finished: Finished) -> None:
    folder = finished("every-objective")
    content = json.loads((folder / "study.json").read_text())
    chosen, label = content["chosen"], content["rows"][content["chosen"]["key"]]["label"]
    assert (content["split"], chosen["split"]) == ("test", "val")
    on_test = {key: row["figures"][0][chosen["by"]] for key, row in content["rows"].items() if key in chosen["means"]}
    assert {key: one[chosen["by"]] for key, one in chosen["means"].items()} != on_test
    for page in ("table.md", "study.html"):
        assert f"Chosen on the split val: {label}," in (folder / page).read_text(encoding="utf-8")


def test_files_for_coco_s_server(finished: Finished) -> None:
    """Table 2 on pictures with COCO's ids and six captions each."""
    folder = finished("cl-table2")
    rows = json.loads((folder / "study.json").read_text())["rows"]
    assert {path.name for path in (folder / "server").iterdir()} == {
        f"captions_test2014_{key}_results.json" for key in rows
    }
    for path in (folder / "server").iterdir():
        assert [row["image_id"] for row in json.loads(path.read_text())] == [17, 18, 19, 20]
    assert all({"C5 CIDEr", "C40 CIDEr"} <= set(row["figures"][0]) for row in rows.values())


def test_instapic(finished: Finished) -> None:
    """Table 3 on data in InstaPIC's layout: one caption per picture, the paper's own text normaliser."""
    folder = finished("cl-table3")
    rows = json.loads((folder / "study.json").read_text())["rows"]
    assert list(rows) == ["adaptive-mle", "adaptive-continued", "adaptive-cl"]
    run = open_run(rows["adaptive-mle"]["runs"][0])
    assert run.recipe.data.normaliser == "alphabetic"
    assert "\U0001f600" in run.captioner.vocabulary.tokens
    assert "CSMN" in (folder / "table.md").read_text(encoding="utf-8")
