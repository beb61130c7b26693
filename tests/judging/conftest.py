"""Two systems that captioned eight pictures; two captions are the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from tellapart.data.readers import read_folder
from tellapart.data.records import Dataset
from tellapart.judging.trial import Trial, new_trial

COLOURS = ["red", "green", "blue", "orange", "purple", "black", "white", "pink"]
SAME = ("black", "white")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of pictures; they hold a description and a comment, which nobody must get."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for colour in COLOURS:
        image = Image.new("RGB", (320, 200), colour)
        exif = Image.Exif()
        exif[0x010E] = "SECRET description"
        image.save(folder / f"{colour}.jpg", exif=exif, comment=b"SECRET comment")
    return folder


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    paths = (tmp_path / "plain.jsonl", tmp_path / "special.jsonl")
    for path, text in zip(paths, ("a wall", "a wall that is {}"), strict=True):
        rows = [
            {"id": f"{colour}.jpg", "caption": "the same" if colour in SAME else text.format(colour)}
            for colour in COLOURS
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return paths


@pytest.fixture
def dataset(pictures: Path) -> Dataset:
    return read_folder(pictures)


@pytest.fixture
def trial(files: tuple[Path, Path], dataset: Dataset) -> Trial:
    return new_trial(("plain", files[0]), ("special", files[1]), dataset)
