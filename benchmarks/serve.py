"""The service under load against the bare model at batch, side by side in one run.

.venv/bin/python benchmarks/serve.py [--clients 200] [--seconds 60] [--pictures FOLDER]

Starts `tellapart serve` with the shipped models, and clients that send one picture after another as fast as they are
answered. A client that is refused (503) waits for as long as the answer says. Before and after, the library captions
the same files in batches (`tellapart.load().caption`, with decoding); so the clients ask for captions without words,
unless --words is given. Processor time is compared too, since it does not depend on what else the machine does. Exits
with 1 if an answer is neither 200 nor 503, or a request has no answer.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from tellapart.data.images import SUFFIXES

BATCH = 32
BOUNDARY = "tellapart-benchmark"


@dataclass
class Load:
    """What the clients saw."""

    sent: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)


def make_pictures(count: int) -> list[bytes]:
    """Made-up photographs of 640×480 pixels."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        small = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        small.resize((640, 480), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        found.append(buffer.getvalue())
    return found


def read_pictures(folder: Path, count: int) -> list[bytes]:
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    return [path.read_bytes() for path in paths[:count]]


def request(content: bytes, words: bool) -> bytes:
    """A whole request. Clients are as light as can be, since they share the machine with the server."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="a.jpg"\r\n\r\n'
    body = head.encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()
    lines = f"POST /api/captions?words={words} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    return f"{lines}Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n".encode() + body


async def client(port: int, requests: list[bytes], until: float, load: Load) -> None:
    """Send pictures one after another over one connection."""
    reader = writer = None
    while time.monotonic() < until:
        if writer is None or reader is None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        load.sent += 1
        began = time.monotonic()
        try:
            writer.write(random.choice(requests))
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(head.split("content-length: ")[1].split("\r\n")[0])
            await reader.readexactly(length)
            if "connection: close" in head:
                writer.close()
                writer = None
        except (OSError, asyncio.IncompleteReadError) as error:
            load.statuses[type(error).__name__] += 1
            writer = None
            continue
        status = head.split()[1]
        load.statuses[status] += 1
        if status == "200":
            load.seconds.append(time.monotonic() - began)
        elif status == "503":
            if writer is not None:
                writer.close()  # the server closes idle connections
            writer = None
            await asyncio.sleep(float(head.split("retry-after: ")[1].split("\r\n")[0]) * random.uniform(0.5, 1))
    if writer is not None:
        writer.close()


def cpu_seconds(process: int) -> float:
    ticks = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def run_clients(port: int, process: int, clients: int, seconds: float, requests: list[bytes]) -> Load:
    load = Load()
    until = time.monotonic() + seconds

    async def watch() -> None:
        while True:
            load.memory.append(memory(process))
            await asyncio.sleep(1)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(client(port, requests, until, load) for _ in range(clients)))
    watching.cancel()
    return load


BARE = """
import json, sys, time, pathlib
import tellapart
folder, batch, seconds = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
pictures = [path.read_bytes() for path in sorted(folder.iterdir())]
model = tellapart.load()
model.caption(pictures[:batch])
began, used, done = time.perf_counter(), time.process_time(), 0
while time.perf_counter() - began < seconds:
    start = done % len(pictures)
    done += len(model.caption((pictures + pictures)[start : start + batch]))
print(json.dumps([done, time.perf_counter() - began, time.process_time() - used]))
"""


def bare(folder: Path, seconds: float) -> tuple[int, float, float]:
    """Pictures, seconds and processor seconds of the library."""
    command = [sys.executable, "-c", BARE, str(folder), str(BATCH), str(seconds)]
    done, taken, used = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return done, taken, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--queue", type=int, default=128, help="fewer than clients, so that some are refused")
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--words", action="store_true", help="ask for words and attention too")
    options = parser.parse_args()
    pictures = read_pictures(options.pictures, 256) if options.pictures else make_pictures(64)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, content in enumerate(pictures):
            (folder / f"{number:03d}.jpg").write_bytes(content)
        before = bare(folder, options.seconds / 2)
        load, used, taken = serve(options, pictures)
        after = bare(folder, options.seconds / 2)
    report(load, used, taken, (before, after))


def serve(options: argparse.Namespace, pictures: list[bytes]) -> tuple[Load, float, float]:
    """Run the clients against a new server; gives its processor seconds and the seconds that it took."""
    command = [sys.executable, "-m", "tellapart.cli", "serve", "--port", "0", "--queue", str(options.queue)]
    with subprocess.Popen([*command, "--batch", str(BATCH)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().split("/")[2].split(":")[1])
            requests = [request(one, options.words) for one in pictures]
            asyncio.run(run_clients(port, process.pid, 8, 2, requests))  # warm up
            used, began = cpu_seconds(process.pid), time.perf_counter()
            load = asyncio.run(run_clients(port, process.pid, options.clients, options.seconds, requests))
            used, taken = cpu_seconds(process.pid) - used, time.perf_counter() - began
            process.terminate()
            assert process.wait(90) == 0
        finally:
            process.kill()
    return load, used, taken


def report(load: Load, used: float, taken: float, rounds: tuple[tuple[int, float, float], ...]) -> None:
    done, seconds = load.statuses["200"], np.array(load.seconds)
    rate = done / taken
    bare_rate = sum(one[0] for one in rounds) / sum(one[1] for one in rounds)
    bare_cpu = sum(one[2] for one in rounds) / sum(one[0] for one in rounds)
    print(f"requests: {load.sent:,}, of them {dict(load.statuses)}")
    print(f"seconds until an answer: median {np.median(seconds):.2f}, 95 % within {np.quantile(seconds, 0.95):.2f}")
    low, last, most = (value / 1e6 for value in (load.memory[0], load.memory[-1], max(load.memory)))
    half = load.memory[len(load.memory) // 2] / 1e6
    print(f"memory in MB: {low:.0f} at first, {half:.0f} at half time, {last:.0f} at last, {most:.0f} at most")
    print(f"pictures a second: {rate:.1f}, bare model {bare_rate:.1f}: {rate / bare_rate:.0%}")
    print(
        f"processor time a picture: {1000 * used / done:.1f} ms, bare model {1000 * bare_cpu:.1f} ms: "
        f"{bare_cpu / (used / done):.0%}"
    )
    answered = sum(load.statuses.values()) == load.sent
    if not answered or set(load.statuses) - {"200", "503"}:
        sys.exit("a request was not answered, or not by 200 or 503")


if __name__ == "__main__":
    main()
