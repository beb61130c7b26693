"""Safe decoding of pictures: an allow-list of formats, a pixel cap read from the header, upright RGB."""

from __future__ import annotations

import warnings
from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

from tellapart.errors import DataError

FORMATS = ("JPEG", "PNG", "WEBP")
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp"})
MAX_PIXELS = 100_000_000


def load_image(path: Path, at_least: int | None = None) -> Image.Image:
    """Decode one picture as upright RGB.

    Args:
        path: the file.
        at_least: when both sides may shrink to no less than this, a JPEG is decoded at a fraction of its size,
            which is about twice as fast.
    """
    try:
        # The size is checked from the header here, before a pixel is decoded; Pillow's own warning would say it twice.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(path, formats=FORMATS)
        with image:
            if image.width * image.height > MAX_PIXELS:
                raise DataError(
                    f"{path}: {image.width}×{image.height} pixels are over the cap of {MAX_PIXELS:,}; make it smaller"
                )
            if at_least is not None:
                image.draft("RGB", (at_least, at_least))
            upright = ImageOps.exif_transpose(image)
            return _as_rgb(upright)
    except FileNotFoundError:
        raise DataError(f"{path}: this picture does not exist; check the path") from None
    except UnidentifiedImageError:
        raise DataError(f"{path}: not a picture in a known format; use {', '.join(FORMATS)}") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: this picture is broken ({error}); replace or remove it") from None


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        # Transparent pixels are shown on white, as a page would show them.
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    if image.mode.startswith("I;16") or image.mode == "I":
        # Pillow clips 16-bit greyscale when it converts; bring it to 8 bits by scale.
        return image.point(lambda value: value / 256).convert("L").convert("RGB")
    return image.convert("RGB")
