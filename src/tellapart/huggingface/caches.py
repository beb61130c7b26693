"""Key/value caches for transformers that store the keys and values of an image once for all its captions.

In a decoder with cross-attention (BLIP, GPT-2, BERT), keys and values of the regions are computed per *image*, and each
row uses those of its image. In GIT, the keys and values of a row follow those of its image. Between steps, a state
keeps only the keys and values of the text.

This module imports transformers; import it only where needed.
"""

from __future__ import annotations

from typing import Any

import torch

try:
    from transformers.cache_utils import Cache, DynamicLayer, EncoderDecoderCache
except ImportError:  # the module can be imported without transformers; making a captioner raises an error
    Cache = DynamicLayer = EncoderDecoderCache = object  # type: ignore[assignment, misc]

# Keys and values, `[rows or images, heads, positions, width]` each.
Pair = tuple[torch.Tensor, torch.Tensor]
Pairs = tuple[Pair, ...]


class OwnLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of the text of each row; the given tensors are not changed."""

    def __init__(self, pair: Pair | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if pair is not None:
            self.lazy_initialization(*pair)
            self.keys, self.values = pair


class PrefixedLayer(OwnLayer):  # type: ignore[no-untyped-call]
    """Keys and values of the image of each row, followed by those of its text."""

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
    """Keys and values of the images, looked up for each row."""

    def __init__(self, pair: Pair | None, image_of_row: torch.Tensor | None) -> None:
        # No super().__init__(): it would set keys and values, which are properties here.
        self.pair = pair
        self.image_of_row = image_of_row

    @property
    def keys(self) -> torch.Tensor:  # type: ignore[override]
        assert self.pair is not None, "not filled yet"
        return of_rows(self.pair[0], self.image_of_row)

    @property
    def values(self) -> torch.Tensor:  # type: ignore[override]
        assert self.pair is not None, "not filled yet"
        return of_rows(self.pair[1], self.image_of_row)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Pair:
        self.pair = (key_states, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return 0 if self.pair is None else self.pair[0].shape[2]


def of_rows(images: torch.Tensor, image_of_row: torch.Tensor | None) -> torch.Tensor:
    """Values of each row's image; `None` means one row per image, in order, and copies nothing."""
    return images if image_of_row is None else images[image_of_row]


def rows_of_images(image_of_row: torch.Tensor, images: int) -> torch.Tensor | None:
    """`image_of_row`, or `None` if each image has one row, in order."""
    if len(image_of_row) != images:
        return image_of_row
    return None if torch.equal(image_of_row, torch.arange(images, device=image_of_row.device)) else image_of_row


def crossing_cache(layers: int, own: Pairs, images: Pairs, image_of_row: torch.Tensor | None) -> Any:
    """The cache of a decoder with cross-attention; `images` is empty at the first step."""
    return EncoderDecoderCache(
        Cache([OwnLayer(own[layer] if own else None) for layer in range(layers)]),
        Cache([ImageLayer(images[layer] if images else None, image_of_row) for layer in range(layers)]),
    )


def prefixed_cache(own: Pairs, images: Pairs, image_of_row: torch.Tensor | None) -> Any:
    """The cache of a decoder whose text follows the image (GIT)."""
    return Cache(
        [PrefixedLayer(own[layer] if own else None, image, image_of_row) for layer, image in enumerate(images)]
    )


def own_pairs(cache: Any) -> Pairs:
    """Keys and values of the text after a forward pass."""
    cache = getattr(cache, "self_attention_cache", cache)
    return tuple((layer.keys, layer.values) for layer in cache.layers)


def image_pairs(cache: Any) -> Pairs:
    """Keys and values of the images after a forward pass of a decoder with cross-attention."""
    return tuple(layer.pair for layer in cache.cross_attention_cache.layers)
