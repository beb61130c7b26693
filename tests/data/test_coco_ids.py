"""COCO's image ids: given by the data set or in file names, never made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tellapart.data.coco_ids import coco_id, coco_id_in_name, coco_ids
from tellapart.data.readers import read_dataset
from tellapart.data.records import Record
from tellapart.errors import DataError


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("COCO_val2014_000000391895.jpg", 391895),
        ("COCO_test2015_000000000001.jpg", 1),
        ("val2014/COCO_val2014_000000391895", 391895),
        ("000000391895.jpg", 391895),
        ("images/000000391895.JPEG", 391895),
        ("000000391895", 391895),
        # Numbers of other data sets.
        ("1000092795.jpg", None),
        ("42.jpg", None),
        ("0000000391895.jpg", None),
        ("COCO_dev2014_000000391895.jpg", None),
        ("000000391895.txt", None),
        ("\u0661" * 12 + ".jpg", None),
        ("", None),
    ],
)
def test_numbers_in_names(name: str, number: int | None) -> None:
    assert coco_id_in_name(name) == number


def test_the_data_sets_own_number_comes_first() -> None:
    record = Record("a", "images/000000000009.jpg", "test", ())
    assert coco_id(record) == 9
    assert coco_id(Record("a", "images/000000000009.jpg", "test", (), cocoid=25)) == 25
    assert coco_id(Record("000000000009", "shard.tar/a.jpg", "test", ())) == 9
    assert coco_id(Record("9", "9.jpg", "test", ())) is None


def test_every_image_needs_its_own() -> None:
    good = [Record("a", "000000000009.jpg", "test", ()), Record("b", "000000000003.jpg", "test", ())]
    assert coco_ids(good) == [9, 3]
    with pytest.raises(DataError, match=r"^b/c\.jpg: this image has no COCO id"):
        coco_ids([*good, Record("c", "b/c.jpg", "test", ()), Record("d", "d.jpg", "test", ())])
    with pytest.raises(DataError, match=r"^d\.jpg: has the COCO id 9, and so has 000000000009\.jpg"):
        coco_ids([*good, Record("d", "d.jpg", "test", (), cocoid=9)])


def karpathy(tmp_path: Path, **more: Any) -> Path:
    image = {"filename": "one.jpg", "split": "test", "sentences": [{"raw": "a dog"}], **more}
    path = tmp_path / "dataset.json"
    path.write_text(json.dumps({"images": [image]}))
    return path


def test_karpathys_numbers_do_not_change_the_digest(tmp_path: Path) -> None:
    plain = read_dataset(karpathy(tmp_path))
    numbered = read_dataset(karpathy(tmp_path, cocoid=391895, imgid=0))
    (record,) = numbered.records
    assert (record.cocoid, record.imgid) == (391895, 0)
    assert (plain.records[0].cocoid, plain.records[0].imgid) == (None, None)
    assert numbered.digest == plain.digest
    assert numbered.records == plain.records


@pytest.mark.parametrize("key", ["cocoid", "imgid"])
@pytest.mark.parametrize("value", ["7", 7.0, True, -1, [7]])
def test_numbers_that_are_none(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(DataError, match=rf"images\[0\]: '{key}' is .*; it must be a whole number, or be left out"):
        read_dataset(karpathy(tmp_path, **{key: value}))


def test_cocos_own_files_give_the_ids(tmp_path: Path) -> None:
    path = tmp_path / "captions_val2014.json"
    content = {
        "images": [{"id": 42, "file_name": "a.jpg"}],
        "annotations": [{"image_id": 42, "caption": "a dog"}],
    }
    path.write_text(json.dumps(content))
    assert coco_ids(read_dataset(path).records) == [42]
