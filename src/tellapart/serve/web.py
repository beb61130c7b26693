"""Run a small web application safely; used by `tellapart serve` and `tellapart judge`.

Without a token only this machine may connect. Bodies are limited in size, time and sum, and kept in memory. Every
answer has headers that forbid scripts and requests from elsewhere. After SIGTERM, accepted requests are answered.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.errors import MissingExtraError, TellapartError, shorten

try:
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import FileResponse, JSONResponse, Response
    from starlette.datastructures import Headers, MutableHeaders, UploadFile
    from starlette.exceptions import HTTPException
    from starlette.formparsers import MultiPartException, MultiPartParser
    from starlette.staticfiles import StaticFiles
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise MissingExtraError(error.name or "fastapi", "serve") from None

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("tellapart.serve")

# Shortest token: one of 16 characters cannot be guessed.
SHORTEST_TOKEN = 16
# A body that is not wanted is read and dropped for so long: else the sender sees a broken connection, not the answer.
DROP_SECONDS, DROP_BYTES = 3.0, 64 << 20
# Seconds that a client may take to send the head of a request and to take an answer, and an idle connection stays open.
HEAD_SECONDS, ANSWER_SECONDS, IDLE_SECONDS = 10.0, 30.0, 5
# Paths that need no token: the page has no data in it.
OPEN_PATHS = ("/", "/health")
OPEN_FOLDER = "/static/"

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

# Called with the path of the route (not of the request), the method, the status and the seconds of every answer.
OnAnswer = Callable[[str, str, int, float], None]


@dataclass(frozen=True)
class Limits:
    """What a client may do.

    Attributes:
        body: most bytes of a request.
        bodies: most bytes of all requests at once; more are refused with 503.
        requests: most requests at once.
        seconds: time to send a body.
    """

    body: int = 32 << 20
    bodies: int = 256 << 20
    requests: int = 1024
    seconds: float = 30.0


@dataclass
class Status:
    """Whether the server is about to stop."""

    stopping: bool = False


class Refusal(Exception):
    """An error that the client is told about.

    Args:
        status: of HTTP.
        code: one word for programs.
        message: what is wrong and what to do.
        retry_after: seconds after which the same request may succeed.
        more: further fields of the error.
    """

    def __init__(self, status: int, code: str, message: str, retry_after: int | None = None, **more: Any) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.retry_after, self.more = status, code, message, retry_after, more

    def answer(self) -> JSONResponse:
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        message = shorten(self.message, 500).encode("utf-8", "replace").decode("utf-8")  # it may quote the client
        content = {"error": {"code": self.code, "message": message, **self.more}}
        return JSONResponse(content, self.status, headers)


# --- where it listens -------------------------------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach this address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_access(host: str, token: str | None) -> None:
    """Raise unless the address is this machine's own, or a good token is set."""
    if token is not None:
        if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
            raise TellapartError(
                f"--token: give at least {SHORTEST_TOKEN} letters, digits or signs, e.g. {secrets.token_urlsafe(24)}"
            )
    elif not is_loopback(host):
        raise TellapartError(
            f"--host {host}: others can connect to this address, so it needs a token; add "
            f"--token {secrets.token_urlsafe(24)} (or set TELLAPART_TOKEN), or use 127.0.0.1"
        )


def listen(host: str, port: int) -> socket.socket:
    """An open socket; port 0 is any free one."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise TellapartError(f"--host {host}: is not an address of this machine; use 127.0.0.1 or 0.0.0.0") from None
    family, kind, number, _, address = found[0]
    opened = socket.socket(family, kind, number)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(2048)
    except OSError as error:
        opened.close()
        raise TellapartError(
            f"--port {port}: cannot listen on {host} ({error.strerror}); choose another port, or 0 for any free one"
        ) from None
    return opened


def address_of(opened: socket.socket, token: str | None = None) -> str:
    """The page's address. The token is in the fragment, which browsers do not send, so that it is in no log."""
    host, port = opened.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + ("" if token is None else f"#token={token}")


# --- run --------------------------------------------------------------------------------------------------------------


