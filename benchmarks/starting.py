"""What it costs to start: `tellapart --help` beside a bare interpreter, the first caption beside importing torch.

    .venv/bin/python benchmarks/starting.py [--rounds 5]

CPU time of whole processes, children included, the best of alternating rounds. The picture is made up; the model is the
one that is shipped. A bare interpreter and the import of torch are what has to be done before our first line.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

PYTHON = [sys.executable]
TELLAPART = [*PYTHON, "-m", "tellapart.cli"]


def cpu_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        photo = Path(folder) / "photo.png"
        Image.radial_gradient("L").convert("RGB").save(photo)
        commands = {
            "bare interpreter": [*PYTHON, "-c", "pass"],
            "importing typer": [*PYTHON, "-c", "import typer"],
            "tellapart --help": [*TELLAPART, "--help"],
            "importing torch": [*PYTHON, "-c", "import torch"],
            "tellapart caption": [*TELLAPART, "caption", str(photo)],
        }
        best = dict.fromkeys(commands, float("inf"))
        for number in range(rounds + 1):
            for name, command in commands.items():
                taken = cpu_seconds(command)
                if number:  # the first one reads the files from the disk
                    best[name] = min(best[name], taken)
    for name, bound in (
        ("importing typer", "bare interpreter"),
        ("tellapart --help", "bare interpreter"),
        ("tellapart caption", "importing torch"),
    ):
        ratio = best[name] / best[bound]
        print(f"{name:20} {1000 * best[name]:7.0f} ms, {bound} {1000 * best[bound]:6.0f} ms: {ratio:.2f} times")


if __name__ == "__main__":
    main()
