"""Folders of pictures with captions beside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tellapart.data.readers import read_dataset, read_folder
from tellapart.data.records import Record
from tellapart.errors import DataError


def test_a_folder_with_sidecars(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    (folder / "inner").mkdir(parents=True)
    for name in ("b.JPG", "a.png", "inner/a.webp", "inner/c.jpeg", "notes.pdf", "film.gif"):
        (folder / name).write_bytes(b"")
    (folder / "directory.jpg").mkdir()
    (folder / "b.txt").write_text(" A dog \r\n\n \nEin Hündchen\n", encoding="utf-8")
    dataset = read_dataset(folder)
    assert dataset.name == "photos"
    assert dataset.records == (
        Record("a.png", "a.png", "test", ()),
        Record("b.JPG", "b.JPG", "test", ("A dog", "Ein Hündchen")),
        Record("inner/a.webp", "inner/a.webp", "test", ()),
        Record("inner/c.jpeg", "inner/c.jpeg", "test", ()),
    )
    assert dataset.path(dataset.records[2]) == folder / "inner" / "a.webp"


def test_two_pictures_of_one_stem_are_two_images(tmp_path: Path) -> None:
    for name in ("a.jpg", "a.png"):
        (tmp_path / name).write_bytes(b"")
    assert [record.id for record in read_folder(tmp_path)] == ["a.jpg", "a.png"]


def test_a_folder_is_named_by_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert read_folder(Path()).name == tmp_path.name


def test_a_folder_without_pictures(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a dog", encoding="utf-8")
    with pytest.raises(DataError, match=r"no picture found; pictures end in \.jpeg, \.jpg, \.png, \.webp"):
        read_folder(tmp_path)
    (tmp_path / "a.heic").write_bytes(b"")
    with pytest.raises(DataError, match=r"no picture found; .*; 1 file is not read \(\.heic\): convert it to JPEG"):
        read_folder(tmp_path)


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / ".photos"  # what is named may be hidden
    for name in ("a.jpg", "._a.jpg", ".thumbs/a.jpg", "inner/.b.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    assert [record.id for record in read_folder(folder)] == ["a.jpg"]


def test_a_sidecar_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    (tmp_path / "a.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(DataError, match=r"a\.txt: not UTF-8 text"):
        read_folder(tmp_path)


def test_a_caption_is_not_cut_at_a_unicode_line_sign(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    (tmp_path / "a.txt").write_text("\ufeffone\u2028line\nanother", encoding="utf-8")
    assert read_folder(tmp_path).records[0].captions == ("one\u2028line", "another")


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (tmp_path / "a.jpg").write_bytes(b"")
    (folder / "a.jpg").symlink_to("../a.jpg")
    with pytest.raises(DataError, match=r"photos: 'a\.jpg' is outside the data set's folder"):
        read_folder(folder)


def test_a_name_in_another_encoding(tmp_path: Path) -> None:
    try:
        (tmp_path / os.fsdecode(b"caf\xe9.jpg")).write_bytes(b"")
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    with pytest.raises(DataError, match=r"a picture's name has .* not UTF-8 text"):
        read_folder(tmp_path)
