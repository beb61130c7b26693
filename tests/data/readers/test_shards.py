"""WebDataset tar shards, and pictures read in place from them."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tellapart.data import tar as tar_module
from tellapart.data.images import image_bytes, load_image
from tellapart.data.readers import read_dataset
from tellapart.data.records import Record
from tellapart.errors import DataError

Pack = Callable[..., Path]


def picture(colour: int = 0, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 6), (colour, 0, 0)).save(out, kind)
    return out.getvalue()


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    def make(shard: str, *members: tuple[str, Any]) -> Path:
        path = tmp_path / shard
        with tarfile.open(path, "w") as tar:
            for name, content in members:
                data = content if isinstance(content, bytes) else content.encode()
                about = tarfile.TarInfo(name)
                about.size = len(data)
                tar.addfile(about, io.BytesIO(data))
        return path

    return make


def test_a_folder_of_shards(pack: Pack, tmp_path: Path) -> None:
    pack("pets-val-1.tar", ("000003.webp", b""), ("000003.txt", " a hen \r\n\nzwei Hühner"))
    pack(
        "pets-train-0.tar",
        ("./000001.jpg", b""),
        ("./000001.json", json.dumps({"caption": "a dog 🐕", "width": 3})),
        ("./000001.cls", "3"),
        ("./._000001.jpg", "made by a Mac"),
        ("__index__", "no sample"),
        ("in/000002.PNG", b""),
        ("in/000002.json", json.dumps({"captions": ["a", "b"], "split": "validation"})),
    )
    pack("rest.tar", ("4.jpeg", b""), ("5.jpg", b""), ("5.txt", "from the text"), ("5.json", '{"caption": null}'))
    dataset = read_dataset(tmp_path)
    assert (dataset.name, dataset.root) == (tmp_path.name, tmp_path)
    assert dataset.records == (
        Record("000001", "pets-train-0.tar/000001.jpg", "train", ("a dog 🐕",)),
        Record("in/000002", "pets-train-0.tar/in/000002.PNG", "val", ("a", "b")),
        Record("000003", "pets-val-1.tar/000003.webp", "val", ("a hen", "zwei Hühner")),
        Record("4", "rest.tar/4.jpeg", "test", ()),
        Record("5", "rest.tar/5.jpg", "test", ("from the text",)),
    )


def test_one_shard(pack: Pack, tmp_path: Path) -> None:
    dataset = read_dataset(pack("a.tar", ("1.png", picture(200)), ("1.txt", "red")))
    assert (dataset.name, dataset.root) == ("a", tmp_path)
    assert load_image(dataset.path(dataset.records[0])).getpixel((0, 0)) == (200, 0, 0)


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ([("1.txt", "a dog")], "'1' has a caption but no picture"),
        ([("1.jpg", b""), ("2.json", '{"caption": "a"}')], "'2' has a caption but no picture"),
        ([("1.jpg", b""), ("1.txt", " \n")], r"1\.txt has a caption without text"),
        ([("1.jpg", b""), ("1.json", '{"caption": ""}')], r"1\.json has a caption without text"),
        ([("1.jpg", b""), ("1.json", '{"caption": null}')], r"1\.json has a caption without text"),
        ([("1.jpg", b""), ("1.json", '{"captions": ["a", 3]}')], r"1\.json has a caption without text"),
        ([("1.jpg", b""), ("1.json", '{"caption": "\\ud83d"}')], r"1\.json has .* not UTF-8 text"),
        ([("1.jpg", b""), ("1.json", '{"split": "dogs"}')], r"1\.json: split is 'dogs'"),
        ([("1.jpg", b""), ("1.json", '{"split": []}')], r"1\.json: split is \[\]"),
        ([("1.jpg", b""), ("1.json", "[]")], r"1\.json: not an object"),
        ([("1.jpg", b""), ("1.json", "{")], r"1\.json: not valid JSON \(line 1"),
        ([("1.jpg", b""), ("1.txt", b"caf\xe9")], r"1\.txt: not UTF-8 text"),
        ([("1.jpg", b""), ("1.json", b'{"caption": "caf\xe9"}')], r"1\.json: not UTF-8 text"),
        ([("1.jpg", b""), ("1.png", b"")], "'1.jpg' and '1.png' are both the image of '1'"),
        ([("1.jpg", b""), ("1.jpg", b"")], "the member '1.jpg' occurs twice"),
        ([("1.jpg", b""), ("../2.jpg", b"")], r"the member '\.\./2\.jpg' points outside the tar's folder"),
        ([("a/../../2.jpg", b"")], "points outside the tar's folder"),
        ([("/etc/2.jpg", b"")], "the member '/etc/2.jpg' points outside the tar's folder"),
        ([("readme", "text")], "no picture found"),
        ([], "no picture found"),
    ],
)
def test_errors(pack: Pack, members: list[tuple[str, Any]], told: str) -> None:
    with pytest.raises(DataError, match=rf"a\.tar.*{told}"):
        read_dataset(pack("a.tar", *members))


def test_one_id_in_two_shards(pack: Pack, tmp_path: Path) -> None:
    for shard in ("a.tar", "b.tar"):
        pack(shard, ("1.jpg", b""))
    with pytest.raises(DataError, match="the id '1' is used for two images"):
        read_dataset(tmp_path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_members_that_are_no_files(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        about = tarfile.TarInfo("1.jpg")
        about.type, about.linkname = kind, "/etc/passwd"
        tar.addfile(about)
    with pytest.raises(DataError, match=r"a\.tar: the member '1\.jpg' is not a plain file"):
        read_dataset(tmp_path / "a.tar")


def test_files_that_are_no_tar(pack: Pack, tmp_path: Path) -> None:
    path = pack("a.tar", ("1.jpg", picture()), ("1.txt", "a dog"))
    whole = path.read_bytes()
    for content in (b"", b"text", gzip.compress(whole), whole[:600]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.tar: cannot be read as an uncompressed tar"):
            read_dataset(path)
    path.write_bytes(whole.replace(b"1.jpg\0", b"\xe9.jpg\0"))
    with pytest.raises(DataError, match=r"a\.tar: "):  # its checksum is wrong, too
        read_dataset(path)


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo(os.fsdecode(b"caf\xe9.jpg")))
    with pytest.raises(DataError, match=r"a\.tar: the member .* has a name that is not UTF-8 text"):
        read_dataset(tmp_path / "a.tar")


# --- pictures in place ----------------------------------------------------------------------------------------------


def test_pictures_are_read_in_place(pack: Pack) -> None:
    shard = pack("a.tar", ("text.txt", "x" * 700), ("in/1.png", picture(10)), ("2.jpg", picture(250, "JPEG")))
    assert load_image(shard / "in" / "1.png").getpixel((3, 3)) == (10, 0, 0)
    assert np.asarray(load_image(shard / "2.jpg", at_least=4))[..., 0].min() > 200
    assert image_bytes(shard / "in" / "1.png") == picture(10)
    assert sorted(path.name for path in shard.parent.iterdir()) == ["a.tar"], "nothing is unpacked"


def test_bad_pictures_are_named(pack: Pack, tmp_path: Path) -> None:
    shard = pack("a.tar", ("1.jpg", "text"), ("2.png", picture()[:41]), ("3.jpg", b""))
    with pytest.raises(DataError, match=r"a\.tar/1\.jpg: not a picture in a known format"):
        load_image(shard / "1.jpg")
    with pytest.raises(DataError, match=r"a\.tar/2\.png: this picture is broken"):
        load_image(shard / "2.png")
    with pytest.raises(DataError, match=r"a\.tar/3\.jpg: not a picture"):
        load_image(shard / "3.jpg")
    with pytest.raises(DataError, match=r"a\.tar/4\.jpg: this picture does not exist"):
        load_image(shard / "4.jpg")
    (tmp_path / "secret.png").write_bytes(picture())
    with pytest.raises(DataError, match=r"a\.tar/\.\./secret\.png: this picture does not exist"):
        load_image(shard / ".." / "secret.png")
    (tmp_path / "b.tar").write_bytes(b"text")
    with pytest.raises(DataError, match=r"b\.tar: cannot be read as an uncompressed tar"):
        load_image(tmp_path / "b.tar" / "1.jpg")


def test_a_folder_may_be_called_tar(tmp_path: Path) -> None:
    (tmp_path / "a.tar").mkdir()
    (tmp_path / "a.tar" / "1.png").write_bytes(picture(9))
    assert load_image(tmp_path / "a.tar" / "1.png").getpixel((0, 0)) == (9, 0, 0)


def test_a_changed_shard_is_indexed_again(pack: Pack) -> None:
    shard = pack("a.tar", ("1.png", picture(1)))
    assert load_image(shard / "1.png").getpixel((0, 0)) == (1, 0, 0)
    pack("a.tar", ("0.txt", "first"), ("1.png", picture(2)), ("2.txt", "y" * 20_000))
    assert load_image(shard / "1.png").getpixel((0, 0)) == (2, 0, 0)


def test_threads(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many threads at once: every one gets its own picture, and the shard is indexed once."""
    shard = pack("a.tar", *((f"{n}.png", picture(n)) for n in range(64)))
    opened: list[str] = []
    real, start = tarfile.open, threading.Barrier(8)
    monkeypatch.setattr(tar_module.tarfile, "open", lambda path, *more: opened.append(path) or real(path, *more))

    def read(worker: int) -> bool:
        start.wait()
        return all(load_image(shard / f"{n}.png").getpixel((0, 0)) == (n, 0, 0) for n in range(worker, 64, 2))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))
    assert opened == [str(shard)]
