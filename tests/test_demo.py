"""The whole path at the smoke budget: photographs, scenes, three trainings, comparison, page; then once more."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tellapart.captioning import caption
from tellapart.demo import CONTROL, FEWER_SCENES, FEWER_UPDATES, RECIPES, START, TREATMENT, run_demo
from tellapart.errors import RecipeError, RunError
from tellapart.evaluation.compare import compare
from tellapart.recipe import Recipe
from tellapart.recipe_files import recipes_folder
from tellapart.run import open_run
from tellapart.samples import ALIKE, PHOTOGRAPHS


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    run_demo(folder, "smoke")
    return folder


def runs_of(demo: Path) -> dict[str, Path]:
    return {path.name.rsplit("-", 1)[0]: path for path in (demo / "runs").iterdir()}


def test_it_leaves_what_a_run_folder_promises(demo: Path) -> None:
    runs = runs_of(demo)
    assert set(runs) == {"scenes-mle", "scenes-mle-continued", "scenes-mle-usual-decoding", "scenes-cl-images"}
    for label, run in runs.items():
        for name in ("recipe.yaml", "run.json", "metrics.jsonl"):
            assert (run / name).is_file(), name
        if label == "scenes-mle":  # the judge
            continue
        for name in ("captions.jsonl", "per_image.jsonl", "scores.json"):
            assert (run / name).is_file(), name
        rows = [json.loads(line) for line in (run / "captions.jsonl").open()]
        assert len(rows) == 24
        assert all(set(row) == {"id", "caption", "log_prob", "ended"} for row in rows)
    assert not [path for path in demo.rglob("*") if path.name.startswith(".tellapart-")]


def test_cl_starts_from_its_reference(demo: Path) -> None:
    """Dropout off and equal weights: the first logged losses of CL lie near 2 ln 2."""
    first = json.loads((runs_of(demo)["scenes-cl-images"] / "metrics.jsonl").read_text().splitlines()[0])
    assert first["step"] == 2
    assert first["loss"] == pytest.approx(1.386, abs=0.2)
    made_from = json.loads((runs_of(demo)["scenes-cl-images"] / "run.json").read_text())["made_from"]
    assert made_from["upstreams"]["start"] == made_from["upstreams"]["reference"]


def test_the_report_is_self_contained_and_complete(demo: Path) -> None:
    text = (demo / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)", text)
    assert "data:image/jpeg;base64," in text
    assert "<svg" in text
    sections = ("Near-duplicates side by side", "The table", "Accuracy and distinctiveness", "Gallery")
    sections += ("What each word looks at", "Who retrieves what", "How the training went")
    for said in (*sections, "usual decoding", "most improved", "prefers-color-scheme: dark"):
        assert said in text
    assert len(re.findall(r"<small>[0-9.]+–[0-9.]+</small>", text)) > 12, "intervals in the table"
    comparison = json.loads((demo / "comparison.json").read_text())
    assert list(comparison["rows"]) == ["MLE, usual decoding", "MLE", "CL", "people"]
    for label, figures in comparison["rows"].items():
        assert figures["true_listener_chance_R@1"] == pytest.approx(1 / 24)
        assert ("self_retrieval_chance_R@1" in figures) == (label != "people")
    assert comparison["rows"]["people"]["truth"] == 1.0


def test_the_page_shows_the_sample_photographs_and_a_group_told_apart(demo: Path) -> None:
    text = (demo / "report.html").read_text(encoding="utf-8")
    notice = (PHOTOGRAPHS.parent / "NOTICE.md").read_text(encoding="utf-8")
    for folder in (PHOTOGRAPHS, ALIKE):
        for photograph in folder.glob("*"):
            assert f'<p class="name">{photograph.name}</p>' in text
            assert photograph.name in notice
    labels = text.count("tells it apart") + text.count("not told apart")
    assert labels == len(list(ALIKE.glob("*")))
    assert text.index("Caption photographs") < text.index("Tell similar") < text.index("The table")


def test_the_gallery_filters(demo: Path) -> None:
    """In a browser: a kind shows its pictures in order, a word those whose captions have it."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium here")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto((demo / "report.html").as_uri())
        shown = lambda: page.locator(".gallery > div:visible")  # noqa: E731
        page.get_by_role("button", name="all of these").click()
        everything = shown().count()
        page.get_by_role("button", name="worst").click()
        assert 0 < shown().count() <= min(12, everything)
        places = [int(shown().nth(place).get_attribute("data-worst")) for place in range(shown().count())]
        assert places == sorted(places)
        page.get_by_role("searchbox").fill("no caption has this")
        assert shown().count() == 0
        assert page.get_by_role("status").inner_text() == "0 pictures"
        browser.close()
    assert not problems


