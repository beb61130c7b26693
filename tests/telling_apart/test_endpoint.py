"""Captions from a server: a fake one on this machine."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tellapart.errors import TellapartError
from tellapart.telling_apart.endpoint import KEY, Endpoint, split_answer
from tellapart.telling_apart.settings import TellApartSettings
from tellapart.telling_apart.tell import tell_apart


class FakeServer(HTTPServer):
    """Answers as told, and remembers what it was asked."""

    asked: list[tuple[str, dict[str, str], dict[str, Any]]]
    answer: tuple[int, dict[str, str], str]

    def say(self, text: str) -> None:
        self.answer = (200, {}, json.dumps({"choices": [{"message": {"content": text}}]}))


class Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, dict(self.headers), json.loads(body)))
        status, headers, text = self.server.answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(KEY, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    fake = FakeServer(("127.0.0.1", 0), Handler)
    fake.asked = []
    fake.say("1. a red house\n2. a house")
    thread = threading.Thread(target=fake.serve_forever, args=(0.01,))
    thread.start()
    yield fake
    fake.shutdown()
    thread.join()
    fake.server_close()


def endpoint(server: FakeServer) -> Endpoint:
    return Endpoint(f"http://127.0.0.1:{server.server_port}/v1/", "small")


def test_a_picture_is_sent_once(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = Image.new("RGB", (1600, 800), (200, 0, 0))
    monkeypatch.setenv(KEY, "secret")
    for _ in range(2):
        assert endpoint(server).captions(picture) == ["a red house", "a house"]
    ((path, headers, body),) = server.asked
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer secret"
    assert body["model"] == "small"
    text, image = body["messages"][0]["content"]
    assert "5 different captions" in text["text"]
    data = image["image_url"]["url"].removeprefix("data:image/jpeg;base64,")
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (768, 384)
    server.say("another answer")
    assert endpoint(server).captions(Image.new("RGB", (8, 8))) == ["another answer"]
    assert "secret" not in "".join(path.read_text() for path in Path().rglob("cache/**/*.json"))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((401, {}, "who are you?"), rf"answers 401 \(who are you\?\); give the key in the environment variable {KEY}"),
        ((500, {}, ""), "answers 500"),
        ((302, {"Location": "http://127.0.0.1:1/"}, ""), "answers 302"),
        ((200, {}, "no JSON"), r"the answer has no caption \(no JSON\)"),
        ((200, {}, '{"choices": []}'), "the answer has no caption"),
        ((200, {}, '{"choices": [{"message": {"content": null}}]}'), "the answer has no caption"),
    ],
)
def test_what_can_go_wrong(server: FakeServer, answer: tuple[int, dict[str, str], str], message: str) -> None:
    server.answer = answer
    with pytest.raises(TellapartError, match=message):
        endpoint(server).captions(Image.new("RGB", (8, 8)))


def test_no_server(server: FakeServer) -> None:
    with pytest.raises(TellapartError, match="cannot be reached"):
        Endpoint("http://127.0.0.1:1/v1", "small").captions(Image.new("RGB", (8, 8)))


@pytest.mark.parametrize("url", ["file:///etc/passwd", "localhost:8000", "ftp://host/v1", ""])
def test_an_address_is_needed(url: str) -> None:
    with pytest.raises(TellapartError, match="is not an address; write it as http"):
        Endpoint(url, "small")


def test_split_answer() -> None:
    said = 'Captions:\n1) A red bus.\n\n* "two dogs"\n(3) 3 cats\n'
    assert split_answer(said) == ["Captions:", "A red bus", "two dogs", "3 cats"]


def test_its_captions_take_part(server: FakeServer, models: tuple[Path, Path], photos: Path) -> None:
    settings = TellApartSettings(one_group=True, contrast=(), samples=0, truth=0.0, fluency=0.0, likelihood=0.0)
    server.say("a blue blue house")
    told = tell_apart([photos / "red.png", photos / "blue.png"], *models, settings, endpoint=endpoint(server))
    assert len(server.asked) == 2
    assert [one.caption for one in told.pictures] == ["a red house", "a blue blue house"]
