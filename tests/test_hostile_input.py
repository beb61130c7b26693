"""Damaged and odd input: exit 0, or one message and status 1 or 2; never a traceback, a hang or a lost file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file, save_file

from tellapart import cli
from tellapart.cli.base import json_line
from tellapart.data.features import FeatureStore
from tellapart.encoders.base import EncoderIdentity
from tellapart.errors import (
    DataError,
    LimitError,
    RecipeError,
    RunError,
    StoreError,
    TellapartError,
    quote,
    some,
)
from tellapart.evaluation.spread import measure_spread
from tellapart.files import Stored, check_regular, read_model, read_models
from tellapart.metrics import evaluate
from tellapart.metrics.meteor import meteor_scores
from tellapart.models import model_folder
from tellapart.pages.base import curves
from tellapart.recipe import Recipe
from tellapart.run import open_run
from tellapart.settings import MAX_CHARACTERS

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
RETRIEVER = {
    **{key: RECIPE[key] for key in ("data", "training")},
    "name": "tiny-retriever",
    "retriever": {"name": "coder", "words": 5, "width": 6, "concepts": 3},
    "objective": {"name": "coder", "bank": 9, "prototypes": 3},
}
# A hang never ends, so the limit can be far above what any call takes on a slow machine.
LIMIT = 120
DEEP = "[" * 100_000
DIGITS = '{"a": ' + "9" * 5_000 + "}"


class Result(NamedTuple):
    status: int
    out: str
    err: str


class Hang(BaseException):
    """Not an `Exception`, so that no handler of the program takes it for a failure."""


@contextlib.contextmanager
def limited(seconds: float = LIMIT) -> Iterator[None]:
    """Fail if the block takes longer; also if it waits for a file or a lock."""

    def fail(*_: object) -> None:
        raise Hang(f"no result after {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def call(folder: Path, *arguments: str | Path) -> Result:
    """Run the command line in a folder; any exception but an exit, or no end, fails the test."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    before = Path.cwd()
    os.chdir(folder)
    try:
        with (
            mock.patch.object(sys, "argv", ["tellapart", *map(str, arguments)]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as caught,
            limited(),
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


@settings(QUICK, max_examples=40)
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


@pytest.fixture(scope="module")
def with_retriever(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished, measured run of a retriever and its feature store."""
    folder = tmp_path_factory.mktemp("retriever")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(RETRIEVER))
    for arguments in (["train", "tiny.yaml", "--out", "run"], ["evaluate-retrieval", "run", "--gallery"]):
        result = call(folder, *arguments)
        assert result.status == 0, result.err
    measured = call_spread(folder)
    assert measured.status == 0, measured.err
    return folder


def call_spread(folder: Path) -> Result:
    """What a study does with `spread.json`; no command reads it alone."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with limited():
            figures = measure_spread(open_run("run")).figures()
        return Result(0, str(figures), "")
    except TellapartError as error:
        return Result(2, "", f"tellapart: {error}\n")
    finally:
        os.chdir(before)


RETRIEVER_FILES = (
    "retrieval.json",
    "retrieval_images.jsonl",
    "retrieval_captions.jsonl",
    "spread.json",
    "concepts.json",
)
RETRIEVER_VERBS = {
    "evaluate": ["evaluate-retrieval", "run"],
    "gallery": ["evaluate-retrieval", "run", "--gallery"],
    "resume": ["train", "--resume", "run"],
    "spread": [],
}


@settings(QUICK, max_examples=40)
@given(kind=st.sampled_from(RETRIEVER_FILES), verb=st.sampled_from(list(RETRIEVER_VERBS)), draw=st.data())
def test_damaged_files_of_a_retriever(with_retriever: Path, kind: str, verb: str, draw: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as top:
        folder = Path(shutil.copytree(with_retriever, Path(top) / "copy"))
        if verb == "resume":
            set_finished(folder / "run", False)
        path = model_folder(folder / "run") / kind if kind == "concepts.json" else folder / "run" / kind
        path.write_bytes(damage(path.read_bytes(), draw))
        before = names(folder)
        check(call(folder, *RETRIEVER_VERBS[verb]) if RETRIEVER_VERBS[verb] else call_spread(folder))
        assert not {name for name in before - names(folder) if not name.startswith("run/.")}
        assert {name.split("/")[0] for name in names(folder) - before} <= {"run", "prepared"}
        assert [found.name for found in Path(top).iterdir()] == ["copy"]


@pytest.mark.parametrize("kind", RETRIEVER_FILES)
@pytest.mark.parametrize("text", [b"", b"{", b"\0", b"null", b"[]", b'{"made_from": "x"}', DEEP.encode()])
def test_every_file_of_a_retriever_replaced(with_retriever: Path, tmp_path: Path, kind: str, text: bytes) -> None:
    folder = Path(shutil.copytree(with_retriever, tmp_path / "copy"))
    path = model_folder(folder / "run") / kind if kind == "concepts.json" else folder / "run" / kind
    path.write_bytes(text)
    result = call_spread(folder) if kind == "spread.json" else call(folder, "evaluate-retrieval", "run", "--gallery")
    check(result)
    made_again = kind == "spread.json" and b"made_from" in text  # as if it were of other inputs
    assert result.status == (0 if made_again else 2), result
    assert made_again or path.name in result.err
    assert path.exists()


def test_a_call_that_never_ends_fails() -> None:
    with pytest.raises(Hang, match="no result after"), limited(0.05):
        time.sleep(LIMIT)


# --- recipes --------------------------------------------------------------------------------------------------------

RECIPE_KEYS = (
    *("name", "data", "source", "encoder", "captioner", "retriever", "objective", "training", "steps", "epochs"),
    *("start", "from", "roles", "reference", "negatives", "budgets", "smoke", "budget", "extends", "decoding", "beam"),
    *("parts", "seed", "hidden", "learning_rate", "phase_learning_rates", "betas"),
)


@settings(QUICK, max_examples=60)
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


# --- single cases ---------------------------------------------------------------------------------------------------


def message(folder: Path, *arguments: str | Path) -> str:
    result = call(folder, *arguments)
    assert result.status == 2, result
    check(result)
    return result.err


class Row(Stored):
    number: int


@pytest.mark.parametrize("text", [DEEP, DIGITS, "", "{", "\0", '{"number": "1"}', '{"number": true}', "[]"])
def test_every_failure_names_the_file_and_what_to_do(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(RunError, match=r"file\.json: this table is damaged \(.+\); remove it and run"):
        read_model(path, Row, "table", error=RunError)
    path.write_text('{"number": 1}\n' + (text or "x"))
    with pytest.raises(DataError, match=r"file\.json: line 2 of this table is damaged \(.+\); mend it$"):
        read_models(path, Row, "table", "mend it")


@pytest.mark.parametrize(
    ("text", "told"), [(DEEP, "nested too deeply"), (DIGITS, "a number has too many digits"), ("{", "line 1: ")]
)
def test_json_of_others(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "data.json").write_text(text)
    assert f"data.json: not valid JSON ({told}" in message(tmp_path, "inspect", "data.json")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1: a", "the key 1 is not text"),
        ("{2020-01-01: a}", "is not text"),
        ("[" * 5_000, "nested too deeply"),
        ("a: &a [*a]", "levels"),
        (
            "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 60))]),
            "values",
        ),
        ("a0: &a0 {x: 1}\n" + "\n".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 60)), "values"),
        ("a" * (MAX_CHARACTERS + 1), "longer than"),
        ("!!int ''", ""),
        ("!!bool x", ""),
        ("a: 2020-13-45", "month"),
    ],
)
def test_yaml_has_limits(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    error = message(tmp_path, "recipes", "show", "recipe.yaml")
    assert "recipe.yaml: not valid YAML (" in error
    assert told in error
    assert len(error) < 400


def test_a_quoted_value_is_short() -> None:
    bomb: Any = ["x"]
    for _ in range(60):
        bomb = [bomb] * 9
    assert len(quote(bomb)) < 3_000
    with pytest.raises(RecipeError) as caught:
        Recipe.parse({**RECIPE, "name": bomb, **{f"key{n}": 1 for n in range(10_000)}})
    assert len(str(caught.value)) < 6_000
    assert "more mistakes" in str(caught.value)
    assert some(range(10_000)) == "0, 1, 2 and 9,997 more"


@pytest.mark.parametrize(
    "override",
    [
        *("captioner.hidden=1000000000", f"seed={2**70}", "training.learning_rate=1e300", "decoding.beam=1000000000"),
        *("data.scenes.train=1000000000", "decoding.temperature=1e-300", "training.accumulate=1000000000"),
    ],
)
def test_absurd_numbers_are_refused_with_their_key(tmp_path: Path, override: str) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    result = call(tmp_path, "train", "tiny.yaml", override)
    assert result.status == 2
    assert f"- {override.partition('=')[0]}: " in result.err


def test_a_model_too_large_for_the_memory_names_its_largest_setting(place: Path) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory")

    with mock.patch("tellapart.captioners.neuraltalk.NeuralTalk.__init__", fail):
        assert "captioner.hidden: this model is too large" in message(
            place, "train", "tiny.yaml", "captioner.hidden=99"
        )
    with mock.patch("tellapart.captioning.decode", fail):
        error = message(place, "caption", "--model", "run", next((place / "prepared").rglob("*.png")))
    assert "not enough memory" in error


@pytest.mark.parametrize("text", [b"\0", b"\xff", b"../..", b"step-999", b"", b"/etc", b"step-1/../step-2"])
@pytest.mark.parametrize("pointer", ["last", "kept"])
def test_pointers_stay_inside_the_run(place: Path, text: bytes, pointer: str) -> None:
    (place / "run" / "checkpoints" / pointer).write_bytes(text)
    set_finished(place / "run", pointer == "kept")
    verb = VERBS["resume"] if pointer == "last" else ["caption", "--model", "run", "x.png"]
    assert f"run/checkpoints/{pointer}: " in message(place, *verb)


@pytest.mark.parametrize("change", ["list", "no step", "optimisers", "shapes", "objective"])
def test_a_training_state_of_another_shape(place: Path, change: str) -> None:
    set_finished(place / "run", False)
    path = model_folder(place / "run") / "trainer.pt"
    state = torch.load(path, weights_only=True)
    if change == "list":
        state = [1]
    elif change == "no step":
        del state["step"]
    elif change == "optimisers":
        state["optimisers"] = {"other": {}}
    elif change == "objective":
        state["objective"] = {"x": torch.zeros(1)}
    else:
        (optimiser,) = state["optimisers"].values()
        next(iter(optimiser["state"].values()))["exp_avg"] = torch.zeros(1)
    torch.save(state, path)
    error = message(place, *VERBS["resume"])
    assert "trainer.pt: " in error
    assert "another checkpoint" in error


def test_the_log_loses_only_an_incomplete_last_row(place: Path) -> None:
    log = place / "run" / "metrics.jsonl"
    rows = log.read_text()
    set_finished(place / "run", False)
    log.write_text(rows + '{"step": 2, "spl')
    assert call(place, *VERBS["resume"]).status == 0
    assert log.read_text() == rows
    set_finished(place / "run", False)
    log.write_text('{"step": "x"}\n' + rows)
    assert "metrics.jsonl: line 1 of this log is damaged (step: " in message(place, *VERBS["resume"])


def test_truncated_and_diverged_weights(place: Path) -> None:
    path = model_folder(place / "run") / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    captioning = ["caption", "--model", "run", next((place / "prepared").rglob("*.png"))]
    assert "model.safetensors cannot be read" in message(place, *captioning)
    path.write_bytes(whole)
    weights = load_file(path)
    save_file({name: torch.full_like(weight, torch.nan) for name, weight in weights.items()}, path)
    error = message(place, *captioning)
    assert "the model has diverged (NaN or infinite weights: " in error
    assert " more)" in error


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize(
    "arguments",
    [
        ["caption", "--model", "run", "pipe"],
        ["evaluate", "pipe", "--data", "data.json"],
        ["evaluate", "captions.json", "--data", "pipe.json"],
        ["recipes", "check", "pipe"],
        ["inspect", "pipe.tar"],
    ],
)
def test_pipes_do_not_block(place: Path, arguments: list[str]) -> None:
    (place / "data.json").write_text(json.dumps(DATA))
    (place / "captions.json").write_text("{}")
    for name in ("pipe", "pipe.json", "pipe.tar"):
        os.mkfifo(place / name)
    result = call(place, *arguments)
    assert result.status == 2
    assert "not a regular file but a pipe" in result.err


def test_devices_are_not_read() -> None:
    with pytest.raises(DataError, match="not a regular file"):
        check_regular(Path(os.devnull))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_are_not_utf8(place: Path) -> None:
    pictures = place / "pictures"
    pictures.mkdir()
    Image.new("RGB", (8, 8)).save(pictures / "a.png")
    bad = os.fsencode(pictures) + b"/b\xff.png"
    shutil.copy(pictures / "a.png", bad)
    assert r"'b\udcff.png', which is not UTF-8 text" in message(place, "inspect", "pictures")
    out = place / "rows.jsonl"
    result = call(place, "caption", "--model", "run", pictures / "a.png", os.fsdecode(bad), "--out", out)
    assert result.status == 0
    assert "the name of this picture is not UTF-8 text; rename it" in result.err
    assert len(out.read_text().splitlines()) == 1


def test_labels_in_plots_are_plain_text() -> None:
    rows = [{"step": 1, "split": split, "loss": 1.0} for split in ("train", "val")]
    assert "<svg" in curves({r"$\frac$ and $x": rows, "$": rows})


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_terminal_without_all_characters(original: Path, encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": os.pathsep.join(sys.path)}
    code = "import sys; from tellapart.cli import main; sys.argv[0] = 'tellapart'; main()"
    shown = subprocess.run(
        [sys.executable, "-c", code, "recipes"], env=environment, cwd=original, capture_output=True, check=False
    )
    assert shown.returncode == 0
    assert b"Traceback" not in shown.stderr
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with contextlib.redirect_stdout(stream):
        assert json.loads(json_line({"caption": "a 🐕 → \udcff"})) == {"caption": "a 🐕 → \udcff"}


def test_meteor_of_long_captions_is_not_reported() -> None:
    pytest.importorskip("pycocoevalcap")
    long = "a dog " * 3_000
    with pytest.raises(LimitError, match=r"a caption has 6,000 words; METEOR is computed for at most 200"):
        meteor_scores([["a dog"]], [long.strip()])
    scores = evaluate({"1": ["a dog"], "2": ["a cat"]}, {"1": [long, "a"], "2": ["a cat", long]})
    assert "METEOR" in scores.not_reported
    assert "oracle_METEOR" not in scores.corpus


def test_another_encoder_is_named() -> None:
    one, other = (EncoderIdentity(name, "0", "none", 4, 6) for name in ("one", "other"))
    dataset = mock.Mock(digest="x")
    dataset.name = "data"
    store = FeatureStore(np.zeros((1, 5, 6), np.float16), one, "x")
    with pytest.raises(StoreError, match=r"from one, and other is needed here; set data\.encoder=other"):
        store.check(dataset, other)
    changed = EncoderIdentity("one", "1", "none", 4, 6)
    with pytest.raises(StoreError, match=r"by one with other weights or preprocessing .* same version of the encoder"):
        store.check(dataset, changed)
