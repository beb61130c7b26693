"""An index on either store: add, search, update, delete, captions, filters, parts; what is refused."""

from __future__ import annotations

import os
import re
import shutil
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from support.photos import ColourEncoder, make_picture, make_pictures, make_retriever_folder
from tellapart import shipped
from tellapart.data.images import load_image
from tellapart.data.parts import Part
from tellapart.errors import DataError, RecipeError, RunError, StoreError
from tellapart.index import photos as module
from tellapart.index.base import row_id
from tellapart.index.photos import PhotoIndex, open_index
from tellapart.retrievers.base import load_retriever


def naive(model: Path, paths: list[Path], text: str) -> np.ndarray:
    """Similarity of every picture by the retriever's own matrix product."""
    retriever, encoder = load_retriever(model), ColourEncoder()
    features = encoder.encode([encoder.squeeze(load_image(path)) for path in paths])
    with torch.inference_mode():
        images = retriever.embed_images(torch.from_numpy(features.astype(np.float16).astype(np.float32)))
        return retriever.similarity(images, retriever.embed_texts([text]))[:, 0].numpy()


def names(index: PhotoIndex) -> list[str]:
    return sorted(Path(found.path).name for found in index.search("a red house", 1000))


def test_exact_search_is_a_full_matrix_product(place: str, model: Path, photos: Path) -> None:
    index = open_index(place, model)
    assert index.add([photos]).added == len(index) == 12
    paths = sorted(photos.iterdir())
    scores = naive(model, paths, "a red house near two trees")
    found = index.search("a red house near two trees", 12)
    order = np.argsort(-scores)
    assert [one.path for one in found] == [str(paths[row]) for row in order]
    np.testing.assert_allclose([one.similarity for one in found], scores[order], rtol=1e-4, atol=1e-5)
    assert [one.path for one in index.search("a red house near two trees", 3)] == [one.path for one in found[:3]]


def test_a_picture_finds_itself_first(place: str, model: Path, photos: Path) -> None:
    index = open_index(place, model)
    index.add([photos])
    assert index.search(photos / "007.png", 1)[0].path == str(photos / "007.png")
    assert index.search(Image.open(photos / "003.png"), 1)[0].path == str(photos / "003.png")


def test_rows_by_id_and_search_by_vector(place: str, model: Path, photos: Path) -> None:
    index = open_index(place, model)
    index.add([photos])
    path = str(photos / "003.png")
    photo = index.store.with_id(row_id(path))
    assert photo is not None
    assert photo.file.path == path
    assert [one.path for one in index.find(photo.vector, count=12)] == [
        one.path for one in index.search(Path(path), 12)
    ]
    for id in ("0" * 32, "", "' OR 1 = 1 --", '" or "" == "', "\\"):
        assert index.store.with_id(id) is None


def test_update_by_file(place: str, model: Path, photos: Path) -> None:
    index = open_index(place, model)
    index.add([photos])
    ColourEncoder.encoded = 0

    again = open_index(place).add([photos])
    assert (again.unchanged, again.added, ColourEncoder.encoded) == (12, 0, 0)

    os.utime(photos / "001.png", (1, 1))  # touched: the content is the same
    touched = index.add([photos])
    assert (touched.unchanged, touched.updated, ColourEncoder.encoded) == (12, 0, 0)

    make_picture(photos / "002.png", 99)
    make_picture(photos / "inner" / "new.jpg", 50)
    (photos / "003.png").unlink()
    changed = index.add([photos])
    assert (changed.added, changed.updated, changed.removed, changed.unchanged) == (1, 1, 1, 10)
    assert ColourEncoder.encoded == 2
    assert len(index) == 12
    assert index.search(photos / "002.png", 1)[0].path == str(photos / "002.png")
    assert "003.png" not in names(index)
    assert "new.jpg" in names(index)


def test_other_folders_stay_and_delete_removes_rows_not_files(place: str, model: Path, photos: Path) -> None:
    other = make_pictures(photos.parent / "photos2", 2)
    index = open_index(place, model)
    index.add([photos])
    assert index.add([other]).removed == 0
    assert len(index) == 14
    assert index.delete([photos]) == 12, "not the folder whose name only begins like it"
    assert index.delete([other / "000.png"]) == 1
    assert index.delete([other / "000.png"]) == 0
    assert names(index) == ["001.png"]
    assert len(list(photos.iterdir())) == 12


