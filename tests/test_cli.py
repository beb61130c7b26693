"""The command line: instant help, and mistakes that are one message and status 2."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from support.help import rendered_help
from tellapart import cli
from tellapart.cli.commands import app
from tellapart.recipe_files import recipes_folder, shipped_recipes

RECIPES = recipes_folder()
VERBS = (
    "add-encoder",
    *("demo", "prepare", "inspect", "train", "caption", "evaluate", "evaluate-retrieval", "self-retrieval", "compare"),
    *("study", "recipes", "export", "score", "tell-apart", "index", "search", "serve", "judge", "judge-report"),
    *("evaluate-diversity", "retrieval-entropy"),
)
HEAVY = ("torch", "numpy", "PIL", "pydantic", "yaml", "onnxruntime", "matplotlib", "lancedb", "pyarrow", "pymilvus")
HEAVY += ("fastapi",)


class Result(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Call `main` in an empty folder; anything but an exit is a traceback and fails the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str | Path) -> Result:
        monkeypatch.setattr(sys, "argv", ["tellapart", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        printed = capsys.readouterr()
        return Result(int(caught.value.code or 0), printed.out, printed.err)

    return call


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


# --- instant --------------------------------------------------------------------------------------------------------

LOADED = f"print('LOADED', [name for name in {HEAVY!r} if name in sys.modules])"


def test_help_imports_nothing_heavy() -> None:
    code = f"""
import sys
from tellapart.cli import main
sys.argv = ["tellapart", "--help"]
try:
    main()
