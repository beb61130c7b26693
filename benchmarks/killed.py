"""A command that is killed with `kill -9` again and again, beside the same command that is not.

    .venv/bin/python benchmarks/killed.py [--copy RUN] [--seconds 30] [--kills 3] FOLDER COMMAND ...

COMMAND is run twice, each time with `{}` in its words replaced by a folder of its own: FOLDER/straight, where nothing
disturbs it, and FOLDER/killed, where it gets SIGKILL after so many seconds, so many times, and then runs to the end.
With `--copy` both folders begin as copies of a run, for commands that write into one. For example

    .venv/bin/python benchmarks/killed.py --seconds 60 try tellapart train coco/adaptive-mle.yaml data.source=DATA \
        training.steps=300 training.validate_every=50 --out {}/run

All files of the two folders are then compared: tensors and arrays by value, JSON without the times in it, everything
else by bytes. The exit status is 1 if a file differs or is missing, or if the command ended before it was killed once.
The tests do the same on small data and with hundreds of deaths (tests/test_kill.py, tests/engine/test_kill.py).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

# What differs between two runs of the same work, whatever happens to them.
TIMES = {"seconds", "seconds_of_last_session", "waiting"}
# Event files of tensorboard are full of times; logs and locks are no results.
SKIPPED = {"tensorboard", ".lock"}


def run(command: list[str], folder: Path, seconds: float | None) -> bool:
    """Run the command, and kill it after so many seconds; gives whether it came to the end."""
    words = [word.replace("{}", str(folder)) for word in command]
    with open(folder.with_suffix(".log"), "ab") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return False
    if status:
        sys.exit(f"{' '.join(words)} failed with status {status}; {folder.with_suffix('.log')} says why")
    return True


def without_times(value: Any) -> Any:
    """JSON without the keys that hold times."""
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items() if key not in TIMES}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def equal(one: Any, other: Any) -> bool:
    """Equal to the last bit, all the way down, but for times."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one.keys() - TIMES)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def same(one: Path, other: Path) -> bool:
    """Whether two files hold the same results."""
    if one.read_bytes() == other.read_bytes():
        return True
    if one.suffix == ".pt":
        return equal(*(torch.load(path, weights_only=True) for path in (one, other)))
    if one.suffix in (".json", ".jsonl"):
        texts = [path.read_text() for path in (one, other)]
        rows = [text.splitlines() if one.suffix == ".jsonl" else [text] for text in texts]
        return equal(*([without_times(json.loads(row)) for row in file] for file in rows))
    return False


def files(folder: Path) -> set[Path]:
    """All files with results below a folder, by their place in it."""
    places = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {place for place in places if not SKIPPED & {*place.parts, place.suffix}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--copy", type=Path, help="a run that both folders begin with")
    parser.add_argument("--seconds", type=float, default=30, help="life of the process before it is killed")
    parser.add_argument("--kills", type=int, default=3, help="how often it is killed")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    straight, killed = options.folder / "straight", options.folder / "killed"
    for folder in (straight, killed):
        if options.copy:
            shutil.copytree(options.copy, folder)
        else:
            folder.mkdir(parents=True)

    started = time.perf_counter()
    run(options.command, straight, None)
    alone = time.perf_counter() - started
    started, deaths = time.perf_counter(), 0
    while not run(options.command, killed, options.seconds if deaths < options.kills else None):
        deaths += 1
    lasted = time.perf_counter() - started

    wrong = sorted(str(place) for place in files(straight) ^ files(killed))
    both = files(straight) & files(killed)
    wrong += sorted(str(place) for place in both if not same(straight / place, killed / place))
    print(f"not killed: {alone:.0f} s; killed {deaths} times after {options.seconds:.0f} s each: {lasted:.0f} s in all")
    print(f"{len(both)} files compared; " + (f"these differ: {', '.join(wrong)}" if wrong else "all are equal"))
    if not deaths:
        print("it was never killed: take fewer --seconds")
    sys.exit(bool(wrong) or not deaths)


if __name__ == "__main__":
    main()
