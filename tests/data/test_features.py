"""The feature store has the encoder's features, for any number of writers and interruptions."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from PIL import Image

from tellapart.data import write_features
from tellapart.data.encoding import encode_batches
from tellapart.data.features import FeatureStore
from tellapart.data.parts import Part
from tellapart.data.prepare import prepare_part
from tellapart.data.records import Dataset, Record
from tellapart.data.rows import StoreType, pack
from tellapart.data.settings import DataSettings
from tellapart.data.write_features import write_store
from tellapart.encoders.base import EncoderIdentity
from tellapart.errors import DataError, StoreError

IMAGES, SHARD, BATCH, SIZE = 50, 12, 5, 8


class FakeEncoder:
    """Features that are functions of the pixels; it can stop after some images, and counts those it encoded."""

    size = SIZE

    def __init__(
        self, weights: str = "0", stop_after: int | None = None, concurrency: int = 2, seconds: float = 0.0
    ) -> None:
        self.identity = EncoderIdentity("fake", weights, "none", regions=2, width=3)
        self.stop_after = stop_after
        self.concurrency = concurrency
        self.seconds = seconds
        self.encoded = 0
        self.lock = threading.Lock()

    def squeeze(self, image: Image.Image) -> Image.Image:
        return image.resize((self.size, self.size))

    def encode(self, images: list[Image.Image]) -> np.ndarray:
        with self.lock:
            self.encoded += len(images)
        if self.stop_after is not None and self.encoded > self.stop_after:
            raise KeyboardInterrupt
        time.sleep(self.seconds)
        assert all(image.size == (self.size, self.size) for image in images)
        means = np.stack([np.asarray(image, dtype=np.float32).mean(axis=(0, 1)) for image in images]) / 7
        return np.stack([means, -(means**2)], axis=1)


def make_dataset(folder: Path) -> Dataset:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        flat = np.broadcast_to(rng.integers(0, 256, 3, dtype=np.uint8), (SIZE, SIZE, 3))
        Image.fromarray(np.ascontiguousarray(flat)).save(folder / f"{number}.png")
    records = tuple(Record(str(n), f"{n}.png", "train", (f"picture {n}",)) for n in range(IMAGES))
    return Dataset("pictures", folder, records)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return make_dataset(tmp_path / "pictures")


def small_shards() -> None:
    write_features.SHARD, write_features.BATCH = SHARD, BATCH


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_features, "SHARD", SHARD)
    monkeypatch.setattr(write_features, "BATCH", BATCH)


@pytest.fixture
def expected(dataset: Dataset) -> np.ndarray:
    """Every picture opened and encoded by itself."""
    encoder = FakeEncoder()
    return np.concatenate([encoder.encode([Image.open(dataset.path(record))]) for record in dataset])


@pytest.fixture(params=["float16", "int8"])
def kind(request: pytest.FixtureRequest) -> StoreType:
    """How the features are kept."""
    return cast(StoreType, request.param)


@pytest.fixture
def interrupt(dataset: Dataset, tmp_path: Path, kind: StoreType) -> Callable[[int], int]:
    """Stop a job after so many images; gives how many images it had finished for good."""

    def stop(after: int) -> int:
        with pytest.raises(KeyboardInterrupt):
            write_store(tmp_path / "store", dataset, FakeEncoder(stop_after=after), kind=kind)
        return finished_images(tmp_path / "store")

    return stop


def finished_images(store: Path) -> int:
    starts = [int(marker.stem.split("-")[1]) for marker in store.glob("writing-*/shard-*.done")]
    return sum(min(SHARD, IMAGES - start) for start in starts)


def same_store(one: Path, other: Path) -> bool:
    names = [sorted(path.name for path in folder.iterdir()) for folder in (one, other)]
    return names[0] == names[1] and all((one / name).read_bytes() == (other / name).read_bytes() for name in names[0])


def test_the_store_holds_what_the_encoder_gave(dataset: Dataset, tmp_path: Path, expected: np.ndarray) -> None:
    assert IMAGES % SHARD, "the last shard is a short one"
    assert SHARD % BATCH, "so is the last batch of a shard"
    encoder = FakeEncoder()
    progress: list[tuple[int, int]] = []
    store = write_store(tmp_path / "store", dataset, encoder, on_progress=lambda *done: progress.append(done))
    assert store is not None
    assert encoder.encoded == IMAGES
    assert len(store) == IMAGES
    stored = np.load(tmp_path / "store" / "features.npy")
    assert stored.dtype == np.float16
    assert np.array_equal(stored[:, :-1], expected.astype(np.float16))
    assert np.array_equal(stored[:, -1], expected.mean(axis=1).astype(np.float16))
    assert store.encoder == encoder.identity
    assert store.records == dataset.digest
    assert progress[-1] == (IMAGES, IMAGES)
    assert [done for done, _ in progress] == sorted({done for done, _ in progress})
    names = sorted(path.name for path in (tmp_path / "store").iterdir())
    assert names == ["features.npy", "manifest.json", "pictures.npy"]


def test_an_int8_store_holds_the_packed_features(dataset: Dataset, tmp_path: Path, expected: np.ndarray) -> None:
    store = write_store(tmp_path / "store", dataset, FakeEncoder(), kind="int8")
    assert store is not None
    assert store.kind == FeatureStore.open(tmp_path / "store").kind == "int8"
    assert json.loads((tmp_path / "store" / "manifest.json").read_text())["dtype"] == "int8"
    whole = np.concatenate([expected, expected.mean(axis=1, keepdims=True)], axis=1)
    assert np.array_equal(np.load(tmp_path / "store" / "features.npy"), pack(whole, "int8"))
    rows = [49, 0, 17, 17]
    grid, pooled = store.grid(rows), store.pooled(rows)
    assert grid.dtype == pooled.dtype == np.float32
    largest = np.abs(expected[rows]).max(axis=1, keepdims=True)
    assert (np.abs(grid - expected[rows]) <= largest * (0.5 / 127 + 2**-11)).all()
    assert np.array_equal(pooled, expected[rows].mean(axis=1).astype(np.float16).astype(np.float32))
    assert store.grid([]).shape == (0, 2, 3)
    float16 = write_store(tmp_path / "float16", dataset, FakeEncoder())
    assert float16 is not None
    assert float16.pictures_digest() != store.pictures_digest(), "results of one are not taken for the other's"
    with pytest.raises(StoreError, match="keeps int8, not float16; use another folder"):
        write_store(tmp_path / "store", dataset, FakeEncoder())


def test_stores_of_both_kinds_have_their_own_folders(dataset: Dataset, tmp_path: Path) -> None:
    found = {}
    for kind in ("float16", "int8"):
        settings = DataSettings(source="unread", prepared=str(tmp_path / "prepared"), store=kind)
        prepared = prepare_part(settings, Part(), encoder=FakeEncoder(), dataset=dataset)
        assert prepared is not None
        assert prepared.store.kind == kind
        assert prepared.store.encoder == FakeEncoder().identity, "the encoder is the same one"
        found[kind] = prepared.folder.name
    assert found == {"float16": "fake", "int8": "fake-int8"}


def test_a_store_without_a_type_in_its_manifest_is_float16(dataset: Dataset, tmp_path: Path) -> None:
    before = write_store(tmp_path / "store", dataset, FakeEncoder())
    assert before is not None
    path = tmp_path / "store" / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest.pop("dtype") == "float16"
    path.write_text(json.dumps(manifest))
    store = write_store(tmp_path / "store", dataset, FakeEncoder(stop_after=0))
    assert store is not None
    assert np.array_equal(store.grid(range(IMAGES)), before.grid(range(IMAGES)))


class ClassTokenEncoder(FakeEncoder):
    """Its last region is a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.identity = replace(self.identity, regions=3, class_token=True)

    def encode(self, images: list[Image.Image]) -> np.ndarray:
        grid = super().encode(images)
        return np.concatenate([grid, grid[:, :1] * 3 + 1], axis=1)


