"""Any image model of timm by name (extra `timm`, which brings torchvision: see docs/encoders.md).

timm looks for the weights itself, in the Hugging Face cache first; `HF_HUB_OFFLINE=1` keeps it from downloading.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

from PIL import Image

from tellapart.encoders.base import EncoderIdentity, TorchEncoder
from tellapart.errors import MissingExtraError, RecipeError, StoreError

if TYPE_CHECKING:
    import torch


class TimmModel(TorchEncoder):
    """The last feature map, or the patch tokens, that a timm model's `forward_features` gives.

    Args:
        name: `timm:` and a model's name, such as `timm:resnet50.a1_in1k`, or `timm:local-dir:FOLDER`.
        threads: how many threads prepare pictures; those of torch itself are set in torch.
        device: where torch runs (default: the CPU).
    """

    def __init__(self, name: str, threads: int | None = None, device: str | None = None) -> None:
        super().__init__(name, threads, device)
        _, _, self.model = name.partition(":")
        if not self.model:
            raise RecipeError(f"encoder '{name}': say which model, as timm:resnet50.a1_in1k")
        try:
            import timm
        except ImportError as error:
            # timm may be there without the torchvision it needs.
            raise MissingExtraError(getattr(error, "name", None) or "timm", "timm") from None
        self._network = self._load(timm)
        settings = self._network.pretrained_cfg
        _, height, width = settings["input_size"]
        if height != width:
            raise StoreError(f"encoder '{name}': wants pictures of {width}×{height} pixels; only squares can be used")
        self.size = height
        self.mean = [255.0 * value for value in settings["mean"]]
        self.std = [255.0 * value for value in settings["std"]]
        self.resample = Image.Resampling[settings.get("interpolation", "bicubic").upper()]

    def _load(self, timm: Any) -> Any:
        import torch

        try:
            # Making a model draws random numbers; those of whoever trains beside it must not move.
            with torch.random.fork_rng(devices=[]):
                network = timm.create_model(self.model, pretrained=True, num_classes=0)
        except (RuntimeError, OSError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise StoreError(f"encoder '{self.name}': timm cannot load this model ({reason})") from None
        return network.float().eval().to(self.device)

    @cached_property
    def identity(self) -> EncoderIdentity:
        return EncoderIdentity(self.name, digest_of_weights(self._network), self.preprocessing(), *self.output_shape())

    def network(self) -> torch.nn.Module:
        network: torch.nn.Module = self._network
        return network

    @cached_property
    def grid(self) -> torch.nn.Module:
        import torch

        class Grid(torch.nn.Module):
            def __init__(self, network: Any) -> None:
                super().__init__()
                self.network = network

            def forward(self, pixels: torch.Tensor) -> torch.Tensor:
                features: torch.Tensor = self.network.forward_features(pixels)
                if features.ndim == 3:  # tokens, those of no patch (class, registers) first
                    return features[:, getattr(self.network, "num_prefix_tokens", 0) :]
                if getattr(self.network, "output_fmt", "NCHW") == "NHWC":
                    return features.flatten(1, 2)
                return features.flatten(2).transpose(1, 2)

        return Grid(self._network)


def digest_of_weights(network: torch.nn.Module) -> str:
    """sha256 over every tensor of a network with its name, type and shape: timm hides the file they came from."""
    total = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.cpu().contiguous().numpy().tobytes())
    return total.hexdigest()
