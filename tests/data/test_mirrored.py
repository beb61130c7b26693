"""Mirrored pictures: a second store of the same rows, drawn in training and read together with the first at test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.tiny import IDENTITY, make_data
from tellapart.data import write_features
from tellapart.data.batches import BatchSource
from tellapart.data.features import FeatureStore
from tellapart.data.images import load_image
from tellapart.data.parts import Part
from tellapart.data.prepare import Prepared, prepare, prepare_part
from tellapart.data.records import Dataset, Record
from tellapart.data.rows import StoreType, pack, read_grid
from tellapart.data.settings import DataSettings
from tellapart.encoders.base import EncoderIdentity, MirroredEncoder
from tellapart.errors import StoreError

IMAGES = 9


class HalvesEncoder:
    """Features are the mean colours of the left and the right half; it can stop after some pictures."""

    size = 8
    concurrency = 2

    def __init__(self, stop_after: int | None = None) -> None:
        self.identity = EncoderIdentity("halves", "0", "none", regions=2, width=3)
        self.stop_after = stop_after
        self.encoded = 0

    def squeeze(self, image: Image.Image) -> Image.Image:
        return image.resize((self.size, self.size))

    def encode(self, images: list[Image.Image]) -> np.ndarray:
        self.encoded += len(images)
        if self.stop_after is not None and self.encoded > self.stop_after:
            raise KeyboardInterrupt
        pixels = np.stack([np.asarray(image, np.float32) for image in images]) / 7
        return np.stack([pixels[:, :, :4].mean(axis=(1, 2)), pixels[:, :, 4:].mean(axis=(1, 2))], axis=1)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    rng = np.random.default_rng(0)
    (tmp_path / "pictures").mkdir()
    for number in range(IMAGES):
        pixels = rng.integers(0, 256, (11, 13, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{number}.png")
    records = tuple(Record(str(n), f"{n}.png", "train", (f"picture {n}",)) for n in range(IMAGES))
    return Dataset("pictures", tmp_path / "pictures", records)


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_features, "SHARD", 4)
    monkeypatch.setattr(write_features, "BATCH", 2)


def settings(folder: Path, kind: StoreType = "float16", mirrored: bool = True) -> DataSettings:
    return DataSettings(source="pictures", prepared=str(folder), store=kind, mirrored=mirrored)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def expected(dataset: Dataset, kind: StoreType) -> np.ndarray:
    """Every picture flipped by itself and encoded."""
    encoder, grids = HalvesEncoder(), []
    for record in dataset:
        flipped = Image.fromarray(np.asarray(load_image(dataset.path(record)))[:, ::-1])
        grids.append(encoder.encode([encoder.squeeze(flipped)])[0])
    whole = np.stack([np.concatenate([grid, grid.mean(axis=0, keepdims=True)]) for grid in grids])
    return read_grid(pack(whole, kind), np.arange(IMAGES))


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_a_mirrored_row_is_the_flipped_picture_encoded(dataset: Dataset, tmp_path: Path, kind: StoreType) -> None:
    encoder = HalvesEncoder()
    plain = prepare(settings(tmp_path / "one", kind, mirrored=False), encoder=encoder, dataset=dataset)
    before = files(plain.folder)
    both = prepare(settings(tmp_path / "one", kind), encoder=encoder, dataset=dataset)
    assert encoder.encoded == 2 * IMAGES, "the plain ones are found"
    assert both.store.mirrored is not None
    rows = list(range(IMAGES))
    assert np.array_equal(both.store.mirrored.grid(rows), expected(dataset, kind))
    assert not np.allclose(both.store.grid(rows), expected(dataset, kind))
    assert {name: content for name, content in files(plain.folder).items() if "mirrored" not in name} == before
    assert both.pictures_digest() != plain.pictures_digest(), "results differ, so they are kept apart"

    chosen = np.arange(IMAGES) % 3 == 0
    drawn = both.store.grid(rows, chosen)
    for row in rows:
        source = both.store.mirrored if chosen[row] else both.store
        assert np.array_equal(drawn[row], source.grid([row])[0])
    assert np.array_equal(both.store.views(rows)[:, 2:], both.store.mirrored.grid(rows))
    assert np.array_equal(plain.store.views(rows), plain.store.grid(rows))


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_stopped_and_continued_it_has_the_same_bytes(dataset: Dataset, tmp_path: Path, kind: StoreType) -> None:
    straight = prepare(settings(tmp_path / "straight", kind), encoder=HalvesEncoder(), dataset=dataset)
    for after in (5, 3, 6, 4):
        with pytest.raises(KeyboardInterrupt):
            prepare(settings(tmp_path / "stopped", kind), encoder=HalvesEncoder(after), dataset=dataset)
    stopped = prepare(settings(tmp_path / "stopped", kind), encoder=HalvesEncoder(), dataset=dataset)
    assert files(stopped.folder) == files(straight.folder)

    parts = [
        prepare_part(settings(tmp_path / "parts", kind), Part(index, 2), encoder=HalvesEncoder(), dataset=dataset)
        for index in range(2)
    ]
    assert parts[0] is None
    assert isinstance(parts[1], Prepared)
    assert files(parts[1].folder) == files(straight.folder)


def test_a_changed_picture_is_encoded_again_in_both(dataset: Dataset, tmp_path: Path) -> None:
    prepare(settings(tmp_path / "one"), encoder=HalvesEncoder(), dataset=dataset)
    pixels = np.random.default_rng(1).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(dataset.root / "5.png")
    encoder = HalvesEncoder()
    again = prepare(settings(tmp_path / "one"), encoder=encoder, dataset=dataset)
    assert encoder.encoded == 2
    fresh = prepare(settings(tmp_path / "fresh"), encoder=HalvesEncoder(), dataset=dataset)
    assert files(again.folder) == files(fresh.folder)


def test_pictures_that_change_between_the_two_are_an_error(dataset: Dataset, tmp_path: Path) -> None:
    first = prepare(settings(tmp_path / "one"), encoder=HalvesEncoder(), dataset=dataset)
    Image.new("RGB", (5, 5), "red").save(dataset.root / "5.png")
    prepare(settings(tmp_path / "one", mirrored=False), encoder=HalvesEncoder(), dataset=dataset)
    (dataset.root / "5.png").unlink()
    with pytest.raises(StoreError, match=r"5\.png: this picture has changed after it was encoded"):
        prepare(settings(tmp_path / "one"), encoder=HalvesEncoder(), dataset=dataset)
    assert first.store.mirrored is not None
    with pytest.raises(StoreError, match="with other weights or preprocessing"):
        first.store.mirrored.check(dataset, HalvesEncoder().identity)
    first.store.mirrored.check(dataset, MirroredEncoder(HalvesEncoder()).identity)


def mirrored_source(rank: int = 0, world: int = 1, **settings: int) -> BatchSource:
    """The tiny data; the features of mirrored pictures are the negative ones. Image 4 has a caption with a side."""
    dataset, store = make_data()
    records = list(dataset.records)
    records[4] = Record("4", "4.png", "train", ("a red house", "a Left-hand tree"))
    dataset = Dataset(dataset.name, dataset.root, tuple(records))
    mirrored = FeatureStore(-store._features, IDENTITY, dataset.digest)
    both = FeatureStore(store._features, IDENTITY, dataset.digest, mirrored=mirrored)
    return BatchSource(dataset, both, "train", 4, seed=3, rank=rank, world=world, mirrored=True, **settings)


def test_one_of_the_two_is_drawn_for_each_picture_and_step() -> None:
    source = mirrored_source()
    seen: dict[str, list[bool]] = {}
    for step in range(40):
        batch = source.at(step)
        assert batch.mirrored is not None
        for id, grid, mirrored in zip(batch.ids, batch.features["tiny"].numpy(), batch.mirrored.tolist(), strict=True):
            plain = source.store.grid([int(id)])[0]
            assert np.array_equal(grid, -plain if mirrored else plain)
            seen.setdefault(id, []).append(mirrored)
    assert not any(seen.pop("4")), "a caption names a side"
    assert all(4 < sum(drawn) < 16 for drawn in seen.values()), "about half of 20"
    assert len({tuple(drawn) for drawn in seen.values()}) == len(seen), "each picture has its own draws"


def test_two_processes_and_a_resumed_one_draw_the_same() -> None:
    """Also for the rows of image negatives that are not a process's own."""
    for step in (0, 3, 7):
        whole = mirrored_source(image_negatives=2).at(step)
        assert whole.mirrored is not None
        drawn = dict(zip(whole.ids, whole.mirrored.tolist(), strict=False))
        for rank in range(2):
            part = mirrored_source(rank, 2, image_negatives=2).at(step)
            assert part.mirrored is not None
            assert part.others
            of_part = dict(zip([*part.ids, *part.others], part.mirrored.tolist(), strict=True))
            assert all(of_part[id] == drawn[id] for id in of_part.keys() & drawn.keys())


def test_distractors_are_drawn_too_and_true_pairs_are_not() -> None:
    source = mirrored_source()
    drawn = set()
    for step in range(10):
        batch = source.at(step)
        other = source.distracted(batch)
        for id, grid in zip(other.ids, other.features["tiny"].numpy(), strict=True):
            plain = source.store.grid([int(id)])[0]
            mirrored = bool(np.array_equal(grid, -plain))
            assert mirrored or np.array_equal(grid, plain)
            drawn.add(mirrored)
            for own, with_it in zip(batch.ids, np.asarray(batch.mirrored), strict=True):
                assert own != id or with_it == mirrored, "one draw for a picture in a step"
    assert drawn == {False, True}
    images = np.arange(2)
    plain, mirrored = (source.true_pairs(images, view).features["tiny"] for view in (False, True))
    assert np.array_equal(plain, -mirrored)
    assert all(batch.mirrored is None for batch in source.positives())
