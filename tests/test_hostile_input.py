"""Damaged and odd input: exit 0, or one message and status 1 or 2; never a traceback, a hang or a lost file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import yaml
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tellapart import cli
from tellapart.models import model_folder

QUICK = settings(
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

RECIPE = {
    "name": "tiny",
    "data": {"source": "scenes", "scenes": {"train": 8, "val": 4, "test": 3}, "min_count": 1, "prepared": "prepared"},
    "captioner": {"name": "neuraltalk", "hidden": 8, "embedding": 8},
    "objective": {"name": "likelihood"},
    "training": {"steps": 2, "images_per_batch": 4, "validate_every": 1, "log_every": 1},
    "decoding": {"max_words": 3, "beam": 1},
}
DEEP = "[" * 100_000
DIGITS = '{"a": ' + "9" * 5_000 + "}"


class Result(NamedTuple):
    status: int
    out: str
    err: str


def call(folder: Path, *arguments: str | Path) -> Result:
    """Run the command line in a folder; any exception but an exit fails the test."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    before = Path.cwd()
    os.chdir(folder)
    try:
        with (
            mock.patch.object(sys, "argv", ["tellapart", *map(str, arguments)]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as caught,
        ):
            cli.main()
    finally:
        os.chdir(before)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8"))  # type: ignore[attr-defined]
    return Result(int(caught.value.code or 0), *texts)


def check(result: Result, lines: int | None = 1) -> None:
    """Exit 0, or one message; `lines=None` allows a list of mistakes."""
    assert "Traceback" not in result.err
    assert result.status in (0, 1, 2)
    if result.status:
        _, _, message = result.err.rpartition("tellapart: ")
        assert result.err.count("tellapart: ") == 1, result.err
        assert lines is None or message.count("\n") == lines, message
        assert len(message) < 6_000, message


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


# --- a tiny run -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished, evaluated run and its feature store."""
    folder = tmp_path_factory.mktemp("original")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    for arguments in (["train", "tiny.yaml", "--out", "run"], ["evaluate", "run"], ["self-retrieval", "run"]):
        result = call(folder, *arguments)
        assert result.status == 0, result.err
    return folder


@pytest.fixture
def place(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


def set_finished(run: Path, finished: bool) -> None:
    state = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**state, "finished": finished}))


@pytest.fixture(scope="module")
def files(original: Path) -> dict[str, str]:
    """Kind of file -> its path; every file that this program reads again."""
    run, model = original / "run", model_folder(original / "run")
    store = next((original / "prepared").rglob("manifest.json")).parent
    found = {
        "model.json": model / "model.json",
        "vocabulary.json": model / "vocabulary.json",
        "model.safetensors": model / "model.safetensors",
        "trainer.pt": model / "trainer.pt",
        "recipe.yaml": run / "recipe.yaml",
        "run.json": run / "run.json",
        "metrics.jsonl": run / "metrics.jsonl",
        "captions.jsonl": run / "captions.jsonl",
        "scores.json": run / "scores.json",
        "per_image.jsonl": run / "per_image.jsonl",
        "ranks": next((run / "ranks").glob("*.json")),
        "last": run / "checkpoints" / "last",
        "kept": run / "checkpoints" / "kept",
        "manifest.json": store / "manifest.json",
        "dataset.json": next((original / "prepared").rglob("dataset.json")),
    }
    assert all(path.is_file() for path in found.values())
    return {kind: path.relative_to(original).as_posix() for kind, path in found.items()}


KINDS = (
    *("model.json", "vocabulary.json", "model.safetensors", "trainer.pt", "recipe.yaml", "run.json", "metrics.jsonl"),
    *("captions.jsonl", "scores.json", "per_image.jsonl", "ranks", "last", "kept", "manifest.json", "dataset.json"),
)
VERBS = {
    "evaluate": ["evaluate", "run"],
    "resume": ["train", "--resume", "run"],
    "caption": ["caption", "--model", "run", "picture.png"],
    "self-retrieval": ["self-retrieval", "run"],
}

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["../..", "step-1", "\0", "\ud800", "scenes", "NaN"]),
)


def values(keys: Sequence[str]) -> st.SearchStrategy[Any]:
    named = st.one_of(st.sampled_from(list(keys)), st.text(max_size=3))
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(named, inner, max_size=4), max_leaves=8
    )


