"""Which reader reads a source, and checks that all readers share."""

from __future__ import annotations

import json
import pkgutil
import tarfile
from pathlib import Path

import pytest

from tellapart.data import readers
from tellapart.data.readers import read_dataset
from tellapart.data.readers.checks import split_in_name
from tellapart.data.records import Dataset, Record
from tellapart.errors import DataError


def test_every_module_is_a_listed_reader() -> None:
    modules = {module.name for module in pkgutil.iter_modules(readers.__path__, f"{readers.__name__}.")}
    assert {vars(reader)["__name__"] for reader in readers.READERS} == modules - {f"{readers.__name__}.checks"}


@pytest.mark.parametrize("reader", readers.READERS)
def test_no_reader_matches_what_is_not_there(reader: readers.Reader, tmp_path: Path) -> None:
    assert not reader.matches(tmp_path / "nowhere")


def test_unknown_sources(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.json: this data set does not exist"):
        read_dataset(tmp_path / "data.json")
    with pytest.raises(DataError, match=r"nowhere: .*; give a Karpathy \.json file, a folder of pictures, or 'scenes'"):
        read_dataset(tmp_path / "nowhere")
    (tmp_path / "data.xls").write_text("a,b", encoding="utf-8")
    with pytest.raises(DataError, match=r"data\.xls: this kind of file is not read"):
        read_dataset(tmp_path / "data.xls")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("Flickr_8k.trainImages.txt", "train"),
        ("Flickr_8k.devImages.txt", "val"),
        ("Flickr_8k.testImages.txt", "test"),
        ("ms_coco_val_list_mRNN.txt", "val"),
        ("flickr30ktrain.txt", "train"),
        ("cocoTest.txt", "test"),
        ("validation-0001.tar", "val"),
        ("trainval.txt", None),
        ("train_test.txt", None),
        ("retrieval-0001.tar", None),
        ("latest.tar", None),
        ("readme.txt", None),
    ],
)
def test_splits_in_names(name: str, split: str | None) -> None:
    assert split_in_name(name) == split


def test_a_tar_beside_photographs_is_not_the_data_set(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    with tarfile.open(tmp_path / "backup.tar", "w") as tar:
        tar.add(tmp_path / "a.jpg", "b.jpg")
    assert [record.id for record in read_dataset(tmp_path)] == ["a.jpg"]
    (tmp_path / "a.jpg").unlink()
    assert [record.id for record in read_dataset(tmp_path)] == ["b"]


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    content = {"images": [{"filename": "a.jpg", "split": "val", "sentences": [{"raw": "a dog"}]}]}
    (tmp_path / "data.json").write_text(json.dumps(content), encoding="utf-8-sig")
    assert len(read_dataset(tmp_path / "data.json")) == 1


def test_ids_are_unique_in_any_data_set() -> None:
    same = Record("1", "1.jpg", "train", ())
    with pytest.raises(DataError, match="twice: the id '1' is used for two images"):
        Dataset("twice", Path(), (same, Record("2", "2.jpg", "train", ()), same))
