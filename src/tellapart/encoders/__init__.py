"""Frozen pretrained image encoders, by name.

`efficientnet-lite0`, `efficientnet-lite2@448`, `clip-vit-b16`, `dinov2-small`, `clip:FOLDER_OR_ID`,
`siglip:FOLDER_OR_ID`, `timm:MODEL`; docs/encoders.md describes them.
"""

from __future__ import annotations

import re

from tellapart import registry
from tellapart.encoders.base import ImageEncoder


def open_encoder(name: str, threads: int | None = None, device: str | None = None) -> ImageEncoder:
    """Open the encoder with this name.

    Args:
        name: a family of the registry, with the family's option after `@` or `:`.
        threads: number of cores to use (default: all available ones); torch has its own setting.
        device: run in torch on this device (`"cuda"`, `"mps"`, `"cpu"`; `accelerator()` finds one). By default an
            encoder uses its fastest way to run on the CPU.

    Example:
        >>> open_encoder("efficientnet-lite0@448").identity.regions
        196
        >>> open_encoder("efficientnet-light0")
        Traceback (most recent call last):
        tellapart.errors.RecipeError: there is no encoder 'efficientnet-light0'; did you mean 'efficientnet-lite0'?
    """
    family = re.split("[@:]", name, maxsplit=1)[0]
    encoder: ImageEncoder = registry.find("encoder", family)(name, threads=threads, device=device)
    return encoder