except SystemExit as done:
    assert not done.code
{LOADED}
"""
    printed = python(code)
    assert all(verb in printed for verb in VERBS)
    assert printed.endswith("LOADED []\n")


def test_the_kept_help_is_the_help() -> None:
    with open(cli.HELP, encoding="utf-8") as file:
        kept = file.read()
    assert kept == rendered_help(), "run 'python tests/support/help.py'"
    code = (
        "import sys; from tellapart.cli import main; sys.argv = ['', '--help']; main(); print('typer' in sys.modules)"
    )
    command = [sys.executable, "-X", "utf8", "-c", code]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == re.sub("\x1b.*?m", "", kept) + "False\n"
    # Where its characters cannot be shown, typer finds others.
    command[1:3] = ["-X", "utf8=0"]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, env=ascii_only)
    assert "retrieval-entropy" in done.stdout
    assert "─" not in done.stdout


def test_the_version_is_instant(run: Run) -> None:
    from tellapart import __version__

    ask = "import sys; from tellapart.cli import main; sys.argv = ['', '--version']; main()"
    assert python(f"{ask}; print('typer' in sys.modules)") == f"tellapart {__version__}\nFalse\n"
    assert run("--version", "caption").out == f"tellapart {__version__}\n"
    assert "-version" in Path(cli.HELP).read_text(encoding="utf-8")


def test_import_imports_nothing_heavy() -> None:
    assert python(f"import sys, tellapart; dir(tellapart); {LOADED}") == "LOADED []\n"
    # A name is loaded when asked for, with only what it needs.
    assert python(f"import sys, tellapart; tellapart.TellapartError; {LOADED}") == "LOADED []\n"
    assert "torch" in python(f"import sys, tellapart; tellapart.contrastive_loss; {LOADED}")


# --- help -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [*VERBS, "recipes show", "recipes copy", "recipes check"])
def test_every_verb_explains_itself(run: Run, verb: str) -> None:
    result = run(*verb.split(), "--help")
    assert result.status == 0
    assert f"tellapart {verb}" in result.out
    assert "Traceback" not in result.err


def test_the_verbs_are_these() -> None:
    named = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    assert sorted([*named, *(group.name or "" for group in app.registered_groups)]) == sorted(VERBS)


def test_usage_errors(run: Run) -> None:
    for arguments in (
        ["fly"],
        ["train"],
        ["caption"],
        ["score", "a.jpg"],
        ["export", "run"],
        ["demo", "--nothing"],
        ["caption", "a", "--beam", "0"],
    ):
        result = run(*arguments)
        assert result.status == 2, arguments
        assert "Usage: tellapart" in result.err


# --- mistakes -------------------------------------------------------------------------------------------------------


def mistake(result: Result) -> str:
    """The one message of a user's mistake."""
    assert result.status == 2
    assert result.out == ""
    assert result.err.count("tellapart: ") == 1
    assert "Traceback" not in result.err
    return result.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train", "nothing.yaml"], r"nothing\.yaml: this recipe does not exist; 'tellapart recipes' lists"),
        (["train", "."], r"this is a folder; name a recipe file in it"),
        (["train", "scenes/adaptive-mle.yaml", "training.steps"], r"'training\.steps' is no override; write it as"),
        (["train", "scenes/adaptive-mle.yaml", "training.epochz=1"], r"training\.epochz: .* did you mean 'epochs'\?"),
        (["train", "scenes/adaptive-mle.yaml", "name.x=1"], r"name is a value, not a section"),
        (["train", "scenes/adaptive-mle.yaml", "data.source=nowhere"], r"nowhere: .*; give a Karpathy \.json file"),
        (["recipes", "show", "nothing.yaml"], r"nothing\.yaml: this recipe does not exist"),
        (["prepare", "nowhere"], r"nowhere: .*; give a Karpathy \.json file, a folder of pictures, or 'scenes'"),
        (["prepare", "nowhere.json"], r"nowhere\.json: this data set does not exist"),
        (["prepare", "pictures", "--store", "int4"], r"--store: 'int4' is not a way to keep features; give float16 or"),
        (["prepare", "pictures", "--encoder", "efficientnet"], r"there is no encoder 'efficientnet'; did you mean"),
        (["caption", "a.jpg", "--model", "nowhere"], r"nowhere: no model is here; give a run folder or a model folder"),
        (["evaluate", "captions.jsonl"], r"captions\.jsonl: name the data set that holds the references with --data"),
        (["evaluate", "pictures"], r"pictures: this is not a run folder"),
        (["evaluate", "no.jsonl", "--data", "data.json"], r"no\.jsonl: this caption file does not exist"),
        (["evaluate", "captions.jsonl", "--data", "no.json"], r"no\.json: this data set does not exist"),
        (["compare", "runs/one", "b=runs/two", "--control", "b"], r"'runs/one': name each run as LABEL=FOLDER"),
        (["compare", "=runs/one", "b=runs/two", "--control", "b"], r"'=runs/one': name each run as LABEL=FOLDER"),
        (["compare", "a=runs/one", "b=runs/two", "--control", "b"], r"runs/one: this is not a run folder"),
        (["evaluate-retrieval", "pictures"], r"pictures: this is not a run folder"),
        (["caption", "a.jpg", "--set", "beam"], r"'beam' is no override; write it as key=value, e\.g\. method=beam"),
        (["tell-apart", "pictures", "--set", "truth"], r"'truth' is no override; .* e\.g\. threshold=0\.6"),
        (["add-encoder", "foo", "x.whl"], r"encoder 'foo': its weights cannot be added; write clip-vit-b16$"),
        (["demo", "--budget", "smok"], r"there is no budget 'smok'; did you mean 'smoke'\?"),
    ],
)
def test_a_mistake_is_one_message(run: Run, tmp_path: Path, arguments: list[str], told: str) -> None:
    (tmp_path / "captions.jsonl").write_text('{"id": "a", "caption": "a dog"}\n', encoding="utf-8")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.jpg").write_bytes(b"")
    assert re.search(told, mistake(run(*arguments)))


DEMO = ["demo", "--budget", "smoke"]
COMPARE = ["compare", "a=runs/one", "b=runs/two", "--control", "b"]
STUDY = ["study", "cl-table4", "--budget", "smoke"]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        *((arguments, name) for arguments in (DEMO, COMPARE) for name in ("report.html", "comparison.json", ".")),
        *((STUDY, name) for name in ("study.json", "study.html", "table.md", ".")),
        (STUDY, "server/captions_test2014_mine_results.json"),
    ],
)
def test_outputs_are_checked_first(
    run: Run, tmp_path: Path, arguments: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("tellapart.demo", "tellapart.studies.run", "tellapart.studies.rates"):
        monkeypatch.setattr(f"{module}.run_recipe", lambda *_: pytest.fail("trained before the outputs were checked"))
    mine = tmp_path / "out" / name
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine", encoding="utf-8")
    told = "out: this is a file, and a folder is needed" if name == "." else f"{name}: exists and was not written by"
    assert told in mistake(run(*arguments, "--out", "out"))
    assert mine.read_text(encoding="utf-8") == "mine"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]


