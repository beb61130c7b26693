"""Comparing float32 results that were computed in two ways: the tolerance follows the size of the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

EPS = float(torch.finfo(torch.float32).eps)
# Another order of additions moves a result by some tens of eps of its largest terms; a mistake moves it by far more.
ROUNDING = 200 * EPS


def tensors_of(values: Any) -> list[torch.Tensor]:
    """The tensors of a tensor, an array, a number, or of a mapping or sequence of these."""
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, Sequence) and any(isinstance(value, torch.Tensor | np.ndarray) for value in values):
        return [tensor for value in values for tensor in tensors_of(value)]
    return [torch.as_tensor(values).detach().double()]


def largest(values: Any) -> float:
    """The largest finite absolute value."""
    sizes = [tensor[tensor.isfinite()].abs() for tensor in tensors_of(values)]
    return max((float(size.max()) for size in sizes if size.numel()), default=0.0)


def assert_close(found: Any, expected: Any, message: str = "", rounding: float = ROUNDING) -> None:
    """Equal but for rounding, which is relative to the largest of all expected values.

    Give the gradients of one loss together: small ones are differences of large terms.
    """
    if isinstance(expected, Mapping):
        assert found.keys() == expected.keys(), message
        found = [found[key] for key in expected]
    one, other = tensors_of(found), tensors_of(expected)
    assert len(one) == len(other), message
    for place, pair in enumerate(zip(one, other, strict=True)):
        torch.testing.assert_close(
            *pair, rtol=0, atol=rounding * largest(expected), msg=lambda text, at=place: f"{message} [{at}]: {text}"
        )
