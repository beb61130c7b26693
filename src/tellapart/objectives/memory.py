"""What momentum contrast remembers (MoCo, He et al. 2020): coupled queues of keys, and the encoder that makes them."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import nn

Encoder = TypeVar("Encoder", bound=nn.Module)

# The number of the image of a slot that was never filled; images are numbered from 0.
NO_IMAGE = -1


class MomentumBank(nn.Module):
    """Coupled memory banks of CODER (sec. 3.2): the newest image keys and text keys, slot by slot from the same pairs.

    The two queues give an anchor thousands of negatives beyond its batch. Each slot knows the image it came from, so
    that a caption of the anchor's own image is no negative, and neither is a slot that was never filled. Everything is
    a persistent buffer: a training that resumes goes on with the same negatives.

    Positives are the keys of the current batch, negatives what the bank holds before it: ask for `negatives` first,
    `enqueue` after the step, and enqueue what was gathered from all processes, so that their banks stay equal.

    Args:
        capacity: slots of each queue; the paper has 4096.
        width: of a key.

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
            raise ValueError(f"a bank of {capacity} keys of width {width} cannot be made; both must be at least 1")
        self.capacity = capacity
        self.register_buffer("image_keys", torch.zeros(capacity, width))
        self.register_buffer("text_keys", torch.zeros(capacity, width))
        self.register_buffer("images", torch.full((capacity,), NO_IMAGE, dtype=torch.long))
        # Every key ever put in is counted: where the next one goes and how many are held both follow.
        self.register_buffer("enqueued", torch.zeros((), dtype=torch.long))
        self.image_keys: torch.Tensor
        self.text_keys: torch.Tensor
        self.images: torch.Tensor
        self.enqueued: torch.Tensor

    @property
    def pointer(self) -> int:
        """The slot the next pair goes to: the oldest one, once all are filled."""
        return int(self.enqueued) % self.capacity

    @property
    def filled(self) -> int:
        """How many slots hold a pair."""
        return min(int(self.enqueued), self.capacity)

    def negatives(self, images: torch.Tensor) -> torch.Tensor:
        """Which slots hold a negative of anchors that belong to these images, `[A, capacity]`."""
        return (self.images != NO_IMAGE) & (images[:, None] != self.images)

    @torch.no_grad()
    def enqueue(self, image_keys: torch.Tensor, text_keys: torch.Tensor, images: torch.Tensor) -> None:
        """Put pairs in, in their order, each in place of the oldest.

        Args:
            image_keys: `[B, width]`; B may differ from call to call, may be 0 and may exceed the capacity.
            text_keys: `[B, width]`, of the same pairs.
            images: the number of each pair's image, from 0, `[B]`.
        """
        shape = (len(images), self.image_keys.shape[1])
        if image_keys.shape != shape or text_keys.shape != shape:
            raise ValueError(
                f"keys for {shape[0]} pairs of width {shape[1]} are expected, not image keys {list(image_keys.shape)} "
                f"and text keys {list(text_keys.shape)}"
            )
        if len(images) and int(images.min()) < 0:
            raise ValueError("images are numbered from 0; a negative number marks a slot that was never filled")
        # Of more pairs than there are slots the last ones stay, where they would be had they come one by one.
        skipped = max(0, len(images) - self.capacity)
        order = torch.arange(skipped, len(images), device=self.images.device)
        slots = (self.enqueued + order) % self.capacity
        self.image_keys[slots] = image_keys[skipped:].to(self.image_keys)
        self.text_keys[slots] = text_keys[skipped:].to(self.text_keys)
        self.images[slots] = images[skipped:].to(self.images)
        self.enqueued += len(images)


class MomentumEncoder(nn.Module, Generic[Encoder]):
    """A copy of an encoder that follows it slowly: θ_k ← m θ_k + (1 − m) θ_q.

    Its keys change little from step to step, so that those in a bank stay comparable. It starts equal to its source,
    is never trained by gradient, is always in eval mode (a key does not depend on dropout or on its batch), and is
    saved with whatever module holds it. Running statistics are averaged as the weights are; counters are copied.

    Args:
        source: the encoder that is trained; it is copied, not held.
        momentum: m; the paper has 0.995.

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
            raise ValueError(f"a momentum of {momentum} does not follow anything; it must be between 0 and 1")
        self.momentum = momentum
        self.encoder: Encoder = copy.deepcopy(source).requires_grad_(False)
        self.train(False)

    def train(self, mode: bool = True) -> MomentumEncoder[Encoder]:
        """Stays in eval mode, whatever is asked of the module that holds it."""
        super().train(False)
        return self

    @torch.no_grad()
    def update(self, source: Encoder) -> None:
        """Follow the source one step; call it after each update of the source."""
        weights = dict(source.named_parameters())
        for name, weight in self.encoder.named_parameters():
            if weight is not weights[name]:  # a part that nothing trains may be shared
                weight.lerp_(weights[name], 1 - self.momentum)
        buffers = dict(source.named_buffers())
        for name, buffer in self.encoder.named_buffers():
            theirs = buffers[name]
            if buffer.is_floating_point():
                # Equal values are copied: they keep their bits, and infinities (masks) do not become NaN.
                theirs = torch.where(buffer == theirs, theirs, buffer.lerp(theirs, 1 - self.momentum))
            buffer.copy_(theirs)
