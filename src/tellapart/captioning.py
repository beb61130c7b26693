"""Caption your own images or a split of a data set, with a trained model or an ensemble."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from tellapart.data.coco_ids import coco_ids, server_results
from tellapart.data.images import check_name, load_image
from tellapart.data.pictures import stamp_of
from tellapart.data.prepare import open_dataset, prepare
from tellapart.data.read_ahead import ReadAhead
from tellapart.data.readers import read_folder
from tellapart.data.records import Record
from tellapart.data.settings import DataSettings
from tellapart.decoding.base import Caption, Decodable
from tellapart.decoding.search import BLOCK, decode, decode_store
from tellapart.decoding.settings import DecodingSettings
from tellapart.describing import Describer, Models, kept_features, own_decoding
from tellapart.errors import DataError, RecipeError
from tellapart.files import Pieces, Stored, check_folder, digest_of, new_file, read_model
from tellapart.models import model_digest


@dataclass(frozen=True)
class Block:
    """Captions of a few images.

    Attributes:
        rows: with `id` (the path), `caption`, `log_prob`, `ended`; best first if an image has several.
        skipped: the errors of the images that cannot be read.
        done: the number of images until now.
        images: the number of all images.
    """

    rows: list[dict[str, Any]]
    skipped: list[str]
    done: int
    images: int


def caption(
    images: Sequence[str | Path],
    model: Models = "shipped",
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
        model: a run folder or a model folder; a list of them is an ensemble (mean of the word probabilities). By
            default the shipped captioner.
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
    coco_id_of: dict[str, int] = {}
    if server:
        _check_one_caption(decoding or own_decoding(model))
        paths = expand_images(images)
        ids = coco_ids([Record(str(path), path.as_posix(), "test", ()) for path in paths])
        coco_id_of = dict(zip(map(str, paths), ids, strict=True))
    rows: list[dict[str, Any]] = []
    for block in caption_blocks(images, model, decoding, overlay):
        _report(block, on_skip, on_progress)
        rows += block.rows
    if server:
        return server_results([coco_id_of[row["id"]] for row in rows], [row["caption"] for row in rows])
    return rows


def caption_blocks(
    images: Sequence[str | Path],
    model: Models = "shipped",
    decoding: DecodingSettings | None = None,
    overlay: str | Path | None = None,
) -> Iterator[Block]:
    """As `caption`, a block of images after the other: the memory does not grow with their number.

    Example:
        >>> for block in caption_blocks(["holiday/"]):                                # doctest: +SKIP
        ...     print(block.rows[0]["caption"])
    """
    paths = expand_images(images)
    describer = Describer(model)
    return _blocks(paths, describer, decoding or describer.decoding, overlay, None)


def caption_to_file(
    images: Sequence[str | Path],
    out: Path,
    model: Models = "shipped",
    decoding: DecodingSettings | None = None,
    on_skip: Callable[[DataError], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    overlay: str | Path | None = None,
) -> int:
    """As `caption`, into a file (JSONL), for any number of images; gives the number of rows.

    Finished blocks are kept in a folder beside the file until all are there. An interrupted call continues, if images,
    models and settings are the same. Without any row the file is not written.

    Args:
        images, model, decoding, on_progress, overlay: as for `caption`.
        out: the file; one that is there is replaced.
        on_skip: called with the error of each image that cannot be read; by default the error is raised.
    """
    paths = expand_images(images)
    describer = Describer(model)
    decoding = decoding or describer.decoding
    stamps = [[ascii(str(path)), *stamp_of(path)] for path in paths]  # a name may be no UTF-8 text
    made_from = [
        [model_digest(one) for one in describer.models],
        decoding.model_dump(mode="json"),
        stamps,
        str(overlay),
    ]
    pieces = Pieces(out.with_name(f"{out.stem}-unfinished-{digest_of(made_from)[:16]}"))
    count = 0
    for block in _blocks(paths, describer, decoding, overlay, pieces):
        _report(block, on_skip, on_progress)
        count += len(block.rows)
    if count:
        with new_file(out) as temporary, open(temporary, "w", encoding="utf-8") as handle:
            for start in range(0, len(paths), BLOCK):
                rows = _found(pieces, start)["rows"]
                handle.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    pieces.remove()
    return count


def _report(
    block: Block, on_skip: Callable[[DataError], None] | None, on_progress: Callable[[int, int], None] | None
) -> None:
    """Pass on a block's skipped images and its progress; without `on_skip` a skipped image is an error."""
    for error in block.skipped:
        if on_skip is None:
            raise DataError(error)
        on_skip(DataError(error))
    if on_progress is not None:
        on_progress(block.done, block.images)


class _Row(Stored):
    """A row of captions."""

    id: str
    caption: str
    log_prob: float
    ended: bool


class _Piece(Stored):
    """`images-N.json`: captions of a block of images."""

    rows: list[_Row]
    skipped: list[str]


