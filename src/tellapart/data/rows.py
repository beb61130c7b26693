"""How a store keeps the features of an image: as float16, or with the region grid in 8 bits.

Each image has one row of the store's array. `float16` keeps `[regions + 1, width]`, the pooled features last (a class
token, which is pooled features and a region at once, is there only once). `int8`
keeps about half the bytes: the pooled features in float16, and the grid as whole numbers q with a scale s for each
channel,

    x[r, c] ≈ s[c] q[r, c],    s[c] = max_r |x[r, c]| / 127,    |error| ≤ s[c] / 2.

One scale for all channels would be smaller by 4 % of the bytes, but vision transformers have a few channels that are
tens of times as large as the others, and then the others lose most of their bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

StoreType = Literal["float16", "int8"]


def array_layout(kind: StoreType, shape: Sequence[int]) -> tuple[np.dtype, tuple[int, ...]]:
    """Type and shape of the array that keeps features `[images, regions + 1, width]`."""
    images, regions, width = shape
    if kind == "float16":
        return np.dtype("<f2"), (images, regions, width)
    row = [("grid", "i1", (regions - 1, width)), ("scale", "<f2", (width,)), ("pooled", "<f2", (width,))]
    return np.dtype(row), (images,)


def row_bytes(kind: StoreType, shape: Sequence[int]) -> int:
    """Size of one image's row."""
    dtype, found = array_layout(kind, shape)
    return dtype.itemsize * math.prod(found[1:])


def pack(features: np.ndarray, kind: StoreType = "float16") -> np.ndarray:
    """Features `[images, regions + 1, width]`, the pooled ones last, as rows of a store.

    Example:
        >>> rows = pack(np.array([[[1.0, -20.0], [0.5, 10.0], [0.75, -5.0]]]), "int8")
        >>> rows["grid"].tolist(), rows["pooled"].tolist()
        ([[[127, -127], [64, 64]]], [[0.75, -5.0]])
    """
    if kind == "float16":
        return features.astype(np.float16)
    rows = np.zeros(len(features), array_layout(kind, features.shape)[0])
    grid = features[:, :-1]
    rows["scale"] = np.abs(grid).max(axis=1) / 127
    scale = rows["scale"].astype(np.float32)[:, None]  # as it is read again
    # Channels of zeros, and those below the smallest scale, become zero.
    steps = np.divide(grid, scale, out=np.zeros(grid.shape, np.float32), where=scale > 0)
    rows["grid"] = np.clip(np.rint(steps), -127, 127)
    rows["pooled"] = features[:, -1]
    return rows


def read_grid(array: np.ndarray, rows: np.ndarray, with_last: bool = False) -> np.ndarray:
    """Region features of these rows, float32 `[rows, regions, width]`.

    Args:
        array: the store's.
        rows: of the images.
        with_last: the last features are a region too, not only the pooled ones: an encoder's class token.
    """
    if array.dtype.names is None:
        return np.asarray(array[rows] if with_last else array[rows, :-1], dtype=np.float32)
    grid = np.asarray(array["grid"][rows], dtype=np.float32)
    grid *= array["scale"][rows][:, None]
    return np.concatenate([grid, read_pooled(array, rows)[:, None]], axis=1) if with_last else grid


def read_pooled(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Pooled features of these rows, float32 `[rows, width]`."""
    return np.asarray(array[rows, -1] if array.dtype.names is None else array["pooled"][rows], dtype=np.float32)


def pooled_of(grid: np.ndarray, class_token: bool) -> np.ndarray:
    """Pooled features `[images, width]` of region grids: their class token, which is the last region, or the mean.

    >>> grid = np.array([[[1.0, 2.0], [3.0, 6.0]]])
    >>> pooled_of(grid, class_token=False).tolist(), pooled_of(grid, class_token=True).tolist()
    ([[2.0, 4.0]], [[3.0, 6.0]])
    """
    return np.asarray(grid[:, -1] if class_token else grid.mean(axis=1))
