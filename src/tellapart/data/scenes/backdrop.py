"""Sky, weather and ground."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from tellapart.data.scenes.canvas import FULL, RGB, Canvas, Light, Point, Stops, blend, darker, lighter
from tellapart.data.scenes.chance import between, pick

HORIZON = 116.0
SHORE = 152.0

SKIES: dict[str, Stops] = {
    "sunny": ((0.0, (84, 168, 238)), (1.0, (206, 236, 250))),
    "cloudy": ((0.0, (142, 158, 176)), (1.0, (214, 220, 224))),
    "rainy": ((0.0, (78, 92, 114)), (1.0, (154, 168, 182))),
    "snowing": ((0.0, (158, 174, 202)), (1.0, (226, 232, 242))),
    "night": ((0.0, (12, 16, 52)), (1.0, (62, 72, 132))),
    "sunset": ((0.0, (96, 74, 150)), (0.5, (238, 128, 110)), (1.0, (255, 206, 120))),
}

GROUND_LIGHT: dict[str, Light] = {
    "sunny": Light((255, 244, 200), 0.06),
    "cloudy": Light((140, 148, 158), 0.22),
    "rainy": Light((74, 88, 108), 0.42),
    "snowing": Light((206, 216, 232), 0.28),
    "night": Light((22, 30, 80), 0.57),
    "sunset": Light((236, 120, 96), 0.30),
}

# Things are tinted much less than the ground, so that their colours stay recognisable.
THING_LIGHT: dict[str, Light] = {
    "sunny": Light((255, 244, 200), 0.0),
    "cloudy": Light((150, 156, 164), 0.06),
    "rainy": Light((96, 108, 126), 0.14),
    "snowing": Light((210, 218, 232), 0.06),
    "night": Light((24, 28, 80), 0.16),
    "sunset": Light((240, 130, 96), 0.10),
}


def draw_cloud(canvas: Canvas, x: float, y: float, width: float, colour: RGB, alpha: int = 255) -> None:
    shade = darker(colour, 0.12)
    puffs = ((0.0, 0.02, 0.20), (0.24, -0.10, 0.27), (0.52, -0.06, 0.24), (0.74, 0.03, 0.18))
    for tone, lift in ((shade, 0.05), (colour, 0.0)):
        for dx, dy, radius in puffs:
            canvas.disc(x + (dx - 0.37) * width, y + (dy + lift) * width, radius * width, tone, alpha)


def draw_sky(canvas: Canvas, weather: str, rng: random.Random) -> None:
    canvas.gradient(0, HORIZON + 34, SKIES[weather])
    if weather == "sunny":
        x, y = (26.0 if rng.random() < 0.5 else 198.0), between(rng, 24, 30)
        for radius, alpha in ((40.0, 28), (31.0, 44), (24.0, 70)):
            canvas.disc(x, y, radius, (255, 246, 190), alpha)
        canvas.disc(x, y, 16, (255, 216, 60))
        for number in range(12):
            turn = math.radians(number * 30)
            ends = [(x + r * math.cos(turn), y + r * math.sin(turn)) for r in (20, 26)]
            canvas.line(ends, (255, 216, 60), 2.2)
    elif weather == "cloudy":
        for number in range(5):
            x, y = 22 + number * 45 + between(rng, -8, 8), between(rng, 14, 40) + 28 * (number % 2)
            draw_cloud(canvas, x, y, between(rng, 54, 78), (236, 239, 243))
    elif weather == "rainy":
        for number in range(5):
            draw_cloud(canvas, 8 + number * 52, between(rng, 4, 20), between(rng, 74, 94), (92, 102, 120))
    elif weather == "snowing":
        for number in range(4):
            draw_cloud(canvas, 20 + number * 62, between(rng, 2, 14), between(rng, 76, 92), (214, 222, 234))
    elif weather == "night":
        for _ in range(58):
            x, y, radius = between(rng, 0, FULL), between(rng, 0, HORIZON - 6), between(rng, 0.5, 1.5)
            canvas.disc(x, y, radius, (255, 250, 214))
        x, y = (30.0 if rng.random() < 0.5 else 194.0), between(rng, 24, 30)
        for radius, alpha in ((32.0, 22), (24.0, 36)):
            canvas.disc(x, y, radius, (230, 230, 255), alpha)
        canvas.disc(x, y, 15, (252, 244, 206))
        canvas.disc(x - 5, y - 4, 3, (230, 220, 180))
        canvas.disc(x + 4, y + 5, 4, (230, 220, 180))
    elif weather == "sunset":
        x = pick(rng, (44.0, 112.0, 180.0))
        for radius, alpha in ((58.0, 40), (44.0, 60)):
            canvas.disc(x, HORIZON - 4, radius, (255, 226, 150), alpha)
        canvas.disc(x, HORIZON - 4, 28, (255, 118, 62))
        for number in range(4):
            left, y = between(rng, -20, 160), 20 + 18 * number + between(rng, -5, 5)
            canvas.oval(left, y, left + between(rng, 50, 90), y + 5, (255, 178, 150), 120)


def draw_precipitation(canvas: Canvas, weather: str, rng: random.Random) -> None:
    """Rain or snow, in front of everything."""
    if weather == "rainy":
        for _ in range(95):
            x, y, length = between(rng, -4, 230), between(rng, -6, 222), between(rng, 9, 15)
            canvas.line([(x, y), (x - length * 0.28, y + length)], (214, 228, 244), 1.1, 170)
    elif weather == "snowing":
        for _ in range(105):
            x, y, radius = between(rng, 0, FULL), between(rng, 0, FULL), between(rng, 1.0, 2.7)
            canvas.disc(x, y, radius, (255, 255, 255), 235)


def hills(rng: random.Random, level: float, rise: float, waves: float) -> list[Point]:
    """The outline of rolling land across the picture."""
    shift, bend = between(rng, 0, 2 * math.pi), between(rng, 0, 2 * math.pi)
    return [
        (
            x,
            level
            - rise
            * (
                0.6 * math.sin(x / FULL * waves * 2 * math.pi + shift)
                + 0.4 * math.sin(x / FULL * waves * 3.7 * math.pi + bend)
            ),
        )
        for x in range(0, FULL + 8, 8)
    ]


def peaks(rng: random.Random, level: float, rise: float, many: int) -> list[Point]:
    """The outline of a mountain range."""
    points: list[Point] = [(-10, level)]
    for number in range(many):
        x = FULL * (number + 0.5) / many + between(rng, -8, 8)
        points += [
            (x, level - rise * between(rng, 0.6, 1.0)),
            (FULL * (number + 1) / many, level - rise * 0.25),
        ]
    return [*points, (FULL + 10, level)]


def fade(light: Light, top: RGB, bottom: RGB) -> Stops:
    return (0.0, light.on(top)), (1.0, light.on(bottom))


def draw_meadow(canvas: Canvas, light: Light, rng: random.Random, dark: bool) -> None:
    canvas.land(hills(rng, HORIZON - 4, 9, 1.1), fade(light, (126, 180, 140), (126, 180, 140)))
    canvas.land(hills(rng, HORIZON + 10, 7, 0.8), fade(light, (132, 190, 96), (132, 190, 96)))
    canvas.land(hills(rng, HORIZON + 26, 5, 0.6), fade(light, (166, 212, 104), (106, 172, 72)))
    blade = light.on((92, 156, 66))
    for _ in range(26):
        x, y = between(rng, 4, 220), between(rng, 156, 220)
        for lean in (-2.2, 0.0, 2.2):
            canvas.line([(x, y), (x + lean, y - 4.5)], blade, 1.0)


def draw_water(canvas: Canvas, light: Light, rng: random.Random, far: RGB, near: RGB) -> None:
    stops = ((0.0, light.on(far)), (0.4, light.on(near)), (1.0, light.on(near)))
    canvas.land([(0, HORIZON), (FULL, HORIZON)], stops)
    glint = light.on(lighter(near, 0.6))
    for _ in range(22):
        x, y = between(rng, 0, 215), between(rng, HORIZON + 4, SHORE + 2)
        canvas.line([(x, y), (x + between(rng, 6, 16), y)], glint, 1.1, 190)


def draw_beach(canvas: Canvas, light: Light, rng: random.Random, dark: bool) -> None:
    draw_water(canvas, light, rng, (30, 128, 178), (84, 196, 206))
    shore = hills(rng, SHORE, 2.5, 1.2)
    canvas.land([(x, y - 4) for x, y in shore], fade(light, (246, 252, 252), (246, 252, 252)))
    canvas.land(shore, fade(light, (232, 206, 156), (246, 222, 172)))
    canvas.land([(x, y + 7) for x, y in shore], fade(light, (250, 228, 178), (240, 208, 150)))
    grain = light.on((214, 180, 126))
    for _ in range(60):
        canvas.disc(between(rng, 0, FULL), between(rng, 166, FULL), between(rng, 0.4, 0.9), grain)


def draw_snowfield(canvas: Canvas, light: Light, rng: random.Random, dark: bool) -> None:
    canvas.land(peaks(rng, HORIZON + 6, 44, 4), fade(light, (170, 188, 218), (206, 220, 238)))
    canvas.land(hills(rng, HORIZON + 8, 6, 1.0), fade(light, (214, 226, 242), (214, 226, 242)))
    canvas.land(hills(rng, HORIZON + 26, 5, 0.6), fade(light, (250, 252, 255), (216, 228, 244)))
    shade = light.on((198, 212, 234))
    for _ in range(9):
        x, y, width = between(rng, 0, 200), between(rng, 156, 220), between(rng, 16, 34)
        canvas.oval(x, y, x + width, y + 3, shade, 150)


def draw_cactus(canvas: Canvas, x: float, foot: float, height: float, colour: RGB) -> None:
    width = height * 0.16
    canvas.line([(x, foot), (x, foot - height)], colour, width)
    canvas.disc(x, foot - height, width / 2, colour)
    for side, low in ((-1, 0.42), (1, 0.55)):
        arm = x + side * height * 0.28
        canvas.line(
            [(x, foot - height * low), (arm, foot - height * low), (arm, foot - height * (low + 0.3))],
            colour,
            width * 0.8,
        )
        canvas.disc(arm, foot - height * (low + 0.3), width * 0.4, colour)


def draw_desert(canvas: Canvas, light: Light, rng: random.Random, dark: bool) -> None:
    canvas.land(hills(rng, HORIZON - 6, 8, 0.9), fade(light, (206, 130, 94), (206, 130, 94)))
    canvas.land(hills(rng, HORIZON + 10, 8, 0.7), fade(light, (224, 158, 104), (224, 158, 104)))
    green = light.on((96, 138, 84))
    for x in (between(rng, 14, 80), between(rng, 130, 210)):
        draw_cactus(canvas, x, HORIZON + between(rng, 16, 24), between(rng, 18, 26), green)
    canvas.land(hills(rng, HORIZON + 28, 5, 0.6), fade(light, (240, 192, 128), (222, 156, 92)))
    ripple = light.on((208, 142, 84))
    for _ in range(14):
        x, y = between(rng, 0, 190), between(rng, 160, 220)
        canvas.line([(x, y), (x + 10, y - 1.5), (x + between(rng, 18, 30), y)], ripple, 1.0)


def draw_street(canvas: Canvas, light: Light, rng: random.Random, dark: bool) -> None:
    x = -6.0
    walls: tuple[RGB, ...] = ((150, 156, 176), (172, 164, 170), (134, 146, 164), (184, 178, 176))
    while x < FULL:
        width, top = between(rng, 26, 40), between(rng, 52, 96)
        canvas.rectangle(x, top, x + width, 150, light.on(pick(rng, walls)))
        for row in range(int((142 - top) / 13)):
            for place in range(int((width - 6) / 9)):
                wx, wy = x + 5 + place * 9, top + 6 + row * 13
                pane: RGB = (90, 96, 130) if dark else (206, 216, 228)
                colour = (255, 220, 130) if dark and rng.random() < 0.45 else light.on(pane)
                canvas.rectangle(wx, wy, wx + 5, wy + 7, colour)
        x += width + 1
    canvas.land([(0, 146), (FULL, 146)], fade(light, (206, 202, 198), (206, 202, 198)))
    for x in range(8, FULL, 28):
        canvas.line([(x, 147), (x - (FULL / 2 - x) * 0.12, 174)], light.on((182, 178, 176)), 1.0)
    canvas.land([(0, 174), (FULL, 174)], fade(light, (236, 232, 226), (236, 232, 226)))
    canvas.land([(0, 178), (FULL, 178)], fade(light, (122, 124, 136), (100, 102, 114)))
    start = between(rng, -20, 0)
    for number in range(6):
        left = start + number * 44
        canvas.polygon([(left, 199), (left + 24, 199), (left + 22, 203), (left - 3, 203)], light.on((250, 244, 220)))


def draw_lake(canvas: Canvas, light: Light, rng: random.Random, dark: bool) -> None:
    canvas.land(peaks(rng, HORIZON + 2, 40, 4), fade(light, (120, 146, 178), (160, 186, 200)))
    canvas.land(hills(rng, HORIZON - 5, 5, 1.4), fade(light, (74, 128, 104), (74, 128, 104)))
    draw_water(canvas, light, rng, (86, 150, 200), (52, 116, 184))
    shore = hills(rng, SHORE, 3, 0.9)
    canvas.land([(x, y - 2) for x, y in shore], fade(light, (150, 138, 104), (150, 138, 104)))
    canvas.land(shore, fade(light, (142, 192, 92), (98, 160, 72)))
    reed = light.on((84, 140, 62))
    for _ in range(18):
        x, y = between(rng, 4, 220), between(rng, 160, 220)
        for lean in (-2.0, 0.0, 2.0):
            canvas.line([(x, y), (x + lean, y - 5)], reed, 1.0)


PLACES_DRAWN: dict[str, Callable[[Canvas, Light, random.Random, bool], None]] = {
    "meadow": draw_meadow,
    "beach": draw_beach,
    "snowfield": draw_snowfield,
    "desert": draw_desert,
    "street": draw_street,
    "lake": draw_lake,
}


def shadow_of(place: str, weather: str) -> RGB:
    ground: RGB = (120, 140, 180) if place == "snowfield" else (50, 50, 60)
    return blend(ground, (10, 10, 40), 0.5 if weather == "night" else 0.0)
