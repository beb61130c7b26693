"""What a service is made of and what it allows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tellapart.errors import TellapartError
from tellapart.serve.web import Limits

# Longest sentence in a request, in characters.
LONGEST_TEXT = 500
# Uploads that one request may name.
MOST_IDS = 500


@dataclass(frozen=True)
class ServeSettings:
    """Settings of `tellapart serve`.

    Attributes:
        collection: an index of `tellapart index`, whose photographs are searched; none by default.
        models: the captioner's run or model folder; several are an ensemble.
        retriever: a retriever's run or model folder; by default that of the index, or the shipped one.
        token: see `web.Guard`.
        max_upload: most bytes of a request.
        max_pixels: most pixels of a picture, checked before it is decoded.
        max_pictures: most pictures of a request.
        queue: most pictures that are accepted and not answered; more are refused with 503.
        batch: most pictures that go through the models at once.
        hold: uploads whose features are kept.
        forget_minutes: an upload is forgotten after so long without a request that names it.
        seconds: time to send a request, and to take an answer.
    """

    collection: str | None = None
    models: tuple[Path, ...] = (Path("shipped"),)
    retriever: Path | None = None
    token: str | None = None
    max_upload: int = 32 << 20
    max_pixels: int = 40_000_000
    max_pictures: int = 16
    queue: int = 256
    batch: int = 32
    hold: int = 300
    forget_minutes: float = 60.0
    seconds: float = 30.0

    def __post_init__(self) -> None:
        for name, value in (("queue", self.queue), ("hold", self.hold)):
            if value < self.max_pictures:
                raise TellapartError(
                    f"--{name} {value}: is less than the {self.max_pictures} pictures of a request; raise it, or lower "
                    "--max-pictures"
                )

    @property
    def limits(self) -> Limits:
        """Bodies together are at most eight full ones."""
        return Limits(body=self.max_upload, bodies=8 * self.max_upload, seconds=self.seconds)
