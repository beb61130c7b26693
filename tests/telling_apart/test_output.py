"""Files: pages, tables, JSONL and sidecars."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from tellapart.errors import DataError
from tellapart.telling_apart.output import check_told_apart, marked_parts, write_told_apart
from tellapart.telling_apart.sidecars import check_sidecars, sidecar, write_sidecars
from tellapart.telling_apart.tell import ToldApart, ToldPicture

HOSTILE = 'a <b>red</b> & "blue" <script>alert(1)</script> house'
NAMES = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "dc": "http://purl.org/dc/elements/1.1/",
    "iptc": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
}


@pytest.fixture
def told(photos: Path) -> ToldApart:
    red, blue, green = (str(photos / name) for name in ("red.png", "blue.png", "green.jpg"))
    return ToldApart(
        [
            [
                ToldPicture(red, 1, HOSTILE, ["red"], 1, "a house", 2, 2, "contrast"),
                ToldPicture(blue, 1, "a blue house, far", ["blue"], 2, "a house", 2, 2, "given"),
            ],
            [ToldPicture(green, 2, "a house", [], 1, "a house", 1, 1, "plain")],
        ],
        ["x<y>.jpg: this picture is broken"],
        "retriever",
    )


class Links(HTMLParser):
    """Everything that a browser would load, and the tags."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for key, value in attrs if key in ("src", "href", "srcset", "data", "action")]


def test_the_page_loads_nothing_and_escapes_everything(told: ToldApart, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_told_apart(told, path)
    text = path.read_text(encoding="utf-8")
    links = Links()
    links.feed(text)
    assert len(links.loaded) == 3
    assert all(link.startswith("data:image/jpeg;base64,") for link in links.loaded)
    assert "script" not in links.tags
    assert links.tags.count("figure") == 3
    assert not re.search(r"url\(|@import|http-equiv", text)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "x&lt;y&gt;.jpg: this picture is broken" in text
    assert "<mark>blue</mark>" in text
    assert "prefers-color-scheme: dark" in text
    assert "1 of 2" in text
    assert text.count("tells it apart") == 1
    assert text.count("not told apart") == 1, "the second picture has rank 2"
    write_told_apart(told, path)  # a page of ours is replaced
    path.write_text("<p>mine</p>")
    with pytest.raises(DataError, match=r"page\.html: exists and was not written by tellapart"):
        write_told_apart(told, path)
    assert path.read_text() == "<p>mine</p>"


def test_a_page_names_pictures_and_their_copies(photos: Path, tmp_path: Path) -> None:
    (photos / "inner").mkdir()
    red, blue = photos / "red.png", photos / "blue.png"
    named = [str(one.rename(photos / name)) for one, name in ((red, "1.png"), (blue, "inner/1.png"))]
    rows = [ToldPicture(id, 1, "a house", [], 2, "a house", 2, 2, "plain") for id in named]
    copy = replace(rows[0], id=str(photos / "green.jpg"), same_as=named[0])
    write_told_apart(ToldApart([[rows[0], copy, rows[1]]], [], "retriever"), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.findall(r'class="name">(.*)</p>', text) == [named[0], "the same picture: green.jpg", named[1]]
    assert "2 of 2 pictures look like others" in text
    assert text.count("<figure") == 2


def test_a_page_needs_files(told: ToldApart, tmp_path: Path) -> None:
    (first, *_), *_ = told.groups
    with pytest.raises(DataError, match=r"picture 1: is not a file, and a page needs files; give paths"):
        ToldApart([[replace(first, id="picture 1")]], [], "retriever").write(tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_marked_parts() -> None:
    assert marked_parts("Reds are not red.", ["red"]) == [
        ("Reds", False),
        ("are", False),
        ("not", False),
        ("red.", True),
    ]
    assert marked_parts("", ["red"]) == []


def test_jsonl_and_csv(told: ToldApart, tmp_path: Path) -> None:
    for name in ("rows.jsonl", "rows.csv"):
        write_told_apart(told, tmp_path / name)
        write_told_apart(told, tmp_path / name)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["caption"] for row in rows] == [HOSTILE, "a blue house, far", "a house"]
    assert rows[1] == told.groups[0][1].row()
    with open(tmp_path / "rows.csv", encoding="utf-8", newline="") as handle:
        cells = list(csv.DictReader(handle))
    for cell, row in zip(cells, rows, strict=True):
        assert cell == {
            **{key: str(value) for key, value in row.items()},
            "words": " ".join(row["words"]),
            "same_as": "",
        }
    (tmp_path / "rows.csv").write_text("name,age\nme,3\n")
    with pytest.raises(DataError, match="was not written by tellapart"):
        check_told_apart(tmp_path / "rows.csv")


def test_an_unknown_ending(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"out\.txt: the ending tells what is written; use one of \.html, \.jsonl"):
        check_told_apart(tmp_path / "out.txt")


@pytest.mark.parametrize("caption", [HOSTILE, "a house ]]> & \x00\x1b café 🐈", "x" * 3000])
def test_a_sidecar_is_xml_with_the_caption(caption: str) -> None:
    root = ElementTree.fromstring(sidecar(caption))
    clean = caption.replace("\x00", "").replace("\x1b", "")
    for name in ("dc:description", "iptc:AltTextAccessibility"):
        (item,) = root.findall(f".//{name}/rdf:Alt/rdf:li", NAMES)
        assert item.text == clean
        assert item.get("{http://www.w3.org/XML/1998/namespace}lang") == "x-default"


def test_sidecars_stand_beside_pictures_that_stay(photos: Path) -> None:
    before = {path: path.read_bytes() for path in photos.iterdir()}
    pictures = [(path, f"a {path.stem} house") for path in sorted(before)]
    for _ in range(2):  # one of ours is replaced
        written = write_sidecars(pictures)
    assert [path.name for path in written] == ["blue.xmp", "green.xmp", "red.xmp"]
    assert {path: path.read_bytes() for path in before} == before
    (photos / "red.xmp").write_text("<x:xmpmeta x:xmptk='Adobe'/>")
    with pytest.raises(DataError, match=r"red\.xmp: exists and was not written by tellapart"):
        write_sidecars(pictures)
    assert "Adobe" in (photos / "red.xmp").read_text()


def test_two_pictures_of_one_sidecar(photos: Path) -> None:
    Image.new("RGB", (4, 4)).save(photos / "red.jpg")
    with pytest.raises(DataError, match=r"red\.xmp: would belong to red\.png and to red\.jpg; rename one"):
        check_sidecars([photos / "red.png", photos / "red.jpg"])
