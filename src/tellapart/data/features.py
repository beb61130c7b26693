"""The feature store: region grids of every image in one memory-mapped array.

A store is a folder: `grid.npy` (float16, `[images, regions, width]`), `manifest.json` (what it was made from) and,
while it is being written, one marker per finished shard. A killed job continues with the shards that are missing;
shards never overlap, so what is on the disk does not depend on how often it was interrupted. Opening maps the file
and reads nothing; a batch reads only its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from tellapart.data.images import load_image
from tellapart.data.records import Dataset
from tellapart.encoders.images import EncoderIdentity
from tellapart.errors import StoreError
from tellapart.files import read_json, write_json, write_text

SHARD = 256


class ImageEncoder(Protocol):
    """What the store needs of an encoder."""

    size: int

    @property
    def identity(self) -> EncoderIdentity: ...
    def squeeze(self, image: Image.Image) -> Image.Image: ...
    def encode(self, images: list[Image.Image]) -> np.ndarray: ...


class FeatureStore:
    """A finished store, opened for reading.

    Example:
        >>> store = FeatureStore.open(Path("prepared/flickr8k/features"))       # doctest: +SKIP
        >>> store.grid([0, 5]).shape                                            # doctest: +SKIP
        (2, 49, 1280)
    """

    def __init__(self, grid: np.ndarray, encoder: EncoderIdentity, records: str) -> None:
        self._grid = grid
        self.encoder = encoder
        self.records = records

    @classmethod
    def open(cls, folder: Path) -> FeatureStore:
        manifest_path = folder / "manifest.json"
        if not manifest_path.exists():
            raise StoreError(f"{folder}: no finished feature store is here; run 'tellapart prepare' (again) to make it")
        manifest = read_json(manifest_path, "manifest")
        try:
            grid = np.load(folder / "grid.npy", mmap_mode="r")
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{folder}: grid.npy cannot be read ({error}); remove the folder and prepare again"
            ) from None
        if list(grid.shape) != manifest["shape"]:
            raise StoreError(f"{folder}: grid.npy is not what its manifest says; remove the folder and prepare again")
        return cls(grid, EncoderIdentity(**manifest["encoder"]), manifest["records"])

    def __len__(self) -> int:
        return len(self._grid)

    def grid(self, rows: Sequence[int]) -> np.ndarray:
        """Features of these images, float32 `[rows, regions, width]`."""
        return np.asarray(self._grid[np.asarray(rows, dtype=np.int64)], dtype=np.float32)

    def check(self, dataset: Dataset, encoder: EncoderIdentity) -> None:
        """Refuse a store made from other records or by another encoder."""
        if self.records != dataset.digest:
            raise StoreError(f"this feature store was made from other records than {dataset.name}; prepare it again")
        if self.encoder != encoder:
            raise StoreError(
                f"this feature store was made by {self.encoder.name} with other weights or preprocessing "
                f"than {encoder.name}; prepare the data again"
            )


def encode_images(paths: Sequence[Path], encoder: ImageEncoder, batch: int = 16) -> Iterator[np.ndarray]:
    """Grids of these pictures, batch by batch; the next batches are decoded while one is encoded."""

    def load(path: Path) -> Image.Image:
        return encoder.squeeze(load_image(path, at_least=encoder.size))

    starts = range(0, len(paths), batch)
    with ThreadPoolExecutor(max_workers=2) as pool:
        ahead = [pool.submit(list, map(load, paths[start : start + batch])) for start in starts[:3]]
        for position, _ in enumerate(starts):
            images = ahead.pop(0).result()
            if position + 3 < len(starts):
                start = starts[position + 3]
                ahead.append(pool.submit(list, map(load, paths[start : start + batch])))
            yield encoder.encode(images)


def write_store(
    folder: Path,
    dataset: Dataset,
    encoder: ImageEncoder,
    on_progress: Callable[[int, int], None] | None = None,
) -> FeatureStore:
    """Encode every image of the data set; continue if an earlier call was interrupted."""
    identity = encoder.identity
    plan = {
        "encoder": asdict(identity),
        "records": dataset.digest,
        "dtype": "float16",
        "shape": [len(dataset), identity.regions, identity.width],
        "shard": SHARD,
    }
    if (folder / "manifest.json").exists():
        store = FeatureStore.open(folder)
        store.check(dataset, identity)
        return store
    _begin(folder, plan)
    grid = np.lib.format.open_memmap(folder / "grid.npy", mode="r+")
    starts = range(0, len(dataset), SHARD)
    finished = sum(min(SHARD, len(dataset) - start) for start in starts if (folder / f"shard-{start}.done").exists())
    for start in starts:
        marker = folder / f"shard-{start}.done"
        if marker.exists():
            continue
        row = start
        paths = [dataset.path(record) for record in dataset.records[start : start + SHARD]]
        for features in encode_images(paths, encoder):
            grid[row : row + len(features)] = features
            row += len(features)
            if on_progress is not None:
                on_progress(finished + row - start, len(dataset))
        finished += row - start
        grid.flush()
        write_text(marker, "")
    del grid
    write_json(folder / "manifest.json", plan)
    for marker in folder.glob("shard-*.done"):
        marker.unlink()
    return FeatureStore.open(folder)


def _begin(folder: Path, plan: dict[str, object]) -> None:
    """Lay out an empty array, unless an interrupted job with the same plan has done so."""
    plan_path = folder / "plan.json"
    if plan_path.exists() and read_json(plan_path, "plan") == plan:
        return
    folder.mkdir(parents=True, exist_ok=True)
    plan_path.unlink(missing_ok=True)
    for marker in folder.glob("shard-*.done"):
        marker.unlink()
    shape: list[int] = plan["shape"]  # type: ignore[assignment]
    np.lib.format.open_memmap(folder / "grid.npy", mode="w+", dtype=np.float16, shape=tuple(shape)).flush()
    write_json(plan_path, plan)
