"""Which of my pictures does this caption fetch? Rank images by a captioner's likelihood or a retriever's similarity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PIL import Image

from tellapart.captioning import expand_images
from tellapart.data.images import load_image
from tellapart.decoding.search import BLOCK
from tellapart.describing import Describer, Models
from tellapart.encoders.base import ImageEncoder
from tellapart.errors import DataError
from tellapart.text import unknown_words


def score_images(
    images: Sequence[str | Path],
    caption: str,
    model: Models = "shipped",
    retriever: str | Path | None = None,
    on_skip: Callable[[DataError], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    on_unknown: Callable[[list[str]], None] | None = None,
) -> list[dict[str, Any]]:
    """Score one caption for images and folders of images: rows with `rank`, `id` and the score, the best first.

    A captioner gives `log_prob`, `picture_adds` and `words` (see `tellapart.describing.Score`), a retriever
    `similarity`.

    Args:
        images: image files, or folders of them.
        caption: the caption.
        model: a captioner: a run or model folder, or several; by default the shipped one.
        retriever: rank by this retriever instead.
        on_skip: called with the error of each image that cannot be read; by default the error is raised.
        on_progress: called with the numbers of images done and of all images.
        on_unknown: called with the words of the caption that the model does not know, if there are any.

    Example:
        >>> rows = score_images(["holiday/"], "a giraffe next to a tree")           # doctest: +SKIP
        >>> rows[0]["id"], rows[0]["log_prob"]                                      # doctest: +SKIP
        ('holiday/17.jpg', -8.2)
    """
    if not caption.strip():
        raise DataError("the caption has no words; write what is to be seen")
    paths = expand_images(images)
    describer = Describer(model, retriever)
    unknown = unknown_words((describer.captioner if retriever is None else describer.retriever).vocabulary, caption)
    if unknown and on_unknown is not None:
        on_unknown(unknown)
    encoder = describer.encoder if retriever is None else describer.encoder_of_retriever
    rows: list[dict[str, Any]] = []
    for done, named, pictures in _readable(paths, encoder, on_skip):
        if retriever is None:
            found = [asdict(score) for score in describer.scores(pictures, caption)]
        else:
            found = [{"similarity": value} for value in describer.similarities(pictures, caption)]
        rows += [{"rank": 0, "id": str(path), **score} for path, score in zip(named, found, strict=True)]
        if on_progress is not None:
            on_progress(done, len(paths))
    key = "log_prob" if retriever is None else "similarity"
    rows.sort(key=lambda row: -row[key])
    return [{**row, "rank": rank} for rank, row in enumerate(rows, start=1)]


def _readable(
    paths: Sequence[Path], encoder: ImageEncoder, on_skip: Callable[[DataError], None] | None
) -> Iterator[tuple[int, list[Path], list[Image.Image]]]:
    """Blocks of images that can be read: how many were tried until now, their paths and pictures."""
    for start in range(0, len(paths), BLOCK):
        named: list[Path] = []
        pictures: list[Image.Image] = []
        for path in paths[start : start + BLOCK]:
            try:
                pictures.append(encoder.squeeze(load_image(path, at_least=encoder.size)))
                named.append(path)
            except DataError as error:
                if on_skip is None:
                    raise
                on_skip(error)
        yield min(start + BLOCK, len(paths)), named, pictures
