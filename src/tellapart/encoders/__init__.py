"""Frozen pretrained image encoders, by name. Everything that turns pictures into features gets its encoder here.

`efficientnet-lite0`, `efficientnet-lite2@448`, `clip:FOLDER_OR_ID`, `siglip:FOLDER_OR_ID`, `timm:MODEL`;
docs/encoders.md says what each of them is.
"""

from __future__ import annotations

import re

from tellapart import registry
from tellapart.encoders.base import ImageEncoder


def open_encoder(name: str, threads: int | None = None, device: str | None = None) -> ImageEncoder:
    """The encoder of this name.

    Args:
        name: a family of the registry, with what the family wants after `@` or `:`.
        threads: how many cores to use (default: all that this process may); where torch runs, it has its own setting.
        device: run in torch on this device (`"cuda"`, `"mps"`, `"cpu"`; `accelerator()` finds one). By default an
            encoder runs on the CPU in the way that is fastest there.

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
