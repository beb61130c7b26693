"""What `inspect` finds in a data set, and how the command tells it."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from tellapart import cli
from tellapart.data.inspect import PUBLISHED, describe, inspect_dataset
from tellapart.data.records import Dataset, Record


def picture(colour: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (80, 70), (colour, 0, 0)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Six pictures: one is missing, one cut, one text, two identical, one in a tar."""
    for name, content in {
        "good.png": picture(1),
        "again.png": picture(1),
        "cut.png": picture(2)[:-30],
        "text.jpg": b"text",
    }.items():
        (tmp_path / name).write_bytes(content)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        about = tarfile.TarInfo("in.png")
        about.size = len(picture(3))
        tar.addfile(about, io.BytesIO(picture(3)))
    return Dataset(
        "mixed",
        tmp_path,
        (
            Record("good", "good.png", "train", ("a dog", "A dog , running .")),
            Record("again", "again.png", "train", ("a dog",)),
            Record("cut", "cut.png", "val", ("one two three four",)),
            Record("text", "text.jpg", "test", ("a dog", "x")),
            Record("gone", "gone.jpg", "test", ()),
            Record("in", "a.tar/in.png", "test", ("in a tar",)),
            Record("not in", "a.tar/out.png", "test", ("not in it",)),
        ),
        left_out=4,
    )


def test_figures(dataset: Dataset) -> None:
    found = inspect_dataset(dataset, images=False)
    assert found.images == {"train": 2, "val": 1, "test": 4}
    assert found.captions == {"train": 3, "val": 1, "test": 4}
    assert found.left_out == 4
    assert found.captions_per_image == (0, 8 / 7, 2)
    assert found.words == (20 / 8, {5: 1, 25: 2, 50: 2, 75: 3, 95: 3}, 4)
    assert found.repeated_captions == 2
    assert found.sample == (("good", "a dog"), ("text", "a dog"), ("not in", "not in it"))
    assert found.published == ()
    assert found.missing is None
    assert found.broken is None
    assert found.identical is None
    assert "pictures: not checked" in describe(found)


def test_pictures(dataset: Dataset) -> None:
    told: list[tuple[int, int]] = []
    found = inspect_dataset(dataset, on_progress=lambda done, of: told.append((done, of)))
    assert found.missing == ("gone", "not in")
    assert found.broken is not None
    assert [id for id, _ in found.broken] == ["cut", "text"]
    assert "this picture is broken" in found.broken[0][1]
    assert "not a picture in a known format" in found.broken[1][1]
    assert found.identical == (("good", "again"),)
    assert told == [(done, 7) for done in range(1, 8)]
    lines = describe(found, most=1).split("\n")
    start = lines.index("missing pictures: 2")
    assert lines[start + 1 : start + 3] == ["  gone", "  … and 1 more"]
    assert "  good = again" in lines
    assert "  4 captioned images are in no split and left out" in lines


def test_a_set_without_captions(tmp_path: Path) -> None:
    found = inspect_dataset(Dataset("plain", tmp_path, (Record("1", "1.jpg", "test", ()),)), images=False)
    assert (found.words, found.sample, found.captions_per_image) == (None, (), (0, 0.0, 0))
    assert "words per caption" not in describe(found)


def sized(name: str, train: int, val: int, test: int) -> Dataset:
    splits = ["train"] * train + ["val"] * val + ["test"] * test
    return Dataset(name, Path(), tuple(Record(str(n), f"{n}.jpg", split, ("a",)) for n, split in enumerate(splits)))


@pytest.mark.parametrize(
    ("name", "sizes", "same"),
    [
        ("flickr8k", (6000, 1000, 1000), ["Flickr8k's own lists, Karpathy"]),
        ("dataset_flickr8k", (6000, 1000, 1000), ["Flickr8k's own lists, Karpathy"]),
        ("Flickr-30k", (29_000, 1_014, 1_000), ["Karpathy"]),
        ("flickr30k", (29_783, 1_000, 1_000), ["CODER"]),
        ("coco", (113_287, 5_000, 5_000), ["Karpathy"]),
        ("coco2014-splits", (118_287, 4_000, 1_000), ["m-RNN, UNKT"]),
        ("flickr8k", (5999, 1000, 1000), []),
        ("holiday", (6000, 1000, 1000), None),
    ],
)
def test_published_sizes(name: str, sizes: tuple[int, int, int], same: list[str] | None) -> None:
    found = inspect_dataset(sized(name, *sizes), images=False)
    text = describe(found)
    if same is None:
        assert found.published == ()
        assert "published" not in text
        return
    assert [one.name for one, equal in found.published if equal] == same
    if same:
        assert f"the published split sizes ({same[0]})" in text
    else:
        assert "not the published split sizes of Flickr8k's own lists, Karpathy: 6,000 / 1,000 / 1,000" in text


def test_the_papers_totals() -> None:
    """As in the papers: what is kept for validation is part of what they count as training data."""
    coco, instapic = PUBLISHED["coco"][3].sizes, PUBLISHED["instapic"][0].sizes
    assert coco[0] + coco[1] == 122_585
    assert instapic[0] + instapic[1] == 648_761


# --- the command ----------------------------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["tellapart", "inspect", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def test_the_command(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    images = [
        {"filename": r.image, "split": r.split, "sentences": [{"raw": c} for c in r.captions]}
        for r in dataset
        if r.captions
    ]
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"images": images}), encoding="utf-8")
    assert run(monkeypatch, path) == 0, "broken pictures are reported, not a failure"
    printed = capsys.readouterr()
    assert "data: 6 images, 8 captions" in printed.out
    assert "broken pictures: 2" in printed.out
    assert "checking images 6/6" in printed.err
    assert run(monkeypatch, path, "--no-images") == 0
    printed = capsys.readouterr()
    assert "pictures: not checked" in printed.out
    assert printed.err == ""
    path.write_text("{", encoding="utf-8")
    assert run(monkeypatch, path) == 2
    assert "data.json: not valid JSON" in capsys.readouterr().err
