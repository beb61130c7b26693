"""Caption one's own pictures, or a split of a data set, with a trained model or several together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from tellapart.captioners.base import Captioner, load_captioner
from tellapart.data.images import load_image
from tellapart.data.prepare import prepare
from tellapart.data.readers import read_folder
from tellapart.data.settings import DataSettings
from tellapart.decoding.base import Caption, Decodable
from tellapart.decoding.ensemble import Ensemble
from tellapart.decoding.search import BLOCK, decode, decode_store
from tellapart.decoding.settings import DecodingSettings
from tellapart.encoders.base import accelerator
from tellapart.errors import DataError, StoreError
from tellapart.files import digest_of
from tellapart.recipe import Recipe


def caption(
    images: Sequence[str | Path],
    model: str | Path | Sequence[str | Path],
    decoding: DecodingSettings | None = None,
    on_skip: Callable[[DataError], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    overlay: str | Path | None = None,
) -> list[dict[str, Any]]:
    """Captions of pictures and of folders of pictures: rows with `id` (the path), `caption`, `log_prob`, `ended`.

    With several `samples` a picture has so many rows, one after the other, the best first.

    Args:
        images: picture files, or folders that hold some.
        model: a run folder or a model folder; several speak as one, by the mean of their words' probabilities.
        decoding: how captions are generated; by default as the (first) run's recipe says.
        on_skip: told of each picture that cannot be read; without it such a picture raises `DataError`.
        on_progress: called with pictures done and pictures in all.
        overlay: a folder for pictures of where the model looked: in it one folder for each caption, `0001-NAME`.

    Example:
        >>> tellapart.caption(["dog.jpg"], model="demo/runs/scenes-cl-1a2b3c4d")      # doctest: +SKIP
        [{'id': 'dog.jpg', 'caption': 'a dog ...', 'log_prob': -8.1, 'ended': True}]
    """
    decoding = decoding or own_decoding(model)
    captioners = _open(model)
    captioner = _together(captioners)
    encoder = captioners[0].open_encoder(accelerator())
    if encoder.identity != captioner.encoder:
        raise StoreError(
            f"{model}: was trained on features of another {captioner.encoder.name}; install the version it used"
        )
    paths = _expand(images)
    rows: list[dict[str, Any]] = []
    captioned = 0
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
            # A picture is known to the sampler by its path, whatever else is captioned with it.
            numbers = [int(digest_of(str(path))[:8], 16) for path in readable]
            said = decode(captioner, features, decoding, numbers)
            rows += [
                {"id": str(path), **asdict(one)}
                for path, several in zip(readable, said, strict=True)
                for one in several
            ]
            if overlay is not None:
                _write_overlays(captioner, features, readable, said, Path(overlay), first=captioned + 1)
            captioned += len(readable)
        if on_progress is not None:
            on_progress(min(start + BLOCK, len(paths)), len(paths))
    return rows


def caption_split(
    data: str,
    model: str | Path | Sequence[str | Path],
    split: str = "test",
    decoding: DecodingSettings | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    prepared: str | Path = "prepared",
) -> list[dict[str, Any]]:
    """Captions of a data set's split, from its feature store; rows as of `caption`, with the records' ids.

    Args:
        data: 'scenes', a folder of pictures, or a data set (docs/data.md).
        model: a run folder or a model folder; several speak as one.
        split: `train`, `val` or `test`.
        decoding: how captions are generated.
        on_progress: called with pictures done and pictures in all.
        prepared: folder for feature stores.

    Example:
        >>> rows = caption_split("dataset_flickr8k.json", ["runs/a", "runs/b"])    # doctest: +SKIP
    """
    captioner = _together(_open(model))
    found = prepare(DataSettings(source=data, encoder=captioner.encoder.name, prepared=str(prepared)))
    found.store.check(found.dataset, captioner.encoder)
    records = found.dataset.split(split)
    places = [found.dataset.row(record.id) for record in records]
    said = decode_store(captioner, found.store, places, decoding or own_decoding(model), on_progress)
    return [{"id": record.id, **asdict(one)} for record, several in zip(records, said, strict=True) for one in several]


def own_decoding(model: str | Path | Sequence[str | Path]) -> DecodingSettings:
    """How the recipe of a run (the first of several) decodes; the defaults for a model folder alone."""
    first = Path(model if isinstance(model, str | Path) else next(iter(model)))
    return Recipe.load(first).decoding if (first / "recipe.yaml").exists() else DecodingSettings()


def _open(model: str | Path | Sequence[str | Path]) -> list[Captioner]:
    folders = [model] if isinstance(model, str | Path) else list(model)
    return [load_captioner(Path(folder)).to(accelerator() or "cpu") for folder in folders]


def _together(captioners: Sequence[Captioner]) -> Decodable:
    return captioners[0] if len(captioners) == 1 else Ensemble(captioners)


def _write_overlays(
    captioner: Decodable,
    features: torch.Tensor,
    paths: Sequence[Path],
    said: Sequence[Sequence[Caption]],
    folder: Path,
    first: int,
) -> None:
    """Pictures of attention for every caption; the second and later ones of a picture have `-2`, `-3` in their name."""
    from tellapart.decoding.overlay import SIDE, looks, write_overlays

    for place, path in enumerate(paths):
        captions = [one.caption for one in said[place]]
        picture = load_image(path, at_least=SIDE)
        found = looks(captioner, features[place], captions)
        for number, look in enumerate(found, start=1):
            name = f"{first + place:04d}-{path.stem}" + (f"-{number}" if number > 1 else "")
            write_overlays(picture, look, folder / name)


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
