"""Karpathy's layout, and everything that can be wrong with it."""

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


def image(filename: str = "one.jpg", split: str = "train", *captions: str, **more: Any) -> dict[str, Any]:
    return {
        "filename": filename,
        "split": split,
        "sentences": [{"raw": caption} for caption in captions or ("a dog",)],
        **more,
    }


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(*images: Any, **top: Any) -> Path:
        path = tmp_path / "dataset_tiny.json"
        path.write_text(json.dumps({"images": list(images), **top}), encoding="utf-8")
        return path

    return make


def test_karpathy(write: Write, tmp_path: Path) -> None:
    path = write(
        image("b.jpg", "train", " A dog . ", "Ein Hündchen"),
        image("a.jpg", "restval", "a cat", family="cats"),
        image("c.png", "val", "a cow"),
        image("d.webp", "test", "a hen"),
        dataset="tiny",
    )
    dataset = read_dataset(path)
    assert dataset.name == "tiny"
    assert dataset.root == tmp_path
    assert dataset.records == (
        Record("b", "b.jpg", "train", ("A dog .", "Ein Hündchen")),
        Record("a", "a.jpg", "train", ("a cat",), "cats"),
        Record("c", "c.png", "val", ("a cow",)),
        Record("d", "d.webp", "test", ("a hen",)),
    )
    assert [record.id for record in dataset.split("train")] == ["b", "a"], "in the file's order"
    assert dataset.row("c") == 2
    assert dataset.path(dataset.records[3]) == tmp_path / "d.webp"


def test_a_folder_is_read_as_the_file_in_it(write: Write, tmp_path: Path) -> None:
    """Not as a folder of pictures without captions: that would encode them all under another name."""
    path = write(image("a.jpg"))
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").touch()
    assert read_dataset(tmp_path) == read_dataset(path)
    (tmp_path / "dataset_other.json").write_bytes(path.read_bytes())
    with pytest.raises(DataError, match=r"several data sets \(dataset_other.json, dataset_tiny.json\)"):
        read_dataset(tmp_path)


def test_the_name_is_the_file_s_when_none_is_given(write: Write) -> None:
    assert read_dataset(write(image())).name == "dataset_tiny"


def test_where_pictures_are_looked_for(write: Write, tmp_path: Path) -> None:
    path = write(image("one.jpg"), image("two.jpg", filepath="val2014"), image("three.jpg", filepath="a/b"))
    assert [record.image for record in read_dataset(path)] == ["one.jpg", "val2014/two.jpg", "a/b/three.jpg"]
    (tmp_path / "images").mkdir()
    assert [record.image for record in read_dataset(path)] == ["images/one.jpg", "val2014/two.jpg", "a/b/three.jpg"]


def test_the_digest_names_the_content_not_the_place(write: Write, tmp_path: Path) -> None:
    images = [image("a.jpg", "train", "a", "b"), image("b.jpg", "val", "c")]
    first = read_dataset(write(*images))
    other = tmp_path / "elsewhere"
    other.mkdir()
    moved = write(*images, dataset="renamed").rename(other / "x.json")
    assert read_dataset(moved).digest == first.digest
    for changed in (
        images[::-1],
        [image("a.jpg", "train", "b", "a"), images[1]],
        [image("a.jpg", "val", "a", "b"), images[1]],
        [image("a.png", "train", "a", "b"), images[1]],
        [image("a.jpg", "train", "a", "b", family="x"), images[1]],
        images[:1],
    ):
        assert read_dataset(write(*changed)).digest != first.digest


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ("text", r"images\[1\] is not an object"),
        ({"split": "train"}, r"images\[1\] has no 'filename'"),
        (image(""), r"images\[1\] has no 'filename'"),
        (image("x.jpg", "training"), r"images\[1\] \(x.jpg\): split is 'training'; it must be train, restval, val or"),
        (image("x.jpg", None), r"images\[1\] \(x.jpg\): split is None"),
        (image("../x.jpg"), r"images\[1\]: '\.\./x\.jpg' is outside the data set's folder"),
        (image("x.jpg", filepath="../.."), r"images\[1\]: .* is outside the data set's folder"),
        (image("/etc/passwd"), r"images\[1\]: '/etc/passwd' is outside the data set's folder"),
        (image("x.jpg", filepath="/etc"), r"images\[1\]: '/etc/x.jpg' is outside the data set's folder"),
        (image("x.jpg", filepath=None), r"images\[1\]: 'filepath' is None"),
        (image("x.jpg", filepath=3), r"images\[1\]: 'filepath' is 3"),
        (image("x\0.jpg"), r"images\[1\]"),
        (image("x.jpg", "train", ""), r"images\[1\] has a sentence without text in 'raw'"),
        (image("x.jpg", "train", " \n"), r"images\[1\] has a sentence without text in 'raw'"),
        (image("x.jpg", sentences=["a dog"]), r"images\[1\] has a sentence without text in 'raw'"),
        (image("x.jpg", sentences=[{"tokens": ["a"]}]), r"images\[1\] has a sentence without text in 'raw'"),
        (image("x.jpg", sentences=[]), r"images\[1\] has no 'sentences'"),
        ({"filename": "x.jpg", "split": "val"}, r"images\[1\] has no 'sentences'"),
        (image("one.png"), r"the id 'one' is used for two images"),
        (image("one.jpg", filepath="elsewhere"), r"the id 'one' is used for two images"),
    ],
)
def test_a_bad_image_is_named(write: Write, bad: Any, told: str) -> None:
    with pytest.raises(DataError, match=told):
        read_dataset(write(image("one.jpg"), bad))


