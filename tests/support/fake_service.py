"""A stand-in for `tellapart serve`: the page's files and answers like the service's, without models."""

from __future__ import annotations

import io
import json
import threading
import time
import zlib
from collections import Counter
from email.parser import BytesParser
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

import tellapart.serve.web as web

STATIC = Path(web.__file__).parent / "static"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
COLOURS = {"red": (200, 60, 50), "green": (70, 150, 80), "blue": (60, 90, 190), "yellow": (225, 190, 70)}
PLACES = ("table", "beach", "chair", "street", "meadow", "roof")
SIDE = 7


def picture(colour: str, size: tuple[int, int] = (160, 120), kind: str = "JPEG", place: int = 0) -> bytes:
    """A ball of this colour, as a file."""
    image = Image.new("RGB", size, (235, 230 - 4 * place, 220))
    x, y = (2 + place) % 4 / 4 * size[0] * 0.7, size[1] * 0.25
    ImageDraw.Draw(image).ellipse((x, y, x + size[1] / 2, y + size[1] / 2), fill=COLOURS[colour])
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


@lru_cache
def thumbnail(id: str) -> bytes:
    number = int(id[1:])
    return picture(list(COLOURS)[number % 4], place=number // 4)


def words_of(caption: str, distinguishing: str = "") -> list[dict[str, Any]]:
    """Each word looks at one cell of the second row, from the left on."""
    said = enumerate(caption.split())
    return [
        {
            "word": word,
            "log_probability": -0.1 * (place + 1),
            "distinguishing": word in distinguishing.split(),
            "attention": [1.0 if cell == SIDE + place else 0.02 for cell in range(SIDE * SIDE)],
        }
        for place, word in said
    ]


class FakeService:
    """The service and what a test may change.

    Attributes:
        collection: how many pictures it has; 0 for none.
        busy: how many of the next requests are answered with 503.
        delays: seconds that a search for these words takes.
        may_tell: while it is cleared, requests to tell apart wait.
        token: needed by all requests if set.
        asked: what came in, as (path, body).
    """

    def __init__(self, collection: int = 24) -> None:
        self.collection, self.busy, self.token = collection, 0, ""
        self.delays: dict[str, float] = {}
        self.may_tell = threading.Event()
        self.may_tell.set()
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.held: dict[str, dict[str, Any]] = {}
        self._number = 0
        self._lock = threading.Lock()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None: ...

            def do_GET(self) -> None:
                service.answer(self, None)

            def do_POST(self) -> None:
                service.answer(self, self.rfile.read(int(self.headers["content-length"])))

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def count(self, path: str) -> int:
        return Counter(asked for asked, _ in self.asked)[path]

    def forget(self) -> None:
        self.held.clear()

    # --- answers ------------------------------------------------------------------------------------------------------

    def answer(self, to: BaseHTTPRequestHandler, body: bytes | None) -> None:
        status, kind, content, more = self._answer(to, body)
        try:
            to.send_response(status)
            for name, value in {
                **web.HEADERS,
                "content-type": kind,
                "content-length": str(len(content)),
                **more,
            }.items():
                to.send_header(name, value)
            to.end_headers()
            to.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the page did not wait for it

    def _answer(self, to: BaseHTTPRequestHandler, body: bytes | None) -> tuple[int, str, bytes, dict[str, str]]:
        path = to.path.split("?")[0]
        if path == "/" or path.startswith("/static/"):
            file = STATIC / ("index.html" if path == "/" else path.removeprefix("/static/"))
            return (200, KINDS[file.suffix], file.read_bytes(), {}) if file.exists() else (404, "text/plain", b"", {})
        try:
            if self.token and to.headers["authorization"] != f"Bearer {self.token}":
                raise web.Refusal(401, "token", "A token is needed.")
            with self._lock:
                busy, self.busy = self.busy > 0, max(0, self.busy - 1)
            if busy:
                raise web.Refusal(503, "busy", "The server is busy. Try again later.", retry_after=0)
            if path.endswith("/thumbnail"):
                return 200, "image/jpeg", thumbnail(path.split("/")[-2]), {}
            content = self._json(path, to.headers["content-type"] or "", body or b"")
            return 200, "application/json", json.dumps(content).encode(), {}
        except web.Refusal as refusal:
            response = refusal.answer()
            retry = {"retry-after": str(refusal.retry_after)} if refusal.retry_after is not None else {}
            return refusal.status, "application/json", bytes(response.body), retry

    def _json(self, path: str, kind: str, body: bytes) -> dict[str, Any]:
        if path == "/api/captions":
            message = BytesParser().parsebytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body)
            files = [(part.get_filename(), part.get_payload(decode=True)) for part in message.get_payload()]
            self.asked.append((path, {"files": [name for name, _ in files]}))
            return {"pictures": [self._caption(*file) for file in files]}
        asked = json.loads(body) if body else {}
        self.asked.append((path, asked))
        return {
            "/api/about": self._about,
            "/api/tell-apart": self._tell,
            "/api/search": self._search,
            "/api/search/picture": self._search,
            "/api/fetches": self._fetches,
        }[path](asked)

    def _about(self, _: dict[str, Any]) -> dict[str, Any]:
        held = {"name": "photos.lance", "pictures": self.collection} if self.collection else None
        limits = {
            "max_upload_bytes": 1_000_000,
            "max_pixels": 10**8,
            "max_pictures": 8,
            "max_told": 8,
        }
        models = {
            "captioner": {"name": "coco", "shipped": True},
            "retriever": {"name": "coco-retriever", "shipped": False},
        }
        return {"version": "0.1.0", **models, "collection": held, "limits": limits}

    def _caption(self, name: str, content: bytes) -> dict[str, Any]:
        nothing = {"id": None, "width": None, "height": None, "caption": None, "log_probability": None, "grid": None}
        try:
            image = Image.open(io.BytesIO(content)).convert("RGB")
        except OSError:
            message = f"{name} is not a picture that can be read. Save it again as JPEG or PNG."
            return {**nothing, "name": name, "words": [], "error": {"code": "unreadable", "message": message}}
        self._number += 1
        seen = [colour for _, colour in image.resize((20, 15)).getcolors(300)]
        distance = {
            name: min(sum(abs(a - b) for a, b in zip(rgb, one, strict=True)) for one in seen)
            for name, rgb in COLOURS.items()
        }
        likest = min(distance, key=lambda name: distance[name])
        held = {
            "id": f"u{self._number}",
            "name": name,
            "caption": f"a {likest} ball",
            "place": PLACES[self._number % 6],
            "seen": zlib.crc32(content),
        }
        self.held[held["id"]] = held
        said = {"words": words_of(held["caption"]), "caption": held["caption"], "log_probability": -3.2}
        return {
            **said,
            "id": held["id"],
            "name": name,
            "width": image.width,
            "height": image.height,
            "grid": [SIDE, SIDE],
            "error": None,
        }

    def _check(self, ids: list[str]) -> None:
        gone = [id for id in ids if id not in self.held]
        if gone:
            raise web.Refusal(404, "forgotten", "The server no longer has this picture. Send it again.", ids=gone)

    def _entries(self) -> list[dict[str, Any]]:
        entries = []
        for number in range(self.collection):
            caption = f"a {list(COLOURS)[number % 4]} ball on a {PLACES[number % 6]}"
            entry = {
                "id": f"c{number}",
                "name": f"photo {number}.jpg",
                "thumbnail": f"/api/collection/c{number}/thumbnail",
            }
            entries.append({**entry, "where": "collection", "caption": caption})
        return entries

    def _tell(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.may_tell.wait(60)
        self._check(asked["ids"])
        first: dict[int, str] = {}
        for id in asked["ids"]:
            first.setdefault(self.held[id]["seen"], id)
        of = len(first) + min(asked["distractors"], self.collection)
        pictures = []
        for id in asked["ids"]:
            same = first[self.held[id]["seen"]]
            held = self.held[same]
            told = f"{held['caption']} on a {held['place']}"
            plain = {"caption": held["caption"], "rank": min(of, 3), "of": of, "words": words_of(held["caption"])}
            distinctive = {"caption": told, "rank": 1, "of": of, "words": words_of(told, held["place"])}
            same_as = None if same == id else same
            said = {"plain": plain, "distinctive": distinctive, "source": "contrast"}
            pictures.append({"id": id, **said, "same_as": same_as})
        return {"groups": [{"pictures": pictures, "distractors": self._entries()[: asked["distractors"]]}]}

    def _found(self, words: str, asked: dict[str, Any], among: str) -> list[dict[str, Any]]:
        uploads = [{**self.held[id], "where": "upload"} for id in asked["ids"] if id in self.held]
        for upload in uploads:
            upload["caption"] = f"{upload['caption']} on a {upload['place']}"
        both = (uploads if among != "collection" else []) + (self._entries() if among != "uploads" else [])
        wanted = set(words.split())
        found = [{**one, "score": len(wanted & set(one["caption"].split())) / max(1, len(wanted))} for one in both]
        return sorted(found, key=lambda one: -one["score"])

    def _search(self, asked: dict[str, Any]) -> dict[str, Any]:
        words = asked.get("query")
        if words is None:
            if asked["id"].startswith("u"):
                self._check([asked["id"]])
            entries = {one["id"]: one for one in (*self._entries(), *self.held.values())}
            words = entries[asked["id"]]["caption"]
        time.sleep(self.delays.get(words, 0))
        found = [one for one in self._found(words, asked, asked["among"]) if one["score"] > 0.4]
        gone = [id for id in asked["ids"] if id not in self.held]
        return {"results": found[: asked["limit"]], "took_ms": 3, "forgotten": gone}

    def _fetches(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._check([asked["id"]])
        found = self._found(asked["caption"], asked, "both")
        rank = [one["id"] for one in found].index(asked["id"]) + 1
        said = {"words": words_of(asked["caption"]), "log_probability": -9.1, "rank": rank, "rank_is_exact": True}
        return {**said, "of": len(found), "results": found[: asked["limit"]], "forgotten": []}