def test_a_class_token_is_a_region_and_the_pooled_features(
    dataset: Dataset, tmp_path: Path, expected: np.ndarray, kind: StoreType
) -> None:
    store = write_store(tmp_path / "store", dataset, ClassTokenEncoder(), kind=kind)
    mean = write_store(tmp_path / "mean", dataset, FakeEncoder(), kind=kind)
    assert store is not None
    assert mean is not None
    token = (expected[:, 0] * 3 + 1).astype(np.float16).astype(np.float32)
    assert np.array_equal(store.pooled(range(IMAGES)), token)
    assert np.array_equal(store.grid(range(IMAGES)), np.concatenate([mean.grid(range(IMAGES)), token[:, None]], axis=1))


def test_a_batch_reads_the_right_rows(dataset: Dataset, tmp_path: Path, expected: np.ndarray) -> None:
    store = write_store(tmp_path / "store", dataset, FakeEncoder())
    assert store is not None
    rows = [49, 0, 17, 17]
    grid = store.grid(rows)
    assert grid.dtype == store.pooled(rows).dtype == np.float32
    assert np.array_equal(grid, expected[rows].astype(np.float16).astype(np.float32))
    assert np.array_equal(store.pooled(rows), expected[rows].mean(axis=1).astype(np.float16).astype(np.float32))
    assert store.grid([]).shape == (0, 2, 3)
    grid[:] = 0
    assert np.array_equal(store.grid([49]), expected[[49]].astype(np.float16).astype(np.float32)), "a copy"


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_batches_come_in_order_however_many_are_encoded_at_once(
    dataset: Dataset, expected: np.ndarray, concurrency: int
) -> None:
    for size in (1, 7, 100):
        batches = [dataset.records[at : at + size] for at in range(0, IMAGES, size)]
        found = [grid for grid, _ in encode_batches(dataset, batches, FakeEncoder(concurrency=concurrency))]
        assert len(found) == len(batches)
        assert np.array_equal(np.concatenate(found)[:, :-1], expected.astype(np.float16))


