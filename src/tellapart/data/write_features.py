"""Write feature stores, see `data.features`: in shards, by several processes, continued after a kill.

During writing, the array and one marker per finished shard are in `writing-PLAN/`. Every process divides the images
into the same shards, so that several processes or machines can each write some of them, and a killed job continues
with the missing ones. The finished files are the same either way.

When pictures have changed, a copy of the store goes back to `writing-PLAN/`, the changed rows are encoded again, and
the new array replaces the old one. A process that has the old array open keeps it. A damaged array is encoded again.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tellapart.data.encoding import BATCH, encode_batches, rows_per_image
from tellapart.data.features import REPAIR, FeatureStore, array_problem
from tellapart.data.parts import WHOLE, Part
from tellapart.data.pictures import PICTURE, Pictures, describe_picture, find_changed
from tellapart.data.records import Dataset, Record
from tellapart.data.rows import StoreType, array_layout, row_bytes
from tellapart.encoders.base import ImageEncoder
from tellapart.errors import DataError, StoreError
from tellapart.files import (
    Stored,
    digest_of,
    lock,
    new_file,
    read_jsonl,
    read_models,
    temporary_path,
    write_json,
    write_jsonl,
)

SHARD = 256  # images


class Skipped(Stored):
    """A row of `skipped.jsonl`: a picture that could not be read."""

    id: str
    image: str
    reason: str


def write_store(
    folder: Path,
    dataset: Dataset,
    encoder: ImageEncoder,
    *,
    part: Part = WHOLE,
    max_skipped: float = 0.01,
    kind: StoreType = "float16",
    on_progress: Callable[[int, int], None] | None = None,
) -> FeatureStore | None:
    """Encode every image of the data set, or one part of them; continue an interrupted call.

    Args:
        folder: folder of the store.
        dataset: the records; row r of the store is record r.
        encoder: computes the features.
        part: the shards this call writes; by default all.
        max_skipped: fail if a larger share of the pictures cannot be read.
        kind: how the features are kept.
        on_progress: called with the images done and the number of images of this part.

    Returns:
        The store, or `None` while shards of other parts are missing.
    """
    identity = encoder.identity
    shape = (len(dataset), rows_per_image(identity), identity.width)
    plan = {
        "encoder": identity.as_dict(),
        "records": dataset.digest,
        "dtype": kind,
        "shape": list(shape),
        "shard": SHARD,
    }
    work = folder / f"writing-{digest_of(plan)[:16]}"
    try:
        store = _find_store(folder, kind, shape)
        if store is not None:
            store.check(dataset, identity)
            if store.kind != kind:
                raise StoreError(f"{folder}: this feature store keeps {store.kind}, not {kind}; use another folder")
            if not _update_pictures(folder, dataset, store):
                _check_skipped(folder, len(store.skipped), len(dataset), max_skipped)
                return store
        _begin(work, kind, shape, dataset, store)
        _write_shards(work, kind, shape, dataset, encoder, part, on_progress)
        return _finish(folder, work, plan, dataset, part, max_skipped)
    except OSError as error:
        if not work.exists() and (folder / "manifest.json").exists():  # another process has just finished the store
            return FeatureStore.open(folder)
        raise StoreError(
            f"{folder}: the features could not be written ({error}); finished shards are kept, "
            "fix the cause and run the same command again"
        ) from None


def _find_store(folder: Path, kind: StoreType, shape: tuple[int, ...]) -> FeatureStore | None:
    """The finished store. If there is none, or if it is damaged and must be encoded again, `None`."""
    if not (folder / "manifest.json").exists():
        return None
    try:
        return FeatureStore.open(folder)
    except (StoreError, DataError) as error:
        array = folder / "features.npy"
        if array.exists() and array_problem(array, kind, shape) is not None:
            os.replace(array, folder / "features.damaged.npy")
        with suppress(FileNotFoundError):  # another process has set it aside, or is just finishing the store
            (folder / "manifest.json").unlink()
            print(f"{str(error).removesuffix(REPAIR)}encoding the images again", file=sys.stderr, flush=True)
        return None


def _update_pictures(folder: Path, dataset: Dataset, store: FeatureStore) -> bool:
    """Whether pictures have changed. Otherwise new sizes and times of touched or copied files are stored."""
    before = store.pictures.copy()
    if find_changed(dataset.root, dataset.records, store.pictures):
        return True
    if not np.array_equal(before, store.pictures):
        with suppress(OSError):  # a store on a read-only disk: the content is compared again next time
            _write_pictures(folder, store.pictures)
    return False


def _write_pictures(folder: Path, pictures: Pictures) -> None:
    with new_file(folder / "pictures.npy") as temporary, open(temporary, "wb") as handle:
        np.save(handle, pictures)


def _begin(work: Path, kind: StoreType, shape: tuple[int, ...], dataset: Dataset, store: FeatureStore | None) -> None:
    """Make the folder for writing, unless a sound one is there: an empty array, or a copy of the finished store."""
    folder, array = work.parent, work / "features.npy"
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder):
        # A process killed after finishing leaves its array here. It is the finished one and must not be changed.
        finished = store is not None and array.exists() and os.path.samefile(array, folder / "features.npy")
        if array.exists() and not finished and array_problem(array, kind, shape) is None:
            return
        if work.exists():
            _remove_folder(work)
        temporary = temporary_path(work)
        temporary.mkdir()
        try:
            if store is None:
                # A sparse file: only the header is written.
                dtype, dimensions = array_layout(kind, shape)
                np.lib.format.open_memmap(temporary / array.name, mode="w+", dtype=dtype, shape=dimensions).flush()
            else:
                shutil.copyfile(folder / "features.npy", temporary / array.name)
                reasons = {row.id: row.reason for row in _read_skipped(folder)}
                for start in _shards(dataset):
                    ids = [record.id for record in dataset.records[start : start + SHARD]]
                    skipped = [reasons.get(id, "not readable") if id in store.skipped else None for id in ids]
                    _write_marker(temporary, start, _Shard(store.pictures[start : start + SHARD], skipped))
            os.rename(temporary, work)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _remove_folder(path: Path) -> None:
    """Rename a folder, then remove it: a process killed meanwhile never leaves half of it under its name."""
    temporary = temporary_path(path)
    os.rename(path, temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def _shards(dataset: Dataset) -> range:
    return range(0, len(dataset), SHARD)


@dataclass(frozen=True)
class _Shard:
    """What was encoded into the rows of a shard: the picture files, and why a picture was skipped."""

    pictures: Pictures
    skipped: list[str | None]


def _marker(work: Path, start: int) -> Path:
    return work / f"shard-{start:09d}.done"


def _write_marker(work: Path, start: int, shard: _Shard) -> None:
    entries = zip(shard.pictures, shard.skipped, strict=True)
    rows = [[int(one["size"]), int(one["time"]), one["content"].tobytes().hex(), reason] for one, reason in entries]
    write_jsonl(_marker(work, start), rows)


def _read_marker(work: Path, start: int, dataset: Dataset) -> _Shard | None:
    """What is in a finished shard; `None` if its marker is missing or damaged, so that it is encoded again."""
    try:
        rows = read_jsonl(_marker(work, start))
        pictures = np.array([(size, time, list(bytes.fromhex(content))) for size, time, content, _ in rows], PICTURE)
    except (DataError, TypeError, ValueError, OverflowError):
        return None
    complete = len(rows) == len(dataset.records[start : start + SHARD])
    return _Shard(pictures, [reason for *_, reason in rows]) if complete else None


def _write_shards(
    work: Path,
    kind: StoreType,
    shape: tuple[int, ...],
    dataset: Dataset,
    encoder: ImageEncoder,
    part: Part,
    on_progress: Callable[[int, int], None] | None,
) -> None:
    """Encode and write the rows of this part that are not written yet, or whose pictures have changed."""
    missing: list[tuple[int, _Shard, list[int]]] = []
    total = 0
    for start in _shards(dataset)[part.index :: part.of]:
        records = dataset.records[start : start + SHARD]
        total += len(records)
        shard = _read_marker(work, start, dataset)
        if shard is None:
            shard = _Shard(np.zeros(len(records), PICTURE), [None] * len(records))
            rows = list(range(len(records)))
        else:
            rows = find_changed(dataset.root, records, shard.pictures)
        if rows:
            missing.append((start, shard, rows))
    if not missing:
        return
    done = total - sum(len(rows) for _, _, rows in missing)

    def described() -> Iterator[Sequence[Record]]:
        """The batches. A picture is described before it is decoded: if it changes in between, it looks changed."""
        for start, shard, rows in missing:
            for batch in _batches(rows):
                records = [dataset.records[start + row] for row in batch]
                for row, record in zip(batch, records, strict=True):
                    shard.pictures[row] = describe_picture(dataset.path(record))
                yield records

    encoded = encode_batches(dataset, described(), encoder, kind)
    # Plain writes, not through a memory map: a full disk then raises an error instead of killing the process.
    array = work / "features.npy"
    size = row_bytes(kind, shape)
    offset = array.stat().st_size - shape[0] * size
    with open(array, "r+b") as handle:
        for start, shard, rows in missing:
            for batch in _batches(rows):
                features, broken = next(encoded)
                reasons = {row["id"]: row["reason"] for row in broken}
                for row, feature in zip(batch, features, strict=True):
                    handle.seek(offset + (start + row) * size)
                    handle.write(feature.tobytes())
                    shard.skipped[row] = reasons.get(dataset.records[start + row].id)
                done += len(batch)
                if on_progress is not None:
                    on_progress(done, total)
            handle.flush()
            os.fsync(handle.fileno())
            _write_marker(work, start, shard)


def _batches(rows: list[int]) -> list[list[int]]:
    return [rows[at : at + BATCH] for at in range(0, len(rows), BATCH)]


def _read_skipped(folder: Path) -> list[Skipped]:
    path = folder / "skipped.jsonl"
    return read_models(path, Skipped, "list of skipped pictures") if path.exists() else []


def _check_skipped(folder: Path, skipped: int, of: int, max_skipped: float) -> None:
    if skipped > max_skipped * of:
        first = "".join(f", first: {row.reason}" for row in _read_skipped(folder)[:1])
        raise StoreError(
            f"{folder / 'skipped.jsonl'}: {skipped} of {of} pictures cannot be read{first}; "
            "fix them, or allow more with --max-skipped"
        )


def _finish(
    folder: Path, work: Path, plan: dict[str, Any], dataset: Dataset, part: Part, max_skipped: float
) -> FeatureStore | None:
    """When every shard is written: list the skipped pictures, move the array into place, write the manifest.

    Several processes may run this, and one may be killed at any line: every line can be run again.
    """
    array, starts = work / "features.npy", _shards(dataset)
    with lock(folder):
        if not array.exists():  # another process has just finished the store
            shutil.rmtree(work, ignore_errors=True)
            return FeatureStore.open(folder)
        shards = [_read_marker(work, start, dataset) for start in starts]
        whole = [shard for shard in shards if shard is not None]
        if len(whole) < len(shards):
            return None
        mine = set(starts[part.index :: part.of])
        for start, shard in zip(starts, whole, strict=True):
            records = dataset.records[start : start + SHARD]
            if start not in mine and find_changed(dataset.root, records, shard.pictures):
                return None  # the part of another process
        reasons = [reason for shard in whole for reason in shard.skipped]
        skipped = [
            {"id": record.id, "image": record.image, "reason": reason}
            for record, reason in zip(dataset.records, reasons, strict=True)
            if reason is not None
        ]
        if skipped:
            write_jsonl(folder / "skipped.jsonl", skipped)
        else:
            (folder / "skipped.jsonl").unlink(missing_ok=True)  # from an earlier call, before the pictures were fixed
        _check_skipped(folder, len(skipped), len(dataset), max_skipped)
        (folder / "manifest.json").unlink(missing_ok=True)  # while the files of a finished store are replaced
        # A second name, not a move: if this process is killed now, the next one finds everything in its place.
        linked = temporary_path(folder / "features.npy")
        try:
            os.link(array, linked)
            os.replace(linked, folder / "features.npy")
        finally:
            linked.unlink(missing_ok=True)  # also if both were names of one file, where replacing does nothing
        _write_pictures(folder, np.concatenate([shard.pictures for shard in whole]))
        for left in folder.glob(f"neighbours-{16 * '[0-9a-f]'}.*"):  # found in the features before
            left.unlink(missing_ok=True)
        write_json(folder / "manifest.json", {**plan, "skipped": [row["id"] for row in skipped]})
        for left in folder.glob(f"writing-{16 * '[0-9a-f]'}"):
            shutil.rmtree(left, ignore_errors=True)
        return FeatureStore.open(folder)