def test_the_arms_differ_in_the_treatment_only() -> None:
    """Also with the demo's fewer scenes and updates."""

    def settings(name: str, *changes: str) -> dict[str, Any]:
        recipe = Recipe.load(recipes_folder() / name, [*FEWER_SCENES, *changes], "laptop")
        return {key: value for key, value in recipe.resolved().items() if key not in ("name", "description")}

    control, treatment = (settings(RECIPES[label], *FEWER_UPDATES) for label in (CONTROL, TREATMENT))
    start = settings(START)
    assert {key for key in control if control[key] != treatment[key]} == {"objective", "roles"}
    assert control["data"] == start["data"]
    assert control["training"]["steps"] == 200


def test_usual_decoding_has_the_weights_of_the_control(demo: Path) -> None:
    runs = runs_of(demo)
    control, usual = (open_run(runs[f"scenes-mle-{name}"]) for name in ("continued", "usual-decoding"))
    assert control.model_digest == usual.model_digest
    assert (control.recipe.decoding.length_penalty, usual.recipe.decoding.length_penalty) == (0.7, 0.0)


def test_a_second_call_trains_nothing(demo: Path) -> None:
    weights = {path: path.stat().st_mtime_ns for path in demo.rglob("model.safetensors")}
    run_demo(demo, "smoke")
    assert {path: path.stat().st_mtime_ns for path in demo.rglob("model.safetensors")} == weights


def test_its_model_captions_a_picture_file(demo: Path) -> None:
    picture = next((demo / "prepared").rglob("*.png"))
    (row,) = caption([picture], runs_of(demo)["scenes-cl-images"])
    assert row["id"] == str(picture)
    assert row["log_prob"] < 0


def test_the_readme_example_runs(demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's Python block that trains as it stands, its trainings replaced by those of the smoke demo."""
    readme = Path(__file__).parents[1] / "README.md"
    blocks = [block.split("```")[0] for block in readme.read_text(encoding="utf-8").split("```python\n")[1:]]
    (code,) = (block for block in blocks if "tellapart.train(" in block)
    picture = next((demo / "prepared").rglob("*.png"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photo.jpg").write_bytes(picture.read_bytes())
    trained = lambda recipe, *overrides: open_run(  # noqa: E731
        str(runs_of(demo)[Path(recipe).stem.replace("adaptive", "scenes")])
    )
    monkeypatch.setattr("tellapart.training.train", trained)
    exec(code, {})
    assert (tmp_path / "comparison" / "report.html").is_file()


def test_a_comparison_needs_its_control(demo: Path) -> None:
    run = open_run(runs_of(demo)["scenes-mle"])
    with pytest.raises(RunError, match="control"):
        compare({"MLE": run, "again": run}, control="other")
    with pytest.raises(RunError, match="name the treatment"):
        compare({"MLE": run, "again": run, "more": run}, control="MLE")
    with pytest.raises(RunError, match="treatment: there is no run 'agian'; did you mean 'again'"):
        compare({"MLE": run, "again": run}, control="MLE", treatment="agian")


def test_an_unknown_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="did you mean 'smoke'"):
        run_demo(tmp_path, "smok")