def nested(value: Any) -> list[tuple[Any, ...]]:
    """The places of all values inside plain data."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [()] + [(key, *rest) for key, part in parts for rest in nested(part)]


def replaced(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """Plain data with one value replaced."""
    if not at:
        return new
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[at[0]] = replaced(value[at[0]], at[1:], new)
    return changed


def damage(text: bytes, draw: st.DataObject) -> bytes:
    """Random bytes, a cut, random JSON, or the same file with one value changed or removed."""
    how = draw.draw(st.sampled_from(["bytes", "cut", "json", "value", "value", "value", "odd"]))
    if how == "bytes":
        return draw.draw(st.binary(max_size=30))
    if how == "cut":
        return text[: draw.draw(st.integers(0, len(text)))]
    if how == "odd":
        return draw.draw(
            st.sampled_from([DEEP, DIGITS, "\0", "../..", "step-999", "1e999", "null", "[]", "{}"])
        ).encode()
    keys = ["made_from", "format", "captioner", "encoder", "name", "finished", "shape", "id", "step", "rank"]
    if how == "json":
        return json.dumps(draw.draw(values(keys))).encode()
    try:
        lines = [json.loads(text)] if b"\n{" not in text[1:] else [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return json.dumps(draw.draw(values(keys))).encode()
    number = draw.draw(st.integers(0, len(lines) - 1))
    places = nested(lines[number])
    at = places[draw.draw(st.integers(0, min(len(places) - 1, 60)))]
    lines[number] = replaced(lines[number], at, draw.draw(values(keys)))
    return "\n".join(json.dumps(line) for line in lines).encode()


@settings(QUICK, max_examples=60)
@given(kind=st.sampled_from(KINDS), verb=st.sampled_from(list(VERBS)), draw=st.data())
def test_damaged_files_of_a_run(
    original: Path, files: dict[str, str], kind: str, verb: str, draw: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as top:
        folder = Path(shutil.copytree(original, Path(top) / "copy"))
        shutil.copy(next((folder / "prepared").rglob("test-00000.png")), folder / "picture.png")
        if verb == "resume":
            set_finished(folder / "run", False)
        content = damage((folder / files[kind]).read_bytes(), draw)
        (folder / files[kind]).write_bytes(content)
        before = names(folder)
        result = call(folder, *VERBS[verb])
        # A damaged recipe may name another set of scenes, which is then rendered.
        check(result, None if kind == "recipe.yaml" else 1)
        lost = {name for name in before - names(folder) if not name.startswith("run/.")}
        assert not lost
        made = {name.split("/")[0] for name in names(folder) - before}
        assert made <= {"run", "prepared"}
        assert names(Path(top)) >= {"copy"}
        assert len(list(Path(top).iterdir())) == 1


# --- recipes --------------------------------------------------------------------------------------------------------

RECIPE_KEYS = (
    *("name", "data", "source", "encoder", "captioner", "retriever", "objective", "training", "steps", "epochs"),
    *("start", "from", "roles", "reference", "negatives", "budgets", "smoke", "budget", "extends", "decoding", "beam"),
    *("parts", "seed", "hidden", "learning_rate", "phase_learning_rates", "betas"),
)


@settings(QUICK, max_examples=150)
@given(draw=st.data())
def test_random_recipes(draw: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as top:
        recipe: Any = {**RECIPE, "roles": {}, "budgets": {"smoke": {"training": {"steps": 1}}}}
        for _ in range(draw.draw(st.integers(0, 3))):
            places = nested(recipe)
            at = places[draw.draw(st.integers(0, len(places) - 1))]
            recipe = replaced(recipe, at, draw.draw(values(RECIPE_KEYS)))
        if isinstance(recipe, dict) and draw.draw(st.booleans()):
            recipe[draw.draw(st.sampled_from(RECIPE_KEYS))] = draw.draw(values(RECIPE_KEYS))
        text = draw.draw(st.sampled_from([yaml.safe_dump(recipe), json.dumps(recipe)]) | st.text(max_size=40))
        Path(top, "recipe.yaml").write_text(text, encoding="utf-8", errors="replace")
        key = st.lists(st.sampled_from(RECIPE_KEYS), min_size=1, max_size=3).map(".".join)
        overrides = st.tuples(key, values(RECIPE_KEYS).map(json.dumps) | st.text(max_size=5)).map("=".join)
        given_overrides = draw.draw(st.lists(overrides, max_size=2))
        check(call(Path(top), "recipes", "check", "recipe.yaml"), None)
        check(call(Path(top), "recipes", "show", "recipe.yaml", "--", *given_overrides), None)
        assert names(Path(top)) == {"recipe.yaml"}


# --- files of captions ----------------------------------------------------------------------------------------------

DATA = {
    "images": [
        {"filename": f"{id}.jpg", "split": "test", "sentences": [{"raw": text}]}
        for id, text in (("1", "a dog runs"), ("2", "two men play chess"), ("3", "a red bus"))
    ]
}
texts = st.text(max_size=20) | st.sampled_from(["a dog", "a red bus \u2028 ", "|||", "\ud800", "$x$"])
ids = st.sampled_from(["1", "2", "3", "1.jpg", 1, 2, 3, None, "x"])
rows = st.fixed_dictionaries(
    {}, optional={"id": ids, "image_id": ids, "caption": texts | st.lists(texts, max_size=2) | scalars, "x": scalars}
)


@settings(QUICK, max_examples=40)
@given(
    whole=st.fixed_dictionaries(dict.fromkeys(("1", "2", "3"), texts)) | st.lists(rows, max_size=4) | values(["id"]),
    jsonl=st.booleans(),
    cut=st.none() | st.integers(0, 60),
)
@example(whole={"1": "a " * 5_000, "2": "b", "3": "c"}, jsonl=False, cut=None)
@example(whole={"1": "", "2": " ", "3": "."}, jsonl=False, cut=None)
def test_random_files_of_captions(whole: Any, jsonl: bool, cut: int | None) -> None:
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top)
        (folder / "data.json").write_text(json.dumps(DATA))
        if jsonl and isinstance(whole, dict):
            whole = [{"id": id, "caption": text} for id, text in whole.items()]
        path = folder / ("captions.jsonl" if jsonl else "captions.json")
        text = "\n".join(map(json.dumps, whole)) if jsonl and isinstance(whole, list) else json.dumps(whole)
        path.write_bytes(text.encode()[:cut])
        before = {name: (folder / name).read_bytes() for name in names(folder)}
        check(call(folder, "evaluate", path.name, "--data", "data.json", "--out", "out"))
        assert {name: (folder / name).read_bytes() for name in before} == before
        assert {name.split("/")[0] for name in names(folder)} <= {*before, "out"}
