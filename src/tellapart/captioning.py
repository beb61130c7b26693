"""Caption your own images or a split of a data set, with a trained model or an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from tellapart.captioners.base import Captioner, load_captioner
from tellapart.data.coco_ids import coco_ids, server_results
from tellapart.data.images import load_image
from tellapart.data.prepare import open_dataset, prepare
from tellapart.data.readers import read_folder
from tellapart.data.records import Record
from tellapart.data.settings import DataSettings
from tellapart.decoding.base import Caption, Decodable
from tellapart.decoding.ensemble import Ensemble
from tellapart.decoding.search import BLOCK, decode, decode_store
from tellapart.decoding.settings import DecodingSettings
from tellapart.encoders.base import accelerator
from tellapart.errors import DataError, RecipeError, StoreError
from tellapart.files import check_folder, digest_of, is_utf8
from tellapart.recipe import Recipe


def caption(
    images: Sequence[str | Path],
    model: str | Path | Sequence[str | Path],
    decoding: DecodingSettings | None = None,
    on_skip: Callable[[DataError], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    overlay: str | Path | None = None,
    server: bool = False,
) -> list[dict[str, Any]]:
    """Caption images and folders of images: rows with `id` (the path), `caption`, `log_prob`, `ended`.

    With several `samples` an image has several rows, best first.

    Args:
        images: image files, or folders of them.
        model: a run folder or a model folder; a list of them is an ensemble (mean of the word probabilities).
        decoding: how to generate captions; by default as in the recipe of the (first) run.
        on_skip: called with the error of each image that cannot be read; by default the error is raised.
        on_progress: called with the numbers of images done and of all images.
        overlay: folder for attention maps, with one folder for each caption, `0001-NAME`. Earlier ones are replaced;
            an existing folder of that name with other files is an error.
        server: give rows of COCO's server instead, with `image_id` (the number in the file name) and `caption`. A file
            without a number is an error before the work begins.

    Example:
        >>> tellapart.caption(["dog.jpg"], model="demo/runs/scenes-cl-1a2b3c4d")      # doctest: +SKIP
        [{'id': 'dog.jpg', 'caption': 'a dog ...', 'log_prob': -8.1, 'ended': True}]
    """
    paths = expand_images(images)
    if overlay is not None:
        _check_overlays(Path(overlay), paths)
    decoding = decoding or own_decoding(model)
    if server:
        _check_one_caption(decoding)
        ids = coco_ids([Record(str(path), path.as_posix(), "test", ()) for path in paths])
        coco_id_of = dict(zip(map(str, paths), ids, strict=True))
    captioners = _open(model)
    captioner = _ensemble(captioners)
    encoder = captioners[0].open_encoder(accelerator())
    if encoder.identity != captioner.encoder:
        first = model if isinstance(model, str | Path) else next(iter(model))
        raise StoreError(
            f"{first}: was trained on features of another {captioner.encoder.name}; install the version it used"
        )
    rows: list[dict[str, Any]] = []
    captioned = 0
    for start in range(0, len(paths), BLOCK):
        readable: list[Path] = []
        pictures: list[Image.Image] = []
        for path in paths[start : start + BLOCK]:
            try:
                _check_name(path)
                pictures.append(encoder.squeeze(load_image(path, at_least=encoder.size)))
                readable.append(path)
            except DataError as error:
                if on_skip is None:
                    raise
                on_skip(error)
        if pictures:
            features = torch.from_numpy(encoder.encode(pictures)).to(captioner.device)
            # Samples depend on the path of an image, not on the other images.
            numbers = [int(digest_of(str(path))[:8], 16) for path in readable]
            captions = decode(captioner, features, decoding, numbers)
            rows += [
                {"id": str(path), **asdict(one)}
                for path, several in zip(readable, captions, strict=True)
                for one in several
            ]
            if overlay is not None:
                _write_overlays(captioner, features, readable, captions, Path(overlay), first=captioned + 1)
            captioned += len(readable)
        if on_progress is not None:
            on_progress(min(start + BLOCK, len(paths)), len(paths))
    if server:
        return server_results([coco_id_of[row["id"]] for row in rows], [row["caption"] for row in rows])
    return rows


def caption_split(
    data: str,
    model: str | Path | Sequence[str | Path],
    split: str = "test",
    decoding: DecodingSettings | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    prepared: str | Path = "prepared",
    server: bool = False,
) -> list[dict[str, Any]]:
    """Caption a split of a data set from its feature store; rows as in `caption`, with the ids of the records.

    If the (first) run was trained with mirrored images (`data.mirrored`), the model reads both.

    Args:
        data: 'scenes', a folder of images, or a data set (docs/data.md).
        model: a run folder or a model folder; a list of them is an ensemble.
        split: `train`, `val` or `test`.
        decoding: how to generate captions; by default as in the recipe of the (first) run.
        on_progress: called with the numbers of images done and of all images.
        prepared: folder for feature stores.
        server: give rows of COCO's server instead, with `image_id` (the COCO id of the record) and `caption`. Images
            without an id, or that cannot be read, are an error before captioning begins.

    Example:
        >>> rows = caption_split("dataset_flickr8k.json", ["runs/a", "runs/b"])    # doctest: +SKIP
    """
    decoding = decoding or own_decoding(model)
    captioner = _ensemble(_open(model))
    recipe = _own_recipe(model)
    settings = DataSettings(
        source=data,
        encoder=captioner.encoder.name,
        prepared=str(prepared),
        mirrored=recipe is not None and recipe.data.mirrored,
    )
    if server:  # the check below tells how many cannot be read
        settings = settings.model_copy(update={"max_skipped": 1.0})
    dataset = open_dataset(settings)
    if server:
        _check_one_caption(decoding)
        coco_ids(dataset.split(split))  # raises before the images are encoded
    found = prepare(settings, dataset=dataset)
    found.store.check(found.dataset, captioner.encoder)
    records = found.dataset.split(split)
    wanted = len(dataset.split(split))
    if server and len(records) < wanted:
        raise DataError(
            f"{found.folder / 'skipped.jsonl'}: {wanted - len(records)} of {wanted} images cannot be read, and COCO's "
            "server takes only complete results; replace them"
        )
    places = [found.dataset.row(record.id) for record in records]
    captions = decode_store(captioner, found.store, places, decoding, on_progress)
    if server:
        return server_results(coco_ids(records), [own[0].caption for own in captions])
    return [{"id": record.id, **asdict(one)} for record, own in zip(records, captions, strict=True) for one in own]


def is_server_file(path: Path) -> bool:
    """Whether a file is named as COCO's server wants: `captions_test2014_NAME_results.json`."""
    return path.name.endswith("_results.json")


