"""Decode uploads safely, and make thumbnails without metadata."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from PIL import Image

from tellapart.data.images import FORMATS, load_image, open_picture
from tellapart.encoders.base import ImageEncoder
from tellapart.errors import DataError, shorten

# Most passes over the picture in a JPEG; cameras and programs write about ten, and each costs as much as the first.
MOST_SCANS = 64
# How files in the formats begin.
SIGNATURES = (b"\xff\xd8", b"\x89PNG", b"RIFF")
# Longer side of a thumbnail, in pixels, and the quality of its JPEG.
SIDE, QUALITY = 320, 80


class PictureError(DataError):
    """An upload that is not a picture, with a code for programs: `empty`, `format`, `pixels` or `broken`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Opened:
    """A picture as the models read it.

    Attributes:
        name: of its file, for people.
        width, height: of the upright picture.
        squeezed: for each encoder, in its size.
    """

    name: str
    width: int
    height: int
    squeezed: tuple[Image.Image, ...]


def plain_name(name: str) -> str:
    r"""The last part of a client's file name, on one line.

    >>> plain_name("C:\\photos\\sea.jpg"), plain_name("../../etc/passwd"), plain_name("")
    ('sea.jpg', 'passwd', 'picture')
    """
    last = PurePosixPath(name.replace("\\", "/").replace("\0", "")).name
    return shorten("".join(sign for sign in last if sign.isprintable()), 100) or "picture"


class Pixels:
    """Bounds the memory of decoding: pictures that are decoded at the same time have at most so many pixels.

    Args:
        most: pixels; a picture may not have more.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def take(self, count: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._taken + count <= self.most)
            self._taken += count
        try:
            yield
        finally:
            with self._changed:
                self._taken -= count
                self._changed.notify_all()


def open_upload(name: str, content: bytes, encoders: Sequence[ImageEncoder], pixels: Pixels) -> Opened:
    """Decode an upload; its size is checked before."""
    name = plain_name(name)
    if not content:
        raise PictureError("empty", f"{name}: the file is empty; send the picture again")
    width, height = _size(name, content)
    if width * height > pixels.most:
        raise PictureError(
            "pixels", f"{name}: {width}×{height} pixels are over the limit of {pixels.most:,}; make it smaller"
        )
    if content.count(b"\xff\xda") > MOST_SCANS and content.startswith(b"\xff\xd8"):
        raise PictureError("broken", f"{name}: this JPEG has over {MOST_SCANS} scans; save it again as a plain JPEG")
    with pixels.take(width * height):
        return _decode(name, content, encoders, width, height)


def _decode(name: str, content: bytes, encoders: Sequence[ImageEncoder], width: int, height: int) -> Opened:
    try:
        picture = open_picture(content, max(encoder.size for encoder in encoders), name)
    except DataError as error:
        raise PictureError("broken", str(error)) from None
    # A JPEG may have been decoded at a fraction of its size; EXIF may have turned it.
    turned = picture.width != picture.height and (width > height) != (picture.width > picture.height)
    sides = (height, width) if turned else (width, height)
    return Opened(name, *sides, tuple(encoder.squeeze(picture) for encoder in encoders))


def _size(name: str, content: bytes) -> tuple[int, int]:
    """Width and height from the header."""
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            return image.size
    except Image.DecompressionBombError:
        raise PictureError("pixels", f"{name}: has too many pixels; make it smaller") from None
    except (OSError, SyntaxError, ValueError):  # UnidentifiedImageError is an OSError
        if content.startswith(SIGNATURES):
            raise PictureError("broken", f"{name}: this picture is broken; replace or remove it") from None
        raise PictureError("format", f"{name}: is not a picture in a known format; use {', '.join(FORMATS)}") from None


def thumbnail(path: Path, side: int = SIDE) -> bytes:
    """A small upright JPEG of a file, without its metadata."""
    picture = load_image(path, at_least=side)
    picture.thumbnail((side, side))
    picture.info.clear()  # Pillow would write comments and colour profiles again
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()