def run(app: ASGIApp, opened: socket.socket, status: Status | None = None, stop_seconds: int = 60) -> None:
    """Serve an application on an open socket until SIGTERM or Ctrl-C; then answer what was accepted, and return.

    Args:
        app: with a `Guard`.
        opened: from `listen`.
        status: told when the server is about to stop.
        stop_seconds: requests that are not answered so long after the signal are dropped.
    """
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        loop="asyncio",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=stop_seconds,
    )
    server = _Server(config, status or Status())
    try:
        asyncio.run(server.serve(sockets=[opened]))
    finally:
        opened.close()


class _Server(uvicorn.Server):
    """uvicorn's server; a stop that was asked for is no failure of the process."""

    def __init__(self, config: uvicorn.Config, status: Status) -> None:
        super().__init__(config)
        self._status = status

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: Any) -> None:
        self._status.stopping = True
        self.handle_exit(number, frame)


class _Protocol(H11Protocol):
    """uvicorn's protocol; connections are closed whose next request does not begin, or whose answer is not taken."""

    _waiting: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(ANSWER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._waiting, self._writing):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            # Not `close`, which would wait until the client has taken the rest of its answer.
            self.transport.abort()


# --- guard ------------------------------------------------------------------------------------------------------------


class Guard:
    """ASGI middleware: token, origin, body limits, security headers, errors as JSON.

    Args:
        app: the application.
        token: needed for all paths but `OPEN_PATHS` and `OPEN_FOLDER`. Without one, requests must name this machine
            (`Host: localhost`), so that no other site can reach it through a name of its own.
        limits: of requests.
        on_answer: told of every answer.
    """

    def __init__(
        self, app: ASGIApp, token: str | None = None, limits: Limits | None = None, on_answer: OnAnswer | None = None
    ) -> None:
        self.app = app
        self.token = None if token is None else token.encode("ascii")
        self.limits = limits or Limits()
        self.on_answer = on_answer
        self._open = 0
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-cache" if _is_open(scope["path"]) else "no-store")
            await send(message)

        held = _Held()
        try:
            self._check(scope)
            body = await self._body(receive, held)
            if body is not None:
                await self.app(scope, _replay(body, receive), answer)
        except Refusal as refusal:
            await _refuse(refusal, scope, receive, answer)
        except Exception:
            if status:
                raise
            log.exception("%s %s", scope["method"], scope["path"])
            mistake = Refusal(500, "internal", "the server made a mistake; its log says more")
            await mistake.answer()(scope, receive, answer)
        finally:
            self._open -= held.open
            self._bytes -= held.bytes
            if self.on_answer is not None and status:
                route = getattr(scope.get("route"), "path", "other")
                self.on_answer(route, scope["method"], status, time.perf_counter() - began)

    def _check(self, scope: Scope) -> None:
        """Refuse requests that may not be answered, by their head."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self.token is None and not is_loopback(_host_name(host)):
            raise Refusal(403, "host", "this address is not the server's; open it as http://127.0.0.1:PORT/")
        origin = headers.get("origin")
        if origin is not None and scope["method"] not in ("GET", "HEAD") and origin.partition("://")[2] != host:
            raise Refusal(403, "origin", "a page of another site may not use this server; open the server's own page")
        if self.token is not None and not _is_open(scope["path"]):
            kind, _, given = headers.get("authorization", "").partition(" ")
            right = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), self.token)
            if kind.lower() != "bearer" or not right:
                raise Refusal(401, "token", "a token is needed; send the header Authorization: Bearer TOKEN")
        length = headers.get("content-length")
        if length is not None and (not re.fullmatch(r"[0-9]{1,15}", length) or int(length) > self.limits.body):
            raise self._too_large()

    async def _body(self, receive: Receive, held: _Held) -> bytes | None:
        """The whole body; `None` if the client is gone. Its bytes count until the request is answered."""
        if self._open >= self.limits.requests:
            raise Refusal(503, "busy", "too many requests are open; try again in a few seconds", retry_after=2)
        self._open += 1
        held.open = 1
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    chunk = message.get("body", b"")
                    held.bytes += len(chunk)
                    self._bytes += len(chunk)
                    if held.bytes > self.limits.body:
                        raise self._too_large()
                    if self._bytes > self.limits.bodies:
                        raise Refusal(503, "busy", "the server has too many uploads at once; try again", retry_after=2)
                    body += chunk
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise Refusal(408, "slow", f"the request took over {self.limits.seconds:g} s to arrive") from None

    def _too_large(self) -> Refusal:
        return Refusal(413, "too_large", f"the request is over {self.limits.body:,} bytes; send fewer or smaller files")


@dataclass
class _Held:
    """What a request counts for in the sums of a guard."""

    open: int = 0
    bytes: int = 0


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


def _host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give a body that was read, then whatever comes after it (that the client is gone)."""
    left = [body]

    async def read() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return read


