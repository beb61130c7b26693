"""Frozen pretrained encoders. `open_encoder` gives the image encoder of a name."""

from tellapart.encoders.images import open_encoder

__all__ = ["open_encoder"]
