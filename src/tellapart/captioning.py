"""Caption one's own pictures with a trained model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from tellapart.captioners.folder import load_captioner
from tellapart.data.images import load_image
from tellapart.data.readers import read_folder
from tellapart.decoding.search import BLOCK, beam_search
from tellapart.encoders.images import accelerator, open_encoder
from tellapart.errors import DataError, StoreError
from tellapart.recipe import DecodingSettings


def caption(
    images: Sequence[str | Path],
    model: str | Path,
    decoding: DecodingSettings | None = None,
    on_skip: Callable[[DataError], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Captions of pictures and of folders of pictures: rows with `id` (the path), `caption`, `log_prob`, `ended`.

    Args:
        images: picture files, or folders that hold some.
        model: a run folder or a model folder.
        decoding: beam width and length limit.
        on_skip: told of each picture that cannot be read; without it such a picture raises `DataError`.
        on_progress: called with pictures done and pictures in all.

    Example:
        >>> tellapart.caption(["dog.jpg"], model="demo/runs/scenes-cl-1a2b3c4d")      # doctest: +SKIP
        [{'id': 'dog.jpg', 'caption': 'a dog ...', 'log_prob': -8.1, 'ended': True}]
    """
    captioner = load_captioner(Path(model)).to(accelerator() or "cpu")
    encoder = open_encoder(captioner.encoder.name, device=accelerator())
    if encoder.identity != captioner.encoder:
        raise StoreError(
            f"{model}: was trained on features of another {captioner.encoder.name}; install the version it used"
        )
    paths = _expand(images)
    rows: list[dict[str, Any]] = []
    for start in range(0, len(paths), BLOCK):
        readable: list[Path] = []
        pictures: list[Image.Image] = []
        for path in paths[start : start + BLOCK]:
            try:
                pictures.append(encoder.squeeze(load_image(path, at_least=encoder.size)))
                readable.append(path)
            except DataError as error:
                if on_skip is None:
                    raise
                on_skip(error)
        if pictures:
            features = torch.from_numpy(encoder.encode(pictures)).to(captioner.device)
            said = beam_search(captioner, features, decoding or DecodingSettings())
            rows += [{"id": str(path), **asdict(one)} for path, one in zip(readable, said, strict=True)]
        if on_progress is not None:
            on_progress(min(start + BLOCK, len(paths)), len(paths))
    return rows


def _expand(images: Sequence[str | Path]) -> list[Path]:
    """Folders become the pictures in them; files stay."""
    if isinstance(images, str | Path):
        raise DataError(f"{images}: give a list of pictures, as [{str(images)!r}]")
    paths: list[Path] = []
    for named in map(Path, images):
        if named.is_dir():
            paths += [named / record.image for record in read_folder(named)]
        else:
            paths.append(named)
    if not paths:
        raise DataError("no picture was given; name picture files or folders")
    return paths
