"""Files are seen whole or not at all, and errors name the file and the line."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from tellapart.errors import DataError
from tellapart.files import (
    digest_of,
    digest_of_file,
    new_folder,
    read_json,
    read_jsonl,
    write_json,
    write_jsonl,
    write_text,
)


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.fixture
def no_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", refuse)


def test_writing_makes_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.txt"
    write_text(path, "old")
    write_text(path, "neü")
    assert path.read_bytes() == "neü".encode()
    assert names(tmp_path) == ["a", "a/b", "a/b/file.txt"]


@pytest.mark.usefixtures("no_replace")
def test_the_old_file_stays_when_renaming_fails(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(OSError, match="disk is full"):
        write_json(path, {"new": 1})
    assert path.read_text(encoding="utf-8") == "old"
    assert names(tmp_path) == ["file.json"]


def test_the_old_file_stays_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half \ud800")
    assert path.read_text(encoding="utf-8") == "old"
    assert names(tmp_path) == ["file.txt"]


@pytest.mark.parametrize("write", [write_json, write_jsonl])
def test_the_old_file_stays_when_a_value_cannot_be_written(tmp_path: Path, write: Any) -> None:
    path = tmp_path / "file.json"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(TypeError):
        write(path, [1, object()])
    assert path.read_text(encoding="utf-8") == "old"
    assert names(tmp_path) == ["file.json"]


def test_the_data_reach_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append("fsync"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda old, new: (calls.append("replace"), replace(old, new)))
    write_text(tmp_path / "file.txt", "text")
    assert calls == ["fsync", "replace", "fsync"], "the text, then its name, then that the name lasts"


def test_json_round_trip(tmp_path: Path) -> None:
    value = {"b": [1, 2.5, None, True], "a": "naïve 🐕"}
    write_json(tmp_path / "file.json", value)
    assert read_json(tmp_path / "file.json") == value
    assert "naïve 🐕" in (tmp_path / "file.json").read_text(encoding="utf-8")


def test_jsonl_round_trip(tmp_path: Path) -> None:
    # All the signs that Python, but not JSON Lines, takes for the end of a line.
    rows = [{"caption": "a\u2028b\u2029c\x85d\x1ce\x0bf\x0cg\r\nh"}, {"caption": "naïve 🐕"}]
    write_jsonl(tmp_path / "file.jsonl", iter(rows))
    assert read_jsonl(tmp_path / "file.jsonl") == rows


def test_jsonl_with_blank_lines_and_windows_line_ends(tmp_path: Path) -> None:
    (tmp_path / "file.jsonl").write_bytes(b'{"a": 1}\r\n\r\n  \n{"a": 2}')
    assert read_jsonl(tmp_path / "file.jsonl") == [{"a": 1}, {"a": 2}]


def test_errors_of_read_json(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    with pytest.raises(DataError, match=r"file\.json: this recipe book does not exist"):
        read_json(path, "recipe book")
    path.write_text('{"a": 1,\n"b": }', encoding="utf-8")
    with pytest.raises(DataError, match=r"file\.json: not valid JSON \(line 2:"):
        read_json(path)
    path.write_bytes(b'"caf\xe9"')
    with pytest.raises(DataError, match=r"file\.json: not UTF-8 text \(.* at byte 4\)"):
        read_json(path)
    with pytest.raises(DataError, match=r"this is a folder, a recipe book was expected"):
        read_json(tmp_path, "recipe book")


def test_errors_of_read_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    with pytest.raises(DataError, match=r"file\.jsonl: this caption file does not exist"):
        read_jsonl(path, "caption file")
    path.write_text('{"a": 1}\n\n{"a": 2\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"file\.jsonl: line 3 is not valid JSON"):
        read_jsonl(path)
    path.write_bytes(b'{"a": 1}\n"\xff"')
    with pytest.raises(DataError, match=r"file\.jsonl: not UTF-8 text"):
        read_jsonl(path)
    with pytest.raises(DataError, match=r"this is a folder, a caption file was expected"):
        read_jsonl(tmp_path, "caption file")


def test_a_new_folder_has_its_name_only_when_it_is_full(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "step-1"
    with new_folder(path) as folder:
        assert folder != path
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("1", encoding="utf-8")
        assert not path.exists()
    assert names(tmp_path) == ["runs", "runs/step-1", "runs/step-1/inner", "runs/step-1/inner/file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failed_new_folder_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def fill() -> None:
        with new_folder(tmp_path / "step-1") as folder:
            (folder / "half").write_text("1", encoding="utf-8")
            raise error

    with pytest.raises(error):
        fill()
    assert names(tmp_path) == []


def test_a_new_folder_replaces_the_old_one_and_what_a_killed_one_left(tmp_path: Path) -> None:
    for rest in ("step-1", "step-1.tmp"):
        (tmp_path / rest).mkdir()
        (tmp_path / rest / "old").write_text("1", encoding="utf-8")
    with new_folder(tmp_path / "step-1") as folder:
        (folder / "new").write_text("2", encoding="utf-8")
    assert names(tmp_path) == ["step-1", "step-1/new"]


def test_a_failed_new_folder_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "step-1"
    path.mkdir()
    (path / "old").write_text("1", encoding="utf-8")
    replace = os.replace

    def refuse(old: Path, new: Path) -> None:
        if Path(old).name.endswith(".tmp"):
            raise OSError("the disk is full")
        replace(old, new)

    monkeypatch.setattr(os, "replace", refuse)

    def fill() -> None:
        with new_folder(path) as folder:
            (folder / "new").write_text("2", encoding="utf-8")

    with pytest.raises(OSError, match="disk is full"):
        fill()
    assert names(tmp_path) == ["step-1", "step-1/old"]


def test_digests() -> None:
    assert digest_of({"a": 1, "b": {"c": 2, "d": 3}}) == digest_of({"b": {"d": 3, "c": 2}, "a": 1})
    assert digest_of([1, 2]) != digest_of([2, 1])
    assert digest_of({"a": 1}) != digest_of({"a": "1"})
    # Stored in runs and stores on people's disks: it must not change.
    assert digest_of({"b": ["ü", None], "a": 1.5}) == hashlib.sha256('{"a":1.5,"b":["ü",null]}'.encode()).hexdigest()


def test_digest_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content" * 100_000)
    assert digest_of_file(tmp_path / "file") == hashlib.sha256(b"content" * 100_000).hexdigest()
