"""Draw each kind of thing in a box from (0, 0) to (1, 1)."""

from __future__ import annotations

import math
from collections.abc import Callable

from tellapart.data.scenes.canvas import RGB, Brush, Oval, Point, Shape, arc, darker, lighter

PAINTS: dict[str, RGB] = {
    "red": (222, 48, 52),
    "orange": (247, 138, 28),
    "yellow": (252, 209, 32),
    "green": (36, 150, 74),
    "blue": (38, 94, 214),
    "purple": (134, 62, 176),
    "white": (248, 248, 244),
    "black": (44, 42, 52),
    "brown": (134, 84, 48),
}

BARK: RGB = (120, 80, 54)
IRON: RGB = (62, 62, 74)
GLASS: RGB = (196, 228, 244)
LAMP: RGB = (255, 224, 128)
ROOF: RGB = (112, 84, 88)
CREAM: RGB = (252, 244, 226)
INK: RGB = (34, 28, 36)

Draw = Callable[[Brush, RGB, str, bool], None]
"""Brush, colour, pattern, and whether it is dark."""


def draw_house(brush: Brush, colour: RGB, pattern: str, dark: bool) -> None:
    brush.body([[(0.70, 0.06), (0.82, 0.06), (0.82, 0.36), (0.70, 0.36)]], ROOF)
    brush.body([[(0.10, 0.40), (0.90, 0.40), (0.90, 1.0), (0.10, 1.0)]], colour, pattern)
    brush.body([[(0.0, 0.45), (0.5, 0.0), (1.0, 0.45)]], ROOF)
    brush.body([[(0.43, 0.67), (0.59, 0.67), (0.59, 1.0), (0.43, 1.0)]], BARK)
    brush.flat(Oval(0.545, 0.83, 0.575, 0.86), LAMP)
    for left in (0.18, 0.67):
        window = [(left, 0.56), (left + 0.16, 0.56), (left + 0.16, 0.74), (left, 0.74)]
        brush.body([window], CREAM)
        pane = [(left + 0.02, 0.58), (left + 0.14, 0.58), (left + 0.14, 0.72), (left + 0.02, 0.72)]
        brush.flat(pane, LAMP if dark else GLASS, lit=dark)
        brush.line([(left + 0.08, 0.57), (left + 0.08, 0.73)], CREAM, 0.02)
        brush.line([(left + 0.01, 0.65), (left + 0.15, 0.65)], CREAM, 0.02)


def draw_tree(brush: Brush, colour: RGB, pattern: str, dark: bool) -> None:
    brush.body([[(0.44, 0.55), (0.56, 0.55), (0.62, 1.0), (0.38, 1.0)]], BARK)
    crown = [
        Oval(0.0, 0.34, 0.46, 0.70),
        Oval(0.54, 0.34, 1.0, 0.70),
        Oval(0.10, 0.12, 0.54, 0.46),
        Oval(0.46, 0.12, 0.90, 0.46),
        Oval(0.26, 0.0, 0.74, 0.38),
        Oval(0.24, 0.36, 0.76, 0.76),
    ]
    brush.body(crown, colour)
    for x, y, radius in ((0.44, 0.13, 0.13), (0.24, 0.30, 0.10), (0.18, 0.48, 0.10), (0.60, 0.34, 0.11)):
        brush.flat(Oval(x - radius, y - radius * 0.5, x + radius, y + radius * 0.5), lighter(colour, 0.3), 110)


def draw_tent(brush: Brush, colour: RGB, pattern: str, dark: bool) -> None:
    brush.line([(0.5, 0.10), (0.46, 0.0)], IRON, 0.035)
    brush.line([(0.5, 0.10), (0.54, 0.0)], IRON, 0.035)
    brush.body([[(0.0, 1.0), (0.5, 0.05), (1.0, 1.0)]], colour, pattern)
    brush.flat([(0.36, 1.0), (0.5, 0.36), (0.64, 1.0)], LAMP if dark else darker(colour, 0.72), lit=dark)
    brush.flat([(0.64, 1.0), (0.5, 0.36), (0.76, 1.0)], lighter(colour, 0.4))


def draw_boat(brush: Brush, colour: RGB, pattern: str, dark: bool) -> None:
    cloth = pattern if pattern == "striped" else "plain"
    brush.line([(0.46, 0.02), (0.46, 0.76)], BARK, 0.04)
    brush.body([[(0.50, 0.04), (0.94, 0.62), (0.50, 0.66)]], colour, cloth)
    brush.body([[(0.42, 0.14), (0.42, 0.64), (0.12, 0.60)]], CREAM)
    brush.body([[(0.0, 0.72), (1.0, 0.72), (0.84, 1.0), (0.16, 1.0)]], colour, pattern)
    brush.line([(0.0, 0.73), (1.0, 0.73)], CREAM, 0.04)


