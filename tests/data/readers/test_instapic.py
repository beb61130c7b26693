"""InstaPIC-1.1M: users, posts, one caption each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tellapart.data.readers import instapic, read_dataset
from tellapart.data.records import Record
from tellapart.errors import DataError


def write(folder: Path, which: str, content: Any) -> None:
    path = folder / "json" / f"insta-caption-{which}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def posts(*captions: Any, first: int = 0) -> dict[str, Any]:
    return {str(first + n): {"caption": text, "tags": ["#x"]} for n, text in enumerate(captions)}


def test_users_and_posts(tmp_path: Path) -> None:
    write(tmp_path, "train", {"ann": posts(*"abcdefgh"), "bob": posts("sunset 🌅❤️", " late ", first=50)})
    write(tmp_path, "test1", {"cem": posts("test")})
    write(tmp_path, "test2", {"dan": posts("not read")})
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "bob_@_50.jpg").write_bytes(b"")
    (tmp_path / "images" / "bob_@_51").write_bytes(b"")
    dataset = read_dataset(tmp_path)
    assert (dataset.name, dataset.root, len(dataset)) == ("instapic", tmp_path, 11)
    assert dataset.records[0] == Record("ann_@_0", "images/ann_@_0", "train", ("a",))
    assert dataset.records[8:] == (
        Record("bob_@_50", "images/bob_@_50.jpg", "train", ("sunset 🌅❤️",)),
        Record("bob_@_51", "images/bob_@_51", "val", ("late",)),
        Record("cem_@_0", "images/cem_@_0", "test", ("test",)),
    )


@pytest.mark.parametrize(("count", "validation"), [(9, 0), (199, 19), (200, 20), (230, 20)])
def test_validation_is_the_end_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, validation: int
) -> None:
    assert instapic.VALIDATION == 2000
    monkeypatch.setattr(instapic, "VALIDATION", 20)
    write(tmp_path, "train", {"ann": posts(*["a"] * count)})
    splits = [record.split for record in read_dataset(tmp_path)]
    assert splits == ["train"] * (count - validation) + ["val"] * validation


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[]", "not in InstaPIC's layout"),
        ("{}", "not in InstaPIC's layout"),
        ("{", "not valid JSON"),
        ({"ann": []}, "user 'ann' is not an object of posts"),
        ({"ann": {"1": "text"}}, "post '1' of user 'ann' is not an object"),
        ({"ann": {"1": {"tags": []}}}, "post '1' of user 'ann' has no text in 'caption'; remove it or write one"),
        ({"ann": posts(" ")}, "post '0' of user 'ann' has no text in 'caption'"),
        ({"ann": posts("\ud83d")}, "post '0' of user 'ann' has .* not UTF-8 text"),
        ({"../../ann": posts("a")}, r"post '0' of user '\.\./\.\./ann': .* is outside the data set's folder"),
        ({"ann": {"/../../../x": {"caption": "a"}}}, "is outside the data set's folder"),
    ],
)
def test_errors(tmp_path: Path, content: Any, told: str) -> None:
    write(tmp_path, "train", content)
    with pytest.raises(DataError, match=rf"insta-caption-train\.json: .*{told}|insta-caption-train\.json: {told}"):
        read_dataset(tmp_path)


def test_invalid_utf8_and_a_post_in_both_files(tmp_path: Path) -> None:
    write(tmp_path, "train", {"ann": posts("a", "b")})
    write(tmp_path, "test1", {"ann": posts("a")})
    with pytest.raises(DataError, match="the id 'ann_@_0' is used for two images"):
        read_dataset(tmp_path)
    (tmp_path / "json" / "insta-caption-test1.json").write_bytes(b'{"\xe9": {}}')
    with pytest.raises(DataError, match=r"insta-caption-test1\.json: not UTF-8 text"):
        read_dataset(tmp_path)
