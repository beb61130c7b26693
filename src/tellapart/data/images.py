"""Decode pictures safely: an allow-list of formats, a pixel limit checked in the header, upright RGB."""

from __future__ import annotations

import io
import struct
import warnings
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from tellapart.data.tar import member_bytes, split_tar_path
from tellapart.errors import DataError
from tellapart.files import check_regular, is_utf8

FORMATS = ("JPEG", "PNG", "WEBP")
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp"})
# Pictures that are not read; they are counted, so that they do not vanish.
OTHER_SUFFIXES = frozenset({".heic", ".heif", ".avif", ".gif", ".tif", ".tiff", ".bmp", ".jp2", ".jxl"})
MAX_PIXELS = 100_000_000

# A picture from Python: the path of a file, the bytes of one, a Pillow image, or an array of pixels.
Picture: TypeAlias = str | Path | bytes | Image.Image | NDArray[Any]

# The size is checked from the header before decoding, so Pillow's warning is redundant. It is disabled globally, since
# warning filters are not thread-safe and pictures are decoded in several threads.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def load_image(path: Path, at_least: int | None = None) -> Image.Image:
    """Decode one picture as upright RGB.

    Args:
        path: the file, or one in an uncompressed tar: `shard.tar/000012.jpg`.
        at_least: a JPEG may be decoded at a fraction of its size, both sides at least this long; about twice as fast.
    """
    inside = split_tar_path(path)
    try:
        if inside is None:
            check_regular(path, "picture")
            if path.is_dir():
                raise DataError(f"{path}: this is a folder and not a picture; give the pictures in it")
        return _decode(path if inside is None else io.BytesIO(member_bytes(*inside)), str(path), at_least)
    except FileNotFoundError:
        raise DataError(f"{path}: this picture does not exist; check the path") from None
    except OSError as error:  # of the tar
        raise DataError(f"{path}: this picture cannot be read ({error}); replace or remove it") from None


def check_name(path: Path) -> None:
    """Raise for a picture whose name is not UTF-8 text: rows of results could not name it."""
    if not is_utf8(str(path)):
        raise DataError(f"{path}: the name of this picture is not UTF-8 text; rename it")


def open_picture(picture: Picture, at_least: int | None = None, name: str = "picture") -> Image.Image:
    """A picture of any kind as upright RGB, under the same limits as a file.

    Args:
        picture: a path, the bytes of a file, a Pillow image, or pixels: `[height, width]`, or `[height, width, 1, 3
            or 4]`; bytes from 0 to 255, or floats from 0 to 1.
        at_least: as for `load_image`.
        name: for messages, of a picture that is no file.

    Example:
        >>> open_picture(np.full((2, 3, 3), 0.5)).size
        (3, 2)
    """
    if isinstance(picture, str | Path):
        return load_image(Path(picture), at_least)
    if isinstance(picture, bytes | bytearray):
        return _decode(io.BytesIO(picture), name, at_least)
    if isinstance(picture, np.ndarray):
        picture = _from_pixels(picture, name)
    if not isinstance(picture, Image.Image):
        raise DataError(
            f"{name}: a {type(picture).__name__} is not a picture; give a path, bytes, an image or an array"
        )
    _check_size(picture, name)
    try:
        return _as_rgb(_upright(picture))
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{name}: this picture is broken ({error}); replace or remove it") from None


def _from_pixels(pixels: NDArray[Any], name: str) -> Image.Image:
    """Pixels as a Pillow image."""
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))) or not pixels.size:
        raise DataError(f"{name}: an array of shape {pixels.shape} is not a picture; give [height, width, 3]")
    if np.issubdtype(pixels.dtype, np.floating):
        if not (np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 1):
            raise DataError(f"{name}: floats of pixels must be from 0 to 1; divide by 255, or give bytes (uint8)")
        pixels = np.rint(pixels * 255).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise DataError(f"{name}: pixels of type {pixels.dtype} are not read; give uint8, or floats from 0 to 1")
    return Image.fromarray(np.ascontiguousarray(pixels))


def _decode(source: Path | io.BytesIO, name: str, at_least: int | None) -> Image.Image:
    """Decode a file as upright RGB."""
    try:
        with Image.open(source, formats=FORMATS) as image:
            _check_size(image, name)
            if at_least is not None:
                image.draft("RGB", (at_least, at_least))
            return _as_rgb(_upright(image))
    except FileNotFoundError:
        raise
    except UnidentifiedImageError:
        raise DataError(f"{name}: not a picture in a known format; use {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError:  # Pillow's own, higher limit, also checked in the header
        raise DataError(f"{name}: its pixels are over the limit of {MAX_PIXELS:,}; make it smaller") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{name}: this picture is broken ({error}); replace or remove it") from None


def _check_size(image: Image.Image, name: str) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise DataError(
            f"{name}: {image.width}×{image.height} pixels are over the limit of {MAX_PIXELS:,}; make it smaller"
        )


def date_taken(path: Path) -> datetime | None:
    """When the camera says that a picture was taken (EXIF `DateTimeOriginal`), without a time zone; else `None`."""
    try:
        check_regular(path, "picture")
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:  # the EXIF block of a PNG comes after the pixels
                return None
            written = image.getexif().get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.DateTimeOriginal)
        return datetime.strptime(str(written).strip(" \0"), "%Y:%m:%d %H:%M:%S")
    except (DataError, OSError, SyntaxError, ValueError, TypeError, KeyError, struct.error):
        return None
    except Image.DecompressionBombError:
        return None


def image_bytes(path: Path) -> bytes:
    """The bytes of a picture's file, from a folder or a tar."""
    inside = split_tar_path(path)
    if inside is None:
        check_regular(path, "picture")
    return path.read_bytes() if inside is None else member_bytes(*inside)


def jpeg_without_metadata(image: Image.Image, side: int, quality: int) -> bytes:
    """A picture as JPEG, its longer side at most `side`, with nothing but pixels: no place, camera or comment."""
    small = image.copy()
    small.thumbnail((side, side))
    small.info.clear()  # Pillow would write a comment again
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _upright(image: Image.Image) -> Image.Image:
    """Rotate by the EXIF orientation. Nothing else is read from the block: cameras often write broken data there."""
    image.load()  # for a PNG, getexif() decodes the pixels; errors in them must not be caught below
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except (SyntaxError, ValueError, TypeError, KeyError, struct.error):
        return image
    turn = _TURNS.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode == "I":
        # Pillow clips 16-bit greyscale when it converts; scale it to 8 bits instead.
        return image.point(lambda value: value / 256).convert("L").convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        # Transparent pixels become white.
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")