def draw_wheel(brush: Brush, x: float, y: float, across: float, down: float) -> None:
    brush.flat(Oval(x - across, y - down, x + across, y + down), INK)
    brush.flat(Oval(x - across * 0.5, y - down * 0.5, x + across * 0.5, y + down * 0.5), (206, 208, 214))


def draw_car(brush: Brush, colour: RGB, pattern: str, dark: bool) -> None:
    cabin: list[Point] = [(0.20, 0.46), (0.31, 0.06), (0.66, 0.06), (0.82, 0.46)]
    hull: list[Point] = [
        (0.02, 0.52),
        (0.06, 0.44),
        (0.80, 0.42),
        (0.95, 0.50),
        (0.99, 0.60),
        (0.99, 0.80),
        (0.01, 0.80),
    ]
    brush.body([cabin, hull], colour, pattern)
    brush.flat([(0.27, 0.42), (0.35, 0.14), (0.48, 0.14), (0.48, 0.42)], GLASS)
    brush.flat([(0.52, 0.42), (0.52, 0.14), (0.64, 0.14), (0.75, 0.42)], GLASS)
    brush.line([(0.02, 0.79), (0.98, 0.79)], darker(colour, 0.6), 0.05)
    brush.flat(Oval(0.92, 0.52, 0.99, 0.65), LAMP, lit=dark)
    for x in (0.23, 0.77):
        draw_wheel(brush, x, 0.81, 0.105, 0.19)


def draw_bicycle(brush: Brush, colour: RGB, pattern: str, dark: bool) -> None:
    for x in (0.22, 0.78):
        brush.ring(Oval(x - 0.22, 0.36, x + 0.22, 1.0), INK, 0.06)
        for angle in (20, 80, 140):
            dx, dy = 0.19 * math.cos(math.radians(angle)), 0.28 * math.sin(math.radians(angle))
            brush.line([(x - dx, 0.68 - dy), (x + dx, 0.68 + dy)], (150, 152, 164), 0.02)
    frame: list[list[Point]] = [
        [(0.22, 0.68), (0.36, 0.26), (0.66, 0.26), (0.46, 0.70), (0.22, 0.68)],
        [(0.36, 0.26), (0.46, 0.70)],
        [(0.78, 0.68), (0.64, 0.10)],
    ]
    for path in frame:
        brush.line(path, darker(colour, 0.4), 0.125)
    for path in frame:
        brush.line(path, colour, 0.095)
    brush.line([(0.36, 0.26), (0.34, 0.14)], IRON, 0.06)
    brush.body([[(0.25, 0.09), (0.43, 0.09), (0.40, 0.17), (0.28, 0.17)]], IRON)
    brush.line([(0.64, 0.10), (0.58, 0.04), (0.74, 0.02)], IRON, 0.07)
    brush.flat(Oval(0.42, 0.64, 0.50, 0.76), IRON)


def draw_bench(brush: Brush, colour: RGB, pattern: str, dark: bool) -> None:
    for x in (0.12, 0.84):
        brush.body([[(x, 0.05), (x + 0.05, 0.05), (x + 0.05, 1.0), (x, 1.0)]], IRON)
    for y in (0.06, 0.30):
        brush.body([[(0.02, y), (0.98, y), (0.98, y + 0.17), (0.02, y + 0.17)]], colour)
    brush.body([[(0.04, 0.58), (0.96, 0.58), (1.0, 0.74), (0.0, 0.74)]], colour)
    for x in (0.04, 0.91):
        brush.body([[(x, 0.74), (x + 0.05, 0.74), (x + 0.05, 1.0), (x, 1.0)]], IRON)


def draw_umbrella(brush: Brush, colour: RGB, pattern: str, dark: bool) -> None:
    brush.line([(0.5, 0.03), (0.5, 1.0)], (236, 226, 208), 0.045)
    brush.line([(0.515, 0.3), (0.515, 1.0)], BARK, 0.014)
    scallops = [p for i in range(4) for p in arc(0.875 - i * 0.25, 0.50, 0.125, 0.07, 0, -180, 8)]
    brush.body([[*arc(0.5, 0.50, 0.5, 0.44, 180, 360), *scallops]], colour, pattern)
    if pattern == "plain":
        for x in (0.25, 0.5, 0.75):
            brush.line([(0.5, 0.07), (0.5 + (x - 0.5) * 0.8, 0.24), (x, 0.49)], darker(colour, 0.32), 0.014)
    brush.flat(Oval(0.47, 0.01, 0.53, 0.07), CREAM)


