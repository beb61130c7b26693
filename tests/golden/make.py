"""Write `captions.json`: what the shipped captioner says of pictures of scikit-image.

Run it after a new model is shipped: python tests/golden/make.py
"""

from __future__ import annotations

from pathlib import Path

import skimage

from tellapart.describing import load
from tellapart.files import write_json
from tellapart.models import model_digest

GOLDEN = Path(__file__).with_name("captions.json")
# Pictures inside scikit-image's wheel; nothing is downloaded.
PICTURES = (
    *("astronaut.png", "brick.png", "camera.png", "cell.png", "chelsea.png", "clock_motion.png", "coffee.png"),
    *("coins.png", "color.png", "grass.png", "gravel.png", "horse.png", "hubble_deep_field.jpg", "ihc.png"),
    *("moon.png", "motorcycle_left.png", "motorcycle_right.png", "page.png", "retina.jpg", "rocket.jpg", "text.png"),
)


def shipped_captions() -> dict[str, str]:
    """Caption by name of picture."""
    folder = Path(skimage.__file__).parent / "data"
    captions = load().caption([folder / name for name in PICTURES])
    return {name: one.caption for name, one in zip(PICTURES, captions, strict=True)}


if __name__ == "__main__":
    write_json(GOLDEN, {"model": model_digest(Path("shipped")), "captions": shipped_captions()})
    print(f"wrote {GOLDEN}")
