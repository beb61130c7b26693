"""Any timm image model by name (extra `timm`, which installs torchvision: see docs/encoders.md).

timm finds the weights itself, in the Hugging Face cache first; `HF_HUB_OFFLINE=1` prevents downloads. From a folder,
only safetensors are read.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from tellapart.encoders.base import EncoderIdentity, TorchEncoder
from tellapart.errors import MissingExtraError, RecipeError, StoreError

if TYPE_CHECKING:
    import torch


class TimmModel(TorchEncoder):
    """The last feature map, or the patch tokens, that a timm model's `forward_features` gives.

    Args:
        name: `timm:` and a model name, such as `timm:resnet50.a1_in1k`, or `timm:local-dir:FOLDER`.
        threads: number of threads that prepare pictures; torch has its own setting.
        device: the torch device (default: the CPU).
    """

    def __init__(self, name: str, threads: int | None = None, device: str | None = None) -> None:
        super().__init__(name, threads, device)
        _, _, self.model = name.partition(":")
        if not self.model:
            raise RecipeError(f"encoder '{name}': name a model, e.g. timm:resnet50.a1_in1k")
        try:
            import timm
        except ImportError as error:
            # timm may be installed without torchvision, which it needs.
            raise MissingExtraError(getattr(error, "name", None) or "timm", "timm") from None
        self._network = self._load(timm)
        settings = self._network.pretrained_cfg
        try:
            _, height, width = settings["input_size"]
            self.mean, self.std = ([255.0 * value for value in settings[key]] for key in ("mean", "std"))
            self.resample = Image.Resampling[settings.get("interpolation", "bicubic").upper()]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"encoder '{name}': its preprocessing cannot be read ({type(error).__name__}: {error}); "
                "use another model"
            ) from None
        if height != width:
            raise StoreError(
                f"encoder '{name}': needs pictures of {width}×{height} pixels; only square ones are supported"
            )
        self.size = height

    def _load(self, timm: Any) -> Any:
        import torch

        source, _, folder = self.model.partition(":")
        if source.lower() == "local-dir":
            check_timm_folder(self.name, Path(folder))
        try:
            # Creating a model draws random numbers; do not change the state of a training run.
            with torch.random.fork_rng(devices=[]):
                network = timm.create_model(self.model, pretrained=True, num_classes=0)
        except Exception as error:  # many types, for damaged files
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise StoreError(f"encoder '{self.name}': timm cannot load this model ({reason})") from None
        return network.float().eval().to(self.device)

    @cached_property
    def identity(self) -> EncoderIdentity:
        return EncoderIdentity(self.name, digest_of_weights(self._network), self.preprocessing(), *self.output_shape())

    @cached_property
    def grid(self) -> torch.nn.Module:
        import torch

        class Grid(torch.nn.Module):
            def __init__(self, network: Any) -> None:
                super().__init__()
                self.network = network

            def forward(self, pixels: torch.Tensor) -> torch.Tensor:
                features: torch.Tensor = self.network.forward_features(pixels)
                if features.ndim == 3:  # tokens; class and register tokens come first
                    return features[:, getattr(self.network, "num_prefix_tokens", 0) :]
                if getattr(self.network, "output_fmt", "NCHW") == "NHWC":
                    return features.flatten(1, 2)
                return features.flatten(2).transpose(1, 2)

        return Grid(self._network)


def check_timm_folder(name: str, folder: Path) -> None:
    """Raise an error unless timm would read the weights of a folder from `model.safetensors`, which it prefers.

    Args:
        name: name of the encoder, for errors.
        folder: where the model is.
    """
    if not (folder / "config.json").is_file():
        raise StoreError(f"encoder '{name}': {folder} holds no model (config.json is missing)")
    if not (folder / "model.safetensors").is_file():
        raise StoreError(
            f"encoder '{name}': {folder} has no model.safetensors, and other weights can run code and are not read; "
            "if you trust them, load them in torch and write them with safetensors.torch.save_file"
        )


def digest_of_weights(network: torch.nn.Module) -> str:
    """sha256 of every tensor with its name, type and shape; timm does not expose the weights file."""
    total = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.cpu().contiguous().numpy().tobytes())
    return total.hexdigest()
