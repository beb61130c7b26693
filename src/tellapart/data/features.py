"""The feature store: region grids and pooled features of every image in one memory-mapped array.

A finished store is a folder with `features.npy` (float16, `[images, regions + 1, width]`; the last region is the mean
of the others), `manifest.json` (what it was made from) and, if pictures could not be read, `skipped.jsonl`. Opening it
only maps the file; a batch reads only its own rows.

During writing, the array and one marker per finished shard are in `writing-PLAN/`. Every process divides the images
into the same shards, so that several processes or machines can each write some of them, and a killed job continues
with the missing ones. The finished files are the same either way.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tellapart.data.images import load_image
from tellapart.data.records import Dataset, Record
from tellapart.encoders.base import EncoderIdentity, ImageEncoder
from tellapart.errors import DataError, StoreError
from tellapart.files import Stored, check_regular, digest_of, read_model, read_models, write_json, write_jsonl

SHARD = 256
BATCH = 16


class Manifest(Stored):
    """`manifest.json`: what a store was made from."""

    encoder: EncoderIdentity
    records: str
    shape: tuple[int, int, int]
    skipped: list[str]


class Skipped(Stored):
    """A row of `skipped.jsonl`: a picture that could not be read."""

    id: str
    image: str
    reason: str


class FeatureStore:
    """A finished store, opened for reading.

    Attributes:
        encoder: identity of the encoder.
        records: digest of the data set.
        skipped: ids of the images that could not be read; their rows are zero.

    Example:
        >>> store = FeatureStore.open(Path("prepared/flickr8k-98dbe175/efficientnet-lite0"))    # doctest: +SKIP
        >>> store.grid([0, 5]).shape, store.pooled([0, 5]).shape                                # doctest: +SKIP
        ((2, 49, 1280), (2, 1280))
    """

    def __init__(
        self, features: np.ndarray, encoder: EncoderIdentity, records: str, skipped: frozenset[str] = frozenset()
    ) -> None:
        self._features = features
        self.encoder = encoder
        self.records = records
        self.skipped = skipped

    @classmethod
    def open(cls, folder: Path) -> FeatureStore:
        if not (folder / "manifest.json").exists():
            raise StoreError(f"{folder}: no finished feature store here; run 'tellapart prepare' to make it")
        remedy = "remove the folder and prepare again"
        manifest = read_model(folder / "manifest.json", Manifest, "manifest", remedy, StoreError)
        check_regular(folder / "features.npy")
        try:
            features = np.load(folder / "features.npy", mmap_mode="r")
        except Exception as error:  # numpy raises many kinds of errors for a broken file
            raise StoreError(f"{folder}: features.npy cannot be read ({error}); {remedy}") from None
        if not isinstance(features, np.ndarray) or features.dtype != np.float16 or features.shape != manifest.shape:
            raise StoreError(f"{folder}: features.npy does not match its manifest; {remedy}")
        return cls(features, manifest.encoder, manifest.records, frozenset(manifest.skipped))

    def __len__(self) -> int:
        return len(self._features)

    def grid(self, rows: Sequence[int]) -> np.ndarray:
        """Region features of these images, float32 `[rows, regions, width]`."""
        return self._read(rows, slice(0, -1))

    def pooled(self, rows: Sequence[int]) -> np.ndarray:
        """Mean features of these images, float32 `[rows, width]`."""
        return self._read(rows, -1)

    def _read(self, rows: Sequence[int], part: slice | int) -> np.ndarray:
        return np.asarray(self._features[np.asarray(rows, dtype=np.int64), part], dtype=np.float32)

    def check(self, dataset: Dataset, encoder: EncoderIdentity) -> None:
        """Raise if the store was made from other records or by another encoder."""
        if self.records != dataset.digest:
            raise StoreError(f"this feature store was made from other records than {dataset.name}; prepare it again")
        if self.encoder.name != encoder.name:
            raise StoreError(
                f"data.encoder: these features of {dataset.name} are from {self.encoder.name}, and {encoder.name} is "
                f"needed here; set data.encoder={encoder.name}"
            )
        if self.encoder != encoder:
            raise StoreError(
                f"these features of {dataset.name} were made by {self.encoder.name} with other weights or "
                "preprocessing than are needed here; use the same version of the encoder, or prepare the data again in "
                "another folder (data.prepared)"
            )


@dataclass(frozen=True)
class Part:
    """The shards that a process writes: every `of`-th, starting at `index` (from 0)."""

    index: int = 0
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Part:
        """`"2/4"` is the second of four parts."""
        index, _, of = text.partition("/")
        if not (index.isdecimal() and of.isdecimal() and 1 <= int(index) <= int(of)):
            raise StoreError(f"'{text}' is not a part; write it as 1/4, 2/4, …")
        return cls(int(index) - 1, int(of))


WHOLE = Part()


def write_store(
    folder: Path,
    dataset: Dataset,
    encoder: ImageEncoder,
    *,
    part: Part = WHOLE,
    max_skipped: float = 0.01,
    on_progress: Callable[[int, int], None] | None = None,
) -> FeatureStore | None:
    """Encode every image of the data set, or one part of them; continue an interrupted call.

    Args:
        folder: folder of the store.
        dataset: the records; row r of the store is record r.
        encoder: computes the features.
        part: the shards this call writes; by default all.
        max_skipped: fail if a larger share of the pictures cannot be read.
        on_progress: called with the images done and the number of images of this part.

    Returns:
        The store, or `None` while shards of other parts are missing.
    """
    identity = encoder.identity
    if (folder / "manifest.json").exists():
        store = FeatureStore.open(folder)
        store.check(dataset, identity)
        _check_skipped(folder, len(store.skipped), len(dataset), max_skipped)
        return store
    plan = {
        "encoder": asdict(identity),
        "records": dataset.digest,
        "dtype": "float16",
        "shape": [len(dataset), identity.regions + 1, identity.width],
        "shard": SHARD,
    }
    work = folder / f"writing-{digest_of(plan)[:16]}"
    try:
        _write_shards(work, plan, dataset, encoder, part, on_progress)
        return _finish(folder, work, plan, dataset, max_skipped)
    except OSError as error:
        raise StoreError(
            f"{folder}: the features could not be written ({error}); finished shards are kept, "
            "fix the cause and run the same command again"
        ) from None


def _lay_out(work: Path, plan: dict[str, Any]) -> Path:
    """Create an empty array of the planned size, unless another process has."""
    work.mkdir(parents=True, exist_ok=True)
    array, temporary = work / "features.npy", work / f".features.{os.getpid()}.tmp"
    if not array.exists():
        try:
            # A sparse file: only the header is written.
            np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float16, shape=tuple(plan["shape"])).flush()
            os.link(temporary, array)
        except FileExistsError:
            pass  # created by another process in the meantime
        finally:
            temporary.unlink(missing_ok=True)
    return array


def _shards(dataset: Dataset) -> range:
    return range(0, len(dataset), SHARD)


def _marker(work: Path, start: int) -> Path:
    return work / f"shard-{start:09d}.done"


def _is_done(work: Path, start: int, dataset: Dataset) -> bool:
    """Whether a shard is written and all pictures it skipped are still unreadable."""
    try:
        skipped = read_models(_marker(work, start), Skipped, "marker")
    except DataError:  # missing or damaged: the shard is encoded again
        return False
    return not any(_is_readable(dataset.root / row.image) for row in skipped)


def _is_readable(path: Path) -> bool:
    try:
        load_image(path)
    except DataError:
        return False
    return True


def _write_shards(
    work: Path,
    plan: dict[str, Any],
    dataset: Dataset,
    encoder: ImageEncoder,
    part: Part,
    on_progress: Callable[[int, int], None] | None,
) -> None:
    """Encode and write the shards of this part that have no marker yet."""
    mine = _shards(dataset)[part.index :: part.of]
    missing = [start for start in mine if not _is_done(work, start, dataset)]
    if not missing:
        return
    array = _lay_out(work, plan)
    shards = [dataset.records[start : start + SHARD] for start in missing]
    total = sum(len(dataset.records[start : start + SHARD]) for start in mine)
    done = total - sum(map(len, shards))
    batches = [records[at : at + BATCH] for records in shards for at in range(0, len(records), BATCH)]
    encoded = encode_batches(dataset, batches, encoder)
    # Plain writes, not through the memory map: a full disk then raises an error instead of killing the process.
    layout = np.load(array, mmap_mode="r")
    row_bytes = layout.nbytes // max(1, len(layout))
    with open(array, "r+b") as handle:
        for start, records in zip(missing, shards, strict=True):
            handle.seek(layout.offset + start * row_bytes)
            skipped: list[dict[str, str]] = []
            for _ in range(0, len(records), BATCH):
                features, broken = next(encoded)
                handle.write(features.tobytes())
                skipped += broken
                done += len(features)
                if on_progress is not None:
                    on_progress(done, total)
            handle.flush()
            os.fsync(handle.fileno())
            write_jsonl(_marker(work, start), skipped)


def encode_batches(
    dataset: Dataset, batches: Sequence[Sequence[Record]], encoder: ImageEncoder
) -> Iterator[tuple[np.ndarray, list[dict[str, str]]]]:
    """Features of each batch of records in order, float16 with the mean last, and the pictures that were skipped.

    Each worker decodes and encodes whole batches. A bounded number of batches is queued ahead, which bounds memory.
    """

    def work(records: Sequence[Record]) -> tuple[np.ndarray, list[dict[str, str]]]:
        readable, images, skipped = [], [], []
        for position, record in enumerate(records):
            try:
                images.append(encoder.squeeze(load_image(dataset.path(record), at_least=encoder.size)))
                readable.append(position)
            except DataError as error:
                skipped.append({"id": record.id, "image": record.image, "reason": str(error)})
        identity = encoder.identity
        features = np.zeros((len(records), identity.regions + 1, identity.width), dtype=np.float16)
        if images:
            grid = encoder.encode(images)
            features[readable, :-1] = grid
            features[readable, -1] = grid.mean(axis=1)
        return features, skipped

    waiting: deque[Future[tuple[np.ndarray, list[dict[str, str]]]]] = deque()
    pool = ThreadPoolExecutor(max_workers=encoder.concurrency)
    try:
        for batch in batches:
            waiting.append(pool.submit(work, batch))
            if len(waiting) > 2 * encoder.concurrency:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _check_skipped(folder: Path, skipped: int, of: int, max_skipped: float) -> None:
    if skipped > max_skipped * of:
        path = folder / "skipped.jsonl"
        rows = read_models(path, Skipped, "list of pictures", "remove its folder and prepare again", StoreError)
        first = f", first: {rows[0].reason}" if rows else ""
        raise StoreError(
            f"{path}: {skipped} of {of} pictures cannot be read{first}; fix them, or allow more with --max-skipped"
        )


def _finish(
    folder: Path, work: Path, plan: dict[str, Any], dataset: Dataset, max_skipped: float
) -> FeatureStore | None:
    """When every shard is written: list the skipped pictures, move the array into place, write the manifest.

    Several processes may run this at once, and one may be killed at any line: every line can be run again.
    """
    markers = [_marker(work, start) for start in _shards(dataset)]
    try:
        skipped = [row for marker in markers for row in read_models(marker, Skipped, "marker")]
    except DataError:
        if all(marker.exists() for marker in markers):
            raise
        # A marker is missing: another part is not done, or another process has just finished the store.
        return FeatureStore.open(folder) if (folder / "manifest.json").exists() else None
    if skipped:
        write_jsonl(folder / "skipped.jsonl", [row.model_dump() for row in skipped])
    else:
        (folder / "skipped.jsonl").unlink(missing_ok=True)  # left by an earlier call, before the pictures were fixed
    _check_skipped(folder, len(skipped), len(dataset), max_skipped)
    if (work / "features.npy").exists():
        os.replace(work / "features.npy", folder / "features.npy")
    write_json(folder / "manifest.json", {**plan, "skipped": [row.id for row in skipped]})
    for left in folder.glob("writing-*"):
        shutil.rmtree(left, ignore_errors=True)
    return FeatureStore.open(folder)
