"""The command with the encoder of the tests, in a process of its own.

    python -m support.serve_worker SECONDS serve …

Each batch of captions takes at least so many seconds, and a client has two seconds to begin a request.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from support.photos import register
from tellapart.cli import main
from tellapart.serve import web
from tellapart.serve.models import Models

if __name__ == "__main__":
    register()
    web.HEAD_SECONDS = 2.0
    seconds = float(sys.argv.pop(1))
    caption = Models.caption

    def slowly(self: Models, pictures: Sequence[Any]) -> list[Any]:
        time.sleep(seconds)
        return caption(self, pictures)

    Models.caption = slowly  # type: ignore[method-assign]
    main()
