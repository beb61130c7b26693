"""Safe decoding of pictures: an allow-list of formats, a pixel cap read from the header, upright RGB."""

from __future__ import annotations

import io
import struct
import warnings
from pathlib import Path

from PIL import ExifTags, Image, UnidentifiedImageError

from tellapart.data.tar import member_bytes, split_tar_path
from tellapart.errors import DataError

FORMATS = ("JPEG", "PNG", "WEBP")
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp"})
MAX_PIXELS = 100_000_000

# The size is checked from the header, before a pixel is decoded; Pillow's own warning would say it twice. Switched off
# once and for all: pictures are decoded in several threads, and Python's filters are not made for that.
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
        at_least: when both sides may shrink to no less than this, a JPEG is decoded at a fraction of its size,
            which is about twice as fast.
    """
    inside = split_tar_path(path)
    try:
        source = path if inside is None else io.BytesIO(member_bytes(*inside))
        with Image.open(source, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DataError(
                    f"{path}: {image.width}×{image.height} pixels are over the cap of {MAX_PIXELS:,}; make it smaller"
                )
            if at_least is not None:
                image.draft("RGB", (at_least, at_least))
            return _as_rgb(_upright(image))
    except FileNotFoundError:
        raise DataError(f"{path}: this picture does not exist; check the path") from None
    except UnidentifiedImageError:
        raise DataError(f"{path}: not a picture in a known format; use {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError:  # Pillow's own, higher cap, also read from the header
        raise DataError(f"{path}: its pixels are over the cap of {MAX_PIXELS:,}; make it smaller") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: this picture is broken ({error}); replace or remove it") from None


def image_bytes(path: Path) -> bytes:
    """A picture's file as it is, from a folder or from a tar."""
    inside = split_tar_path(path)
    return path.read_bytes() if inside is None else member_bytes(*inside)


def _upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF block says. Of the block only this is read: much of what cameras write there is broken."""
    image.load()  # for a PNG, reading the block decodes the pixels: what is wrong with those is not to be forgiven
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except (SyntaxError, ValueError, TypeError, KeyError, struct.error):
        return image
    turn = _TURNS.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode == "I":
        # Pillow clips 16-bit greyscale when it converts; bring it to 8 bits by scale.
        return image.point(lambda value: value / 256).convert("L").convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        # Transparent pixels are shown on white, as a page would show them.
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")
