"""Attention maps drawn over an image, one for each word of a caption."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from tellapart.decoding.base import Decodable
from tellapart.errors import DataError, RecipeError
from tellapart.files import new_folder
from tellapart.text import END, PAD

# Longer side of an image on the sheet and height of its text in pixels; images in a row of the sheet.
SIDE, LINE, COLUMNS = 240, 26, 5
# Brightness of image parts without attention.
DARK = 0.15
# The files of a caption.
_NAME = re.compile(r"\d{2,}-\w*\.png|sheet\.png")


@dataclass(frozen=True)
class WordAttention:
    """The attention of one word.

    Attributes:
        word: the token as text.
        weights: over the grid of regions, `[side, side]`.
        sentinel: weight on the sentinel (language) instead of the image; `None` for captioners without one.
    """

    word: str
    weights: np.ndarray
    sentinel: float | None


@torch.no_grad()
def attention_maps(captioner: Decodable, features: torch.Tensor, captions: Sequence[str]) -> list[list[WordAttention]]:
    """The attention of each word of each caption of one image.

    Args:
        captioner: one with attention over a square grid of regions, in eval mode.
        features: of the image, `[regions, width]`.
        captions: captions of the image.
    """
    tokens = captioner.tokenize(captions)
    traces = captioner.traces(captioner.encode(features[None]), tokens, torch.zeros_like(tokens[:, 0]))
    if traces.attention is None:
        raise RecipeError("overlay: this captioner has no attention over regions; use one that has")
    # A class token, the last region, has no place in the picture.
    attention = traces.attention[:, :, : traces.attention.shape[2] - captioner.encoder.class_token]
    side = math.isqrt(attention.shape[2])
    if side * side != attention.shape[2]:
        raise RecipeError(f"overlay: the {attention.shape[2]} regions are not a square grid; use another encoder")
    maps = attention.float().cpu().numpy()
    sentinel = None if traces.sentinel is None else traces.sentinel.tolist()
    result = []
    for row, sentence in enumerate(tokens.tolist()):
        places = [place for place, token in enumerate(sentence) if token not in (END, PAD)]
        words = captioner.detokenize(tokens[row, places][:, None])
        result.append(
            [
                WordAttention(word, maps[row, place].reshape(side, side), sentinel[row][place] if sentinel else None)
                for word, place in zip(words, places, strict=True)
            ]
        )
    return result


def overlay(picture: Image.Image, weights: np.ndarray) -> Image.Image:
    """The image, dark where there is no attention.

    The encoder squeezes the whole image to a square, so the grid is stretched over the whole image.

    Args:
        picture: RGB image.
        weights: `[side, side]`; only their ratios matter.
    """
    grid = Image.fromarray((weights / max(float(weights.max()), 1e-12)).astype(np.float32))
    light = np.asarray(grid.resize(picture.size, Image.Resampling.BICUBIC)).clip(0, 1)[..., None]
    seen = np.asarray(picture, dtype=np.float32) * (DARK + (1 - DARK) * light)
    return Image.fromarray(seen.round().astype(np.uint8))


def check_overlay_folder(folder: Path) -> None:
    """Raise unless the folder is new, empty, or holds only files of `write_overlays`."""
    if not folder.exists():
        return
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else [folder.name]
    others = [name for name in names if not _NAME.fullmatch(name)] or (names if "sheet.png" not in names else [])
    if others:
        raise DataError(f"{folder}: was not written by tellapart (it holds {others[0]}); choose another --overlay")


def write_overlays(picture: Image.Image, words: Sequence[WordAttention], folder: Path) -> None:
    """Write `01-WORD.png`, `02-WORD.png`, … and `sheet.png`, which shows all of them with their words.

    Args:
        picture: the captioned image.
        words: of the caption, from `attention_maps`.
        folder: a new folder, or an earlier one of this function, which is replaced.
    """
    check_overlay_folder(folder)
    picture = picture.convert("RGB")
    picture.thumbnail((SIDE, SIDE))
    cells = [("", picture), *((_label(word), overlay(picture, word.weights)) for word in words)]
    with new_folder(folder) as new:
        for number, (word, (_, shown)) in enumerate(zip(words, cells[1:], strict=True), start=1):
            letters = re.sub(r"\W", "", word.word)
            shown.save(new / f"{number:02d}-{letters}.png")
        _sheet(cells).save(new / "sheet.png")


def _label(word: WordAttention) -> str:
    """The word, and the share of its attention on the image."""
    return word.word if word.sentinel is None else f"{word.word}  {100 * (1 - word.sentinel):.0f} %"


def _sheet(cells: Sequence[tuple[str, Image.Image]]) -> Image.Image:
    """Images of equal size in rows, each below its text."""
    width, height = cells[0][1].width, cells[0][1].height + LINE
    columns = min(COLUMNS, len(cells))
    sheet = Image.new("RGB", (columns * width, -(-len(cells) // columns) * height), "white")
    draw = ImageDraw.Draw(sheet)
    # matplotlib's font has far more letters than Pillow's.
    font = ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", 15)
    for number, (label, shown) in enumerate(cells):
        left, top = number % columns * width, number // columns * height
        draw.text((left + 4, top + 3), label, fill="black", font=font)
        sheet.paste(shown, (left, top + LINE))
    return sheet
