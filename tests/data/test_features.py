"""The feature store: what is written is what the encoder gave, however often the writing was interrupted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tellapart.data import features
from tellapart.data.features import FeatureStore, encode_images, write_store
from tellapart.data.records import Dataset, Record
from tellapart.encoders.images import EncoderIdentity
from tellapart.errors import DataError, StoreError

IMAGES, SHARD, SIZE = 50, 12, 8


class FakeEncoder:
    """Features that are functions of the pixels; it can stop after some images, and counts those it encoded."""

    size = SIZE

    def __init__(self, weights: str = "0", stop_after: int | None = None) -> None:
        self.identity = EncoderIdentity("fake", weights, "none", regions=2, width=3)
        self.stop_after = stop_after
        self.encoded = 0

    def squeeze(self, image: Image.Image) -> Image.Image:
        return image.resize((self.size, self.size))

    def encode(self, images: list[Image.Image]) -> np.ndarray:
        self.encoded += len(images)
        if self.stop_after is not None and self.encoded > self.stop_after:
            raise KeyboardInterrupt
        assert all(image.size == (self.size, self.size) for image in images)
        means = np.stack([np.asarray(image, dtype=np.float32).mean(axis=(0, 1)) for image in images]) / 7
        return np.stack([means, -(means**2)], axis=1)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    folder = tmp_path / "pictures"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        flat = np.broadcast_to(rng.integers(0, 256, 3, dtype=np.uint8), (SIZE, SIZE, 3))
        Image.fromarray(np.ascontiguousarray(flat)).save(folder / f"{number}.png")
    records = tuple(Record(str(n), f"{n}.png", "train", (f"picture {n}",)) for n in range(IMAGES))
    return Dataset("pictures", folder, records)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "SHARD", SHARD)


@pytest.fixture
def expected(dataset: Dataset) -> np.ndarray:
    """Every picture opened and encoded by itself."""
    encoder = FakeEncoder()
    return np.concatenate([encoder.encode([Image.open(dataset.path(record))]) for record in dataset])


@pytest.fixture
def interrupt(dataset: Dataset, tmp_path: Path) -> Callable[[int], None]:
    def stop(after: int, folder: str = "store") -> None:
        with pytest.raises(KeyboardInterrupt):
            write_store(tmp_path / folder, dataset, FakeEncoder(stop_after=after))

    return stop


def test_the_store_holds_what_the_encoder_gave(dataset: Dataset, tmp_path: Path, expected: np.ndarray) -> None:
    assert IMAGES % SHARD, "the last shard is a short one"
    encoder = FakeEncoder()
    progress: list[tuple[int, int]] = []
    store = write_store(tmp_path / "store", dataset, encoder, lambda *done: progress.append(done))
    assert encoder.encoded == IMAGES
    assert len(store) == IMAGES
    stored = np.load(tmp_path / "store" / "grid.npy")
    assert stored.dtype == np.float16
    assert np.array_equal(stored, expected.astype(np.float16))
    assert store.encoder == encoder.identity
    assert store.records == dataset.digest
    assert progress[-1] == (IMAGES, IMAGES)
    assert [done for done, _ in progress] == sorted({done for done, _ in progress})
    assert not list((tmp_path / "store").glob("shard-*")), "the markers are gone"


def test_a_batch_reads_the_right_rows(dataset: Dataset, tmp_path: Path, expected: np.ndarray) -> None:
    store = write_store(tmp_path / "store", dataset, FakeEncoder())
    rows = [49, 0, 17, 17]
    grid = store.grid(rows)
    assert grid.dtype == np.float32
    assert np.array_equal(grid, expected[rows].astype(np.float16).astype(np.float32))
    assert store.grid([]).shape == (0, 2, 3)
    grid[:] = 0
    assert np.array_equal(store.grid([49]), expected[[49]].astype(np.float16).astype(np.float32)), "a copy"


def test_pictures_come_in_order_whatever_the_batch(dataset: Dataset, expected: np.ndarray) -> None:
    paths = [dataset.path(record) for record in dataset]
    for batch in (1, 7, 16, 100):
        grids = list(encode_images(paths, FakeEncoder(), batch))
        assert len(grids) == -(-IMAGES // batch)
        assert np.array_equal(np.concatenate(grids), expected)


@pytest.mark.parametrize("after", [0, 5, 12, 30, 49])
def test_an_interrupted_store_continues(
    dataset: Dataset, tmp_path: Path, interrupt: Callable[..., None], after: int
) -> None:
    whole = tmp_path / "whole"
    write_store(whole, dataset, FakeEncoder())
    interrupt(after)
    with pytest.raises(StoreError, match="no finished feature store is here; run 'tellapart prepare'"):
        FeatureStore.open(tmp_path / "store")
    finished = after // SHARD * SHARD
    encoder = FakeEncoder()
    progress: list[tuple[int, int]] = []
    write_store(tmp_path / "store", dataset, encoder, lambda *done: progress.append(done))
    assert encoder.encoded == IMAGES - finished, "finished shards are not encoded again"
    assert progress[0][0] > finished
    assert progress[-1] == (IMAGES, IMAGES)
    for name in ("grid.npy", "manifest.json"):
        assert (tmp_path / "store" / name).read_bytes() == (whole / name).read_bytes()


def test_interrupted_again_and_again(dataset: Dataset, tmp_path: Path, interrupt: Callable[..., None]) -> None:
    write_store(tmp_path / "whole", dataset, FakeEncoder())
    for after in (13, 14, 3, 25):
        interrupt(after)
    write_store(tmp_path / "store", dataset, FakeEncoder())
    assert (tmp_path / "store" / "grid.npy").read_bytes() == (tmp_path / "whole" / "grid.npy").read_bytes()


def test_a_finished_store_is_found_again(dataset: Dataset, tmp_path: Path) -> None:
    write_store(tmp_path / "store", dataset, FakeEncoder())
    again = FakeEncoder(stop_after=0)
    assert len(write_store(tmp_path / "store", dataset, again)) == IMAGES
    assert again.encoded == 0


def test_a_store_of_something_else_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", dataset, FakeEncoder())
    changed = Dataset("changed", dataset.root, (*dataset.records[:-1], Record("new", "49.png", "train", ("new",))))
    with pytest.raises(StoreError, match="made from other records than changed"):
        write_store(tmp_path / "store", changed, FakeEncoder())
    with pytest.raises(StoreError, match="made by fake with other weights"):
        write_store(tmp_path / "store", dataset, FakeEncoder(weights="1"))
    with pytest.raises(StoreError, match="other records"):
        store.check(changed, store.encoder)
    store.check(dataset, FakeEncoder().identity)


def test_a_changed_plan_starts_anew(
    dataset: Dataset, tmp_path: Path, interrupt: Callable[..., None], expected: np.ndarray
) -> None:
    interrupt(30)
    shorter = Dataset("shorter", dataset.root, dataset.records[5:])
    encoder = FakeEncoder(weights="1")
    store = write_store(tmp_path / "store", shorter, encoder)
    assert encoder.encoded == IMAGES - 5
    assert np.array_equal(store.grid(range(IMAGES - 5)), expected[5:].astype(np.float16).astype(np.float32))


def test_killed_while_starting_anew(
    dataset: Dataset, tmp_path: Path, interrupt: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the old array is gone, the old plan must not be believed."""
    interrupt(30)
    write = features.write_json

    def killed(path: Path, value: object) -> None:
        if path.name == "plan.json":
            raise KeyboardInterrupt
        write(path, value)

    with monkeypatch.context() as patch:
        patch.setattr(features, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            write_store(tmp_path / "store", Dataset("other", dataset.root, dataset.records[5:]), FakeEncoder())
    encoder = FakeEncoder()
    assert len(write_store(tmp_path / "store", dataset, encoder)) == IMAGES
    assert encoder.encoded == IMAGES


def test_a_broken_picture_is_named_and_what_was_finished_is_kept(dataset: Dataset, tmp_path: Path) -> None:
    path = dataset.root / "20.png"
    right = path.read_bytes()
    path.write_bytes(right[:30])
    with pytest.raises(DataError, match=r"20\.png: "):
        write_store(tmp_path / "store", dataset, FakeEncoder())
    path.write_bytes(right)
    encoder = FakeEncoder()
    write_store(tmp_path / "store", dataset, encoder)
    assert encoder.encoded == IMAGES - SHARD


def test_a_damaged_store_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    write_store(folder, dataset, FakeEncoder())
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    whole = (folder / "grid.npy").read_bytes()
    (folder / "manifest.json").write_text(json.dumps({**manifest, "shape": [IMAGES, 2, 4]}), encoding="utf-8")
    with pytest.raises(StoreError, match=r"grid\.npy is not what its manifest says"):
        FeatureStore.open(folder)
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert len(FeatureStore.open(folder)) == IMAGES
    (folder / "grid.npy").write_bytes(whole[:-100])
    with pytest.raises(StoreError, match=r"store: grid\.npy cannot be read"):
        FeatureStore.open(folder)
    os.unlink(folder / "grid.npy")
    with pytest.raises(StoreError, match=r"store: grid\.npy cannot be read"):
        FeatureStore.open(folder)


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no finished feature store is here"):
        FeatureStore.open(tmp_path)
