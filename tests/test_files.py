"""Files are seen whole or not at all, and errors name the file and the line."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tellapart.errors import DataError
from tellapart.files import (
    GENERATOR,
    check_output,
    digest_of,
    digest_of_file,
    find_or_make,
    find_or_make_rows,
    lock,
    new_folder,
    read_json,
    read_jsonl,
    remove_old_temporary_files,
    remove_temporary_files,
    temporary_path,
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


def test_a_new_folder_replaces_the_old_one_and_no_other(tmp_path: Path) -> None:
    others = ["step-1.old", "step-1.tmp"]
    for name in ("step-1", *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old").write_text("1", encoding="utf-8")
    with new_folder(tmp_path / "step-1") as folder:
        (folder / "new").write_text("2", encoding="utf-8")
    assert names(tmp_path) == ["step-1", "step-1.old", "step-1.old/old", "step-1.tmp", "step-1.tmp/old", "step-1/new"]


def test_a_file_with_the_name_of_a_new_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "step-1").write_text("mine", encoding="utf-8")
    with pytest.raises(OSError, match=r"step-1'$"), new_folder(tmp_path / "step-1") as folder:
        (folder / "new").write_text("2", encoding="utf-8")
    assert names(tmp_path) == ["step-1"]
    assert (tmp_path / "step-1").read_text(encoding="utf-8") == "mine"


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real", target_is_directory=True)
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    write_text(tmp_path / "link.txt", "text")
    with new_folder(tmp_path / "link") as folder:
        (folder / "new").write_text("2", encoding="utf-8")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "link.txt").is_symlink()
    assert names(tmp_path / "real") == ["new"]
    assert (tmp_path / "real.txt").read_text(encoding="utf-8") == "text"


def test_several_processes_write_the_same(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from tellapart.files import new_folder, write_text
for number in range(60):
    write_text(Path({str(tmp_path)!r}) / "new" / "file.txt", "text" * 1000)
    with new_folder(Path({str(tmp_path)!r}) / "folder") as folder:
        (folder / "one").write_text("1")
        (folder / "two").write_text("2")
"""
    running = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in running:
        assert process.communicate()[1] == ""
    assert names(tmp_path) == ["folder", "folder/one", "folder/two", "new", "new/file.txt"]
    assert (tmp_path / "new" / "file.txt").read_text(encoding="utf-8") == "text" * 1000


def test_only_temporary_files_of_ours_are_removed(tmp_path: Path) -> None:
    kept = ["file.tmp", ".tellapart-notes", ".tellapart-0123456789abcdef.txt", "folder.old"]
    for name in kept:
        (tmp_path / name).write_text("mine", encoding="utf-8")
    unfinished = temporary_path(tmp_path / "step-1")
    unfinished.mkdir()
    (unfinished / "half").write_text("1", encoding="utf-8")
    temporary_path(tmp_path / "last").write_text("1", encoding="utf-8")
    remove_temporary_files(tmp_path)
    assert names(tmp_path) == sorted(kept)


def test_old_temporary_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    yesterday = time.time() - 25 * 60 * 60

    def write(name: str, old: bool = True) -> str:
        (tmp_path / name).write_text("1", encoding="utf-8")
        if old:
            os.utime(tmp_path / name, (yesterday, yesterday))
        return name

    gone, running = f"{ended.pid:08x}", f"{os.getpid():08x}"
    kept = [
        write(f".tellapart-{running}00000001"),
        write(f".tellapart-{gone}00000002", old=False),
        write(f".tellapart-{gone}00000003.txt"),
        write(f"tellapart-{gone}00000004"),
        write(f".tellapart-{gone}0000000"),
        write(f".tellapart-{gone}0000000g"),
        write("scores.json"),
    ]
    write(f".tellapart-{gone}00000005")
    write(".tellapart-ffffffff00000006")  # of an earlier version: all digits were random
    folder = tmp_path / f".tellapart-{gone}00000007"
    folder.mkdir()
    (folder / "half").write_text("1", encoding="utf-8")
    os.utime(folder, (yesterday, yesterday))
    remove_old_temporary_files(tmp_path)
    assert names(tmp_path) == sorted(kept)
    remove_old_temporary_files(tmp_path / "nowhere")
    remove_old_temporary_files(tmp_path / "scores.json")


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine", encoding="utf-8")
    temporary = tmp_path / ".tellapart-ffffffff00000001"
    temporary.symlink_to(tmp_path / "mine")
    os.utime(temporary, (0, 0), follow_symlinks=False)
    remove_old_temporary_files(tmp_path)
    assert names(tmp_path) == ["mine", "mine/file"]


