"""Captions of a split by a run's model: `captions.jsonl` in its folder, made once and found again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tellapart.decoding.search import BLOCK, decode_store
from tellapart.decoding.settings import DecodingSettings
from tellapart.errors import DataError, RunError
from tellapart.files import REBUILD, Pieces, Stored, digest_of, find_or_make_rows, read_model
from tellapart.progress import ProgressLine
from tellapart.run import Run


class CaptionRow(Stored):
    """A row of `captions.jsonl`."""

    id: str
    caption: str
    log_prob: float
    ended: bool


def run_captions(
    run: Run,
    split: str,
    images: int | None = None,
    decoding: DecodingSettings | None = None,
    path: Path | None = None,
) -> list[dict[str, Any]]:
    """Captions of a split by a run's model: id and captions of each image.

    They are kept in `captions.jsonl` (one row per caption, with log_prob and ended) and found again. An interrupted
    call continues: finished blocks of images are kept in a folder until all are there.

    Args:
        run: of a captioner.
        split: the images.
        images: only the first so many; by default all.
        decoding: how captions are generated; by default as in the run's recipe.
        path: the file; by default `captions.jsonl` in the run's folder, and another name for another split.
    """
    if run.recipe.trains == "retriever":
        raise RunError(f"{run.folder}: a retriever writes no captions; give the run of a captioner")
    records = run.data.dataset.split(split)[:images]
    limited = "" if images is None else f"-first-{len(records)}"
    path = path or run.folder / f"captions{'' if split == 'test' else f'-{split}'}{limited}.jsonl"
    ids = [record.id for record in records]
    chosen = decoding or run.recipe.decoding

    data = [run.data.dataset.digest, run.data.pictures_digest()]
    made_from = [run.model_digest, *data, chosen.model_dump(mode="json"), ids]
    pieces = Pieces(path.with_name(f"{path.stem}-unfinished-{digest_of(made_from)[:16]}"))
    found: dict[str, list[str]] = {}
    for row in find_or_make_rows(path, made_from, lambda: _caption(run, ids, chosen, pieces), CaptionRow):
        found.setdefault(row.id, []).append(row.caption)
    pieces.remove()
    if list(found) != ids or len({len(captions) for captions in found.values()}) != 1:
        raise DataError(f"{path}: is damaged (it does not have the captions of all images); {REBUILD}")
    return [{"id": id, "captions": captions} for id, captions in found.items()]


class _CaptionBlock(Stored):
    """`images-N.json`: captions of a block of images."""

    rows: list[CaptionRow]


def _caption(run: Run, ids: Sequence[str], decoding: DecodingSettings, pieces: Pieces) -> list[dict[str, Any]]:
    """Caption these images, a block at a time; gives the rows of `captions.jsonl`."""
    captioner, dataset, store = run.captioner, run.data.dataset, run.data.store
    store.check(dataset, captioner.encoder)
    line = ProgressLine(f"captioning {run.recipe.name}", " images")
    found: list[dict[str, Any]] = []
    for start in range(0, len(ids), BLOCK):
        block, name = ids[start : start + BLOCK], f"images-{start:09d}"

        def read(path: Path, block: Sequence[str] = block) -> dict[str, Any]:
            piece = read_model(path, _CaptionBlock, "piece of unfinished captions")
            if list(dict.fromkeys(row.id for row in piece.rows)) != list(block):
                raise DataError(f"{path}: is damaged (it is of other images); {REBUILD}")
            return piece.model_dump()

        piece = pieces.find(name, read)
        if piece is None:
            line.update(start, len(ids))  # only of blocks made now, so that found ones do not count for the rate
            said = decode_store(captioner, store, [dataset.row(id) for id in block], decoding)
            rows = [{"id": id, **asdict(one)} for id, several in zip(block, said, strict=True) for one in several]
            piece = pieces.keep(name, {"rows": rows})
        found += piece["rows"]
    line.update(len(ids), len(ids))
    return found