@pytest.mark.parametrize("after", [0, 5, 12, 30, 49])
def test_an_interrupted_store_continues(
    dataset: Dataset, tmp_path: Path, interrupt: Callable[[int], int], after: int, kind: StoreType
) -> None:
    write_store(tmp_path / "whole", dataset, FakeEncoder(), kind=kind)
    finished = interrupt(after)
    assert finished <= after
    with pytest.raises(StoreError, match="no finished feature store here; run 'tellapart prepare'"):
        FeatureStore.open(tmp_path / "store")
    encoder = FakeEncoder()
    progress: list[tuple[int, int]] = []
    write_store(tmp_path / "store", dataset, encoder, on_progress=lambda *done: progress.append(done), kind=kind)
    assert encoder.encoded == IMAGES - finished, "finished shards are not encoded again"
    assert progress[0][0] > finished
    assert progress[-1] == (IMAGES, IMAGES)
    assert same_store(tmp_path / "store", tmp_path / "whole")


def test_interrupted_again_and_again(
    dataset: Dataset, tmp_path: Path, interrupt: Callable[[int], int], kind: StoreType
) -> None:
    write_store(tmp_path / "whole", dataset, FakeEncoder(), kind=kind)
    finished = [interrupt(after) for after in (13, 14, 3, 25)]
    assert finished == sorted(finished)
    assert finished[-1] > 0
    write_store(tmp_path / "store", dataset, FakeEncoder(), kind=kind)
    assert same_store(tmp_path / "store", tmp_path / "whole")


def write_in_a_process(root: Path, part: Part, seconds: float, kind: StoreType) -> None:
    small_shards()
    records = tuple(Record(str(n), f"{n}.png", "train", (f"picture {n}",)) for n in range(IMAGES))
    dataset = Dataset("pictures", root / "pictures", records)
    write_store(root / "store", dataset, FakeEncoder(seconds=seconds), part=part, kind=kind)


@pytest.mark.parametrize("begun", ["new", "damaged", "changed"])
def test_two_processes_write_what_one_writes(
    dataset: Dataset, tmp_path: Path, interrupt: Callable[[int], int], begun: str, kind: StoreType
) -> None:
    if begun == "damaged":
        interrupt(40)
        next((tmp_path / "store").glob("writing-*/features.npy")).write_bytes(b"")
    elif begun == "changed":
        write_store(tmp_path / "store", dataset, FakeEncoder(), kind=kind)
        for number in (1, SHARD + 1, SHARD + 2):
            replace_picture(dataset, number, (number, 250, 7))
    write_store(tmp_path / "whole", dataset, FakeEncoder(), kind=kind)
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=write_in_a_process, args=(tmp_path, Part(i, 2), 0.01, kind)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert same_store(tmp_path / "store", tmp_path / "whole")