def test_captions_are_searched_and_kept(place: str, model: Path, photos: Path) -> None:
    index = open_index(place, model)
    index.add([photos])
    with pytest.raises(DataError, match="has no captions"):
        index.search("zebra", compare="captions")
    ColourEncoder.encoded = 0
    captions = photos.parent / "captions.jsonl"
    captions.write_text(
        '{"id": "004.png", "caption": "a zebra in the snow"}\n{"id": "004.png", "caption": "stripes"}\n'
        f'{{"id": "{photos}/005.png", "caption": "a tent"}}\n{{"id": "nowhere.png", "caption": "?"}}\n'
    )
    changes = index.add([photos], captions)
    assert (changes.captioned, changes.unmatched, ColourEncoder.encoded) == (2, 1, 0)
    (zebra,) = index.search("Zebra", compare="captions")
    assert (Path(zebra.path).name, zebra.by, zebra.caption) == ("004.png", "caption", "a zebra in the snow\nstripes")
    assert zebra.similarity == pytest.approx(naive(model, [photos / "004.png"], "Zebra")[0], rel=1e-4, abs=1e-5)
    both = index.search("zebra", 12)
    assert Path(both[0].path).name == "004.png"
    assert {one.by for one in both} == {"both", "picture"}
    assert len({one.path for one in both}) == 12
    index.add([photos], {"006.png": ["a man on a bike"]})
    only = index.search("a zebra on a bike on the moon", 12)
    assert {Path(one.path).name: one.by for one in only if one.by != "picture"} == {
        "004.png": "both",
        "006.png": "both",
    }
    assert [one.by for one in index.search("a car on a road", 12)] == ["picture"] * 12, "an 'a' is no match"
    assert index.search("zebra", compare="captions"), "captions stay without the file"
    make_picture(photos / "004.png", 77)
    index.add([photos])
    assert index.search("zebra", compare="captions"), "and when the picture changes"
    with pytest.raises(DataError, match="no caption is of one of these pictures"):
        index.add([photos], {"elsewhere": ["a tree"]})


def test_filters(place: str, model: Path, photos: Path) -> None:
    for number, path in enumerate(sorted(photos.iterdir())):
        day = datetime(2024, 1, 1 + number, 12).timestamp()
        os.utime(path, (day, day))
    exif = Image.Exif()
    exif[36867] = "broken"
    exif.get_ifd(0x8769)[36867] = "2001:02:03 04:05:06"
    Image.new("RGB", (8, 8)).save(photos / "camera.jpg", exif=exif)
    make_picture(photos / "a_b%c" / "IMG_1.png", 70)
    make_picture(photos / "a_b%c" / "IMGx1.png", 71)
    index = open_index(place, model)
    index.add([photos])

    def found(**filters: object) -> list[str]:
        return sorted(Path(one.path).name for one in index.search("a car", 100, **filters))  # type: ignore[arg-type]

    (old,) = index.search("a car", before=datetime(2002, 1, 1))
    assert (Path(old.path).name, old.taken) == ("camera.jpg", "2001-02-03T04:05:06")
    assert found(after=datetime(2024, 1, 3, 12), before=datetime(2024, 1, 5, 12)) == ["002.png", "003.png"]
    assert found(path="IMG_*") == ["IMG_1.png"], "_ and % mean themselves"
    assert found(path="a_b%c/*") == ["IMG_1.png", "IMGx1.png"]
    assert found(path="a?b%c/*") == ["IMG_1.png", "IMGx1.png"]
    assert found(path=f"{photos}/00?.png", before=datetime(2024, 1, 3)) == ["000.png", "001.png"]
    assert found(path="*.jpg") == ["camera.jpg"]
    assert found(path="\"; drop 'x' or 1=1 --") == []
    assert found(path="photos/000.png", after=datetime(2030, 1, 1)) == []


def test_broken_pictures_are_skipped_and_listed(place: str, model: Path, photos: Path) -> None:
    index = open_index(place, model)
    index.add([photos])
    (photos / "000.png").write_bytes(b"no picture")
    (photos / "new.jpg").write_bytes((photos / "001.png").read_bytes()[:40])
    (photos / "._001.png").write_bytes(b"what macOS leaves on other disks")
    changes = index.add([photos])
    assert [re.search(r"(\S+?): ", line)[1] for line in changes.skipped] == [  # type: ignore[index]
        str(photos / "000.png"),
        str(photos / "new.jpg"),
    ]
    assert len(index) == 11, "a picture that has become unreadable is no longer found"


