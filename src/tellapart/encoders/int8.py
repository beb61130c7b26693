"""Vision transformers with 8-bit linear maps, two to three times as fast on the CPU, with little loss.

ONNX Runtime rounds the input of a linear map to 8 bits with one scale for all its numbers. In a vision transformer a
few channels are 50 times as large as the rest, so that the rest would be rounded to almost nothing: CLIP's states
would be off by 32 % of their size. Two measures bring this to about 11 % (`benchmarks/encoders.py`):

- *Smoothing* (SmoothQuant, Xiao et al. 2023): a channel is divided by a factor s_j before the map, and the map's
  weights are multiplied by it; the result is the same. With s_j = √(max |x_j| / max |w_j|) both are equally smooth.
  Behind a layer norm the division costs nothing: it is done by the norm's own weights.
- The maps whose input is still the least even stay in float32: half of those behind the activation.

Which channels are large is a property of the weights and hardly depends on the pictures, so that a few pictures of
random noise are enough to measure them, and nothing but the weights decides about the result.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tellapart.encoders.vit import SIZE, Layer, VisionTransformer

# Pictures of noise to measure activations on.
PICTURES = 8
# No factor is made from numbers below this.
SMALLEST = 1e-4


class Smoothed(nn.Module):
    """A linear map of a smoothed input: W(x / s), where W has been multiplied by s.

    Args:
        linear: the map, with weights multiplied by the factors.
        factors: s, one for each input channel.
    """

    factors: torch.Tensor

    def __init__(self, linear: nn.Linear, factors: torch.Tensor) -> None:
        super().__init__()
        self.linear = linear
        self.register_buffer("factors", 1 / factors)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        mapped: torch.Tensor = self.linear(states * self.factors)
        return mapped


@torch.no_grad()
def smooth(network: VisionTransformer) -> list[int]:
    """Smooth the inputs of all linear maps but `out`, which are even; the network's output stays the same.

    Returns:
        The layers whose `narrow` map should stay in float32: the half with the largest channels after smoothing,
        relative to the mean.
    """
    sizes = _channel_sizes(network)
    unevenness = []
    for number, layer in enumerate(network.layers):
        assert isinstance(layer, Layer)
        for norm, maps in ((layer.norm_1, (layer.query, layer.key, layer.value)), (layer.norm_2, (layer.wide,))):
            factors = _multiply(maps, sizes[number, maps[0]])
            norm.weight.div_(factors)
            norm.bias.div_(factors)
        narrow = layer.narrow
        assert isinstance(narrow, nn.Linear)
        factors = _multiply((narrow,), sizes[number, narrow])
        smoothed = sizes[number, narrow] / factors
        unevenness.append(float(smoothed.max() / smoothed.mean()))
        layer.narrow = Smoothed(narrow, factors)
    worst = sorted(range(len(unevenness)), key=lambda number: -unevenness[number])
    return sorted(worst[: len(worst) // 2])


def noise_pictures(count: int = PICTURES, size: int = SIZE) -> torch.Tensor:
    """Normalised pictures of noise with the spectrum of photographs, 1/f, and mostly grey as they are."""
    random = np.random.default_rng(0)
    frequencies = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.fftfreq(size)[None])
    frequencies[0, 0] = 1 / size
    white = random.standard_normal((count, 3, size, size))
    noise = np.fft.ifft2(np.fft.fft2(white) / frequencies).real
    noise = 0.4 * noise + noise.mean(axis=1, keepdims=True)
    noise -= noise.mean(axis=(2, 3), keepdims=True)
    noise /= noise.std(axis=(2, 3), keepdims=True)
    return torch.from_numpy(noise.astype(np.float32))


def _channel_sizes(network: VisionTransformer) -> dict[tuple[int, nn.Module], torch.Tensor]:
    """The largest size of each input channel of the maps that are smoothed, on pictures of noise."""
    sizes: dict[tuple[int, nn.Module], torch.Tensor] = {}

    def measure(number: int, linear: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def hook(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            sizes[number, module] = inputs[0].abs().amax(dim=(0, 1))

        return linear.register_forward_pre_hook(hook)

    handles = [
        measure(number, linear)
        for number, layer in enumerate(network.layers)
        if isinstance(layer, Layer)
        for linear in (layer.query, layer.wide, layer.narrow)
    ]
    try:
        network(noise_pictures())
    finally:
        for handle in handles:
            handle.remove()
    return sizes


def _multiply(maps: tuple[nn.Linear, ...], sizes: torch.Tensor) -> torch.Tensor:
    """Multiply the weights of maps with the same input by s, and return s."""
    weights = torch.stack([linear.weight.abs().amax(dim=0) for linear in maps]).amax(dim=0)
    factors = (sizes.clamp_min(SMALLEST) / weights.clamp_min(SMALLEST)).sqrt()
    for linear in maps:
        linear.weight *= factors
    return factors