async def _refuse(refusal: Refusal, scope: Scope, receive: Receive, answer: Send) -> None:
    """Answer a request whose body may still be on its way, and close the connection."""
    headers = Headers(scope=scope)
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if has_body and refusal.status != 408 and headers.get("expect", "").lower() != "100-continue":
        await _drop(receive)
    response = refusal.answer()
    if has_body:
        response.headers["connection"] = "close"
    await response(scope, receive, answer)


async def _drop(receive: Receive) -> None:
    """Read a body to its end, or as long as that is reasonable, and forget it."""
    dropped = 0
    try:
        async with asyncio.timeout(DROP_SECONDS):
            while dropped < DROP_BYTES:
                message = await receive()
                dropped += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        pass


# --- applications -----------------------------------------------------------------------------------------------------


def new_app(title: str, version: str, description: str, static: Path | None = None, **options: Any) -> FastAPI:
    """A FastAPI application whose errors are JSON, with a folder of static files whose `index.html` is the page.

    FastAPI's pages of documentation are off: they load scripts from other servers.
    """
    app = FastAPI(
        title=title,
        version=version,
        description=description,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        **options,
    )
    app.add_exception_handler(Refusal, _on_refusal)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    if static is not None:
        page = static / "index.html"

        @app.get("/", include_in_schema=False)
        async def index() -> Response:
            return FileResponse(page)

        app.mount(OPEN_FOLDER.rstrip("/"), StaticFiles(directory=static), name="static")
    return app


async def _on_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return error.answer()


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method", 400: "request"}
    said = {404: "nothing is here; /openapi.json lists what there is", 405: "this method is not for this address"}
    message = said.get(error.status_code, str(error.detail))
    answer = Refusal(error.status_code, codes.get(error.status_code, "request"), message).answer()
    answer.headers.update(error.headers or {})
    return answer


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = dict(error.errors()[0])
    # A body that is not declared as JSON is not read as JSON: then none of its values is wrong, but the header.
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if first["loc"] == ("body",) and not kind.endswith(("/json", "+json")):
        sent = f"not as '{shorten(kind, 40)}'" if kind else "which is missing"
        return Refusal(422, "invalid", f"send JSON with the header 'Content-Type: application/json', {sent}").answer()
    where = ".".join(str(part) for part in first["loc"][1:]) or "the request"
    return Refusal(422, "invalid", f"{where}: {first['msg']}").answer()


class _InMemory(MultiPartParser):
    """Starlette's parser, which otherwise writes files over 1 MB to the disk. The guard limits the size."""

    spool_max_size = 1 << 40


async def read_files(request: Request, field: str, most: int) -> list[tuple[str, bytes]]:
    """Names and contents of the files of an upload (`multipart/form-data`), in memory.

    Args:
        request: behind a `Guard`.
        field: name of the form's field.
        most: number of files.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise Refusal(415, "type", f"send the files as multipart/form-data, in the field '{field}'")
    try:
        form = await _InMemory(request.headers, request.stream(), max_files=most, max_fields=most).parse()
    except MultiPartException as error:
        if "Too many files" in error.message:
            raise Refusal(413, "too_many", f"send at most {most} files at once") from None
        raise Refusal(400, "form", f"the form cannot be read ({error.message}); send multipart/form-data") from None
    unknown = [name for name in form if name != field]
    if unknown:
        raise Refusal(422, "field", f"the form has a field '{shorten(unknown[0], 40)}'; send files in '{field}' only")
    files = [one for one in form.getlist(field) if isinstance(one, UploadFile)]
    if not files:
        raise Refusal(422, "no_files", f"no file is in the field '{field}'; send at least one")
    return [(one.filename or "", await one.read()) for one in files]
