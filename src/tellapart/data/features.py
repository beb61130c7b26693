"""The feature store: region grids and pooled features of every image in one memory-mapped array.

A finished store is a folder with `features.npy` (`[images, regions + 1, width]`, the mean of the regions last, in
float16 or packed by `data.rows`; if the encoder gives a class token, that is the last region and no mean is added),
`pictures.npy` (size, time and content digest of each picture file), `manifest.json` (what it was made from) and, if
pictures could not be read, `skipped.jsonl`. Opening it only maps the array; a batch reads only its own rows.

The features of the pictures mirrored left to right are a second store of the same rows, in the folder `mirrored/`.
`data.write_features` makes the stores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tellapart.data.pictures import PICTURE, Pictures
from tellapart.data.records import Dataset
from tellapart.data.rows import StoreType, array_layout, read_grid, read_pooled, row_bytes
from tellapart.encoders.base import EncoderIdentity
from tellapart.errors import StoreError
from tellapart.files import Stored, read_model

# What to do about a damaged store; ends messages.
REPAIR = "'tellapart prepare' encodes the images again"


class Manifest(Stored):
    """`manifest.json`: what a store was made from."""

    encoder: EncoderIdentity
    records: str
    dtype: StoreType = "float16"
    shape: tuple[int, int, int]
    skipped: list[str]


class FeatureStore:
    """A finished store, opened for reading.

    Attributes:
        encoder: identity of the encoder.
        records: digest of the data set.
        skipped: ids of the images that could not be read; their rows are zero.
        pictures: size, time and content of the picture files that were encoded, one entry per row.
        kind: how the features are kept, `float16` or `int8`.
        folder: where it is on the disk; `None` for a store in memory.
        mirrored: the store of the same pictures mirrored left to right, if they are used.

    Example:
        >>> store = FeatureStore.open(Path("prepared/flickr8k-98dbe175/efficientnet-lite0"))    # doctest: +SKIP
        >>> store.grid([0, 5]).shape, store.pooled([0, 5]).shape                                # doctest: +SKIP
        ((2, 49, 1280), (2, 1280))
    """

    def __init__(
        self,
        features: np.ndarray,
        encoder: EncoderIdentity,
        records: str,
        skipped: frozenset[str] = frozenset(),
        pictures: Pictures | None = None,
        folder: Path | None = None,
        mirrored: FeatureStore | None = None,
    ) -> None:
        self._features = features
        self.encoder = encoder
        self.records = records
        self.skipped = skipped
        self.pictures = np.zeros(len(features), PICTURE) if pictures is None else pictures
        self.kind: StoreType = "float16" if features.dtype.names is None else "int8"
        self.folder = folder
        self.mirrored = mirrored

    @classmethod
    def open(cls, folder: Path) -> FeatureStore:
        path = folder / "manifest.json"
        if not path.exists():
            raise StoreError(f"{folder}: no finished feature store here; run 'tellapart prepare' to make it")
        manifest = read_model(path, Manifest, "manifest", REPAIR, StoreError)
        # `pictures.npy` is replaced after the array: if it is up to date, so is the array that is opened after it.
        pictures = _read_pictures(folder / "pictures.npy", manifest.shape[0])
        features = _map_array(folder / "features.npy", manifest.dtype, manifest.shape)
        return cls(features, manifest.encoder, manifest.records, frozenset(manifest.skipped), pictures, folder)

    def __len__(self) -> int:
        return len(self._features)

    def grid(self, rows: Sequence[int], mirrored: np.ndarray | None = None) -> np.ndarray:
        """Region features of these images, float32 `[rows, regions, width]`.

        Args:
            rows: the images.
            mirrored: `[rows]`, which of them are read mirrored; by default none.
        """
        chosen = np.asarray(rows, dtype=np.int64)
        if mirrored is None or self.mirrored is None:
            return read_grid(self._features, chosen, with_last=self.encoder.class_token)
        grid = np.empty((len(chosen), self.encoder.regions, self.encoder.width), np.float32)
        for store, places in ((self, ~mirrored), (self.mirrored, mirrored)):
            grid[places] = store.grid(chosen[places].tolist())
        return grid

    def views(self, rows: Sequence[int]) -> np.ndarray:
        """Region features of these images and then, if they are here, those of the mirrored ones.

        float32 `[rows, regions, width]` or `[rows, 2 regions, width]`.
        """
        plain = self.grid(rows)
        return plain if self.mirrored is None else np.concatenate([plain, self.mirrored.grid(rows)], axis=1)

    def pooled(self, rows: Sequence[int]) -> np.ndarray:
        """Pooled features of these images, float32 `[rows, width]`: the class token if there is one, else the mean."""
        return read_pooled(self._features, np.asarray(rows, dtype=np.int64))

    def pictures_digest(self, rows: Sequence[int] | None = None) -> str:
        """Digest of the content of the encoded pictures, by default of all.

        It does not depend on where the files are or when they were written. Results are kept by it, so it also says
        how the features are kept, unless that is float16, and whether mirrored pictures are used.
        """
        content = self.pictures["content"]
        digest = hashlib.sha256((content if rows is None else content[np.asarray(rows, np.int64)]).tobytes())
        if self.kind != "float16":
            digest.update(self.kind.encode())
        if self.mirrored is not None:
            digest.update(b"mirrored")
        return digest.hexdigest()

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


def array_problem(path: Path, kind: StoreType, shape: tuple[int, ...]) -> str | None:
    """What is wrong with an array's header or size. It is not mapped, since reading a short map kills the process."""
    expected, dimensions = array_layout(kind, shape)
    try:
        with open(path, "rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            found, transposed, dtype = read(file)
            size = file.tell() + shape[0] * row_bytes(kind, shape)
    except OSError:
        raise
    except Exception as error:  # numpy raises many kinds of errors for a damaged header
        return f"its header is damaged: {error}"
    if dtype != expected or transposed or found != dimensions:
        return f"it holds {dtype} {list(found)}, expected {expected} {list(dimensions)}"
    actual = path.stat().st_size
    return None if actual == size else f"it has {actual:,} bytes, expected {size:,}"


def _map_array(path: Path, kind: StoreType, shape: tuple[int, ...]) -> np.ndarray:
    problem = array_problem(path, kind, shape) if path.exists() else "it is missing"
    if problem is not None:
        raise StoreError(f"{path}: is damaged ({problem}); {REPAIR}")
    dtype, dimensions = array_layout(kind, shape)
    offset = path.stat().st_size - shape[0] * row_bytes(kind, shape)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=dimensions)


def _read_pictures(path: Path, images: int) -> Pictures:
    try:
        pictures = np.load(path, allow_pickle=False)
    except Exception as error:  # numpy raises many kinds of errors for a damaged file
        raise StoreError(f"{path}: is damaged ({error}); {REPAIR}") from None
    if pictures.dtype != PICTURE or pictures.shape != (images,):
        raise StoreError(f"{path}: does not match the manifest; {REPAIR}")
    return np.asarray(pictures)
