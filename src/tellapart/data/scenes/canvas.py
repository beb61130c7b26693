"""A small drawing surface: supersampled, in units of a 224 x 224 picture, with shaded and patterned fills."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from PIL import Image, ImageDraw

RGB = tuple[int, int, int]
Point = tuple[float, float]
SUPERSAMPLING = 3
FULL = 224


def blend(one: RGB, other: RGB, amount: float) -> RGB:
    (r, g, b), (s, t, u) = one, other
    return round(r + (s - r) * amount), round(g + (t - g) * amount), round(b + (u - b) * amount)


def lighter(colour: RGB, amount: float) -> RGB:
    return blend(colour, (255, 250, 236), amount)


def darker(colour: RGB, amount: float) -> RGB:
    return blend(colour, (26, 20, 48), amount)


@dataclass(frozen=True)
class Light:
    """The tint that a weather gives to everything drawn in it."""

    tint: RGB
    amount: float

    def on(self, colour: RGB) -> RGB:
        return blend(colour, self.tint, self.amount)


Stops = tuple[tuple[float, RGB], ...]
STEPS = 128


@lru_cache(maxsize=2048)
def ramp(stops: Stops) -> Image.Image:
    """A picture one pixel wide with a gradient through the stops (position 0..1, colour)."""
    pixels = bytearray()
    part = 0
    for step in range(STEPS):
        at = step / (STEPS - 1)
        while part < len(stops) - 2 and at > stops[part + 1][0]:
            part += 1
        (low, start), (high, end) = stops[part], stops[part + 1]
        pixels += bytes(blend(start, end, (at - low) / (high - low)))
    return Image.frombytes("RGB", (1, STEPS), bytes(pixels))


def vertical(width: int, height: int, stops: Stops) -> Image.Image:
    # Stretched in two steps: only the first, cheap one interpolates.
    return ramp(stops).resize((1, height), Image.Resampling.BILINEAR).resize((width, height), Image.Resampling.NEAREST)


def horizontal(width: int, height: int, stops: Stops) -> Image.Image:
    row = ramp(stops).resize((1, width), Image.Resampling.BILINEAR).transpose(Image.Transpose.TRANSPOSE)
    return row.resize((width, height), Image.Resampling.NEAREST)


class Canvas:
    """Draw at several times the final size; `finish` scales down, which smooths the edges."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.unit = SUPERSAMPLING * size / FULL
        side = SUPERSAMPLING * size
        self.image = Image.new("RGB", (side, side))
        self.draw = ImageDraw.Draw(self.image, "RGBA")

    def px(self, length: float) -> int:
        return round(length * self.unit)

    def points(self, points: Sequence[Point]) -> list[tuple[int, int]]:
        return [(self.px(x), self.px(y)) for x, y in points]

    def box(self, x0: float, y0: float, x1: float, y1: float) -> tuple[int, int, int, int]:
        return self.px(x0), self.px(y0), max(self.px(x0), self.px(x1)), max(self.px(y0), self.px(y1))

    def polygon(self, points: Sequence[Point], colour: RGB, alpha: int = 255) -> None:
        self.draw.polygon(self.points(points), fill=(*colour, alpha))

    def oval(self, x0: float, y0: float, x1: float, y1: float, colour: RGB, alpha: int = 255) -> None:
        self.draw.ellipse(self.box(x0, y0, x1, y1), fill=(*colour, alpha))

    def disc(self, x: float, y: float, radius: float, colour: RGB, alpha: int = 255) -> None:
        self.oval(x - radius, y - radius, x + radius, y + radius, colour, alpha)

    def rectangle(self, x0: float, y0: float, x1: float, y1: float, colour: RGB, alpha: int = 255) -> None:
        self.draw.rectangle(self.box(x0, y0, x1, y1), fill=(*colour, alpha))

    def line(self, points: Sequence[Point], colour: RGB, width: float, alpha: int = 255) -> None:
        self.draw.line(self.points(points), fill=(*colour, alpha), width=max(1, self.px(width)), joint="curve")

    def gradient(self, y0: float, y1: float, stops: Stops) -> None:
        """Draw a gradient across the whole picture."""
        top, bottom = self.px(y0), self.px(y1)
        self.image.paste(vertical(self.image.width, bottom - top, stops), (0, top))

    def land(self, outline: Sequence[Point], stops: Stops) -> None:
        """Fill everything below `outline` (from the left edge to the right) with a vertical gradient."""
        if len({colour for _, colour in stops}) == 1:
            self.polygon([*outline, (FULL + 1, FULL + 1), (-1, FULL + 1)], stops[0][1])
            return
        top = min(self.px(y) for _, y in outline)
        side = self.image.width
        mask = Image.new("L", (side, side - top))
        shape = [(x, y - top) for x, y in self.points(outline)]
        ImageDraw.Draw(mask).polygon([*shape, (side, side), (0, side)], fill=255)
        self.image.paste(vertical(side, side - top, stops), (0, top), mask)

    def finish(self) -> Image.Image:
        return self.image.reduce(SUPERSAMPLING)


@dataclass(frozen=True)
class Oval:
    x0: float
    y0: float
    x1: float
    y1: float


Shape = Oval | Sequence[Point]


def arc(cx: float, cy: float, rx: float, ry: float, start: float, end: float, steps: int = 24) -> list[Point]:
    """Points on an ellipse between two angles in degrees (0 is right, 90 is down)."""
    angles = [math.radians(start + (end - start) * step / steps) for step in range(steps + 1)]
    return [(cx + rx * math.cos(a), cy + ry * math.sin(a)) for a in angles]


