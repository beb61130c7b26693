"""Key/value caches in which the image's part is kept once an image, however many captions look at it.

They stand where transformers puts its own. A decoder that attends across to the image (BLIP, GPT-2, BERT) computes the
image's keys and values for each *image*; a row's attention then takes those of its image. In GIT, where the image is
the beginning of the text, each row's own keys and values follow those of its image. What a state keeps between steps
is small: the rows' own keys and values.

This module imports transformers; import it only where that is wanted.
"""

from __future__ import annotations

from typing import Any

import torch

try:
    from transformers.cache_utils import Cache, DynamicLayer, EncoderDecoderCache
except ImportError:  # somebody only reads this module; who makes a captioner is told what is missing before
    Cache = DynamicLayer = EncoderDecoderCache = object  # type: ignore[assignment, misc]

# Keys and values, `[rows or images, heads, positions, width]` each.
Pair = tuple[torch.Tensor, torch.Tensor]
Pairs = tuple[Pair, ...]


class OwnLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A row's own keys and values, those so far and those to come; the tensors given are not changed."""

    def __init__(self, pair: Pair | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if pair is not None:
            self.lazy_initialization(*pair)
            self.keys, self.values = pair


class PrefixedLayer(OwnLayer):  # type: ignore[no-untyped-call]
    """A row's own keys and values, after those of its image."""

    def __init__(self, pair: Pair | None, image: Pair, image_of_row: torch.Tensor | None) -> None:
        super().__init__(pair)
        self.image = image
        self.image_of_row = image_of_row

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Pair:
        own = super().update(key_states, value_states)
        keys, values = (
            torch.cat([of_rows(image, self.image_of_row), text], dim=2)
            for image, text in zip(self.image, own, strict=True)
        )
        return keys, values

    def get_seq_length(self) -> int:
        own: int = super().get_seq_length()
        return self.image[0].shape[2] + own


class ImageLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """An image's keys and values, given to each of its rows."""

    def __init__(self, pair: Pair | None, image_of_row: torch.Tensor | None) -> None:
        # Not super(): it would set keys and values, which are looked up anew each time here.
        self.pair = pair
        self.image_of_row = image_of_row

    @property
    def keys(self) -> torch.Tensor:  # type: ignore[override]
        assert self.pair is not None, "read before it was filled"
        return of_rows(self.pair[0], self.image_of_row)

    @property
    def values(self) -> torch.Tensor:  # type: ignore[override]
        assert self.pair is not None, "read before it was filled"
        return of_rows(self.pair[1], self.image_of_row)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Pair:
        self.pair = (key_states, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return 0 if self.pair is None else self.pair[0].shape[2]


def of_rows(images: torch.Tensor, image_of_row: torch.Tensor | None) -> torch.Tensor:
    """What belongs to each row's image; `None` stands for one row an image, in order, where nothing is copied."""
    return images if image_of_row is None else images[image_of_row]


def rows_of_images(image_of_row: torch.Tensor, images: int) -> torch.Tensor | None:
    """`image_of_row`, or `None` where each image has one row and they are in order."""
    if len(image_of_row) != images:
        return image_of_row
    return None if torch.equal(image_of_row, torch.arange(images, device=image_of_row.device)) else image_of_row


def crossing_cache(layers: int, own: Pairs, images: Pairs, image_of_row: torch.Tensor | None) -> Any:
    """For a decoder that attends across; `images` is empty the first time, and filled then."""
    return EncoderDecoderCache(
        Cache([OwnLayer(own[layer] if own else None) for layer in range(layers)]),
        Cache([ImageLayer(images[layer] if images else None, image_of_row) for layer in range(layers)]),
    )


def prefixed_cache(own: Pairs, images: Pairs, image_of_row: torch.Tensor | None) -> Any:
    """For a decoder whose text follows the image."""
    return Cache(
        [PrefixedLayer(own[layer] if own else None, image, image_of_row) for layer, image in enumerate(images)]
    )


def own_pairs(cache: Any) -> Pairs:
    """The rows' own keys and values after a pass."""
    cache = getattr(cache, "self_attention_cache", cache)
    return tuple((layer.keys, layer.values) for layer in cache.layers)


def image_pairs(cache: Any) -> Pairs:
    """The images' keys and values after a pass of a decoder that attends across."""
    return tuple(layer.pair for layer in cache.cross_attention_cache.layers)