def test_making_a_derived_file_removes_old_temporary_files(tmp_path: Path) -> None:
    for make in (lambda: find_or_make(tmp_path / "a.json", 1, dict, dict), lambda: find_rows(tmp_path, 1, [])):
        old = tmp_path / ".tellapart-ffffffff00000001"
        old.write_text("1", encoding="utf-8")
        os.utime(old, (0, 0))
        make()
        assert not old.exists()


@pytest.mark.parametrize("error", [OSError("the disk is full"), OSError(errno.ENOSPC, "No space left on device")])
def test_an_error_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    def refuse(_: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match=error.strerror or "disk is full") as caught:
        write_text(tmp_path / "file.txt", "text")
    assert caught.value.filename == str(tmp_path / "file.txt")
    assert names(tmp_path) == []


# --- outputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"id": "a", "caption": "b", "more": 1}\n{"id": 1}\n'),
        ("a.txt", '{"id": "a", "captions": ["b"]}'),
        ("a.json", '{\n  "id": "a",\n  "caption": {"b": []}\n}\n'),
        ("a.json", '[\n  {"id": "a", "caption": "b"}\n]\n'),
        ("a.html", f"<head>{GENERATOR}<title>id</title>caption|captions"),
        ("a.jsonl", ""),
    ],
)
def test_a_result_is_written_again(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    check_output(tmp_path / name, "id", "caption|captions")
    assert names(tmp_path) == [name]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("notes.txt", b"dear diary"),
        ("a.jpg", b"\xff\xd8\xff\xe0"),
        ("a.jsonl", b'{"id": "a"}\n{"id": "a", "caption": "b"}\n'),
        ("a.json", b'{"id": "a", "capt'),
        ("a.json", b"[" * 100_000),
        ("a.json", b"1" * 5000),
        ("a.json", b"[]"),
        ("a.jsonl", b'"id caption"'),
        ("a.html", b"<p>my page</p>"),
        ("a.md", b"# Notes"),
    ],
)
def test_a_file_of_the_users_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}: exists and was not written by tellapart; choose another --out"):
        check_output(tmp_path / name, "id", "caption|captions")
    assert (tmp_path / name).read_bytes() == content


def test_devices_and_inputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"/dev/full: exists and was not written by tellapart"):
        check_output(Path("/dev/full"), "id")
    (tmp_path / "rows.jsonl").write_text('{"id": 1}', encoding="utf-8")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "rows.jsonl")
    with pytest.raises(DataError, match=r"link\.jsonl: is an input and is not overwritten"):
        check_output(tmp_path / "link.jsonl", "id", inputs=[tmp_path / "rows.jsonl"])
    with pytest.raises(DataError, match=r"new\.jpg: is an input"):
        check_output(tmp_path / "new.jpg", inputs=[str(tmp_path / "new.jpg")])


def test_an_output_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(DataError, match=rf"{tmp_path}: this is a folder, and a file is needed"):
        check_output(tmp_path)
    with pytest.raises(DataError, match=r"file: this is a file, and a folder is needed"):
        check_output(tmp_path / "file" / "inner" / "rows.jsonl")
    with pytest.raises(DataError, match=r"File name too long"):
        check_output(tmp_path / ("long" * 100))
    check_output(tmp_path / "new" / "inner" / "rows.jsonl")
    assert names(tmp_path) == ["file"], "a check leaves nothing"

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"new: files cannot be written here \(No space left on device\); make room"):
        check_output(tmp_path / "new" / "rows.jsonl")
    (tmp_path / "rows.jsonl").write_text('{"id": 1}', encoding="utf-8")
    check_output(tmp_path / "rows.jsonl", "id", reuse=True)
    assert names(tmp_path) == ["file", "rows.jsonl"]


def test_a_derived_file_is_not_computed_if_it_cannot_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for find in (find_or_make, find_or_make_rows):
        with pytest.raises(DataError, match="this is a file, and a folder is needed"):
            find(tmp_path / "file" / "scores.json", 1, lambda: pytest.fail("computed in vain"), dict)


def find_rows(folder: Path, made_from: Any, rows: list[int]) -> list[Any]:
    return find_or_make_rows(folder / "rows.jsonl", made_from, lambda: rows, int)


class Killed(BaseException):
    """What `make` is interrupted by."""


def killed() -> Any:
    raise Killed