def test_a_label_twice(run: Run, tmp_path: Path) -> None:
    recipe = {
        "name": "x",
        "data": {"source": "scenes"},
        "captioner": {"name": "adaptive-attention"},
        "objective": {"name": "likelihood"},
        "training": {"steps": 1},
    }
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    (tmp_path / "run" / "run.json").write_text('{"key": "", "made_from": {}, "finished": true}', encoding="utf-8")
    told = mistake(run("compare", "a=run", "b=run", "a=run", "--control", "b"))
    assert "'a' names two runs" in told


def test_an_unfinished_run_is_not_measured(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("name: x\n", encoding="utf-8")
    (tmp_path / "run" / "run.json").write_text('{"key": "", "made_from": {}, "finished": false}', encoding="utf-8")
    assert "this training is not finished" in mistake(run("evaluate", "run"))


def test_an_interrupt_prints_a_message(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tellapart.recipe_files.recipes_folder", interrupted)
    result = run("recipes")
    assert result.status == 130
    assert result.err.endswith("are kept, the same command continues\n")


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tellapart.recipe_files.recipes_folder", bug)
    monkeypatch.setattr(sys, "argv", ["tellapart", "recipes"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


# --- recipes --------------------------------------------------------------------------------------------------------


def test_recipes_lists_what_is_shipped(run: Run) -> None:
    result = run("recipes")
    assert result.status == 0
    lines = result.out.splitlines()
    for path in shipped_recipes():
        (line,) = [line for line in lines if line.split(" ")[0] == path.relative_to(RECIPES).as_posix()]
        assert yaml.safe_load(path.read_text(encoding="utf-8"))["description"] in line
    assert not [line for line in lines if line.startswith("base/")]


def test_recipes_show(run: Run) -> None:
    result = run("recipes", "show", "scenes/adaptive-cl.yaml", "training.steps=7", "objective.negatives=2")
    assert result.status == 0
    shown = yaml.safe_load(result.out)
    assert shown["training"]["steps"] == 7
    assert shown["objective"]["negatives"] == 2
    assert shown["captioner"]["name"] == "adaptive-attention", "inherited"
    assert shown["data"]["source"] == "scenes"
    by_path = run("recipes", "show", RECIPES / "scenes" / "adaptive-cl.yaml")
    assert yaml.safe_load(by_path.out)["name"] == shown["name"]


def test_recipes_copy(run: Run, tmp_path: Path) -> None:
    result = run("recipes", "copy", "scenes/adaptive-cl.yaml")
    assert result == Result(0, "wrote adaptive-cl.yaml; 'tellapart train adaptive-cl.yaml' trains it\n", "")
    text = (tmp_path / "adaptive-cl.yaml").read_text(encoding="utf-8")
    assert text.startswith("# Copied from scenes/adaptive-cl.yaml\nname: scenes-cl\n")
    assert run("recipes", "copy", "scenes/adaptive-cl.yaml", "-").out == text
    assert run("recipes", "check", "adaptive-cl.yaml").status == 0
    told = mistake(run("recipes", "copy", "scenes/adaptive-cl.yaml"))
    assert "adaptive-cl.yaml: already exists; name another file" in told
    told = mistake(run("recipes", "copy", "scenes/adaptive-cl.yaml", "adaptive-cl.yaml/inner/cl.yaml"))
    assert "adaptive-cl.yaml: this is a file, and a folder is needed" in told
    assert run("recipes", "copy", "scenes/adaptive-cl.yaml", "mine/cl.yaml").status == 0
    assert (tmp_path / "mine" / "cl.yaml").read_text(encoding="utf-8") == text


def test_a_file_here_goes_before_a_shipped_one(run: Run, tmp_path: Path) -> None:
    run("recipes", "copy", "scenes/adaptive-mle.yaml", "scenes/adaptive-mle.yaml")
    copy = tmp_path / "scenes" / "adaptive-mle.yaml"
    copy.write_text(copy.read_text(encoding="utf-8").replace("name: scenes-mle", "name: mine"), encoding="utf-8")
    assert yaml.safe_load(run("recipes", "show", "scenes/adaptive-mle.yaml").out)["name"] == "mine"


def test_recipes_check(run: Run, tmp_path: Path) -> None:
    many = len(shipped_recipes())
    assert run("recipes", "check") == Result(0, f"{many} recipes are valid at the budgets smoke, laptop, paper.\n", "")
    assert run("recipes", "check", "scenes/adaptive-mle.yaml").status == 0
    (tmp_path / "one.yaml").write_text("name: one\ntraning: {}\n", encoding="utf-8")
    (tmp_path / "two.yaml").write_text("- a\n", encoding="utf-8")
    told = mistake(run("recipes", "check", "one.yaml", "scenes/adaptive-mle.yaml", "two.yaml", "three.yaml"))
    assert "one.yaml: 5 mistakes:" in told
    assert "traning: there is no such key; did you mean 'training'?" in told
    assert "two.yaml: a recipe must be a mapping" in told
    assert "three.yaml: this recipe does not exist" in told
    assert "adaptive-mle" not in told


# --- evaluate -------------------------------------------------------------------------------------------------------

REFERENCES = {
    "1": ["A dog runs over the grass.", "A dog on green grass"],
    "2": ["Two men play chess", "Men at a chess board."],
    "3": ["A red bus on a street", "The bus is red"],
}
CAPTIONS = {"1": "a dog runs over the grass", "2": "two men play chess", "3": "a blue car"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    images = [
        {"filename": f"{id}.jpg", "split": "test", "sentences": [{"raw": text} for text in texts]}
        for id, texts in REFERENCES.items()
    ]
    images.append({"filename": "4.jpg", "split": "val", "sentences": [{"raw": "a hen"}]})
    path = tmp_path / "karpathy.json"
    path.write_text(json.dumps({"images": images}), encoding="utf-8")
    return path


def figures(result: Result) -> dict[str, float]:
    assert result.status == 0, result.err
    rows = [line.split() for line in result.out.splitlines()[1:] if " is not reported: " not in line]
    return {row[0]: float(row[1]) for row in rows}


@pytest.mark.parametrize("form", ["rows", "object", "coco"])
def test_evaluate_captions_of_anyone(run: Run, data: Path, tmp_path: Path, form: str) -> None:
    from tellapart.metrics import evaluate

    path = tmp_path / ("captions.jsonl" if form == "rows" else "captions.json")
    content = {
        "rows": "".join(json.dumps({"id": id, "caption": text}) + "\n" for id, text in CAPTIONS.items()),
        "object": json.dumps(CAPTIONS),
        "coco": json.dumps([{"image_id": int(id), "caption": text} for id, text in CAPTIONS.items()]),
    }[form]
    path.write_text(content, encoding="utf-8")
    found = figures(run("evaluate", path, "--data", data))
    expected = evaluate(REFERENCES, CAPTIONS).corpus
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-4)
    assert 0.3 < found["Bleu_1"] < 1
    assert found["distinct"] == 1.0


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"id": "1", "caption": "a"}\n{"id": "9", "caption": "a"}\n', r"'9' .*'test'.*check --split"),
        ('{"id": "4", "caption": "a hen"}\n', r"'4' .*'test'.*check --split"),
        ('{"id": "1", "caption": "a"}\n{"id": "1", "caption": "b"}\n', r"2 images \('2', …\) have no caption"),
        ('{"id": "1", "text": "a"}\n', r"row 1 needs 'id' \(or 'image_id'\) and 'caption'"),
        ('{"id": "1", "caption": "a"}\n{"id": \n', r"line 2 is not valid JSON"),
        ("", r"no caption is in this file"),
    ],
)
def test_caption_files_that_are_wrong(run: Run, data: Path, tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "captions.jsonl"
    path.write_text(content, encoding="utf-8")
    assert re.search(rf"captions\.jsonl: .*{told}", mistake(run("evaluate", path, "--data", data)))


def test_studies_are_listed_and_their_mistakes_told(run: Run) -> None:
    listed = run("study")
    assert listed.status == 0
    assert re.search(r"^cl-table4 +CL against its parts and other methods$", listed.out, re.MULTILINE)
    unknown = run("study", "cl-table44")
    assert unknown.status == 2
    assert "there is no study 'cl-table44'; did you mean 'cl-table4'" in unknown.err
    unnamed = run("study", "cl-table4", "--use", "adaptive-mle")
    assert unnamed.status == 2
    assert "write it as ARM=RUN" in unnamed.err
    uncrossed = run("study", "cl-table4", "--cross", "captioner.dropout")
    assert uncrossed.status == 2
    assert "write it as KEY=VALUE,VALUE" in uncrossed.err