def _check_one_caption(decoding: DecodingSettings) -> None:
    if decoding.samples != 1:
        raise RecipeError(
            f"decoding.samples is {decoding.samples}, and COCO's server takes one caption per image; set samples to 1"
        )


def own_decoding(model: str | Path | Sequence[str | Path]) -> DecodingSettings:
    """The decoding settings of a run's recipe (the first of several); the defaults for a model folder."""
    recipe = _own_recipe(model)
    return DecodingSettings() if recipe is None else recipe.decoding


def _own_recipe(model: str | Path | Sequence[str | Path]) -> Recipe | None:
    """The recipe of a run (the first of several); `None` for a model folder."""
    first = Path(model if isinstance(model, str | Path) else next(iter(model)))
    return Recipe.load(first) if (first / "recipe.yaml").exists() else None


def _open(model: str | Path | Sequence[str | Path]) -> list[Captioner]:
    folders = [model] if isinstance(model, str | Path) else list(model)
    return [load_captioner(Path(folder)).to(accelerator() or "cpu") for folder in folders]


def _ensemble(captioners: Sequence[Captioner]) -> Decodable:
    return captioners[0] if len(captioners) == 1 else Ensemble(captioners)


def _check_overlays(folder: Path, paths: Sequence[Path]) -> None:
    """Raise unless the overlays of these images can be written into the folder."""
    from tellapart.decoding.overlay import check_overlay_folder

    check_folder(folder)
    stems = {path.stem for path in paths}
    for path in folder.iterdir() if folder.exists() else ():
        number, _, name = path.name.partition("-")
        if number.isdecimal() and (name in stems or name.rpartition("-")[0] in stems):
            check_overlay_folder(path)


def _write_overlays(
    captioner: Decodable,
    features: torch.Tensor,
    paths: Sequence[Path],
    captions: Sequence[Sequence[Caption]],
    folder: Path,
    first: int,
) -> None:
    """Write attention maps of every caption; the second and later ones of an image have `-2`, `-3` in their name."""
    from tellapart.decoding.overlay import SIDE, attention_maps, write_overlays

    for place, path in enumerate(paths):
        picture = load_image(path, at_least=SIDE)
        maps = attention_maps(captioner, features[place], [one.caption for one in captions[place]])
        for number, words in enumerate(maps, start=1):
            name = f"{first + place:04d}-{path.stem}" + (f"-{number}" if number > 1 else "")
            write_overlays(picture, words, folder / name)


def _check_name(path: Path) -> None:
    if not is_utf8(str(path)):
        raise DataError(f"{path}: the name of this picture is not UTF-8 text; rename it")


def expand_images(images: Sequence[str | Path]) -> list[Path]:
    """Replace folders by the images in them."""
    if isinstance(images, str | Path):
        raise DataError(f"{images}: give a list of images, such as [{str(images)!r}]")
    paths: list[Path] = []
    for named in map(Path, images):
        if named.is_dir():
            paths += [named / record.image for record in read_folder(named)]
        elif named.suffix == ".json":
            raise DataError(f"{named}: this is not an image; caption the images of a data set with --data {named}")
        else:
            paths.append(named)
    if not paths:
        raise DataError("no image was given; give image files or folders")
    return paths
