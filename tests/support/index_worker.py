"""Writers of an index in processes of their own: killed again and again, and in parallel with searches.

    python -m support.index_worker FOLDER

Processes are forked, so that a life costs few imports; the parent imports LanceDB, which has threads, after the last
fork.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lance_namespace  # noqa: F401  (these two are most of the time of LanceDB's import)
import pandas  # noqa: F401
import torch

from support.photos import ColourEncoder, make_pictures, make_retriever_folder, register
from tellapart.data.parts import WHOLE, Part
from tellapart.index import photos
from tellapart.index.photos import open_index

PICTURES = 120


def fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return child


def ended_well(child: int) -> bool:
    """Whether it ended by itself; an error of its own fails."""
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a process ended by itself, and not well"
    return os.WIFEXITED(status)


def add(place: Path, model: Path, pictures: Path, confirm: Callable[[int], None], part: Part = WHOLE) -> None:
    index = open_index(place, model)
    before = len(index)
    index.add([pictures], part=part, on_progress=lambda done, of: confirm(before + done))


def check(place: Path, confirmed: int) -> None:
    """Everything that was confirmed is there, once."""
    index = open_index(place)
    assert len(index) >= confirmed, (len(index), confirmed)
    found = index.search("a car", 1000)
    assert len({one.path for one in found}) == len(found) == len(index)


def kill_and_continue(place: Path, model: Path, pictures: Path, deaths: int) -> None:
    """Kill a writer at some time after a confirmation; the next one looks at what it left, and continues."""
    chance = random.Random(0)
    confirmed = 0

    def life(say: int, confirmed: int) -> None:
        if confirmed:
            check(place, confirmed)
        add(place, model, pictures, lambda count: os.write(say, b"%d\n" % count) and None)

    for left in reversed(range(deaths + 1)):
        hear, say = os.pipe()
        child = fork(partial(life, say, confirmed))
        os.close(say)
        with os.fdopen(hear) as lines:
            for number, line in enumerate(lines):
                confirmed = max(confirmed, int(line))
                if number == 1 and left:
                    time.sleep(chance.uniform(0, 0.04))
                    os.kill(child, signal.SIGKILL)
        assert ended_well(child) == (left == 0)

    def again() -> None:
        check(place, PICTURES)
        assert open_index(place).add([pictures]).unchanged == PICTURES
        assert ColourEncoder.encoded == 0

    assert ended_well(fork(again))


def parts_and_searches(place: Path, model: Path, pictures: Path) -> None:
    """Two writers in parallel, and searches meanwhile, which find more and more."""

    def write(number: int) -> int:
        return fork(partial(add, place, model, pictures, lambda count: None, Part(number, 2)))

    writers = [write(0), write(1)]
    while not (place / "index.json").exists():
        time.sleep(0.01)
    index = open_index(place, model)
    counts = []
    while any(os.waitid(os.P_PID, one, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None for one in writers):
        if len(index):
            counts.append(len(index.search("a car", 1000)))
    assert all(map(ended_well, writers))
    assert counts == sorted(counts)
    check(place, PICTURES)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    register()
    photos.BATCH, photos.BLOCK = 4, 8
    model, pictures = make_retriever_folder(folder / "model"), make_pictures(folder / "pictures", PICTURES)
    kill_and_continue(folder / "killed.lance", model, pictures, deaths=3)
    parts_and_searches(folder / "parts.lance", model, pictures)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
