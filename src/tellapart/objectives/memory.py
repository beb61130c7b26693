"""Momentum contrast (MoCo, He et al. 2020): coupled queues of keys, and the momentum encoder that makes them."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import nn

Encoder = TypeVar("Encoder", bound=nn.Module)

# Image number of an empty slot; images are numbered from 0.
NO_IMAGE = -1


class MomentumBank(nn.Module):
    """Coupled memory banks of CODER (sec. 3.2): queues of recent image keys and text keys of the same pairs.

    The queues give an anchor thousands of negatives beyond its batch. Each slot stores the number of its image, so that
    captions of the anchor's own image and empty slots are not negatives. All state is in persistent buffers, so that
    resuming is exact.

    Use `negatives` in the step and `enqueue` after it. Enqueue the keys gathered from all processes, so that their
    banks stay equal.

    Args:
        capacity: slots of each queue (paper: 4096).
        width: width of a key.

    Example:
        >>> bank = MomentumBank(capacity=3, width=2)
        >>> bank.enqueue(torch.eye(2), torch.eye(2), torch.tensor([5, 6]))
        >>> bank.filled, bank.negatives(torch.tensor([6, 7]))
        (2, tensor([[ True, False, False],
                [ True,  True, False]]))
    """

    def __init__(self, capacity: int, width: int) -> None:
        super().__init__()
        if capacity < 1 or width < 1:
            raise ValueError(f"capacity is {capacity} and width is {width}; both must be at least 1")
        self.capacity = capacity
        self.register_buffer("image_keys", torch.zeros(capacity, width))
        self.register_buffer("text_keys", torch.zeros(capacity, width))
        self.register_buffer("images", torch.full((capacity,), NO_IMAGE, dtype=torch.long))
        # Number of pairs ever enqueued; it determines `pointer` and `filled`.
        self.register_buffer("enqueued", torch.zeros((), dtype=torch.long))
        self.image_keys: torch.Tensor
        self.text_keys: torch.Tensor
        self.images: torch.Tensor
        self.enqueued: torch.Tensor

    @property
    def pointer(self) -> int:
        """The slot for the next pair: the oldest one if all are filled."""
        return int(self.enqueued) % self.capacity

    @property
    def filled(self) -> int:
        """Number of slots that hold a pair."""
        return min(int(self.enqueued), self.capacity)

    def negatives(self, images: torch.Tensor) -> torch.Tensor:
        """Which slots hold negatives for anchors of these images, `[A, capacity]`."""
        return (self.images != NO_IMAGE) & (images[:, None] != self.images)

    @torch.no_grad()
    def enqueue(self, image_keys: torch.Tensor, text_keys: torch.Tensor, images: torch.Tensor) -> None:
        """Add pairs in order, each replacing the oldest one.

        Args:
            image_keys: `[B, width]`; B may vary, be 0, or exceed the capacity.
            text_keys: `[B, width]`, of the same pairs.
            images: number of each pair's image, from 0, `[B]`.
        """
        shape = (len(images), self.image_keys.shape[1])
        if image_keys.shape != shape or text_keys.shape != shape:
            raise ValueError(
                f"keys for {shape[0]} pairs of width {shape[1]} are expected, not image keys {list(image_keys.shape)} "
                f"and text keys {list(text_keys.shape)}"
            )
        if len(images) and int(images.min()) < 0:
            raise ValueError("image numbers must be at least 0; negative numbers mark empty slots")
        # If there are more pairs than slots, keep the last ones, in the slots they would have got one by one.
        skipped = max(0, len(images) - self.capacity)
        order = torch.arange(skipped, len(images), device=self.images.device)
        slots = (self.enqueued + order) % self.capacity
        self.image_keys[slots] = image_keys[skipped:].to(self.image_keys)
        self.text_keys[slots] = text_keys[skipped:].to(self.text_keys)
        self.images[slots] = images[skipped:].to(self.images)
        self.enqueued += len(images)


class MomentumEncoder(nn.Module, Generic[Encoder]):
    """An exponential moving average of an encoder: θ_k ← m θ_k + (1 − m) θ_q.

    Its keys change slowly, so that the keys in a bank stay comparable. It starts equal to its source, has no gradient,
    is always in eval mode, and is saved with the module that holds it. Floating point buffers are averaged like
    weights; other buffers are copied.

    Args:
        source: the encoder that is trained; it is copied.
        momentum: m (paper: 0.995).

    Example:
        >>> source = nn.Linear(1, 1, bias=False)
        >>> follower = MomentumEncoder(source, momentum=0.5)
        >>> _ = source.weight.data.add_(1)
        >>> follower.update(source)
        >>> round((source.weight - follower.encoder.weight).item(), 4)
        0.5
    """

    def __init__(self, source: Encoder, momentum: float = 0.995) -> None:
        super().__init__()
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum is {momentum}; it must be between 0 and 1")
        self.momentum = momentum
        self.encoder: Encoder = copy.deepcopy(source).requires_grad_(False)
        self.train(False)

    def train(self, mode: bool = True) -> MomentumEncoder[Encoder]:
        """Stay in eval mode."""
        super().train(False)
        return self

    @torch.no_grad()
    def update(self, source: Encoder) -> None:
        """Update the average; call it after each update of the source."""
        weights = dict(source.named_parameters())
        for name, weight in self.encoder.named_parameters():
            if weight is not weights[name]:  # frozen parts may be shared
                weight.lerp_(weights[name], 1 - self.momentum)
        buffers = dict(source.named_buffers())
        for name, buffer in self.encoder.named_buffers():
            new = buffers[name]
            if buffer.is_floating_point():
                # Equal values are copied, so that infinities (masks) do not become NaN.
                new = torch.where(buffer == new, new, buffer.lerp(new, 1 - self.momentum))
            buffer.copy_(new)
