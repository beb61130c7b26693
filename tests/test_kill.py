"""kill -9 in the middle of long work: it continues, and ends as if nothing had happened."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.stream_worker import WORK
from support.workers import run_worker


@pytest.mark.parametrize("work", WORK)
def test_work_killed_again_and_again_ends_as_if_nothing_had_happened(work: str, tmp_path: Path) -> None:
    done = run_worker(1, "support.stream_worker", work, str(tmp_path), "0")
    told = re.search(r"deaths (\d+)", done.stdout)
    assert told is not None
    assert int(told[1]) >= 2, "it was killed a few times"
