"""Token files of Flickr8k and Flickr30k."""

from __future__ import annotations

from pathlib import Path

import pytest

from tellapart.data.readers import read_dataset
from tellapart.data.records import Record
from tellapart.errors import DataError

FLICKR8K = Path(__file__).resolve().parents[4] / "shared" / "data" / "flickr8k"

TOKENS = "a.jpg#0\t A dog . \na.jpg#1\tEin Hündchen\r\nb.jpg#0\ta cat\tsits\nc.jpg.1#0\tnobody\nd.jpg#0\ta\u2028b\n"


@pytest.fixture
def flickr8k(tmp_path: Path) -> Path:
    folder = tmp_path / "Flickr8k_text"
    folder.mkdir()
    write(folder, TOKENS)
    for name, text in {
        "Flickr8k.lemma.token.txt": "a.jpg#0\tdog",
        "Flickr_8k.trainImages.txt": "d.jpg\nb.jpg\n",
        "Flickr_8k.devImages.txt": "a.jpg",
        "ExpertAnnotations.txt": "a.jpg\tb.jpg#0\t1",
        "readme.txt": "read me",
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def write(folder: Path, tokens: str) -> None:
    (folder / "Flickr8k.token.txt").write_text(tokens, encoding="utf-8")


def test_flickr8k(flickr8k: Path) -> None:
    dataset = read_dataset(flickr8k)
    assert (dataset.name, dataset.root, dataset.left_out) == ("flickr8k", flickr8k, 1)
    assert dataset.records == (
        Record("d", "d.jpg", "train", ("a\u2028b",)),
        Record("b", "b.jpg", "train", ("a cat\tsits",)),
        Record("a", "a.jpg", "val", ("A dog .", "Ein Hündchen")),
    )


def test_flickr30k(tmp_path: Path) -> None:
    (tmp_path / "results_20130124.token").write_text("1.jpg#0\tone\n2.jpg#0\ttwo\n", encoding="utf-8")
    (tmp_path / "train.txt").write_text("1\n", encoding="utf-8")
    (tmp_path / "test.txt").write_text("2\n", encoding="utf-8")
    (tmp_path / "flickr30k-images").mkdir()
    dataset = read_dataset(tmp_path)
    assert dataset.name == "flickr30k"
    assert [record.image for record in dataset] == ["flickr30k-images/1.jpg", "flickr30k-images/2.jpg"]


def test_where_pictures_are_looked_for(flickr8k: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (flickr8k.parent / "Flicker8k_Dataset").mkdir()
    dataset = read_dataset(flickr8k)
    assert dataset.path(dataset.records[0]) == flickr8k.parent / "Flicker8k_Dataset" / "d.jpg"
    monkeypatch.chdir(flickr8k)
    assert read_dataset(Path()).root == flickr8k.parent
    (flickr8k / "d.jpg").write_bytes(b"")
    assert read_dataset(flickr8k).records[0].image == "d.jpg", "beside the token file"
    (flickr8k / "images").mkdir()
    assert read_dataset(flickr8k).root == flickr8k
    assert read_dataset(flickr8k).records[0].image == "images/d.jpg"


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        ("a.jpg a dog", r"line 1 is not 'NAME\.jpg#0', a tab, and a caption"),
        ("a.jpg\ta dog", r"line 1 is not 'NAME\.jpg#0'"),
        ("#0\ta dog", r"line 1 is not 'NAME\.jpg#0'"),
        ("a.jpg#x\ta dog", r"line 1 is not 'NAME\.jpg#0'"),
        ("a.jpg#0\t \n", r"line 1 has a caption without text"),
        ("a.jpg#0\ta\n\na.jpg#0\tb", r"line 3: 'a\.jpg#0' is there twice"),
    ],
)
def test_bad_lines(flickr8k: Path, tokens: str, told: str) -> None:
    write(flickr8k, tokens)
    with pytest.raises(DataError, match=rf"Flickr8k\.token\.txt: {told}"):
        read_dataset(flickr8k)


def test_a_path_that_leaves_the_folder(flickr8k: Path) -> None:
    write(flickr8k, "../x.jpg#0\ta dog")
    for path in flickr8k.glob("Flickr_8k*"):
        path.unlink()
    (flickr8k / "train.txt").write_text("../x.jpg", encoding="utf-8")
    with pytest.raises(DataError, match=r"'\.\./x\.jpg' is outside the data set's folder"):
        read_dataset(flickr8k)
    (flickr8k.parent / "images").mkdir()
    (flickr8k / "train.txt").write_text("../../x.jpg", encoding="utf-8")
    write(flickr8k, "../../x.jpg#0\ta dog")
    with pytest.raises(DataError, match=r"'images/\.\./\.\./x\.jpg' is outside the data set's folder"):
        read_dataset(flickr8k)


def test_two_names_of_one_stem(flickr8k: Path) -> None:
    write(flickr8k, TOKENS + "a.png#0\tanother")
    (flickr8k / "Flickr_8k.testImages.txt").write_text("a.png", encoding="utf-8")
    with pytest.raises(DataError, match="the id 'a' is used for two images"):
        read_dataset(flickr8k)


def test_bad_lists(flickr8k: Path) -> None:
    lists = flickr8k / "Flickr_8k.devImages.txt"
    lists.write_text("a.jpg\nx.jpg", encoding="utf-8")
    with pytest.raises(DataError, match=r"Flickr_8k\.devImages\.txt: line 2: 'x\.jpg' has no captions"):
        read_dataset(flickr8k)
    lists.write_text("b.jpg", encoding="utf-8")
    with pytest.raises(DataError, match=r"line 1: 'b\.jpg' is listed twice"):
        read_dataset(flickr8k)
    lists.write_bytes(b"caf\xe9.jpg")
    with pytest.raises(DataError, match=r"Flickr_8k\.devImages\.txt: not UTF-8 text"):
        read_dataset(flickr8k)
    for path in flickr8k.glob("Flickr_8k*"):
        path.unlink()
    with pytest.raises(DataError, match="no list says which images are for training"):
        read_dataset(flickr8k)


def test_invalid_utf8_and_several_token_files(flickr8k: Path) -> None:
    (flickr8k / "Flickr8k.token.txt").write_bytes(b"a.jpg#0\tcaf\xe9")
    with pytest.raises(DataError, match=r"Flickr8k\.token\.txt: not UTF-8 text"):
        read_dataset(flickr8k)
    (flickr8k / "results.token").write_text("", encoding="utf-8")
    with pytest.raises(DataError, match=r"one file .* is needed, there are: Flickr8k\.token\.txt, results\.token"):
        read_dataset(flickr8k)


@pytest.mark.skipif(not (FLICKR8K / "text").is_dir(), reason=f"Flickr8k is not in {FLICKR8K}")
def test_the_real_flickr8k() -> None:
    dataset = read_dataset(FLICKR8K / "text")
    assert [len(dataset.split(split)) for split in ("train", "val", "test")] == [6000, 1000, 1000]
    assert dataset.left_out == 92
    karpathy = {record.id: record for record in read_dataset(FLICKR8K / "dataset_flickr8k.json")}
    assert {record.id: record for record in dataset} == karpathy
    assert dataset.path(dataset.records[0]).is_file()
