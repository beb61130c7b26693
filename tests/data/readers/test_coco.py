"""COCO's caption files, with their own splits and with lists."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tellapart.data.readers import read_dataset
from tellapart.data.records import Record
from tellapart.errors import DataError

Write = Callable[..., Path]


def content(*images: tuple[int, str], captions: list[tuple[int, Any]] | None = None) -> dict[str, Any]:
    said = captions if captions is not None else [(id, f"caption of {id}") for id, _ in images]
    return {
        "info": {"year": 2014},
        "images": [{"id": id, "file_name": name, "height": 3} for id, name in images],
        "annotations": [{"id": 100 + n, "image_id": id, "caption": text} for n, (id, text) in enumerate(said)],
    }


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(value: Any, name: str = "annotations/captions_train2014.json") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
        return path

    return make


@pytest.fixture
def coco(write: Write, tmp_path: Path) -> Path:
    train = [(9, "COCO_train2014_000000000009.jpg"), (25, "COCO_train2014_000000000025.jpg")]
    write(content(*train, captions=[(25, " a giraffe \n"), (9, "food"), (25, "two giraffes")]))
    val = [(id, f"COCO_val2014_{id:012}.jpg") for id in (42, 73)]
    write(content(*val), "annotations/captions_val2014.json")
    write("{}", "annotations/instances_train2014.json")
    return tmp_path


def test_a_folder(coco: Path) -> None:
    dataset = read_dataset(coco)
    assert (dataset.name, dataset.root, dataset.left_out) == ("coco2014", coco, 0)
    assert dataset.records == (
        Record("9", "train2014/COCO_train2014_000000000009.jpg", "train", ("food",)),
        Record("25", "train2014/COCO_train2014_000000000025.jpg", "train", ("a giraffe", "two giraffes")),
        Record("42", "val2014/COCO_val2014_000000000042.jpg", "val", ("caption of 42",)),
        Record("73", "val2014/COCO_val2014_000000000073.jpg", "val", ("caption of 73",)),
    )


def test_one_file(coco: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = coco / "annotations" / "captions_val2014.json"
    dataset = read_dataset(path)
    assert dataset.name == "captions_val2014"
    assert dataset.path(dataset.records[0]) == coco / "val2014" / "COCO_val2014_000000000042.jpg"
    monkeypatch.chdir(path.parent)
    assert read_dataset(Path(path.name)).root == coco
    beside = write(content((1, "000000000001.jpg")), "captions_val2017.json")
    dataset = read_dataset(beside)
    assert dataset.path(dataset.records[0]) == coco / "val2017" / "000000000001.jpg"


def test_where_pictures_are_looked_for(coco: Path) -> None:
    (coco / "images").mkdir()
    assert read_dataset(coco).records[0].image == "images/COCO_train2014_000000000009.jpg"
    (coco / "images" / "train2014").mkdir()
    images = [record.image for record in read_dataset(coco)]
    assert images[0] == "images/train2014/COCO_train2014_000000000009.jpg"
    assert images[2] == "images/COCO_val2014_000000000042.jpg"


def test_lists_decide_the_splits(coco: Path, write: Write) -> None:
    write("COCO_val2014_000000000042.jpg\n\n25\r\n", "splits/ms_coco_train_list.txt")
    write("val2014/COCO_val2014_000000000073.jpg", "splits/ms_coco_test_list.txt")
    write("not a list", "splits/readme.txt")
    dataset = read_dataset(coco)
    assert dataset.name == "coco2014-splits"
    assert [(record.id, record.split) for record in dataset] == [("42", "train"), ("25", "train"), ("73", "test")]
    assert dataset.records[0].image == "val2014/COCO_val2014_000000000042.jpg"
    assert dataset.left_out == 1


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("val.txt", "9\n99\n", r"val\.txt: line 2: '99' has no captions"),
        ("val.txt", "COCO_val2014_000000000001.jpg", r"val\.txt: line 1: 'COCO_val2014_000000000001.jpg' has no cap"),
        ("val.txt", "9\nCOCO_train2014_000000000009.jpg", r"val\.txt: line 2: .* is listed twice"),
        ("val.txt", "", r"splits: no list with train, val or test in its name names an image"),
        ("images.txt", "9", r"splits: no list with train, val or test in its name names an image"),
    ],
)
def test_bad_lists(coco: Path, write: Write, name: str, text: str, told: str) -> None:
    write(text, f"splits/{name}")
    with pytest.raises(DataError, match=told):
        read_dataset(coco)


def test_an_image_in_two_lists(coco: Path, write: Write) -> None:
    write("9", "splits/train.txt")
    write("9", "splits/test.txt")
    with pytest.raises(DataError, match=r"test\.txt: line 1: '9' is listed twice"):
        read_dataset(coco)


def test_two_years_share_their_images(coco: Path, write: Write) -> None:
    write(content((9, "000000000009.jpg")), "annotations/captions_train2017.json")
    with pytest.raises(DataError, match="captions of 2014 and 2017, which share images"):
        read_dataset(coco)


ONE = (1, "1.jpg")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("[]", "not in COCO's layout"),
        ("{}", "not in COCO's layout"),
        ({"images": [], "annotations": []}, "not in COCO's layout"),
        ({"images": [{}]}, "not in COCO's layout"),
        ("{", r"not valid JSON \(line 1"),
        ({"images": ["x"], "annotations": []}, r"images\[0\] is not an object"),
        ({"images": [{"id": True}], "annotations": []}, r"images\[0\]: 'id' is True"),
        ({"images": [{"id": 1}], "annotations": []}, r"images\[0\] has no 'file_name'"),
        (content(ONE, (1, "2.jpg")), r"images\[1\]: the id 1 is used for two images"),
        (content((1, "../../1.jpg")), r"images\[0\]: .* is outside the data set's folder"),
        (content((1, "/etc/passwd")), r"images\[0\]: '/etc/passwd' is outside the data set's folder"),
        (content(ONE, captions=[(1, "a"), (2, "b")]), r"annotations\[1\]: there is no image 2 in this file"),
        (content(ONE, captions=[(1, " ")]), r"annotations\[0\] has a caption without text"),
        (content(ONE, captions=[(1, None)]), r"annotations\[0\] has a caption without text"),
        (content(ONE, captions=[(1, "\ud83d")]), r"annotations\[0\] has .* not UTF-8"),
        (content(ONE, captions=[]), r"the image 1 \(1\.jpg\) has no caption"),
        ({"images": [{"id": 1, "file_name": "a"}], "annotations": [3]}, r"annotations\[0\] is not an object"),
    ],
)
def test_errors(write: Write, tmp_path: Path, value: Any, told: str) -> None:
    write(value)
    with pytest.raises(DataError, match=rf"captions_train2014\.json: {told}"):
        read_dataset(tmp_path)


def test_invalid_utf8(write: Write) -> None:
    path = write("{}")
    path.write_bytes(b'{"images": "\xe9"}')
    with pytest.raises(DataError, match=r"captions_train2014\.json: not UTF-8 text"):
        read_dataset(path)


# --- images without captions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("image_info_test2014", "test2014"),
        ("image_info_test-dev2015", "test2015"),
        ("image_info_unlabeled2017", "unlabeled2017"),
    ],
)
def test_a_list_of_images(write: Write, tmp_path: Path, name: str, folder: str) -> None:
    images = [{"id": 7, "file_name": "COCO_test2014_000000000007.jpg"}, {"id": 3, "file_name": "b.jpg"}]
    path = write({"images": images, "categories": []}, f"annotations/{name}.json")
    dataset = read_dataset(path)
    assert (dataset.name, dataset.root) == (name, tmp_path)
    assert dataset.records == (
        Record("7", f"{folder}/COCO_test2014_000000000007.jpg", "test", ()),
        Record("3", f"{folder}/b.jpg", "test", ()),
    )
    assert [record.cocoid for record in dataset] == [7, 3]
    (path.parent / folder).mkdir()
    assert read_dataset(path).root == path.parent, "the pictures are beside the file"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([], "not in COCO's layout"),
        ({"images": []}, "not in COCO's layout"),
        ({"images": [{"id": 7, "file_name": "a"}, {"id": 7, "file_name": "b"}]}, "the id 7 is used for two images"),
        ({"images": [{"id": "7", "file_name": "a"}]}, "'id' is '7'; it must be a whole number"),
        ({"images": [{"id": 7}]}, "has no 'file_name'"),
    ],
)
def test_a_list_of_images_that_is_wrong(write: Write, value: Any, told: str) -> None:
    with pytest.raises(DataError, match=rf"image_info_test2014\.json: .*{told}"):
        read_dataset(write(value, "image_info_test2014.json"))
