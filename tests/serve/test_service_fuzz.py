"""Bad uploads of every kind, and random requests from the service's own description (schemathesis)."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="comes with the extra 'serve'")
pytest.importorskip("lancedb", reason="comes with the extra 'index'")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from PIL import Image
from starlette.testclient import TestClient

from support.services import HOST, as_files, make_settings, picture_bytes
from tellapart.serve.app import create_app
from tellapart.serve.pictures import MOST_SCANS, Pixels

CAP = 1_000_000
JPEG = picture_bytes(0, (64, 48), "JPEG")
PNG = picture_bytes(1, (64, 48))
WEBP = picture_bytes(2, (64, 48), "WEBP")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    made = make_settings(tmp_path_factory.mktemp("fuzz"), photos=4, max_pixels=CAP, max_upload=1 << 20)
    with TestClient(create_app(made), base_url=HOST) as client:
        yield client


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_bomb(width: int, height: int) -> bytes:
    """A PNG of a few kilobytes whose header promises so many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(b"\0" * 1_000_000, 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def saved(kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, kind, **options)
    return buffer.getvalue()


def many_scans() -> bytes:
    """A progressive JPEG whose last scan is there again and again."""
    progressive = picture_bytes(0, (64, 64), "JPEG", progressive=True)
    last = progressive.rindex(b"\xff\xda")
    return progressive[:last] + progressive[last:-2] * (MOST_SCANS + 1) + b"\xff\xd9"


def text_bomb() -> bytes:
    """A PNG with 100 MB of text in 100 kB."""
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"x" * 100_000_000, 9))
    return PNG[:33] + text + PNG[33:]


BAD = {
    "empty": (b"", "empty"),
    "text": (b"hello", "format"),
    "html": (b"<html><script>alert(1)</script></html>", "format"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>", "format"),
    "pdf": (b"%PDF-1.7\n", "format"),
    "zip": (b"PK\3\4" + b"\0" * 100, "format"),
    "gif": (saved("GIF"), "format"),
    "bmp": (saved("BMP"), "format"),
    "tiff": (saved("TIFF"), "format"),
    "only a signature": (b"\x89PNG\r\n\x1a\n", "broken"),
    "half a JPEG": (JPEG[: len(JPEG) // 2], "broken"),
    "half a PNG": (PNG[: len(PNG) // 2], "broken"),
    "half a WebP": (WEBP[: len(WEBP) // 2], "broken"),
    "bomb": (png_bomb(50_000, 50_000), "pixels"),
    "bomb by one side": (png_bomb(2**31 - 1, 2), "pixels"),
    "just over the cap": (png_bomb(1001, 1000), "pixels"),
    "no rows": (png_bomb(0, 5), "broken"),
    "scans": (many_scans(), "broken"),
    "text bomb": (text_bomb(), "broken"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_uploads_are_told_one_by_one(client: TestClient, what: str) -> None:
    content, code = BAD[what]
    answer = client.post("/api/captions", files=as_files(content, PNG))
    assert answer.status_code == 200
    bad, good = answer.json()["pictures"]
    assert bad["error"]["code"] == code
    assert good["error"] is None


def test_a_huge_upload_is_refused(client: TestClient) -> None:
    answer = client.post("/api/captions", files=as_files(b"\xff\xd8" + b"\0" * (1 << 20)))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    answer = client.post("/api/captions", files=as_files(*[PNG] * 17))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_many")


def test_large_pictures_are_decoded_one_after_the_other() -> None:
    pixels = Pixels(10)
    with pixels.take(6), pixels.take(4):
        assert pixels._taken == 10
    assert pixels._taken == 0


@given(start=some.sampled_from([JPEG, PNG, WEBP]), changes=some.lists(some.tuples(some.floats(0, 1), some.binary())))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_pictures(client: TestClient, start: bytes, changes: list[tuple[float, bytes]]) -> None:
    """Any bytes in any place: a caption or an error for this picture, never a failure of the request."""
    content = bytearray(start)
    for place, written in changes:
        at = int(place * len(content))
        content[at : at + len(written)] = written
    answer = client.post("/api/captions", files=as_files(bytes(content)))
    assert answer.status_code == 200
    (one,) = answer.json()["pictures"]
    assert (one["caption"] is None) == (one["error"] is not None)


@given(body=some.binary(max_size=300), boundary=some.text("abc-", min_size=1, max_size=5))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_forms(client: TestClient, body: bytes, boundary: str) -> None:
    content = b"--" + boundary.encode() + b"\r\n" + body + b"\r\n--" + boundary.encode() + b"--\r\n"
    kind = {"content-type": f"multipart/form-data; boundary={boundary}"}
    assert client.post("/api/captions", content=content, headers=kind).status_code in (200, 400, 413, 422)


def test_requests_from_the_description(tmp_path: Path) -> None:
    """Statuses, types and answers are those of the description, for requests that fit it and for others."""
    schemathesis = pytest.importorskip("schemathesis", reason="a dev dependency")
    app = create_app(make_settings(tmp_path, photos=4))  # schemathesis starts and stops it
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"host": "127.0.0.1"})
    paths = set()
    for operation in schema.get_all_operations():
        operation = operation.ok()
        paths.add(operation.path)

        @given(case=operation.as_strategy())
        @settings(max_examples=15, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def check(case: Any) -> None:
            case.call_and_validate(headers={"host": "127.0.0.1"})

        check()
    assert len(paths) == 9