def test_processes_prepare_new_scenes_in_parts(tmp_path: Path) -> None:
    """Both render the scenes, each encodes its part, and the last one finishes the store."""
    code = """
import sys
from tellapart.data import write_features
from tellapart.data.parts import Part
from tellapart.data.prepare import prepare_part
from tellapart.data.settings import DataSettings
write_features.SHARD = 4
settings = DataSettings(source="scenes", scenes={"train": 12, "val": 4, "test": 4}, prepared=sys.argv[1])
print(prepare_part(settings, Part.parse(sys.argv[2])) is not None)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "prepared")]
    running = [
        subprocess.Popen([*command, f"{number}/3"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for number in (1, 2, 3)
    ]
    printed = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], printed
    assert "True\n" in [out for out, _ in printed]
    (manifest,) = (tmp_path / "prepared").rglob("manifest.json")
    store = FeatureStore.open(manifest.parent)
    assert store.skipped == frozenset()
    assert (store.pooled(range(20)) != 0).any(axis=1).all()
    assert sorted(path.name for path in manifest.parent.iterdir()) == ["features.npy", "manifest.json", "pictures.npy"]


def test_parts_one_after_the_other(dataset: Dataset, tmp_path: Path, kind: StoreType) -> None:
    write_store(tmp_path / "whole", dataset, FakeEncoder(), kind=kind)
    encoders = [FakeEncoder() for _ in range(3)]
    found = [write_store(tmp_path / "store", dataset, e, part=Part(i, 3), kind=kind) for i, e in enumerate(encoders)]
    assert [store is None for store in found] == [True, True, False], "None while parts are missing"
    assert sum(encoder.encoded for encoder in encoders) == IMAGES
    assert same_store(tmp_path / "store", tmp_path / "whole")


def test_killed_half_way_it_continues_to_the_same_bytes(dataset: Dataset, tmp_path: Path, kind: StoreType) -> None:
    write_store(tmp_path / "whole", dataset, FakeEncoder(), kind=kind)
    worker = multiprocessing.get_context("spawn").Process(target=write_in_a_process, args=(tmp_path, Part(), 0.2, kind))
    worker.start()
    deadline = time.monotonic() + 60
    while finished_images(tmp_path / "store") < SHARD and time.monotonic() < deadline:
        time.sleep(0.01)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    finished = finished_images(tmp_path / "store")
    assert 0 < finished < IMAGES
    encoder = FakeEncoder()
    write_store(tmp_path / "store", dataset, encoder, kind=kind)
    assert encoder.encoded == IMAGES - finished
    assert same_store(tmp_path / "store", tmp_path / "whole")


@pytest.mark.parametrize("text", ["1/1", "2/3"])
def test_parts_are_named_from_one(text: str) -> None:
    assert Part.parse(text) == {"1/1": Part(0, 1), "2/3": Part(1, 3)}[text]


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/b", "1/0", "-1/2"])
def test_invalid_parts(text: str) -> None:
    with pytest.raises(StoreError, match="write it as 1/4"):
        Part.parse(text)


def test_a_finished_store_is_found_again(dataset: Dataset, tmp_path: Path, kind: StoreType) -> None:
    write_store(tmp_path / "store", dataset, FakeEncoder(), kind=kind)
    again = FakeEncoder(stop_after=0)
    assert write_store(tmp_path / "store", dataset, again, kind=kind) is not None
    assert again.encoded == 0


def test_a_store_of_something_else_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", dataset, FakeEncoder())
    assert store is not None
    changed = Dataset("changed", dataset.root, (*dataset.records[:-1], Record("new", "49.png", "train", ("new",))))
    with pytest.raises(StoreError, match="made from other records than changed"):
        write_store(tmp_path / "store", changed, FakeEncoder())
    with pytest.raises(StoreError, match="made by fake with other weights"):
        write_store(tmp_path / "store", dataset, FakeEncoder(weights="1"))
    with pytest.raises(StoreError, match="other records"):
        store.check(changed, store.encoder)
    store.check(dataset, FakeEncoder().identity)


def test_a_changed_plan_starts_again(
    dataset: Dataset, tmp_path: Path, interrupt: Callable[[int], int], expected: np.ndarray
) -> None:
    assert interrupt(40) > 0
    shorter = Dataset("shorter", dataset.root, dataset.records[5:])
    encoder = FakeEncoder(weights="1")
    store = write_store(tmp_path / "store", shorter, encoder)
    assert store is not None
    assert encoder.encoded == IMAGES - 5
    assert np.array_equal(store.grid(range(IMAGES - 5)), expected[5:].astype(np.float16).astype(np.float32))
    assert not list((tmp_path / "store").glob("writing-*")), "the abandoned plan is cleared away"


@pytest.mark.parametrize("name", ["write_json", "write_jsonl"])
def test_killed_while_finishing(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: StoreType
) -> None:
    """The array is in its place, the manifest is not: nothing is encoded again."""
    write_store(tmp_path / "whole", dataset, FakeEncoder(), kind=kind)
    real = getattr(write_features, name)

    def killed(path: Path, value: object) -> None:
        if path.name in ("manifest.json", "shard-000000048.done"):
            raise KeyboardInterrupt
        real(path, value)

    with monkeypatch.context() as patch:
        patch.setattr(write_features, name, killed)
        with pytest.raises(KeyboardInterrupt):
            write_store(tmp_path / "store", dataset, FakeEncoder(), kind=kind)
    encoder = FakeEncoder()
    write_store(tmp_path / "store", dataset, encoder, kind=kind)
    assert encoder.encoded == (0 if name == "write_json" else IMAGES % SHARD)
    assert same_store(tmp_path / "store", tmp_path / "whole")


def break_pictures(dataset: Dataset, numbers: list[int]) -> None:
    for number in numbers:
        path = dataset.root / f"{number}.png"
        path.write_bytes(path.read_bytes()[:30])


def test_a_broken_picture_is_skipped_counted_and_listed(dataset: Dataset, tmp_path: Path, expected: np.ndarray) -> None:
    break_pictures(dataset, [20])
    store = write_store(tmp_path / "store", dataset, FakeEncoder(), max_skipped=0.05)
    assert store is not None
    assert store.skipped == {"20"}
    (row,) = [json.loads(line) for line in (tmp_path / "store" / "skipped.jsonl").open()]
    assert row["id"] == "20"
    assert row["image"] == "20.png"
    assert "20.png" in row["reason"]
    grid = store.grid(range(IMAGES))
    kept = [n for n in range(IMAGES) if n != 20]
    assert np.array_equal(grid[kept], expected[kept].astype(np.float16).astype(np.float32))
    assert not grid[20].any()


def test_too_many_broken_pictures_fail_until_they_are_allowed(dataset: Dataset, tmp_path: Path) -> None:
    break_pictures(dataset, [3, 20, 21])
    with pytest.raises(StoreError, match=r"3 of 50 pictures cannot be read, first: .*3\.png.*--max-skipped"):
        write_store(tmp_path / "store", dataset, FakeEncoder(), max_skipped=0.05)
    encoder = FakeEncoder()
    store = write_store(tmp_path / "store", dataset, encoder, max_skipped=0.06)
    assert store is not None
    assert store.skipped == {"3", "20", "21"}
    assert encoder.encoded == 0, "everything that can be read had been encoded"


def test_a_damaged_list_of_skipped_pictures_is_named(dataset: Dataset, tmp_path: Path) -> None:
    break_pictures(dataset, [3, 20])
    write_store(tmp_path / "store", dataset, FakeEncoder(), max_skipped=0.05)
    (tmp_path / "store" / "skipped.jsonl").write_text('{"id": "3"}\n')
    with pytest.raises(DataError, match=r"skipped\.jsonl: line 1 of this list of skipped pictures is damaged"):
        write_store(tmp_path / "store", dataset, FakeEncoder(), max_skipped=0.01)


def test_a_fixed_picture_is_read_on_the_next_call(dataset: Dataset, tmp_path: Path, kind: StoreType) -> None:
    write_store(tmp_path / "whole", dataset, FakeEncoder(), kind=kind)
    right = (dataset.root / "20.png").read_bytes()
    break_pictures(dataset, [20])
    with pytest.raises(StoreError, match="1 of 50 pictures cannot be read"):
        write_store(tmp_path / "store", dataset, FakeEncoder(), kind=kind)
    (dataset.root / "20.png").write_bytes(right)
    encoder = FakeEncoder()
    store = write_store(tmp_path / "store", dataset, encoder, kind=kind)
    assert store is not None
    assert not store.skipped
    assert encoder.encoded == 1, "only this picture is encoded again"
    write_store(tmp_path / "whole", dataset, FakeEncoder(), kind=kind)  # takes the new time of the file
    assert same_store(tmp_path / "store", tmp_path / "whole")


def test_a_full_disk_is_an_error_and_loses_nothing(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_store(tmp_path / "whole", dataset, FakeEncoder())
    written = []

    def full(handle: int) -> None:
        written.append(handle)
        if len(written) > 3:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match=r"No space left on device.*finished shards are kept"):
            write_store(tmp_path / "store", dataset, FakeEncoder())
    with pytest.raises(StoreError, match="no finished feature store"):
        FeatureStore.open(tmp_path / "store")
    finished = finished_images(tmp_path / "store")
    encoder = FakeEncoder()
    write_store(tmp_path / "store", dataset, encoder)
    assert 0 < finished == IMAGES - encoder.encoded
    assert same_store(tmp_path / "store", tmp_path / "whole")


# --- changed pictures -----------------------------------------------------------------------------------------------


def replace_picture(dataset: Dataset, number: int, colour: tuple[int, int, int]) -> None:
    Image.new("RGB", (SIZE, SIZE), colour).save(dataset.root / f"{number}.png")


def later(path: Path, seconds: int = 5) -> None:
    """Give a file another modification time."""
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + seconds * 10**9))


def test_replaced_pictures_are_encoded_again(dataset: Dataset, tmp_path: Path, expected: np.ndarray) -> None:
    before = write_store(tmp_path / "store", dataset, FakeEncoder())
    for number in (3, 40, 41):
        replace_picture(dataset, number, (number, 250, 7))
    encoder = FakeEncoder()
    after = write_store(tmp_path / "store", dataset, encoder)
    assert before is not None
    assert after is not None
    assert encoder.encoded == 3
    whole = write_store(tmp_path / "whole", dataset, FakeEncoder())
    assert whole is not None
    assert same_store(tmp_path / "store", tmp_path / "whole")
    assert not np.array_equal(after.grid([3]), before.grid([3]))
    assert np.array_equal(before.grid(range(IMAGES)), expected.astype(np.float16)), "an open store keeps its features"
    assert after.pictures_digest() == whole.pictures_digest() != before.pictures_digest()
    assert after.pictures_digest([0, 1, 2]) == before.pictures_digest([0, 1, 2])


def test_a_picture_of_the_same_size_in_bytes_is_noticed(dataset: Dataset, tmp_path: Path) -> None:
    path = dataset.root / "3.png"
    write_store(tmp_path / "store", dataset, FakeEncoder())
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    later(path)
    encoder = FakeEncoder()
    write_store(tmp_path / "store", dataset, encoder)
    assert encoder.encoded == 1


def test_touched_and_copied_pictures_are_not_encoded_again(dataset: Dataset, tmp_path: Path) -> None:
    before = write_store(tmp_path / "store", dataset, FakeEncoder())
    later(dataset.root / "3.png")
    encoder = FakeEncoder()
    touched = write_store(tmp_path / "store", dataset, encoder)
    shutil.copytree(dataset.root, tmp_path / "copy", copy_function=shutil.copyfile)
    for path in (tmp_path / "copy").iterdir():
        later(path)
    copied = write_store(tmp_path / "store", replace(dataset, root=tmp_path / "copy"), encoder)
    assert encoder.encoded == 0
    assert before is not None
    assert touched is not None
    assert copied is not None
    assert before.pictures_digest() == touched.pictures_digest() == copied.pictures_digest()
    times = np.load(tmp_path / "store" / "pictures.npy")["time"]
    assert times[0] == (tmp_path / "copy" / "0.png").stat().st_mtime_ns, "the content is not read every time"


def test_features_stay_when_pictures_are_gone(dataset: Dataset, tmp_path: Path) -> None:
    write_store(tmp_path / "store", dataset, FakeEncoder())
    shutil.rmtree(dataset.root)
    encoder = FakeEncoder()
    store = write_store(tmp_path / "store", dataset, encoder)
    assert store is not None
    assert not store.skipped
    assert encoder.encoded == 0


def test_too_many_newly_broken_pictures_leave_the_store_as_it_is(dataset: Dataset, tmp_path: Path) -> None:
    write_store(tmp_path / "store", dataset, FakeEncoder())
    before = (tmp_path / "store" / "features.npy").read_bytes()
    break_pictures(dataset, [3, 4])
    for _ in range(2):
        with pytest.raises(StoreError, match="2 of 50 pictures cannot be read"):
            write_store(tmp_path / "store", dataset, FakeEncoder())
        assert (tmp_path / "store" / "features.npy").read_bytes() == before
    store = write_store(tmp_path / "store", dataset, FakeEncoder(), max_skipped=0.04)
    assert store is not None
    assert store.skipped == {"3", "4"}


def test_an_interrupted_refresh_continues(
    dataset: Dataset, tmp_path: Path, interrupt: Callable[[int], int], monkeypatch: pytest.MonkeyPatch, kind: StoreType
) -> None:
    write_store(tmp_path / "store", dataset, FakeEncoder(concurrency=1), kind=kind)
    changed = [*range(12), 13, 30, 45]
    for number in changed:
        replace_picture(dataset, number, (number, 250, 7))
    with pytest.raises(KeyboardInterrupt):
        write_store(tmp_path / "store", dataset, FakeEncoder(stop_after=13, concurrency=1), kind=kind)
    assert len(FeatureStore.open(tmp_path / "store")) == IMAGES, "the finished store stays until the new one is whole"
    encoder = FakeEncoder()
    write_store(tmp_path / "store", dataset, encoder, kind=kind)
    assert 0 < encoder.encoded < len(changed)
    write_store(tmp_path / "whole", dataset, FakeEncoder(), kind=kind)
    assert same_store(tmp_path / "store", tmp_path / "whole")


def test_parts_refresh_their_own_shards(dataset: Dataset, tmp_path: Path, kind: StoreType) -> None:
    write_store(tmp_path / "store", dataset, FakeEncoder(), kind=kind)
    replace_picture(dataset, 1, (1, 250, 7))
    replace_picture(dataset, SHARD + 1, (2, 250, 7))
    encoders = [FakeEncoder(), FakeEncoder()]
    assert write_store(tmp_path / "store", dataset, encoders[0], part=Part(0, 2), kind=kind) is None
    assert write_store(tmp_path / "store", dataset, encoders[1], part=Part(1, 2), kind=kind) is not None
    assert [encoder.encoded for encoder in encoders] == [1, 1]
    write_store(tmp_path / "whole", dataset, FakeEncoder(), kind=kind)
    assert same_store(tmp_path / "store", tmp_path / "whole")


@pytest.mark.parametrize("name", ["features.npy", "pictures.npy", "manifest.json", None])
def test_killed_while_replacing(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None, kind: StoreType
) -> None:
    """Before a file is renamed, or (None) before the folder for writing is removed."""
    before = write_store(tmp_path / "store", dataset, FakeEncoder(), kind=kind)
    assert before is not None
    replace_picture(dataset, 3, (3, 250, 7))
    real = os.replace

    def killed(source: Path, target: Path) -> None:
        if target == tmp_path / "store" / str(name):
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        if name is None:
            patch.setattr(shutil, "rmtree", lambda path, ignore_errors: None)
        with nullcontext() if name is None else pytest.raises(KeyboardInterrupt):
            write_store(tmp_path / "store", dataset, FakeEncoder(), kind=kind)
    middle = write_store(tmp_path / "store", dataset, FakeEncoder(), kind=kind)
    assert middle is not None
    kept_features = middle.grid([4]).copy()
    replace_picture(dataset, 4, (4, 250, 7))
    write_store(tmp_path / "store", dataset, FakeEncoder(), kind=kind)
    assert np.array_equal(middle.grid([4]), kept_features), "an open store is not written to"
    write_store(tmp_path / "whole", dataset, FakeEncoder(), kind=kind)
    assert same_store(tmp_path / "store", tmp_path / "whole")


def test_changed_pictures_in_a_tar(dataset: Dataset, tmp_path: Path) -> None:
    def pack() -> None:
        with tarfile.open(tmp_path / "pictures.tar", "w") as tar:
            for record in dataset:
                tar.add(dataset.path(record), record.image)

    pack()
    inside = tuple(replace(record, image=f"pictures.tar/{record.image}") for record in dataset)
    packed = Dataset("packed", tmp_path, inside)
    write_store(tmp_path / "store", packed, FakeEncoder())
    later(tmp_path / "pictures.tar")
    encoder = FakeEncoder()
    write_store(tmp_path / "store", packed, encoder)
    assert encoder.encoded == 0
    replace_picture(dataset, 20, (3, 250, 7))
    pack()
    later(tmp_path / "pictures.tar", 10)
    write_store(tmp_path / "store", packed, encoder)
    assert encoder.encoded == 1


# --- damaged files --------------------------------------------------------------------------------------------------


def damage(path: Path, how: str) -> None:
    content = path.read_bytes() if path.exists() else b""
    if how == "gone":
        path.unlink()
    elif how == "dtype":
        np.save(path, np.zeros((IMAGES, 3, 3), np.float32))
    elif how == "shape":
        np.save(path, np.zeros((IMAGES, 3, 4), np.float16))
    else:
        noise = os.urandom(len(content))
        path.write_bytes({"empty": b"", "short": content[:-100], "noise": noise, "other": b'{"encoder": 5}'}[how])


DAMAGE = ["gone", "empty", "short", "noise", "dtype", "shape"]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, how) for name in ("features.npy", "pictures.npy") for how in DAMAGE),
        *(("manifest.json", how) for how in ("gone", "empty", "short", "noise", "other")),
    ],
)
def test_a_damaged_store_is_encoded_again(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, how: str, kind: StoreType
) -> None:
    folder = tmp_path / "store"
    write_store(folder, dataset, FakeEncoder(), kind=kind)
    write_store(tmp_path / "whole", dataset, FakeEncoder(), kind=kind)
    damage(folder / name, how)
    with pytest.raises((StoreError, DataError), match=r"tellapart prepare|manifest\.json: not"):
        FeatureStore.open(folder)
    encoder = FakeEncoder()
    assert write_store(folder, dataset, encoder, kind=kind) is not None
    assert encoder.encoded == IMAGES
    if (name, how) != ("manifest.json", "gone"):
        assert f"{name}: " in capsys.readouterr().err
    (folder / "features.damaged.npy").unlink(missing_ok=True)
    assert same_store(folder, tmp_path / "whole")


def test_a_damaged_array_is_set_aside(dataset: Dataset, tmp_path: Path) -> None:
    write_store(tmp_path / "store", dataset, FakeEncoder())
    (tmp_path / "store" / "features.npy").write_bytes(b"half")
    write_store(tmp_path / "store", dataset, FakeEncoder())
    assert (tmp_path / "store" / "features.damaged.npy").read_bytes() == b"half"


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_array_that_is_being_written(
    dataset: Dataset, tmp_path: Path, interrupt: Callable[[int], int], how: str, kind: StoreType
) -> None:
    assert interrupt(40) > 0
    (array,) = (tmp_path / "store").glob("writing-*/features.npy")
    damage(array, how)
    encoder = FakeEncoder()
    write_store(tmp_path / "store", dataset, encoder, kind=kind)
    assert encoder.encoded == IMAGES, "nothing is taken from a damaged array"
    write_store(tmp_path / "whole", dataset, FakeEncoder(), kind=kind)
    assert same_store(tmp_path / "store", tmp_path / "whole")


@pytest.mark.parametrize(
    "content", ["", "{", "[1, 2]\n" * SHARD, '[1, 2, "zz", null]\n' * SHARD, '[1, 2, "", null]\n' * SHARD, "5\n"]
)
def test_a_damaged_marker(
    dataset: Dataset, tmp_path: Path, interrupt: Callable[[int], int], content: str, kind: StoreType
) -> None:
    finished = interrupt(40)
    marker = next((tmp_path / "store").glob("writing-*/shard-*.done"))
    marker.write_text(content, encoding="utf-8")
    encoder = FakeEncoder()
    write_store(tmp_path / "store", dataset, encoder, kind=kind)
    assert encoder.encoded == IMAGES - finished + SHARD, "its shard is encoded again"
    write_store(tmp_path / "whole", dataset, FakeEncoder(), kind=kind)
    assert same_store(tmp_path / "store", tmp_path / "whole")


def test_folders_of_the_users_are_not_removed(dataset: Dataset, tmp_path: Path) -> None:
    notes = tmp_path / "store" / "writing-notes" / "letter.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine", encoding="utf-8")
    write_store(tmp_path / "store", dataset, FakeEncoder())
    names = sorted(path.name for path in (tmp_path / "store").iterdir())
    assert names == ["features.npy", "manifest.json", "pictures.npy", "writing-notes"]
    assert notes.read_text(encoding="utf-8") == "mine"


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no finished feature store here"):
        FeatureStore.open(tmp_path)
