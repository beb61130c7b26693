"""Momentum contrast (MoCo, He et al. 2020): coupled queues of keys, and the momentum encoder that makes them."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import nn

Encoder = TypeVar("Encoder", bound=nn.Module)

# Image number of an empty slot; images are numbered from 0.
NO_IMAGE = -1


class KeyQueue(nn.Module):
    """A queue of the newest keys of one modality, with the number of each key's image.

    Keys of the anchor's own image and empty slots are not negatives. All state is in persistent buffers, so that
    resuming is exact.

    Args:
        capacity: slots.
        width: width of a key.

    Example:
        >>> queue = KeyQueue(capacity=3, width=2)
        >>> queue.enqueue(torch.eye(2), torch.tensor([5, 6]))
        >>> queue.filled, queue.negatives(torch.tensor([6, 7]))
        (2, tensor([[ True, False, False],
                [ True,  True, False]]))
    """

    def __init__(self, capacity: int, width: int) -> None:
        super().__init__()
        if capacity < 1 or width < 1:
            raise ValueError(f"capacity is {capacity} and width is {width}; both must be at least 1")
        self.capacity = capacity
        self.register_buffer("keys", torch.zeros(capacity, width))
        self.register_buffer("images", torch.full((capacity,), NO_IMAGE, dtype=torch.long))
        # Number of keys ever enqueued; it determines `pointer` and `filled`.
        self.register_buffer("enqueued", torch.zeros((), dtype=torch.long))
        self.keys: torch.Tensor
        self.images: torch.Tensor
        self.enqueued: torch.Tensor

    @property
    def pointer(self) -> int:
        """The slot for the next key: the oldest one if all are filled."""
        return int(self.enqueued) % self.capacity

    @property
    def filled(self) -> int:
        """Number of slots that hold a key."""
        return min(int(self.enqueued), self.capacity)

    def negatives(self, images: torch.Tensor) -> torch.Tensor:
        """Which slots hold negatives for anchors of these images, `[A, capacity]`."""
        return (self.images != NO_IMAGE) & (images[:, None] != self.images)

    @torch.no_grad()
    def enqueue(self, keys: torch.Tensor, images: torch.Tensor) -> None:
        """Add keys in order, each replacing the oldest one.

        Args:
            keys: `[B, width]`; B may vary, be 0, or exceed the capacity.
            images: number of each key's image, from 0, `[B]`.
        """
        shape = (len(images), self.keys.shape[1])
        if keys.shape != shape:
            raise ValueError(f"{shape[0]} keys of width {shape[1]} are expected, not {list(keys.shape)}")
        if len(images) and int(images.min()) < 0:
            raise ValueError("image numbers must be at least 0; negative numbers mark empty slots")
        # If there are more keys than slots, keep the last ones, in the slots they would have got one by one.
        skipped = max(0, len(images) - self.capacity)
        order = torch.arange(skipped, len(images), device=self.images.device)
        slots = (self.enqueued + order) % self.capacity
        self.keys[slots] = keys[skipped:].to(self.keys)
        self.images[slots] = images[skipped:].to(self.images)
        self.enqueued += len(images)


class MomentumBank(nn.Module):
    """Coupled memory banks of CODER (sec. 3.2): queues of recent image keys and of recent text keys.

    The queues give an anchor thousands of negatives beyond its batch. An image enters its queue once in a step, with
    however many captions: the same key twice would count twice as a negative. So the queue of images reaches back
    further than that of texts.

    Use the `negatives` of each queue in the step and `enqueue` after it. Enqueue the keys gathered from all processes,
    so that their banks stay equal.

    Args:
        capacity: slots of each queue (paper: 4096).
        width: width of a key.

    Example:
        >>> bank = MomentumBank(capacity=3, width=2)
        >>> bank.enqueue(torch.eye(2)[:1], torch.tensor([5]), torch.eye(2), torch.tensor([5, 5]))
        >>> bank.images.filled, bank.texts.filled
        (1, 2)
    """

    def __init__(self, capacity: int, width: int) -> None:
        super().__init__()
        self.images = KeyQueue(capacity, width)
        self.texts = KeyQueue(capacity, width)

    def enqueue(
        self, image_keys: torch.Tensor, images: torch.Tensor, text_keys: torch.Tensor, text_images: torch.Tensor
    ) -> None:
        """Add the keys of a step.

        Args:
            image_keys: one for each image, `[I, width]`.
            images: their numbers, `[I]`.
            text_keys: one for each caption, `[P, width]`.
            text_images: number of each caption's image, `[P]`.
        """
        self.images.enqueue(image_keys, images)
        self.texts.enqueue(text_keys, text_images)


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
