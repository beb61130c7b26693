"""Features packed into 8 bits are close to those that were packed, channel by channel."""

from __future__ import annotations

import numpy as np
import pytest

from tellapart.data.rows import array_layout, pack, read_grid, read_pooled, row_bytes

rng = np.random.default_rng(0)
GAUSSIAN = rng.normal(size=(4, 50, 256)).astype(np.float32)
OUTLIERS = GAUSSIAN * np.where(np.arange(256) % 100 == 7, 50, 1).astype(np.float32)  # as vision transformers have them
FEATURES = {"gaussian": GAUSSIAN, "rectified": np.maximum(GAUSSIAN, 0), "outliers": OUTLIERS}
ROWS = np.array([3, 0, 0])


@pytest.mark.parametrize("name", FEATURES)
def test_int8_is_within_half_a_step_of_each_channel(name: str) -> None:
    features = FEATURES[name]
    packed = pack(features, "int8")
    grid, whole = read_grid(packed, ROWS), features[ROWS, :-1]
    assert grid.dtype == np.float32
    for image, row in enumerate(ROWS):
        for channel in range(256):
            step = np.abs(features[row, :-1, channel]).max() / 127
            error = np.abs(grid[image, :, channel] - whole[image, :, channel]).max()
            assert error <= step * (0.5 + 127 * 2**-11), "half a step, and the rounding of the step itself"
    ordinary = np.arange(256) % 100 != 7
    relative = np.linalg.norm((grid - whole)[..., ordinary]) / np.linalg.norm(whole[..., ordinary])
    assert relative < 0.01, "large channels do not cost the others their bits"
    assert np.array_equal(grid[whole == 0], whole[whole == 0]), "zero stays zero"
    assert np.array_equal(read_pooled(packed, ROWS), features[ROWS, -1].astype(np.float16).astype(np.float32))


def test_float16_is_only_rounded() -> None:
    packed = pack(GAUSSIAN)
    assert np.array_equal(packed, GAUSSIAN.astype(np.float16))
    assert np.array_equal(read_grid(packed, ROWS), packed[ROWS, :-1].astype(np.float32))
    assert np.array_equal(read_pooled(packed, ROWS), packed[ROWS, -1].astype(np.float32))


def test_zeros_and_tiny_numbers() -> None:
    features = np.zeros((2, 4, 3), np.float32)
    features[1, :, 1] = 1e-9
    features[1, :, 2] = 3e-5
    grid = read_grid(pack(features, "int8"), np.arange(2))
    assert np.isfinite(grid).all()
    assert not grid[0].any()
    assert np.abs(grid - features[:, :-1]).max() <= 2e-6


def test_int8_takes_about_half_the_bytes() -> None:
    shape = (7, 50, 1280)
    assert 0.5 < row_bytes("int8", shape) / row_bytes("float16", shape) < 0.54
    for kind in ("float16", "int8"):
        dtype, dimensions = array_layout(kind, shape)
        packed = pack(np.zeros(shape, np.float32), kind)
        assert (packed.dtype, packed.shape) == (dtype, dimensions)
        assert packed.nbytes == 7 * row_bytes(kind, shape)