class Brush:
    """Draw one thing in its box: coordinates go from (0, 0), top left, to (1, 1), bottom right."""

    def __init__(self, canvas: Canvas, box: tuple[float, float, float, float], light: Light, flipped: bool) -> None:
        self.canvas = canvas
        self.x, self.y, self.width, self.height = box
        self.light = light
        self.flipped = flipped
        self.stroke = max(0.9, self.height * 0.02)

    def at(self, point: Point) -> Point:
        u = 1 - point[0] if self.flipped else point[0]
        return self.x + u * self.width, self.y + point[1] * self.height

    def corners(self, oval: Oval) -> tuple[float, float, float, float]:
        (xa, y0), (xb, y1) = self.at((oval.x0, oval.y0)), self.at((oval.x1, oval.y1))
        return min(xa, xb), y0, max(xa, xb), y1

    def line(self, points: Sequence[Point], colour: RGB, width: float) -> None:
        """`width` is relative to the height of the box."""
        self.canvas.line([self.at(p) for p in points], self.light.on(colour), width * self.height)

    def ring(self, oval: Oval, colour: RGB, width: float) -> None:
        canvas = self.canvas
        canvas.draw.ellipse(
            canvas.box(*self.corners(oval)),
            outline=(*self.light.on(colour), 255),
            width=max(1, canvas.px(width * self.height)),
        )

    def flat(self, shape: Shape, colour: RGB, alpha: int = 255, lit: bool = False) -> None:
        """Draw one shape in one tone; `lit` shapes are not tinted."""
        tone = colour if lit else self.light.on(colour)
        if isinstance(shape, Oval):
            self.canvas.oval(*self.corners(shape), tone, alpha)
        else:
            self.canvas.polygon([self.at(p) for p in shape], tone, alpha)

    def body(self, shapes: Sequence[Shape], colour: RGB, pattern: str = "plain") -> None:
        """Draw the union of the shapes, shaded from left to right, with a pattern and a thin dark outline."""
        canvas = self.canvas
        rim = self.light.on(darker(colour, 0.5))
        stroke = self.stroke
        boxes: list[tuple[float, float, float, float]] = []
        for shape in shapes:
            if isinstance(shape, Oval):
                x0, y0, x1, y1 = self.corners(shape)
                canvas.oval(x0 - stroke, y0 - stroke, x1 + stroke, y1 + stroke, rim)
                boxes.append((x0, y0, x1, y1))
            else:
                points = [self.at(p) for p in shape]
                canvas.line([*points, *points[:2]], rim, 2 * stroke)
                xs, ys = [x for x, _ in points], [y for _, y in points]
                boxes.append((min(xs), min(ys), max(xs), max(ys)))
        left, top = canvas.px(min(b[0] for b in boxes)), canvas.px(min(b[1] for b in boxes))
        width = canvas.px(max(b[2] for b in boxes)) - left + 1
        height = canvas.px(max(b[3] for b in boxes)) - top + 1
        mask = Image.new("L", (width, height))
        pen = ImageDraw.Draw(mask)
        for shape in shapes:
            if isinstance(shape, Oval):
                x0, y0, x1, y1 = canvas.box(*self.corners(shape))
                pen.ellipse((x0 - left, y0 - top, x1 - left, y1 - top), fill=255)
            else:
                corners = canvas.points([self.at(p) for p in shape])
                pen.polygon([(x - left, y - top) for x, y in corners], fill=255)
        fill = self.fill(width, height, colour, pattern)
        canvas.image.paste(fill, (left, top), mask)

    def fill(self, width: int, height: int, colour: RGB, pattern: str) -> Image.Image:
        tone = self.light.on(colour)
        shade = ((0.0, lighter(tone, 0.24)), (0.45, tone), (1.0, darker(tone, 0.26)))
        fill = horizontal(width, height, shade)
        if pattern != "plain":
            add_pattern(fill, pattern, tone, self.light.on(accent(colour)))
        return fill


def accent(colour: RGB) -> RGB:
    """The second colour of stripes and spots: white, or dark on nearly white."""
    return (72, 70, 84) if min(colour) > 200 else (255, 253, 246)


def add_pattern(fill: Image.Image, pattern: str, tone: RGB, second: RGB) -> None:
    draw = ImageDraw.Draw(fill)
    width, height = fill.size
    if pattern == "striped":
        stripes = 4
        for stripe in range(stripes):
            x = width * (stripe + 0.5) / stripes
            draw.rectangle((round(x - width * 0.055), 0, round(x + width * 0.055), height), fill=second)
    elif pattern == "spotted":
        radius = max(2.0, (width * height) ** 0.5 * 0.088)
        step = radius * 3.0
        for row in range(int(height / step) + 2):
            for place in range(int(width / step) + 2):
                x = (place + (0.5 if row % 2 else 0.0)) * step
                y = (row + 0.35) * step
                box = (round(x - radius), round(y - radius), round(x + radius), round(y + radius))
                draw.ellipse(box, fill=second)
    elif pattern == "brick":
        mortar = lighter(tone, 0.62)
        step = max(4, round(height / 6))
        line = max(1, round(step * 0.16))
        for row, y in enumerate(range(0, height, step)):
            draw.rectangle((0, y, width, y + line), fill=mortar)
            for x in range(step * (row % 2) - step // 2, width, 2 * step):
                draw.rectangle((x, y, x + line, y + step), fill=mortar)
    elif pattern == "wooden":
        gap = darker(tone, 0.55)
        step = max(4, round(height / 6))
        for y in range(step, height, step):
            draw.rectangle((0, y, width, y + max(1, round(step * 0.17))), fill=gap)
