"""A service with tiny models: its settings, its application, pictures to send."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from support.photos import ColourEncoder, make_pictures, make_retriever_folder, register
from support.pictures import save_model
from tellapart.index.photos import open_index
from tellapart.serve.settings import ServeSettings

HOST = "http://127.0.0.1"


def make_settings(folder: Path, photos: int = 12, **settings: Any) -> ServeSettings:
    """Settings of a service with tiny models and, unless `photos` is 0, a collection."""
    register()
    models = {"models": (save_model(folder / "captioner", ColourEncoder.identity),)}
    retriever = make_retriever_folder(folder / "retriever")
    collection = None
    if photos:
        collection = str(folder / "photos.lance")
        open_index(collection, retriever).add([make_pictures(folder / "photos", photos)])
    return ServeSettings(**{"collection": collection, "retriever": retriever, **models, **settings})


def picture_bytes(seed: int = 0, size: tuple[int, int] = (16, 16), kind: str = "PNG", **options: Any) -> bytes:
    """A file of four random colours."""
    pixels = np.random.default_rng(seed).integers(0, 256, (2, 2, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST).save(buffer, kind, **options)
    return buffer.getvalue()


def as_files(*contents: bytes, name: str = "photo-{}.png") -> list[tuple[str, tuple[str, bytes]]]:
    """Files as a client of HTTP sends them."""
    return [("files", (name.format(number), content)) for number, content in enumerate(contents)]
