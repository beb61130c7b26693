"""An exponential moving average of the trained weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class WeightAverage:
    """Exponential moving average (EMA) of a model's trained weights.

    The averaged model often scores better than the last one, above all at a high learning rate: it leaves out the noise
    of the last steps. After the n-th update::

        a <- d_n a + (1 - d_n) w,   d_n = min(decay, (1 + n) / (10 + n))

    The first updates count more (the usual warm-up), so that the initial weights are soon forgotten. Only trained
    weights are averaged; buffers and frozen weights are those of the model itself. All processes have equal weights,
    so each one computes the same average.

    Args:
        model: the model that is trained; its weights now are the first average.
        decay: weight of the old average, such as 0.999.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> average = WeightAverage(model, 0.9)
        >>> with torch.no_grad():
        ...     before = model.weight.clone()
        ...     _ = model.weight.add_(1.1)
        >>> average.update(1)                             # d_1 = 2 / 11, so 9 / 11 of the way
        >>> with average.applied():
        ...     print(round((model.weight - before).item(), 4))
        0.9
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._weights = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self._averages = {name: value.detach().clone() for name, value in self._weights.items()}

    @torch.no_grad()
    def update(self, number: int) -> None:
        """Move the average towards the weights; `number` counts the updates, from 1."""
        decay = min(self.decay, (1 + number) / (10 + number))
        torch._foreach_lerp_(list(self._averages.values()), list(self._weights.values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the averaged weights inside this context, and its own again afterwards."""
        own = self.own_weights()
        self._set_weights(self._averages)
        try:
            yield
        finally:
            self._set_weights(own)

    def own_weights(self) -> dict[str, torch.Tensor]:
        """A copy of the weights that are trained. A checkpoint has both: its model folder holds the average."""
        return {name: value.detach().clone() for name, value in self._weights.items()}

    @torch.no_grad()
    def load(self, own: dict[str, torch.Tensor]) -> None:
        """Take the model's weights, loaded from a model folder, as the average, and give it these as its own."""
        if {name: value.shape for name, value in own.items()} != {name: v.shape for name, v in self._weights.items()}:
            raise ValueError("the averaged weights are those of another model")
        for name, value in self._weights.items():
            self._averages[name].copy_(value)
        self._set_weights(own)

    @torch.no_grad()
    def _set_weights(self, values: dict[str, torch.Tensor]) -> None:
        # In place: optimisers and the exchange of gradients hold these tensors.
        for name, weight in self._weights.items():
            weight.copy_(values[name])
