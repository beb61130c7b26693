"""The guard of every service: tokens, hosts, limits, headers; and where it may listen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="comes with the extra 'serve'")

from fastapi import FastAPI, Request
from starlette.testclient import TestClient

from support.services import HOST, as_files
from tellapart.errors import TellapartError
from tellapart.serve import web

TOKEN = "correct-horse-battery"


def make_app(static: Path | None = None, token: str | None = None, **limits: Any) -> FastAPI:
    app = web.new_app("test", "1", "for tests", static)

    @app.get("/health")
    async def health() -> str:
        return "ok"

    @app.post("/api/sizes")
    async def sizes(request: Request) -> list[int]:
        return [len(content) for _, content in await web.read_files(request, "files", 2)]

    @app.get("/api/mistake")
    async def mistake() -> None:
        raise ZeroDivisionError("secret detail")

    app.add_middleware(web.Guard, token, web.Limits(**{"body": 1000, **limits}))
    return app


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(make_app(), base_url=HOST) as client:
        yield client


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


# --- who may ask ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", "Bearer é", TOKEN],
)
def test_wrong_token(header: str | None) -> None:
    client = TestClient(make_app(token=TOKEN), base_url=HOST)
    headers = {} if header is None else {"authorization": header.encode("latin-1")}
    answer = client.post("/api/sizes", files=as_files(b"123"), headers=headers)  # type: ignore[arg-type]
    assert code(answer) == (401, "token")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_right_token_and_open_paths() -> None:
    client = TestClient(make_app(token=TOKEN), base_url="http://photos.example")  # any host: the token is enough
    assert client.get("/health").status_code == 200
    assert client.get("/openapi.json").status_code == 401
    answer = client.post("/api/sizes", files=as_files(b"123"), headers={"authorization": f"bearer {TOKEN}"})
    assert answer.json() == [3]


def test_without_token_only_this_machine_may_be_named() -> None:
    """Else the page of another site could reach the server through a name that it lets point here (rebinding)."""
    app = make_app()
    for host in ("127.0.0.1:8000", "localhost", "LOCALHOST:80", "[::1]:8000"):
        assert TestClient(app).get("/health", headers={"host": host}).status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "10.0.0.7:8000", "", "localhost.evil.example:1"):
        assert code(TestClient(app).get("/health", headers={"host": host})) == (403, "host")


def test_pages_of_other_sites_may_not_send(client: TestClient) -> None:
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9", "http://[evil"):
        answer = client.post("/api/sizes", files=as_files(b"1"), headers={"origin": origin})
        assert code(answer) == (403, "origin")
    assert client.post("/api/sizes", files=as_files(b"1"), headers={"origin": HOST}).json() == [1]


# --- what may be sent -------------------------------------------------------------------------------------------------


def test_too_large_by_header_and_by_stream(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "DROP_SECONDS", 0.1)
    answer = client.post("/api/sizes", files=as_files(b"x" * 1001))
    assert code(answer) == (413, "too_large")
    assert answer.headers["connection"] == "close"
    parts = iter([b"x" * 600, b"x" * 600])
    assert code(client.post("/api/sizes", content=parts)) == (413, "too_large")
    for length in ("-1", "many", "9" * 5000):
        sent = client.build_request("POST", "/api/sizes", headers={"content-length": length})
        assert code(client.send(sent)) == (413, "too_large")


def test_too_many_and_no_and_wrong_files(client: TestClient) -> None:
    assert code(client.post("/api/sizes", files=as_files(b"1", b"2", b"3"))) == (413, "too_many")
    assert code(client.post("/api/sizes", files={"other": b"1"})) == (422, "field")
    assert code(client.post("/api/sizes", files={"files": (None, b"text")})) == (422, "no_files")
    assert code(client.post("/api/sizes", data={"files": "text"})) == (415, "type")
    assert code(client.post("/api/sizes", content=b"x")) == (415, "type")
    form = {"content-type": "multipart/form-data; boundary=x"}
    assert code(client.post("/api/sizes", content=b"no form", headers=form)) == (400, "form")
    assert code(client.post("/api/sizes", headers={"content-type": "multipart/form-data"})) == (400, "form")


def test_large_files_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from tempfile import SpooledTemporaryFile

    def rollover(self: Any) -> None:
        raise AssertionError("a file was written to the disk")

    monkeypatch.setattr(SpooledTemporaryFile, "rollover", rollover)
    client = TestClient(make_app(body=8 << 20), base_url=HOST)
    assert client.post("/api/sizes", files=as_files(b"x" * (3 << 20))).json() == [3 << 20]


async def ask(app: Any, messages: list[Any], path: str = "/api/sizes") -> int:
    """Send the messages of a body by hand; a number is a pause. Gives the status."""
    headers = [(b"host", b"localhost"), (b"transfer-encoding", b"chunked"), (b"content-type", b"multipart/form-data")]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    left, statuses = list(messages), []

    async def receive() -> Any:
        while left and isinstance(left[0], float):
            await asyncio.sleep(left.pop(0))
        return left.pop(0) if left else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    await app({**scope, "headers": headers, "http_version": "1.1", "scheme": "http"}, receive, send)
    return next((status for status in statuses if status), 0)


def part(size: int, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": b"x" * size, "more_body": more}


def test_slow_bodies_and_sums_of_bodies() -> None:
    async def use() -> None:
        app = make_app(seconds=0.3, bodies=1500)
        assert await ask(app, [part(10), 0.2, part(10), 0.2, part(10, more=False)]) == 408
        assert await ask(app, [part(10)]) == 0  # the client is gone: nothing to answer
        first = asyncio.create_task(ask(app, [part(900), 0.1, part(1, more=False)]))
        await asyncio.sleep(0.02)
        assert await ask(app, [part(900, more=False)]) == 503
        assert await first == 400  # it was read, and is no form
        assert await ask(app, [part(900, more=False)]) == 400  # there is room again
        full = make_app(requests=1)
        first = asyncio.create_task(ask(full, [part(1), 0.1, part(1, more=False)]))
        await asyncio.sleep(0.02)
        assert await ask(full, [part(1, more=False)]) == 503
        assert await first == 400

    asyncio.run(use())


# --- answers ----------------------------------------------------------------------------------------------------------


def test_headers_of_all_answers(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):
        for path in ("/health", "/nowhere", "/api/mistake", "/api/sizes"):
            headers = client.get(path).headers
            assert set(web.HEADERS).issubset(headers)
            assert "http" not in headers["content-security-policy"]
            assert headers["cache-control"] == ("no-cache" if path == "/health" else "no-store")


def test_mistakes_are_logged_not_told(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    answer = client.get("/api/mistake")
    assert code(answer) == (500, "internal")
    assert "secret" not in answer.text
    assert "secret detail" in caplog.text


def test_refusals_quote_any_text() -> None:
    answer = web.Refusal(422, "invalid", "\ud800" + "x" * 10_000, retry_after=3).answer()
    assert answer.headers["retry-after"] == "3"
    assert len(answer.body) < 1000


def test_static_files_and_nothing_else(tmp_path: Path) -> None:
    static = tmp_path / "static"
    static.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (static / "index.html").write_text("page")
    (static / "page.js").write_text("script")
    (static / "link.txt").symlink_to(tmp_path / "secret.txt")
    client = TestClient(make_app(static, token=TOKEN), base_url=HOST)
    assert client.get("/").text == "page"
    assert client.get("/static/page.js").text == "script"
    for path in (
        "/static/../secret.txt",
        "/static/%2e%2e/secret.txt",
        "/static/..%2fsecret.txt",
        "/static//etc/passwd",
        "/static/..\\secret.txt",
        "/static/link.txt",
        "/static/",
        "/static/%00",
        "/static/" + "x" * 300,
    ):
        answer = client.get(path)
        assert answer.status_code in (401, 404), path  # a client may resolve the dots itself
        assert "secret" not in answer.text


# --- where it listens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "photos.example", "127.0.0.1.example"])
def test_other_machines_need_a_token(host: str) -> None:
    with pytest.raises(TellapartError, match="needs a token"):
        web.check_access(host, None)
    web.check_access(host, TOKEN)


@pytest.mark.parametrize(
    "token", ["", "short", "with blanks in it 123", "ünïcödé-tökens-are-bad", "line\nbreak-1234567"]
)
def test_bad_tokens(token: str) -> None:
    with pytest.raises(TellapartError, match="--token"):
        web.check_access("127.0.0.1", token)


def test_listen() -> None:
    for host in ("127.0.0.1", "localhost"):
        web.check_access(host, None)
    with web.listen("127.0.0.1", 0) as opened:
        port = opened.getsockname()[1]
        assert web.address_of(opened, TOKEN) == f"http://127.0.0.1:{port}/#token={TOKEN}"
        with pytest.raises(TellapartError, match=f"--port {port}: cannot listen"):
            web.listen("127.0.0.1", port)
    with pytest.raises(TellapartError, match="--host"):
        web.listen("no such host", 0)
