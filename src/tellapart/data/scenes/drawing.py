"""Render a scene as a picture."""

from __future__ import annotations

from PIL import Image

from tellapart.data.scenes.backdrop import (
    GROUND_LIGHT,
    PLACES_DRAWN,
    THING_LIGHT,
    draw_precipitation,
    draw_sky,
    shadow_of,
)
from tellapart.data.scenes.canvas import Brush, Canvas
from tellapart.data.scenes.chance import between, seeded
from tellapart.data.scenes.things import PAINTS, THINGS
from tellapart.data.scenes.world import KINDS, Scene, Spot, layout

FACING = frozenset({"car", "bicycle", "dog", "cat", "bird", "boat"})


def render(scene: Scene, size: int = 224) -> Image.Image:
    """Render a scene as RGB, `size` × `size`; equal scenes give equal pictures."""
    canvas = Canvas(size)
    dark = scene.weather == "night"
    # Each part has its own generator, so that a variant in one part does not change the jitter of the others.
    draw_sky(canvas, scene.weather, seeded(scene.seed, "sky"))
    PLACES_DRAWN[scene.place](canvas, GROUND_LIGHT[scene.weather], seeded(scene.seed, "place"), dark)
    for spot in layout(scene):
        draw_thing(canvas, scene, spot, dark)
    draw_precipitation(canvas, scene.weather, seeded(scene.seed, "precipitation"))
    return canvas.finish()


def draw_thing(canvas: Canvas, scene: Scene, spot: Spot, dark: bool) -> None:
    group = scene.groups[spot.group]
    rng = seeded(scene.seed, "group", spot.group)
    # One jitter for the whole group, so that its members keep their distances and stay inside the picture.
    dx, dy = between(rng, -3.0, 3.0), between(rng, -3.0, 3.0)
    flipped = rng.random() < 0.5 and group.kind in FACING
    x, y = spot.x + dx, spot.y + dy
    row = KINDS[group.kind].row
    if row in ("back", "mid", "front"):
        foot = y + spot.height
        canvas.oval(
            x - 1,
            foot - spot.height * 0.06,
            x + spot.width + 3,
            foot + spot.height * 0.06,
            shadow_of(scene.place, scene.weather),
            80,
        )
    elif row == "water":
        foot = y + spot.height
        canvas.oval(x - 4, foot - 3, x + spot.width + 4, foot + 4, (20, 50, 90), 70)
    brush = Brush(canvas, (x, y, spot.width, spot.height), THING_LIGHT[scene.weather], flipped)
    THINGS[group.kind](brush, PAINTS[group.colour], group.pattern, dark)
    if row == "water":
        for shift in (-2.0, 8.0):
            left = x + shift
            canvas.line([(left, foot + 1), (left + spot.width * 0.8, foot + 1)], (226, 244, 250), 1.2, 170)
