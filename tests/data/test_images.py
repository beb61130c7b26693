"""Safe decoding: what is read comes out as upright RGB, what is not is refused with the file's name."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from tellapart.data.images import FORMATS, MAX_PIXELS, load_image
from tellapart.errors import DataError

Save = Callable[..., Path]
RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def corners(width: int = 48, height: int = 32) -> Image.Image:
    """Red, green, blue and white quarters: turned or mirrored, no two such pictures look the same."""
    image = Image.new("RGB", (width, height))
    for number, colour in enumerate((RED, GREEN, BLUE, WHITE)):
        left, top = number % 2 * width // 2, number // 2 * height // 2
        image.paste(colour, (left, top, left + width // 2, top + height // 2))
    return image


def quarters(image: Image.Image) -> list[tuple[int, ...]]:
    """The colours in the middle of the four quarters, rounded so that lossy formats agree."""
    assert image.mode == "RGB"
    width, height = image.size
    spots = [(width // 4 + x * width // 2, height // 4 + y * height // 2) for y in (0, 1) for x in (0, 1)]
    return [tuple(255 if value > 127 else 0 for value in image.getpixel(spot)) for spot in spots]  # type: ignore[union-attr]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def make(image: Image.Image, name: str, **options: Any) -> Path:
        image.save(tmp_path / name, **options)
        return tmp_path / name

    return make


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.jpg", {"quality": 95}),
        ("a.jpg", {"quality": 95, "progressive": True}),
        ("a.png", {}),
        ("a.webp", {}),
        ("a.webp", {"lossless": True}),
        ("wrong-name.jpg", {"format": "PNG"}),
    ],
)
def test_formats(save: Save, name: str, options: dict[str, Any]) -> None:
    image = load_image(save(corners(), name, **options))
    assert image.size == (48, 32)
    assert quarters(image) == [RED, GREEN, BLUE, WHITE]


def test_png_is_exact(save: Save) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert np.array_equal(np.asarray(load_image(save(Image.fromarray(noise), "a.png"))), noise)


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp"])
@pytest.mark.parametrize(
    ("orientation", "upright"),
    [
        (1, [RED, GREEN, BLUE, WHITE]),
        (2, [GREEN, RED, WHITE, BLUE]),
        (3, [WHITE, BLUE, GREEN, RED]),
        (4, [BLUE, WHITE, RED, GREEN]),
        (5, [RED, BLUE, GREEN, WHITE]),
        (6, [BLUE, RED, WHITE, GREEN]),
        (7, [WHITE, GREEN, BLUE, RED]),
        (8, [GREEN, WHITE, RED, BLUE]),
        (9, [RED, GREEN, BLUE, WHITE]),
    ],
)
def test_exif_orientation(save: Save, name: str, orientation: int, upright: list[tuple[int, ...]]) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    image = load_image(save(corners(), name, exif=exif))
    assert quarters(image) == upright
    assert image.size == ((32, 48) if 5 <= orientation <= 8 else (48, 32))


def test_broken_exif_does_not_spoil_a_picture(save: Save) -> None:
    """A rational whose type says text: reading the orientation is possible, writing the whole block again is not."""
    entries = [(0x0112, 3, 1, struct.pack("<HH", 6, 0)), (0x011A, 2, 1, b"x\0\0\0")]
    block = b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(entries))
    block += b"".join(struct.pack("<HHI", tag, kind, count) + value for tag, kind, count, value in entries)
    image = load_image(save(corners(), "a.jpg", exif=block + struct.pack("<I", 0)))
    assert quarters(image) == [BLUE, RED, WHITE, GREEN]


def test_a_jpeg_may_be_decoded_smaller_but_not_too_small(save: Save) -> None:
    path = save(corners(800, 480), "a.jpg")
    assert load_image(path).size == (800, 480)
    assert load_image(path, at_least=100).size == (200, 120)
    assert load_image(path, at_least=479).size == (800, 480)
    assert quarters(load_image(path, at_least=100)) == [RED, GREEN, BLUE, WHITE]


@pytest.mark.parametrize(("mode", "name"), [("L", "a.jpg"), ("L", "a.png"), ("1", "a.png")])
def test_greyscale(save: Save, mode: str, name: str) -> None:
    image = Image.new(mode, (16, 16), 0)
    image.paste(255, (8, 0, 16, 16))
    loaded = load_image(save(image, name), at_least=8)
    assert quarters(loaded) == [(0, 0, 0), WHITE, (0, 0, 0), WHITE]


def test_cmyk(save: Save) -> None:
    loaded = load_image(save(corners().convert("CMYK"), "a.jpg", quality=95), at_least=8)
    assert quarters(loaded) == [RED, GREEN, BLUE, WHITE]


@pytest.mark.parametrize("name", ["a.png", "a.webp"])
def test_transparency_is_shown_on_white(save: Save, name: str) -> None:
    image = corners().convert("RGBA")
    image.paste((0, 0, 0, 0), (0, 0, 24, 16))
    image.paste((0, 0, 0, 128), (24, 0, 48, 16))
    loaded = load_image(save(image, name, **({"lossless": True} if name == "a.webp" else {})))
    assert loaded.mode == "RGB"
    assert loaded.getpixel((5, 5)) == WHITE
    assert loaded.getpixel((30, 5)) == (127, 127, 127)
    assert loaded.getpixel((5, 20)) == BLUE


def test_grey_with_alpha(save: Save) -> None:
    image = Image.new("LA", (16, 16), (0, 255))
    image.paste((0, 0), (0, 0, 8, 16))
    assert quarters(load_image(save(image, "a.png"))) == [WHITE, (0, 0, 0), WHITE, (0, 0, 0)]


@pytest.mark.parametrize("transparency", [0, b"\x00\xff"])
def test_palette_with_transparency(save: Save, transparency: int | bytes) -> None:
    image = Image.new("P", (16, 16), 1)
    image.putpalette([*BLUE, *RED])
    image.paste(0, (0, 0, 8, 16))
    assert quarters(load_image(save(image, "opaque.png"))) == [BLUE, RED, BLUE, RED]
    assert quarters(load_image(save(image, "a.png", transparency=transparency))) == [WHITE, RED, WHITE, RED]


def test_16_bit_grey_keeps_its_middle(save: Save) -> None:
    values = np.array([[0, 32768], [16384, 65535]], dtype=np.uint16)
    path = save(Image.fromarray(values), "a.png")
    with Image.open(path) as raw:
        assert raw.mode.startswith("I"), "the file really has 16 bits"
    assert np.asarray(load_image(path))[..., 0].tolist() == [[0, 128], [64, 255]]
    assert load_image(path).mode == "RGB"


def test_16_bit_grey_with_a_transparent_value_keeps_its_middle(save: Save) -> None:
    values = np.array([[0, 32768], [16384, 65535]], dtype=np.uint16)
    path = save(Image.fromarray(values), "a.png", transparency=0)
    assert np.asarray(load_image(path))[..., 0].tolist()[0][1] == 128


def test_truncated(save: Save) -> None:
    path = save(Image.effect_noise((64, 64), 50).convert("RGB"), "a.jpg")
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(DataError, match=r"a\.jpg: this picture is broken \(.*truncated.*\); replace or remove it"):
        load_image(path)
    for name in ("b.png", "b.webp"):
        path = save(Image.effect_noise((64, 64), 50).convert("RGB"), name)
        path.write_bytes(path.read_bytes()[:-400])
        with pytest.raises(DataError, match=rf"{name}: "):
            load_image(path)


@pytest.mark.parametrize("content", [b"this is text", b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"])
def test_not_a_picture(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.jpg: (not a picture in a known format; use JPEG, PNG, WEBP|.*broken)"):
        load_image(path)


def test_missing_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.jpg: this picture does not exist; check the path"):
        load_image(tmp_path / "nowhere.jpg")
    (tmp_path / "folder.jpg").mkdir()
    with pytest.raises(DataError, match=r"folder\.jpg: "):
        load_image(tmp_path / "folder.jpg")


@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF", "PPM", "ICO"])
def test_other_formats_are_refused_whatever_their_name(tmp_path: Path, kind: str) -> None:
    assert kind not in FORMATS
    path = tmp_path / "a.png"
    corners().save(path, format=kind)
    with pytest.raises(DataError, match=r"a\.png: not a picture in a known format"):
        load_image(path)


def png_that_claims(width: int, height: int) -> bytes:
    """A PNG of one grey pixel's data whose header claims another size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\x7f")) + chunk(b"IEND", b"")
    )


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")  # pytest undoes the filter of the module
@pytest.mark.parametrize(("width", "height"), [(60_000, 60_000), (12_000, 12_000), (MAX_PIXELS + 1, 1)])
def test_a_huge_picture_is_refused_before_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, height: int
) -> None:
    with Image.open(io.BytesIO(png_that_claims(1, 1))) as right:
        assert right.getpixel((0, 0)) == 0x7F, "the header written here is a right one"
    path = tmp_path / "a.png"
    path.write_bytes(png_that_claims(width, height))

    def decode(*_: Any) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decode)
    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", decode, raising=False)
    with pytest.raises(DataError, match=r"a\.png: .*pixels.* over the limit of 100,000,000; make it smaller"):
        load_image(path)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_picture_at_the_cap_is_not_refused_for_its_size(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png_that_claims(MAX_PIXELS // 100, 100))
    with pytest.raises(DataError, match="broken"):  # its pixels are missing
        load_image(path)


def test_a_folder_is_not_a_picture(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"this is a folder and not a picture; give the pictures in it"):
        load_image(tmp_path)
