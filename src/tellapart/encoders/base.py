"""The interface of image encoders: a picture becomes a grid of region features, and an identity says how.

Nothing heavy is imported here, since captioners, stores and checkpoints need only the identity.
"""

from __future__ import annotations

import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from PIL import Image

from tellapart.errors import RecipeError
from tellapart.files import digest_of

if TYPE_CHECKING:
    import torch

# Pixels that go through a network at once; this bounds memory at any number and size of pictures.
PIXELS_AT_ONCE = 16 * 224 * 224


@dataclass(frozen=True)
class EncoderIdentity:
    """What decides whether two sets of features are comparable: network, weights and preprocessing.

    `open_encoder(identity.name)` opens the encoder again; compare the identities to check that it is the same.

    Attributes:
        name: opens the encoder.
        weights: digest of its weights.
        preprocessing: how a picture becomes its input.
        regions, width: shape of its output.
        class_token: the last region is not a place but the network's class token, which has read the whole picture.
    """

    name: str
    weights: str
    preprocessing: str
    regions: int
    width: int
    class_token: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The fields. `class_token` is left out unless set, so that older digests stay the same."""
        return {key: value for key, value in asdict(self).items() if key != "class_token" or value}

    @property
    def digest(self) -> str:
        return digest_of(self.as_dict())

    @property
    def folder(self) -> str:
        """A folder name for this encoder's features: its own name, made safe if it contains a path.

        >>> EncoderIdentity("efficientnet-lite0@448", "", "", 196, 1280).folder
        'efficientnet-lite0@448'
        >>> EncoderIdentity("clip:openai/clip-vit-base-patch32", "", "", 49, 768).folder
        'clip-clip-vit-base-patch32-50f57180'
        """
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9@._-]*", self.name):
            return self.name
        family, _, model = self.name.rpartition(":")
        plain = re.sub(r"[^A-Za-z0-9._-]", "-", f"{family}-{Path(model).name}".lstrip("-"))
        return f"{plain}-{self.digest[:8]}"


class ImageEncoder(Protocol):
    """The part of an encoder that stores and captioners use; `concurrency` is the useful number of calling threads."""

    size: int
    concurrency: int

    @property
    def identity(self) -> EncoderIdentity: ...
    def squeeze(self, image: Image.Image) -> Image.Image: ...
    def encode(self, images: list[Image.Image]) -> np.ndarray: ...


class MirroredEncoder:
    """An encoder of pictures mirrored left to right: `squeeze` mirrors them. Its identity says so.

    Args:
        encoder: of the pictures as they are.
    """

    def __init__(self, encoder: ImageEncoder) -> None:
        self.encoder = encoder
        self.size = encoder.size
        self.concurrency = encoder.concurrency

    @property
    def identity(self) -> EncoderIdentity:
        own = self.encoder.identity
        return replace(own, preprocessing=f"mirrored left to right, {own.preprocessing}")

    def squeeze(self, image: Image.Image) -> Image.Image:
        return self.encoder.squeeze(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT))

    def encode(self, images: list[Image.Image]) -> np.ndarray:
        return self.encoder.encode(images)


class GridEncoder(ABC):
    """Base class of encoders: squeeze, normalise, run a few pictures at a time.

    The whole picture is squeezed to a square, so that nothing at its edges is lost. `mean` and `std` are on the scale
    of bytes (0 to 255).

    Args:
        threads: number of threads (default: the available cores).
        runs: maximum number of threads that run the network at once; the others decode and wait.
    """

    size: int
    mean: Sequence[float]
    std: Sequence[float]
    resample: Image.Resampling = Image.Resampling.BICUBIC

    def __init__(self, threads: int | None, runs: int | None = None) -> None:
        self.concurrency = max(1, threads) if threads is not None else usable_cores()
        self._running = threading.Semaphore(runs if runs is not None else self.concurrency)

    @property
    @abstractmethod
    def identity(self) -> EncoderIdentity:
        """The identity of this encoder's features."""

    @abstractmethod
    def run(self, pixels: np.ndarray) -> np.ndarray:
        """Run the network: `[N, 3, size, size]` to `[N, regions, width]`, float32."""

    def squeeze(self, image: Image.Image) -> Image.Image:
        if image.size == (self.size, self.size):
            return image
        return image.resize((self.size, self.size), self.resample)

    def pixels(self, images: Sequence[Image.Image]) -> np.ndarray:
        """Pictures as the network's input `[N, 3, size, size]`, float32."""
        squeezed = np.stack([np.asarray(self.squeeze(image)) for image in images])
        # Channels first, then arithmetic in place: five times as fast as on interleaved pixels.
        pixels = squeezed.transpose(0, 3, 1, 2).astype(np.float32, order="C")
        pixels -= np.asarray(self.mean, np.float32)[:, None, None]
        pixels /= np.asarray(self.std, np.float32)[:, None, None]
        return pixels

    def encode(self, images: list[Image.Image]) -> np.ndarray:
        """Region features `[N, regions, width]`, float32, row by row from the top left."""
        step = max(1, PIXELS_AT_ONCE // self.size**2)
        parts = [images[start : start + step] for start in range(0, len(images), step)]
        if len(parts) == 1 or self.concurrency == 1:
            return np.concatenate([self._encode(part) for part in parts])
        with ThreadPoolExecutor(min(self.concurrency, len(parts))) as pool:
            return np.concatenate(list(pool.map(self._encode, parts)))

    def _encode(self, images: list[Image.Image]) -> np.ndarray:
        pixels = self.pixels(images)
        with self._running:
            return self.run(pixels)


class TorchEncoder(GridEncoder):
    """Base of encoders that run in torch, one call at a time.

    Args:
        name: the full name of the encoder.
        threads: see `GridEncoder`.
        device: where torch runs (default: the CPU).
    """

    def __init__(self, name: str, threads: int | None, device: str | None) -> None:
        super().__init__(threads, runs=1)
        self.name = name
        self.device = check_device(device) if device is not None else "cpu"

    @property
    @abstractmethod
    def grid(self) -> torch.nn.Module:
        """The network from pixels to `[N, regions, width]`, on the device."""

    def run(self, pixels: np.ndarray) -> np.ndarray:
        return run_torch(self.grid, pixels, self.device)

    def preprocessing(self) -> str:
        """The preprocessing in an identity: size, resampling, mean and standard deviation."""
        mean, std = (", ".join(f"{value:.6g}" for value in values) for values in (self.mean, self.std))
        return f"squeeze to {self.size}×{self.size} {self.resample.name.lower()}, (x-[{mean}])/[{std}]"

    def output_shape(self) -> tuple[int, int]:
        """Number and width of the regions, from a run on a black picture."""
        _, regions, width = self.run(np.zeros((1, 3, self.size, self.size), np.float32)).shape
        return regions, width


def run_torch(grid: torch.nn.Module, pixels: np.ndarray, device: str) -> np.ndarray:
    """Run a grid network in eager torch, without TF32, so that features of a GPU are close to those of a CPU."""
    import torch

    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        features: torch.Tensor = grid(torch.from_numpy(pixels).to(device))
        return features.float().cpu().contiguous().numpy()


def check_device(device: str) -> str:
    """Return the device if torch can use it, else raise."""
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise RecipeError(f"device '{device}' cannot be used here ({reason}); leave it out to use the CPU") from None
    return device


def accelerator() -> str | None:
    """The accelerator of this machine, `"cuda"` or `"mps"`, or None."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else None


def usable_cores() -> int:
    """Number of cores available to this process, which batch systems and containers often limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