def draw_ball(brush: Brush, colour: RGB, pattern: str, dark: bool) -> None:
    brush.body([Oval(0.0, 0.0, 1.0, 1.0)], colour, pattern)
    brush.flat(Oval(0.2, 0.12, 0.46, 0.32), (255, 255, 255), 150)


def draw_flower(brush: Brush, colour: RGB, pattern: str, dark: bool) -> None:
    stem = (54, 128, 62)
    brush.line([(0.5, 0.35), (0.48, 1.0)], stem, 0.05)
    brush.body([[(0.48, 0.92), (0.16, 0.62), (0.40, 0.68)]], stem)
    brush.body([[(0.50, 0.88), (0.86, 0.60), (0.62, 0.66)]], stem)
    for number in range(6):
        angle = math.radians(60 * number + 30)
        x, y = 0.5 + 0.29 * math.cos(angle), 0.32 + 0.21 * math.sin(angle)
        brush.body([Oval(x - 0.20, y - 0.15, x + 0.20, y + 0.15)], colour)
    heart: RGB = (140, 86, 40) if colour == PAINTS["yellow"] else (252, 206, 60)
    brush.body([Oval(0.34, 0.20, 0.66, 0.44)], heart)


def draw_dog(brush: Brush, colour: RGB, pattern: str, dark: bool) -> None:
    ear = darker(colour, 0.45) if min(colour) < 200 else (120, 96, 84)
    brush.line([(0.10, 0.46), (0.02, 0.26), (0.03, 0.12)], darker(colour, 0.5), 0.15)
    brush.line([(0.10, 0.46), (0.02, 0.26), (0.03, 0.12)], colour, 0.11)
    legs: list[list[Point]] = [
        [(x, 0.62), (x + 0.10, 0.62), (x + 0.10, 1.0), (x - 0.01, 1.0)] for x in (0.12, 0.24, 0.50, 0.62)
    ]
    trunk: list[Shape] = [
        Oval(0.06, 0.36, 0.46, 0.78),
        Oval(0.36, 0.34, 0.76, 0.80),
        [(0.2, 0.38), (0.6, 0.36), (0.6, 0.76), (0.2, 0.76)],
    ]
    neck: list[Point] = [(0.56, 0.46), (0.64, 0.14), (0.82, 0.30), (0.74, 0.62)]
    brush.body([*legs, *trunk, neck], colour, pattern)
    brush.body([Oval(0.58, 0.04, 0.86, 0.42), Oval(0.72, 0.18, 1.0, 0.42)], colour)
    brush.body([Oval(0.56, 0.06, 0.70, 0.44)], ear)
    brush.flat(Oval(0.93, 0.19, 1.0, 0.29), INK)
    eye = CREAM if max(colour) < 80 else INK
    brush.flat(Oval(0.755, 0.13, 0.805, 0.20), eye)
    brush.line([(0.60, 0.46), (0.78, 0.52)], (214, 60, 60) if colour != PAINTS["red"] else CREAM, 0.06)


def draw_cat(brush: Brush, colour: RGB, pattern: str, dark: bool) -> None:
    tail = [(0.74, 0.92), (0.92, 0.88), (0.97, 0.72), (0.90, 0.56)]
    brush.line(tail, darker(colour, 0.5), 0.13)
    brush.line(tail, colour, 0.10)
    brush.body([Oval(0.16, 0.46, 0.80, 1.02), Oval(0.24, 0.34, 0.72, 0.86)], colour, pattern)
    ears: list[list[Point]] = [
        [(0.20, 0.26), (0.20, 0.0), (0.42, 0.12)],
        [(0.76, 0.26), (0.76, 0.0), (0.54, 0.12)],
    ]
    brush.body([Oval(0.16, 0.08, 0.80, 0.52), *ears], colour)
    for ear in ([(0.25, 0.16), (0.24, 0.06), (0.34, 0.12)], [(0.71, 0.16), (0.72, 0.06), (0.62, 0.12)]):
        brush.flat(ear, (240, 160, 160))
    eye: RGB = (190, 220, 90) if max(colour) < 160 else (50, 110, 60)
    for x in (0.34, 0.62):
        brush.flat(Oval(x - 0.06, 0.24, x + 0.06, 0.34), eye)
        brush.flat(Oval(x - 0.02, 0.24, x + 0.02, 0.34), INK)
    brush.flat([(0.44, 0.37), (0.52, 0.37), (0.48, 0.41)], (236, 130, 140))
    whisker = lighter(colour, 0.8) if min(colour) < 200 else IRON
    for side in (-1, 1):
        for y in (0.38, 0.43):
            brush.line([(0.48 + side * 0.12, 0.40), (0.48 + side * 0.40, y)], whisker, 0.014)
    for x in (0.38, 0.58):
        brush.body([Oval(x - 0.09, 0.92, x + 0.09, 1.02)], lighter(colour, 0.3))