def test_a_link_out_of_the_folder_is_refused(write: Write, tmp_path: Path) -> None:
    path = write(image("one.jpg", filepath="outside"))
    (tmp_path / "outside").symlink_to("/etc")
    with pytest.raises(DataError, match="is outside the data set's folder"):
        read_dataset(path)


@pytest.mark.parametrize("content", ["[]", "{}", '{"images": []}', '{"images": {}}', "null", "3"])
def test_json_in_another_layout(tmp_path: Path, content: str) -> None:
    path = tmp_path / "data.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"data\.json: not in Karpathy's layout"):
        read_dataset(path)


def test_files_that_are_not_json(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_bytes(b'{"images": ["\xe9"]}')
    with pytest.raises(DataError, match=r"data\.json: not UTF-8 text"):
        read_dataset(path)
    path.write_text('{"images": [\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"data\.json: not valid JSON \(line 2"):
        read_dataset(path)


def test_a_split_that_is_not_there(write: Write) -> None:
    dataset = read_dataset(write(image("a.jpg", "val"), image("b.jpg", "train")))
    with pytest.raises(DataError, match="no image is in the split 'test'; its splits are: train, val"):
        dataset.split("test")


def test_an_invalid_name_is_not_used(write: Write) -> None:
    """Feature stores go into a folder called by it."""
    for name in ("../../elsewhere", "a/b", "", ".hidden", 3, "\ud800", "x" * 200):
        assert read_dataset(write(image(), dataset=name)).name == "dataset_tiny"
    assert read_dataset(write(image(), dataset="MS COCO 2014")).name == "MS COCO 2014"


def test_a_name_keeps_its_blanks(write: Write) -> None:
    assert read_dataset(write(image(" one .jpg"))).records[0].image == " one .jpg"


@pytest.mark.parametrize(
    "bad", [image("\ud800.jpg"), image("x.jpg", filepath="\ud800"), image("x.jpg", "val", "\ud83d")]
)
def test_half_a_character_is_refused(write: Write, bad: Any) -> None:
    with pytest.raises(DataError, match=r"images\[1\] has .* not UTF-8 text"):
        read_dataset(write(image("one.jpg"), bad))


def test_a_picture_that_is_a_link_out_of_the_folder_is_refused(write: Write, tmp_path: Path) -> None:
    path = write(image("one.jpg"))
    (tmp_path / "one.jpg").symlink_to("/etc/passwd")
    with pytest.raises(DataError, match="is outside the data set's folder"):
        read_dataset(path)
    (tmp_path / "one.jpg").unlink()
    (tmp_path / "real.jpg").write_bytes(b"")
    (tmp_path / "one.jpg").symlink_to("real.jpg")
    assert len(read_dataset(path)) == 1


def test_coco_s_own_layout_under_another_name(write: Write) -> None:
    with pytest.raises(DataError, match=r"dataset_tiny\.json: .*in COCO's, .*call it captions_train2014\.json"):
        read_dataset(write(image(), annotations=[]))
