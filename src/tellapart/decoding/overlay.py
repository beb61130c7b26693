"""Pictures of attention: for every word of a caption, the part of the picture that the captioner looked at."""

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
from tellapart.errors import RecipeError
from tellapart.files import new_folder
from tellapart.text import END, PAD

# The longer side of a picture on the sheet, in pixels; the line of text above it; pictures in a row of the sheet.
SIDE, LINE, COLUMNS = 240, 26, 5
# How much of the picture stays visible where nobody looks.
UNSEEN = 0.15


@dataclass(frozen=True)
class Look:
    """Where one word's attention went.

    Attributes:
        word: the token as text.
        weights: over the grid of regions, `[side, side]`.
        sentinel: the weight on language instead of the image; `None` for captioners without one.
    """

    word: str
    weights: np.ndarray
    sentinel: float | None


@torch.no_grad()
def looks(captioner: Decodable, features: torch.Tensor, captions: Sequence[str]) -> list[list[Look]]:
    """Where the captioner looks while it says these captions of one image: a list of words for each.

    Args:
        captioner: one that attends to the regions of a square grid, in eval mode.
        features: of the image, `[regions, width]`.
        captions: the sentences.
    """
    tokens = captioner.tokenize(captions)
    traces = captioner.traces(captioner.encode(features[None]), tokens, torch.zeros_like(tokens[:, 0]))
    if traces.attention is None:
        raise RecipeError("overlay: this captioner does not attend to regions; take one that does")
    side = math.isqrt(traces.attention.shape[2])
    if side * side != traces.attention.shape[2]:
        raise RecipeError(f"overlay: the {traces.attention.shape[2]} regions are no square grid; take another encoder")
    attention = traces.attention.float().cpu().numpy()
    sentinel = None if traces.sentinel is None else traces.sentinel.tolist()
    result = []
    for row, said in enumerate(tokens.tolist()):
        places = [place for place, token in enumerate(said) if token not in (END, PAD)]
        words = captioner.detokenize(tokens[row, places][:, None])
        result.append(
            [
                Look(word, attention[row, place].reshape(side, side), sentinel[row][place] if sentinel else None)
                for word, place in zip(words, places, strict=True)
            ]
        )
    return result


def overlay(picture: Image.Image, weights: np.ndarray) -> Image.Image:
    """The picture, dark where no attention went.

    The encoder saw the whole picture squeezed to a square, so the grid is stretched over the whole picture.

    Args:
        picture: RGB.
        weights: `[side, side]`; only their ratios matter.
    """
    grid = Image.fromarray((weights / max(float(weights.max()), 1e-12)).astype(np.float32))
    light = np.asarray(grid.resize(picture.size, Image.Resampling.BICUBIC)).clip(0, 1)[..., None]
    seen = np.asarray(picture, dtype=np.float32) * (UNSEEN + (1 - UNSEEN) * light)
    return Image.fromarray(seen.round().astype(np.uint8))


def write_overlays(picture: Image.Image, said: Sequence[Look], folder: Path) -> None:
    """Write `01-WORD.png`, `02-WORD.png`, … and `sheet.png`, on which they stand side by side with their words.

    Args:
        picture: what was captioned.
        said: the caption's words, from `looks`.
        folder: a new one, or one that is replaced.
    """
    picture = picture.convert("RGB")
    picture.thumbnail((SIDE, SIDE))
    cells = [("", picture), *((_label(look), overlay(picture, look.weights)) for look in said)]
    with new_folder(folder) as new:
        for number, (look, (_, shown)) in enumerate(zip(said, cells[1:], strict=True), start=1):
            letters = re.sub(r"\W", "", look.word)
            shown.save(new / f"{number:02d}-{letters}.png")
        _sheet(cells).save(new / "sheet.png")


def _label(look: Look) -> str:
    """The word, and how much of its attention went to the image."""
    return look.word if look.sentinel is None else f"{look.word}  {100 * (1 - look.sentinel):.0f} %"


def _sheet(cells: Sequence[tuple[str, Image.Image]]) -> Image.Image:
    """All pictures of one size in rows, each under its line of text."""
    width, height = cells[0][1].width, cells[0][1].height + LINE
    columns = min(COLUMNS, len(cells))
    sheet = Image.new("RGB", (columns * width, -(-len(cells) // columns) * height), "white")
    draw = ImageDraw.Draw(sheet)
    # matplotlib's own font knows far more letters than Pillow's.
    font = ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", 15)
    for number, (label, shown) in enumerate(cells):
        left, top = number % columns * width, number // columns * height
        draw.text((left + 4, top + 3), label, fill="black", font=font)
        sheet.paste(shown, (left, top + LINE))
    return sheet
