"""Weights in fewer bytes: float16, or int8 with a factor for each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch

from tellapart.errors import RunError

WeightType = Literal["float32", "float16", "int8"]
WEIGHT_TYPES: tuple[WeightType, ...] = get_args(WeightType)

# Ends the names of the factors of int8 weights.
SCALE = "::scale"


def pack(weights: Mapping[str, torch.Tensor], kind: WeightType) -> dict[str, torch.Tensor]:
    """Weights as they are written to a file.

    With `int8` each row of a matrix is multiples of one factor, the row's largest number / 127; vectors become float16.

    Args:
        weights: a `state_dict`; what is not float32 stays as it is.
        kind: how float32 weights are kept.

    Example:
        >>> packed = pack({"map.weight": torch.tensor([[0.5, -1.27], [0.0, 0.0]])}, "int8")
        >>> packed["map.weight"].tolist(), unpack(packed)["map.weight"].tolist()[0]
        ([[50, -127], [0, 0]], [0.5, -1.2699999809265137])
    """
    if kind == "float32":
        return {name: tensor.contiguous() for name, tensor in weights.items()}
    packed: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        if tensor.dtype != torch.float32:
            packed[name] = tensor.contiguous()
        elif kind == "int8" and tensor.dim() >= 2:
            rows = tensor.detach().flatten(1)
            scale = rows.abs().amax(dim=1) / 127
            # A row of zeros has the factor 0.
            levels = (rows / scale.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round()
            packed[name] = levels.to(torch.int8).view(tensor.shape).contiguous()
            packed[name + SCALE] = scale
        else:
            packed[name] = tensor.detach().half().contiguous()
            if not bool(packed[name].isfinite().all()):
                raise RunError(f"the weights '{name}' are too large for float16; keep them as float32")
    return packed


def unpack(packed: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights that `pack` was given, about; a `ValueError` if the factors do not fit.

    float16 weights stay as they are: a model converts them when it loads them.
    """
    scales = {name.removesuffix(SCALE): tensor for name, tensor in packed.items() if name.endswith(SCALE)}
    weights = {name: tensor for name, tensor in packed.items() if not name.endswith(SCALE)}
    int8 = {name for name, tensor in weights.items() if tensor.dtype == torch.int8}
    if int8 != scales.keys():
        odd = min(int8 ^ scales.keys())
        raise ValueError(f"'{odd}' has int8 weights without factors, or factors without int8 weights")
    for name, scale in scales.items():
        levels = weights[name]
        if scale.shape != levels.shape[:1]:
            raise ValueError(f"'{name}' has {len(levels)} rows and {scale.numel()} factors")
        weights[name] = levels.float() * scale.view(-1, *[1] * (levels.dim() - 1))
    return weights