def draw_balloon(brush: Brush, colour: RGB, pattern: str, dark: bool) -> None:
    for x0, x1 in ((0.30, 0.40), (0.50, 0.50), (0.70, 0.60)):
        brush.line([(x0, 0.62), (x1, 0.86)], BARK, 0.016)
    brush.body([Oval(0.0, 0.0, 1.0, 0.66), [(0.07, 0.46), (0.93, 0.46), (0.62, 0.74), (0.38, 0.74)]], colour, pattern)
    if pattern == "plain":
        for bend in (0.24, 0.08):
            brush.line(arc(0.5, 0.36, bend, 0.35, 90, 270), darker(colour, 0.25), 0.012)
            brush.line(arc(0.5, 0.36, bend, 0.35, -90, 90), darker(colour, 0.25), 0.012)
    brush.body([[(0.37, 0.72), (0.63, 0.72), (0.62, 0.77), (0.38, 0.77)]], darker(colour, 0.3))
    brush.body([[(0.37, 0.86), (0.63, 0.86), (0.60, 1.0), (0.40, 1.0)]], (164, 110, 62))


def draw_kite(brush: Brush, colour: RGB, pattern: str, dark: bool) -> None:
    tail = [(0.50, 0.66), (0.40, 0.74), (0.56, 0.82), (0.40, 0.90), (0.52, 0.99)]
    brush.line(tail, IRON, 0.02)
    for x, y in ((0.42, 0.75), (0.53, 0.82), (0.42, 0.90)):
        for side in (-1, 1):
            bow = [(x, y), (x + side * 0.11, y - 0.045), (x + side * 0.11, y + 0.045)]
            brush.flat(bow, colour)
    brush.body([[(0.5, 0.0), (0.96, 0.28), (0.5, 0.70), (0.04, 0.28)]], colour, pattern)
    brush.line([(0.5, 0.0), (0.5, 0.70)], darker(colour, 0.45), 0.018)
    brush.line([(0.04, 0.28), (0.96, 0.28)], darker(colour, 0.45), 0.018)


def draw_bird(brush: Brush, colour: RGB, pattern: str, dark: bool) -> None:
    far_wing = [(0.42, 0.54), (0.62, 0.02), (0.66, 0.30), (0.60, 0.58)]
    brush.body([far_wing], darker(colour, 0.3))
    tail = [(0.24, 0.58), (0.0, 0.48), (0.04, 0.66), (0.02, 0.80), (0.26, 0.72)]
    brush.body([[(0.92, 0.44), (1.0, 0.52), (0.90, 0.56)]], (246, 166, 40) if colour != PAINTS["orange"] else INK)
    brush.body([tail, Oval(0.18, 0.42, 0.80, 0.86), Oval(0.66, 0.32, 0.94, 0.66)], colour)
    brush.flat(Oval(0.36, 0.64, 0.72, 0.84), lighter(colour, 0.55), 170)
    brush.body([[(0.34, 0.58), (0.14, 0.04), (0.42, 0.12), (0.58, 0.36), (0.60, 0.58)]], darker(colour, 0.12))
    brush.flat(Oval(0.80, 0.41, 0.87, 0.50), CREAM if max(colour) < 80 else INK)


THINGS: dict[str, Draw] = {
    "house": draw_house,
    "tree": draw_tree,
    "tent": draw_tent,
    "boat": draw_boat,
    "car": draw_car,
    "bicycle": draw_bicycle,
    "bench": draw_bench,
    "umbrella": draw_umbrella,
    "ball": draw_ball,
    "flower": draw_flower,
    "dog": draw_dog,
    "cat": draw_cat,
    "balloon": draw_balloon,
    "kite": draw_kite,
    "bird": draw_bird,
}