def _read_piece(path: Path) -> dict[str, Any]:
    return read_model(path, _Piece, "piece of unfinished captions").model_dump()


def _found(pieces: Pieces, start: int) -> dict[str, Any]:
    """Read a piece that is known to be finished."""
    piece = pieces.find(_piece_name(start), _read_piece)
    if piece is None:
        raise DataError(f"{_piece_name(start)}: this piece of unfinished captions is gone; run the same command again")
    return piece


def _piece_name(start: int) -> str:
    return f"images-{start:09d}"


@dataclass(frozen=True)
class _Readable:
    """The readable images of a block: their numbers from 1, paths and features, and the errors of the others."""

    numbers: list[int]
    paths: list[Path]
    features: torch.Tensor | None
    skipped: list[str]


def _blocks(
    paths: Sequence[Path],
    describer: Describer,
    decoding: DecodingSettings,
    overlay: str | Path | None,
    pieces: Pieces | None,
) -> Iterator[Block]:
    """Caption images block by block; the next one is read and encoded while this one is captioned."""
    if overlay is not None:
        _check_overlays(Path(overlay), paths)
    starts = range(0, len(paths), BLOCK)
    missing = [start for start in starts if pieces is None or pieces.find(_piece_name(start), _read_piece) is None]
    _ = describer.encoder  # opened here: an error in a thread would come late
    with ReadAhead(lambda place: _read(describer, paths, missing[place]), 0, len(missing)) as ahead:
        taken = 0
        for start in starts:
            if taken < len(missing) and missing[taken] == start:
                read = ahead.take(taken)
                taken += 1
                piece: dict[str, Any] = {"rows": _caption_read(describer, read, decoding, overlay)}
                piece["skipped"] = read.skipped
                if pieces is not None:
                    pieces.keep(_piece_name(start), piece)
            else:
                assert pieces is not None
                piece = _found(pieces, start)
            yield Block(piece["rows"], piece["skipped"], min(start + BLOCK, len(paths)), len(paths))


def _read(describer: Describer, paths: Sequence[Path], start: int) -> _Readable:
    """Read and encode a block of images."""
    encoder = describer.encoder
    numbers: list[int] = []
    pictures: list[Image.Image] = []
    skipped: list[str] = []
    for number, path in enumerate(paths[start : start + BLOCK], start=start + 1):
        try:
            check_name(path)
            pictures.append(encoder.squeeze(load_image(path, at_least=encoder.size)))
            numbers.append(number)
        except DataError as error:
            # It may name a file that is not UTF-8.
            skipped.append(str(error).encode("utf-8", "backslashreplace").decode())
    features = torch.from_numpy(encoder.encode(pictures)) if pictures else None
    return _Readable(numbers, [paths[number - 1] for number in numbers], features, skipped)


def _caption_read(
    describer: Describer, read: _Readable, decoding: DecodingSettings, overlay: str | Path | None
) -> list[dict[str, Any]]:
    """The rows of a block of images."""
    if read.features is None:
        return []
    captioner = describer.captioner
    features = read.features.to(captioner.device)
    # Samples depend on the path of an image, not on the other images.
    seeds = [int(digest_of(str(path))[:8], 16) for path in read.paths]
    captions = decode(captioner, features, decoding, seeds)
    if overlay is not None:
        _write_overlays(captioner, features, read, captions, Path(overlay))
    return [
        {"id": str(path), **asdict(one)} for path, several in zip(read.paths, captions, strict=True) for one in several
    ]


def caption_split(
    data: str,
    model: Models = "shipped",
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
    describer = Describer(model)
    decoding, captioner = decoding or describer.decoding, describer.captioner
    settings = DataSettings(
        source=data,
        encoder=captioner.encoder.name,
        prepared=str(prepared),
        **kept_features(describer.models[0]),
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
    return path.name.lower().endswith("_results.json")


def _check_one_caption(decoding: DecodingSettings) -> None:
    if decoding.samples != 1:
        raise RecipeError(
            f"decoding.samples is {decoding.samples}, and COCO's server takes one caption per image; set samples to 1"
        )


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
    read: _Readable,
    captions: Sequence[Sequence[Caption]],
    folder: Path,
) -> None:
    """Write attention maps of every caption; the second and later ones of an image have `-2`, `-3` in their name."""
    from tellapart.decoding.overlay import SIDE, attention_maps, write_overlays

    for place, (image, path) in enumerate(zip(read.numbers, read.paths, strict=True)):
        picture = load_image(path, at_least=SIDE)
        maps = attention_maps(captioner, features[place], [one.caption for one in captions[place]])
        for number, words in enumerate(maps, start=1):
            name = f"{image:04d}-{path.stem}" + (f"-{number}" if number > 1 else "")
            write_overlays(picture, words, folder / name)


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
