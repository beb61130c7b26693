"""Tables in four formats."""

from __future__ import annotations

import builtins
import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tellapart.data.readers import read_dataset
from tellapart.data.records import Record
from tellapart.errors import DataError, MissingExtraError

Rows = Sequence[dict[str, Any]]


def write_separated(path: Path, rows: Rows) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)


def write_lines(path: Path, rows: Rows) -> None:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")


def write_parquet(path: Path, rows: Rows) -> None:
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(list(rows)), path)


WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    ".csv": write_separated,
    ".tsv": write_separated,
    ".jsonl": write_lines,
    ".parquet": write_parquet,
}
FORMATS = pytest.mark.parametrize("suffix", WRITERS)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def make(suffix: str, *rows: dict[str, Any]) -> Path:
        path = tmp_path / f"pets{suffix}"
        WRITERS[suffix](path, rows)
        return path

    return make


Write = Callable[..., Path]


@FORMATS
def test_rows_of_one_image_are_its_captions(write: Write, tmp_path: Path, suffix: str) -> None:
    path = write(
        suffix,
        {"image": "in/a.jpg", "caption": ' "A dog", he said. ', "split": "train", "id": "7", "more": "x"},
        {"image": "b.jpg", "caption": "a cat\n🐈", "split": "validation", "id": "8", "more": "x"},
        {"image": "in/a.jpg", "caption": "Ein\tHündchen", "split": "train", "id": "7", "more": "x"},
    )
    dataset = read_dataset(path)
    assert (dataset.name, dataset.root) == ("pets", tmp_path)
    assert dataset.records == (
        Record("7", "in/a.jpg", "train", ('"A dog", he said.', "Ein\tHündchen")),
        Record("8", "b.jpg", "val", ("a cat\n🐈",)),
    )


@FORMATS
@pytest.mark.parametrize("image", ["image", "File", "filename", "path", "file_name"])
@pytest.mark.parametrize("caption", ["caption", "text", "sentence", "Captions"])
def test_names_of_columns(write: Write, suffix: str, image: str, caption: str) -> None:
    dataset = read_dataset(write(suffix, {image: "a/1.jpg", caption: "one"}, {image: "b/1.jpg", caption: "two"}))
    assert dataset.records == (
        Record("a/1.jpg", "a/1.jpg", "test", ("one",)),
        Record("b/1.jpg", "b/1.jpg", "test", ("two",)),
    )


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_list_of_captions(write: Write, suffix: str) -> None:
    dataset = read_dataset(write(suffix, {"image": "a.jpg", "captions": ["one", "two"], "id": 3}))
    assert dataset.records == (Record("3", "a.jpg", "test", ("one", "two")),)


def test_where_pictures_are_looked_for(write: Write, tmp_path: Path) -> None:
    path = write(".csv", {"image": "a.jpg", "caption": "x"}, {"image": "in/b.jpg", "caption": "y"})
    (tmp_path / "images").mkdir()
    assert [record.image for record in read_dataset(path)] == ["images/a.jpg", "in/b.jpg"]


def row(**changed: Any) -> dict[str, Any]:
    return {"image": "b.jpg", "caption": "a cat", "split": "val", "id": "2"} | changed


@FORMATS
@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (row(image=""), "has no image"),
        (row(image="../b.jpg"), "is outside the data set's folder"),
        (row(image="/etc/passwd"), "is outside the data set's folder"),
        (row(caption=" "), "has a caption without text"),
        (row(split="dogs"), "split is 'dogs'; it must be one of train, val, test"),
        (row(split=""), "split is ''"),
        (row(id=" "), "has no id"),
        (row(id="1"), "the id '1' is used for two images"),
        (row(image="a.jpg"), "'a.jpg' is '2' in val here and '1' in train above"),
        (row(image="a.jpg", id="1"), "an image has one id and one split"),
    ],
)
def test_bad_rows(write: Write, suffix: str, bad: dict[str, Any], told: str) -> None:
    path = write(suffix, {"image": "a.jpg", "caption": "a dog", "split": "train", "id": "1"}, bad)
    where = r"pets: " if "is used for two" in told else rf"pets\{suffix}: (row 2|line 3)\b.*"
    with pytest.raises(DataError, match=where + told):
        read_dataset(path)


@FORMATS
def test_columns_that_are_not_there(write: Write, suffix: str) -> None:
    told = rf"pets\{suffix}: no column for the caption \(one of caption, text, .*\); its columns are: image, words"
    with pytest.raises(DataError, match=told):
        read_dataset(write(suffix, {"image": "a.jpg", "words": "a dog"}))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.csv", b"", "no column for the image"),
        ("a.csv", b"image,caption\n", "the table has no rows"),
        ("a.csv", b"image,caption\na.jpg,a dog, a cat\n", "line 2 has 3 cells, the first line has 2; .* quotes"),
        ("a.csv", b'image,caption\na.jpg,"a dog\n', r"line 2 cannot be read \(unexpected end of data\)"),
        ("a.csv", b'image,caption\na.jpg,"a" dog\n', "line 2 cannot be read"),
        ("a.csv", b"image,caption\na.jpg,caf\xe9\n", "not UTF-8 text"),
        ("a.tsv", b"image\tcaption\na.jpg\tcaf\xe9\n", "not UTF-8 text"),
        ("a.jsonl", b'{"image": "a.jpg", "caption": "caf\xe9"}', "not UTF-8 text"),
        ("a.jsonl", b'{"image": "a.jpg", "caption": "\\ud83d"}', "row 1 has .* not UTF-8 text"),
        ("a.jsonl", b'{"image": "a.jpg", "caption": "a"}\n{', "line 2 is not valid JSON"),
        ("a.jsonl", b"[]", "row 1 is not an object"),
        ("a.jsonl", b"", "no column for the image"),
        ("a.jsonl", b'{"image": "a.jpg", "caption": ["a", ""]}', "row 1 has a caption without text"),
        ("a.jsonl", b'{"image": "a.jpg", "caption": []}', "row 1 has a caption without text"),
        ("a.jsonl", b'{"image": {"bytes": "x"}, "caption": "a"}', "row 1 has no image name"),
        ("a.jsonl", b'{"image":"a","text":"a","split":"val"}\n{"image":"b","text":"a"}', "row 2: split is None"),
        ("a.parquet", b"PAR1 but not really", r"cannot be read as Parquet"),
        ("a.parquet", b"", r"cannot be read as Parquet"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    if name == "a.parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}: {told}"):
        read_dataset(path)


def test_invalid_utf8_in_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    captions = arrow.Array.from_buffers(
        arrow.utf8(), 1, [None, arrow.array([0, 4], arrow.int32()).buffers()[1], arrow.py_buffer(b"caf\xe9")]
    )
    parquet.write_table(arrow.table({"image": arrow.array(["a.jpg"]), "caption": captions}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: not UTF-8 text near row 1"):
        read_dataset(tmp_path / "a.parquet")


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"")
    real = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pyarrow is not installed; .*'tellapart\[tables\]'"):
        read_dataset(tmp_path / "a.parquet")


def test_a_table_from_excel(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("\ufeffImage, Caption\r\na.jpg, a dog\r\n\r\n".encode())
    assert read_dataset(tmp_path / "a.csv").records == (Record("a.jpg", "a.jpg", "test", ("a dog",)),)