def test_an_interrupted_remake_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    find_or_make(path, "a", lambda: {"value": 1}, dict)
    assert find_rows(tmp_path, "a", [1, 2]) == [1, 2]
    before = {name: (tmp_path / name).read_bytes() for name in ("scores.json", "rows.jsonl")}
    with pytest.raises(Killed):
        find_or_make(path, "b", killed, dict)
    with pytest.raises(Killed):
        find_or_make_rows(tmp_path / "rows.jsonl", "b", killed, int)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    # `make` of the rows only returns them, so the old ones are still right.
    assert find_rows(tmp_path, "a", []) == [1, 2]


def test_after_an_interruption_files_that_may_not_belong_together_are_made_again(tmp_path: Path) -> None:
    """`make` also writes files beside the derived one, as `per_image.jsonl` beside `scores.json`."""
    path, beside = tmp_path / "scores.json", tmp_path / "beside.txt"

    def make(value: int) -> dict[str, Any]:
        beside.write_text(str(value), encoding="utf-8")
        return {"value": value}

    def make_and_die() -> dict[str, Any]:
        make(2)
        raise Killed

    find_or_make(path, "a", lambda: make(1), dict)
    with pytest.raises(Killed):
        find_or_make(path, "b", make_and_die, dict)
    assert find_or_make(path, "a", lambda: make(1), dict)["value"] == 1
    assert beside.read_text(encoding="utf-8") == "1"
    assert find_or_make(path, "a", lambda: pytest.fail("made twice"), dict)["value"] == 1


@pytest.mark.parametrize("survived", [0, 1, 2])
def test_killed_while_rows_are_replaced(tmp_path: Path, survived: int, monkeypatch: pytest.MonkeyPatch) -> None:
    find_rows(tmp_path, "a", [1])
    replace, replaced = os.replace, []

    def replace_some(old: Path, new: Path) -> None:
        if len(replaced) == survived:
            raise Killed
        replaced.append(new)
        replace(old, new)

    monkeypatch.setattr(os, "replace", replace_some)
    with pytest.raises(Killed):
        find_rows(tmp_path, "b", [2])
    monkeypatch.undo()
    assert (tmp_path / "rows.jsonl").read_text(encoding="utf-8") == ("2\n" if survived == 2 else "1\n")
    assert find_rows(tmp_path, "a", [1]) == [1], "never the rows of b"
    assert find_rows(tmp_path, "b", [2]) == [2]


MAKER = """
import sys, time
from pathlib import Path
from tellapart.files import find_or_make, find_or_make_rows

folder, number = Path(sys.argv[1]), int(sys.argv[2])

def make(value):
    time.sleep(0.02)
    return value

for turn in range(15):
    which = (turn + number) % 2
    assert find_or_make(folder / "a.json", which, lambda: make({"value": which}), dict)["value"] == which
    rows = [which] * (5 + 5 * which)
    assert find_or_make_rows(folder / "b.jsonl", which, lambda: make(rows), int) == rows
"""


def test_processes_that_make_the_same_file_of_different_inputs(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", MAKER, tmp_path, str(number)], stderr=subprocess.PIPE, text=True)
        for number in range(3)
    ]
    for process in processes:
        told = process.communicate()[1]
        assert process.returncode == 0, told
        assert all("another process is making this file" in line for line in told.splitlines()), told
    assert names(tmp_path) == [".b.jsonl.made_from", "a.json", "b.jsonl"]


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    with lock(tmp_path / "new" / ".lock", wait=False) as first, lock(tmp_path / "new" / ".lock", wait=False) as second:
        assert (first, second) == (True, False)
    with lock(tmp_path / "new" / ".lock") as again:
        assert again


LOCKER = """
import os, sys
from pathlib import Path
from tellapart.files import lock

folder = Path(sys.argv[1])
for _ in range(200):
    with lock(folder / ".lock"):
        with open(folder / "inside", "x"):
            pass
        os.unlink(folder / "inside")
        os.unlink(folder / ".lock")
"""


def test_a_lock_whose_file_is_removed_has_one_holder(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", LOCKER, tmp_path], stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for process in processes:
        assert process.communicate()[1] == ""
    assert names(tmp_path) == []


def test_a_failed_new_folder_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "step-1"
    path.mkdir()
    (path / "old").write_text("1", encoding="utf-8")
    replace = os.replace

    moves: list[Path] = []

    def refuse(old: Path, new: Path) -> None:
        moves.append(new)
        if len(moves) == 2:
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
