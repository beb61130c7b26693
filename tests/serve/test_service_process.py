"""The command in a process of its own: stopping, slow clients."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

pytest.importorskip("fastapi", reason="comes with the extra 'serve'")
pytest.importorskip("lancedb", reason="comes with the extra 'index'")

from support.docs import ROOT, blocks
from support.services import as_files, make_settings, picture_bytes
from support.workers import environment

TOKEN = "correct-horse-battery"


@contextmanager
def serving(
    folder: Path, *options: str, seconds: float = 0, photos: int = 0
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server, and its address."""
    settings = make_settings(folder, photos)
    models = ["--model", str(settings.models[0]), "--retriever", str(settings.retriever)]
    collection = [] if settings.collection is None else [settings.collection]
    worker = [sys.executable, "-m", "support.serve_worker", str(seconds)]
    command = [*worker, "serve", *collection, "--port", "0", *models, *options]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("http://"), line + process.stdout.read()
            yield process, line.split()[0]
        finally:
            process.kill()


def metric(address: str, name: str) -> float:
    lines = httpx.get(f"{address}metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_sigterm_answers_what_was_accepted(tmp_path: Path) -> None:
    with serving(tmp_path, "--batch", "2", seconds=0.3) as (process, address), ThreadPoolExecutor(8) as pool:
        files = as_files(picture_bytes())

        def send(_: int) -> int:
            return httpx.post(f"{address}api/captions", files=files, timeout=60).status_code

        sent = [pool.submit(send, number) for number in range(8)]
        while metric(address, "tellapart_waiting_captions") < 8:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert [one.result() for one in sent] == [200] * 8
        assert process.wait(30) == 0
        assert process.stdout is not None
        assert process.stdout.read() == ""  # no warning, no traceback
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address}health")


def test_slow_clients(tmp_path: Path) -> None:
    """Bodies that do not arrive get 408, heads that do not arrive are cut off, and others are served meanwhile."""
    with serving(tmp_path, "--timeout", "1", "--token", TOKEN) as (_, whole):
        assert whole.endswith(f"/#token={TOKEN}")
        address = urlsplit(whole)
        place = (str(address.hostname), int(address.port or 0))
        head = (
            f"POST /api/captions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 1000\r\n\r\n"
        )
        with closing(socket.create_connection(place, 30)) as body, closing(socket.create_connection(place, 30)) as idle:
            idle.sendall(b"GET /health HT")
            body.sendall(head.encode())
            stop = threading.Event()

            def drip() -> None:
                while not stop.wait(0.2):
                    try:
                        body.sendall(b"x")
                    except OSError:
                        return

            dripping = threading.Thread(target=drip)
            dripping.start()
            assert httpx.get(f"http://{address.netloc}/health").json() == {"status": "ok"}
            answer = body.recv(10_000).decode()
            stop.set()
            dripping.join()
            while "}}" not in answer and (more := body.recv(10_000)):  # head and body may come one after the other
                answer += more.decode()
            assert answer.startswith("HTTP/1.1 408 ")
            assert '"code":"slow"' in answer
            with suppress(ConnectionResetError):
                assert idle.recv(100) == b""
            assert httpx.get(f"http://{address.netloc}/api/about").status_code == 401


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_documented_calls_of_curl(tmp_path: Path) -> None:
    page = ROOT / "docs" / "serve.md"
    lines = [line for block in blocks(page) for line in block.text.splitlines() if line.startswith("curl ")]
    assert len(lines) == 2
    for name in ("dog.jpg", "cat.jpg"):
        (tmp_path / name).write_bytes(picture_bytes())
    with serving(tmp_path, photos=4) as (_, address):
        for line in lines:
            words = shlex.split(line.replace("http://127.0.0.1:8000/", address))
            done = subprocess.run([*words, "-sSf"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)
