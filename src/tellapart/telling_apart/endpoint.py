"""Captions from a server with the interface of OpenAI's chat completions. Pictures are sent to it."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from tellapart.errors import DataError, TellapartError, shorten
from tellapart.files import Pieces, cache_folder, digest_of, parse_json, read_json
from tellapart.pages.base import data_address

# Where the key is, if the server needs one; it is never written to a file.
KEY = "TELLAPART_ENDPOINT_KEY"
SIDE = 768
SECONDS = 120
# Longest answer that is read, in bytes.
LONGEST = 1 << 20
PROMPT = (
    "Write {count} different captions of this picture, one a line, without numbers. Each is one plain sentence of 8 to "
    "15 words in lower case that says only what can be seen. Name what would help to find this picture among similar "
    "ones: colours, numbers, actions, places."
)
_BULLET = re.compile(r"^\s*(?:[-*•]|\(?\d{1,2}[.):])\s*")


@dataclass(frozen=True)
class Endpoint:
    """A server that captions pictures.

    Answers are kept in the cache folder, so that no picture is sent twice.

    Args:
        url: base address, such as `http://localhost:8000/v1`, or the full address of its chat completions.
        model: name of the model on the server.
        count: number of captions for each picture.

    Example:
        >>> Endpoint("http://localhost:8000/v1", "qwen2-vl").captions(image)      # doctest: +SKIP
        ['a brown dog with a red ball on wet sand', …]
    """

    url: str
    model: str
    count: int = 5

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise DataError(f"--endpoint {self.url}: is not an address; write it as http://HOST:PORT/v1")

    @property
    def address(self) -> str:
        base = self.url.rstrip("/")
        return base if base.endswith("/chat/completions") else f"{base}/chat/completions"

    def captions(self, image: Image.Image) -> list[str]:
        """The server's captions of a picture."""
        picture = data_address(image, SIDE)
        prompt = PROMPT.format(count=self.count)
        pieces = Pieces(cache_folder() / "endpoint")
        name = digest_of([self.address, self.model, prompt, picture])

        def read(path: Path) -> dict[str, Any]:
            kept = read_json(path)
            if not isinstance(kept, dict) or not isinstance(kept.get("answer"), str):
                raise DataError(f"{path}: is not an answer of a server")
            return kept

        found = pieces.find(name, read) or pieces.keep(name, {"answer": self._ask(prompt, picture)})
        return split_answer(found["answer"])[: self.count]

    def _ask(self, prompt: str, picture: str) -> str:
        content = [{"type": "text", "text": prompt}, {"type": "image_url", "image_url": {"url": picture}}]
        body = {"model": self.model, "messages": [{"role": "user", "content": content}], "max_tokens": 60 * self.count}
        headers = {"Content-Type": "application/json"}
        if os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {os.environ[KEY]}"
        request = urllib.request.Request(self.address, json.dumps(body).encode("utf-8"), headers)
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=SECONDS) as answer:
                text = answer.read(LONGEST).decode("utf-8", errors="replace")
        except urllib.error.HTTPError as error:
            hint = f"; give the key in the environment variable {KEY}" if error.code in (401, 403) else ""
            reason = shorten(error.read(2000).decode("utf-8", errors="replace")) or error.reason
            raise TellapartError(f"{self.address}: the server answers {error.code} ({reason}){hint}") from None
        except (OSError, ValueError) as error:  # URLError and timeouts are OSErrors
            reason = shorten(str(getattr(error, "reason", error)))
            raise TellapartError(f"{self.address}: cannot be reached ({reason}); check --endpoint") from None
        try:
            said = parse_json(text)["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError):
            said = None
        if not isinstance(said, str):
            raise TellapartError(f"{self.address}: the answer has no caption ({shorten(text, 100)}); check the model")
        return said


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirection would take the key and the picture to another server: it is an error."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def split_answer(text: str) -> list[str]:
    """The captions of an answer, one a line, without numbers, bullets and quotation marks.

    >>> split_answer('1. A red bus.\\n\\n- "two dogs"')
    ['A red bus', 'two dogs']
    """
    lines = (_BULLET.sub("", line).strip().strip("\"'“”").rstrip(".").strip() for line in text.splitlines())
    return [line for line in lines if line]