def test_hostile_names(place: str, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s "quoted" \\ %_*\nline 2'
    for number, name in enumerate(
        ("'; DROP TABLE photos;--.png", 'a"b.png', "ünïcödé 🐈.png", "new\nline.png", "b\\.png")
    ):
        make_picture(folder / name, number)
    bad = os.path.join(os.fsencode(folder), b"latin-\xe9.png")
    Path(os.fsdecode(bad)).write_bytes((folder / 'a"b.png').read_bytes())
    index = open_index(place, model)
    changes = index.add([folder])
    assert changes.added == 5
    assert len(changes.skipped) == 1
    assert "not UTF-8" in changes.skipped[0]
    assert index.search(folder / "new\nline.png", 1)[0].path == str(folder / "new\nline.png")
    assert index.add([folder]).unchanged == 5
    (folder / 'a"b.png').unlink()
    assert index.add([folder]).removed == 1
    assert index.delete([folder / "'; DROP TABLE photos;--.png"]) == 1
    assert index.delete([folder]) == 3
    with pytest.raises(DataError, match="not UTF-8"):
        index.add([Path(os.fsdecode(bad)).with_suffix(".gone")])
    with pytest.raises(DataError, match="not a path"):
        index.add(["a\0b"])


def test_parts_make_the_whole(place: str, model: Path, photos: Path) -> None:
    open_index(place, model)
    added = [open_index(place, model).add([photos], part=Part(number, 3)).added for number in range(3)]
    assert sum(added) == 12
    assert max(added) < 12
    (photos / "000.png").unlink()
    index = open_index(place)
    assert sum(index.add([photos], part=Part(number, 3)).removed for number in range(3)) == 1
    assert len(index) == 11


def test_approximate_search_says_how_good_it_is(
    place: str, model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = open_index(place, model)
    index.add([photos])
    with pytest.raises(DataError, match="approximate search is not built; build it: tellapart index --approximate"):
        index.search("a car", approximate=True)
    with pytest.raises(DataError, match="holds 12 photographs, and approximate search needs at least 256"):
        index.build_approximate()
    monkeypatch.setattr(module, "FEWEST", 30)
    monkeypatch.setattr(module, "RECALL_QUERIES", 15)
    make_pictures(photos, 40)
    index.add([photos])
    measured = index.build_approximate()
    assert (measured.photos, measured.queries, measured.of) == (40, 15, "photographs")
    assert 0.1 < measured.recall <= 1
    assert open_index(place).recall == measured
    exact, roughly = (index.search("a car", 20, approximate=some) for some in (False, True))
    assert len(roughly) > 0
    assert [one.path for one in exact] == [
        str(photos / f"{row:03d}.png") for row in np.argsort(-naive(model, sorted(photos.iterdir()), "a car"))[:20]
    ]
    index.add([photos], {"000.png": ["a red house"], "001.png": ["two blue cars"]})
    assert (index.build_approximate().of, index.recall and index.recall.queries) == ("captions", 2)
    assert make_picture(photos / "new.png", 1000).exists()
    index.add([photos])
    assert index.search(photos / "new.png", 1, approximate=True)[0].path == str(photos / "new.png")


def test_an_empty_index_says_so(place: str, model: Path) -> None:
    index = open_index(place, model)
    with pytest.raises(DataError, match="this index is empty; add pictures: tellapart index PHOTOS --to"):
        index.search("a car")


def test_another_retriever_is_refused(place: str, model: Path, photos: Path, tmp_path: Path) -> None:
    index = open_index(place, model)
    index.add([photos])
    other = make_retriever_folder(tmp_path / "other", seed=1)
    with pytest.raises(StoreError, match=r"was made by another retriever \(ranking .*with other weights"):
        open_index(place, other)
    copy = shutil.copytree(model, tmp_path / "copy")
    assert len(open_index(place, copy)) == 12, "the same weights elsewhere are the same retriever"
    shutil.rmtree(model)
    with pytest.raises(StoreError, match=r"is no longer at .*model; give its place with --retriever"):
        open_index(place).search("a car")
    assert len(open_index(place, copy).search("a car")) == 10
    shutil.copytree(other, model)
    with pytest.raises(StoreError, match="was made by another retriever"):
        open_index(place).search("a car")


def test_what_is_not_there(
    place: str, model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match="no index is here; make it: tellapart index PHOTOS --to"):
        open_index(place, must_exist=True)
    with monkeypatch.context() as none:
        none.setattr(shipped, "shipped_models", lambda: tmp_path / "none")
        with pytest.raises(RunError, match="no retriever comes with this copy of tellapart"):
            open_index(place)
    with pytest.raises(RecipeError, match="compares words with regions and has no vectors to index"):
        open_index(place, make_retriever_folder(tmp_path / "scan", name="scan"))
    index = open_index(place, model)
    index.add([photos])
    with pytest.raises(DataError, match=r"nowhere\.png: this picture does not exist"):
        index.add([photos / "nowhere.png"])
    with pytest.raises(DataError, match="no picture was given"):
        index.add([])
    with pytest.raises(DataError, match="give a list of pictures"):
        index.add(photos)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="the query is blank"):
        index.search("  ")
    with pytest.raises(DataError, match=r"nowhere\.jpg: this picture does not exist"):
        index.search(Path("nowhere.jpg"))
    shutil.move(photos, tmp_path / "away")
    photos.mkdir()  # as a disk that is not mounted
    with pytest.raises(DataError, match="no picture is in this folder; to remove its 12 pictures from the index, use"):
        index.add([photos])
    assert len(index) == 12


def test_a_search_sees_what_another_adds(
    place: str, model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two writes of an indexing, another opened index finds exactly what is written."""
    monkeypatch.setattr(module, "BATCH", 2)
    monkeypatch.setattr(module, "BLOCK", 4)
    writer, reader = open_index(place, model), open_index(place, model)
    seen: list[int] = []
    writer.add([photos], on_progress=lambda done, of: seen.append(len(reader.search("a car", 100))))
    assert seen == [4, 8, 12, 12]
