"""Features of the last uploads, in memory only."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tellapart.index.base import Vector
from tellapart.serve.web import Refusal

# Ids of uploads begin with this; those of a collection are hexadecimal.
PREFIX = "u"


def _new_id() -> str:
    """A random id: who does not know it cannot use the upload."""
    return PREFIX + secrets.token_urlsafe(18)


@dataclass
class Upload:
    """What is kept of an uploaded picture: not the picture.

    Attributes:
        name: of its file.
        caption: its plain caption.
        features: for the captioner, `[regions, width]`.
        retriever_features: for the retriever; the same array if it has the same encoder.
        seen: digest of its pixels as the captioner reads them.
        vector: for searches, once one needed it.
    """

    name: str
    caption: str
    features: NDArray[np.float32]
    retriever_features: NDArray[np.float32]
    seen: bytes
    vector: Vector | None = None
    id: str = field(default_factory=_new_id)


class Uploads:
    """The last uploads; those that no request named for a while are dropped first.

    Args:
        most: number of uploads.
        seconds: an upload is dropped after so long without a request that names it.
        clock: seconds that only grow.
    """

    def __init__(self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._seconds, self._clock = most, seconds, clock
        self._held: OrderedDict[str, tuple[float, Upload]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def keep(self, upload: Upload) -> None:
        self._held[upload.id] = (self._clock(), upload)
        self.forget()

    def forget(self) -> None:
        """Drop what is too old or too much."""
        oldest = self._clock() - self._seconds
        while self._held and (len(self._held) > self._most or next(iter(self._held.values()))[0] < oldest):
            self._held.popitem(last=False)

    def find(self, ids: Sequence[str]) -> tuple[list[Upload], list[str]]:
        """The uploads with these ids, each once, and the ids of those that are forgotten."""
        self.forget()
        found, gone = [], []
        for id in dict.fromkeys(ids):
            if id in self._held:
                upload = self._held.pop(id)[1]
                self._held[id] = (self._clock(), upload)
                found.append(upload)
            else:
                gone.append(id)
        return found, gone

    def need(self, ids: Sequence[str]) -> list[Upload]:
        """The uploads with these ids; 404 if one is forgotten."""
        found, gone = self.find(ids)
        if gone:
            raise Refusal(404, "forgotten", "the server no longer holds these pictures; send them again", ids=gone)
        return found
