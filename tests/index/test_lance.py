"""An index in a folder: killed, damaged, not ours; several writers; the command line."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from support.photos import make_retriever_folder
from tellapart import cli
from tellapart.errors import DataError, MissingExtraError, StoreError, TellapartError
from tellapart.index import lance
from tellapart.index.photos import PhotoIndex, open_index

TESTS = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "photos.lance"


@pytest.fixture
def index(folder: Path, model: Path, photos: Path) -> PhotoIndex:
    made = open_index(folder, model)
    made.add([photos], {"000.png": ["a red house"]})
    return made


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_killed_writers_parallel_writers_and_searches_meanwhile(tmp_path: Path) -> None:
    """`support.index_worker`: nothing confirmed is lost, the same call continues, and searches see what is written."""
    command = [sys.executable, "-m", "support.index_worker", str(tmp_path)]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_killed_before_anything_was_written(folder: Path, model: Path, photos: Path) -> None:
    open_index(folder, model)
    shutil.rmtree(folder / "photos.lance")  # index.json comes first
    (folder / ".tellapart-0123456789abcdef").write_text("half a file")
    assert open_index(folder).add([photos]).added == 12
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / ".tellapart-0123456789abcdef").write_text("half of index.json")
    assert open_index(folder, model).add([photos]).added == 12


def test_many_small_writes_are_merged(folder: Path, model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance, "MERGE_AFTER", 3)
    index = open_index(folder, model)
    for path in sorted(photos.iterdir()):
        index.store.put(row_of(index, path))
    assert len(index) == 12
    fragments = index.store._table.stats()["fragment_stats"]["num_fragments"]  # type: ignore[attr-defined]
    assert fragments <= 4


def row_of(index: PhotoIndex, path: Path) -> list[lance.Photo]:
    vector = index.reader.read_picture(Image.open(path))
    return [lance.Photo(lance.File(str(path), 1, 2, "00", ""), 3, vector)]


# --- what is not ours, and what is damaged -------------------------------------------------------------------------


def test_folders_and_files_of_others_are_refused(tmp_path: Path, model: Path, photos: Path) -> None:
    with pytest.raises(StoreError, match="exists and is not an index of tellapart; choose another folder"):
        open_index(photos, model)
    assert len(list(photos.iterdir())) == 12
    with pytest.raises(StoreError, match="this is a file, and an index is a folder"):
        open_index(photos / "000.png", model)
    other = tmp_path / "other"
    other.mkdir()
    (other / "index.json").write_text('{"name": "a page of others"}')
    with pytest.raises(StoreError, match="is not an index of tellapart"):
        open_index(other, model)
    assert (other / "index.json").read_text() == '{"name": "a page of others"}'
    locked = tmp_path / "locked"
    locked.write_text("")
    with pytest.raises(DataError, match="this is a file, and a folder is needed"):
        open_index(locked / "photos.lance", model)


def test_every_damage_is_one_line(index: PhotoIndex, folder: Path, tmp_path: Path) -> None:
    """Every file of an index removed, cut, and replaced by random bytes: a result or one line, never a traceback."""
    whole = tmp_path / "whole"
    shutil.copytree(folder, whole)
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file() and path.name != ".lock")
    chance = random.Random(0)
    refused: list[str] = []
    for file in files:
        for damage in ("removed", "cut", "random"):
            shutil.rmtree(folder)
            shutil.copytree(whole, folder)
            content = (folder / file).read_bytes()
            if damage == "removed":
                (folder / file).unlink()
            else:
                cut = content[: len(content) // 2]
                (folder / file).write_bytes(cut if damage == "cut" else chance.randbytes(len(content)))
            try:
                opened = PhotoIndex(lance.LanceStore.open(folder) or index.store, index.reader)
                opened.search("a red house", 100)
            except TellapartError as error:
                refused.append(str(error))
    assert len(refused) > len(files) // 2
    assert all(str(folder) in error and "\n" not in error for error in refused)


def test_an_index_of_another_format(index: PhotoIndex, folder: Path) -> None:
    about = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**about, "format": 99}))
    with pytest.raises(StoreError, match="index format 99 is unknown; this version reads 1"):
        open_index(folder)
    (folder / "index.json").write_text(json.dumps({**about, "width": about["width"] + 1}))
    with pytest.raises(StoreError, match=r"not the one that index\.json describes"):
        open_index(folder)


def test_without_lancedb_the_extra_is_named(folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(MissingExtraError, match=r"lancedb is not installed; .* pip install 'tellapart\[index"):
        open_index(folder, model)
    assert not folder.exists()


# --- the command line ----------------------------------------------------------------------------------------------


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Call the command line; gives its status and what it printed."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tellapart", *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            cli.main()
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return int(done.value.code or 0), printed.out, printed.err

    return call


def test_the_commands(folder: Path, model: Path, photos: Path, run: Run) -> None:
    (photos / "broken.jpg").write_bytes(b"no picture")
    status, out, err = run("index", photos, "--to", folder, "--retriever", model)
    assert (status, out) == (0, f"{folder}: 12 photographs (12 added, 1 skipped)\n")
    assert f"skipped: {photos}/broken.jpg: not a picture" in err
    (photos / "broken.jpg").unlink()
    captions = photos.parent / "captions.jsonl"
    captions.write_text('{"id": "004.png", "caption": "<script>a zebra"}\n{"id": "gone.png", "caption": "a"}\n')
    status, out, err = run("index", photos, "--to", folder, "--captions", captions)
    assert (status, out) == (0, f"{folder}: 12 photographs (12 unchanged)\n")
    assert "captions.jsonl: 1 ids are none of these pictures" in err

    status, out, err = run("search", folder, "a red zebra", "-k", "3")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (status, len(rows)) == (0, 3)
    assert list(rows[0]) == ["path", "similarity", "by", "taken", "caption"]
    assert rows[0]["path"] == str(photos / "004.png")
    assert "the retriever does not know: zebra" in err
    status, out, err = run("search", folder, photos / "002.png", "--path", "*/00?.png")
    assert next(json.loads(line)["path"] for line in out.splitlines()) == str(photos / "002.png")
    status, out, err = run("search", folder, "a car", "--before", "1990")
    assert (status, out, err) == (0, "", "no photograph passes the filters\n")

    page, lines = photos.parent / "page.html", photos.parent / "found.jsonl"
    status, out, err = run("search", folder, "a zebra", "--out", lines)
    assert (status, out) == (0, "")
    assert err.endswith(f"wrote {lines}: 10 rows\n")
    status, _, err = run("search", folder, "a zebra", "--out", lines.with_suffix(".csv"))
    assert status == 2
    assert "found.csv: the ending tells what is written; use one of .html, .jsonl" in err
    assert len(lines.read_text().splitlines()) == 10
    (photos / "001.png").unlink()  # after it was indexed
    for query in ("a <b>zebra", photos / "000.png"):
        assert run("search", folder, query, "-k", "12", "--out", page)[:2] == (0, f"{page}\n")
        text = page.read_text()
        assert text.count("data:image/jpeg;base64,") == 11 + (query == photos / "000.png")
        assert "<script>" not in text
        assert "<b>zebra" not in text
        assert "no longer readable" in text
        assert not any(address in text for address in ("http://", "https://", "//cdn"))

    assert run("index", photos, "--to", folder)[1] == f"{folder}: 11 photographs (1 removed, 11 unchanged)\n"
    assert run("index", "--delete", photos / "000.png", "--to", folder)[1].startswith("removed 1 photograph ")


def test_mistakes_are_one_line(index: PhotoIndex, folder: Path, photos: Path, tmp_path: Path, run: Run) -> None:
    mine = tmp_path / "mine.html"
    mine.write_text("my own page")
    other = make_retriever_folder(tmp_path / "other", seed=1)
    for arguments, message in (
        (["search", tmp_path / "none.lance", "a car"], "no index is here"),
        (["search", photos, "a car"], "is not an index of tellapart"),
        (["search", folder, "a car", "--after", "yesterday"], "'yesterday' is not a date; write it as 2024"),
        (["search", folder, "nowhere.jpg"], "nowhere.jpg: this picture does not exist"),
        (["search", folder, "a car", "--out", mine], "was not written by tellapart"),
        (["search", folder, photos / "000.png", "--out", photos / "000.png"], "is an input and is not overwritten"),
        (["search", folder, "a car", "--in", "dreams"], "'dreams' is not something to compare with"),
        (["search", folder, "a car", "--retriever", other], "was made by another retriever"),
        (["search", folder, "a car", "--approximate"], "approximate search is not built"),
        (["search", "http://localhost:1/photos", "a car"], "http://localhost:1: no Milvus server answers there"),
        (["search", "http://user:secret@localhost:1/x/y/z", "a car"], "is not the address of a collection"),
        (["index", tmp_path / "none", "--to", tmp_path / "new.lance", "--retriever", other], "no picture is here"),
        (["index", photos, "--to", folder, "--part", "3/2"], "'3/2' is not a part"),
        (["index", tmp_path / "nowhere", "--to", folder], "nowhere: this picture does not exist"),
    ):
        status, out, err = run(*arguments)
        assert (status, out) == (2, ""), arguments
        assert message in err
        assert err.count("\n") == 1, err
        assert "secret" not in err or "address of a collection" in message
    assert mine.read_text() == "my own page"
    assert not (tmp_path / "new.lance").exists()
    assert os.listdir(tmp_path).count("none.lance") == 0
