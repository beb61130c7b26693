"""The photo index with many vectors: building, memory, exact search against a bare matrix product, approximate search.

    .venv/bin/python benchmarks/index.py [--photos 20000 100000] [--width 512] [--queries 30]

Vectors are random: independent ones, in which no method can find neighbours quickly, and ones in groups, as those of
photographs are. Photographs are added in blocks as `tellapart index` does, without pictures or a retriever, so what is
measured is the store. Memory is the growth of the process' peak, read before approximate search and the matrix product
are measured; each measurement is a process of its own. Times are CPU times of all threads. Take the ratios from here,
not the times.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tellapart.encoders.base import EncoderIdentity
from tellapart.index.base import ALL, File, Made, Photo, Vector
from tellapart.index.lance import LanceStore
from tellapart.terminal import print_table

FIRST = 10
BLOCK = 1000
GROUPS = 1000


def block(start: int, count: int, width: int, grouped: bool) -> Vector:
    """Unit vectors of these photographs; the same ones for every call."""
    chance = np.random.default_rng([start, grouped])
    vectors = chance.normal(size=(count, width)).astype(np.float32)
    if grouped:
        centres = np.random.default_rng(0).normal(size=(GROUPS, width)).astype(np.float32)
        vectors = centres[chance.integers(0, GROUPS, count)] + 0.7 * vectors
    unit: Vector = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def blocks(photos: int, width: int, grouped: bool) -> Iterator[tuple[int, Vector]]:
    for start in range(0, photos, BLOCK):
        yield start, block(start, min(BLOCK, photos - start), width, grouped)


def as_photos(start: int, vectors: Vector) -> list[Photo]:
    return [
        Photo(File(f"/photos/{start + row:08d}.jpg", 1, 1, "0" * 64, ""), start + row, vector)
        for row, vector in enumerate(vectors)
    ]


def peak() -> float:
    """Peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def seconds(work: Callable[[], object]) -> float:
    """CPU time of all threads: what else the machine does matters less."""
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(folder: Path, photos: int, width: int, queries: int, grouped: bool) -> list[tuple[str, str]]:
    identity = EncoderIdentity("made-up", "0", "none", 1, width)
    made = Made(retriever="0", name="made-up", folder="/", encoder=identity, width=width)
    store = LanceStore.create(folder, made)
    before = peak()

    def build() -> None:
        for start, vectors in blocks(photos, width, grouped):
            store.put(as_photos(start, vectors))
        store.tidy()

    building = seconds(build)
    # Queries beside the photographs, as sentences are.
    asked = block(0, queries, width, grouped) + 0.3 * block(photos + 1, queries, width, False)
    # The first query searches the files, the second reads the vectors into memory, further ones find them there.
    from_files, reading = (seconds(lambda: store.nearest(asked[0], FIRST, ALL, False)) for _ in range(2))
    found: dict[bool, list[list[str]]] = {}
    searching: dict[bool, float] = {}
    clustering = 0.0
    memory = 0.0
    for approximate in (False, True):
        if approximate:
            memory = peak()
            clustering = seconds(store.build_approximate)
            store.nearest(asked[0], FIRST, ALL, True)
        found[approximate] = []
        searching[approximate] = seconds(
            lambda approximate=approximate: found[approximate].extend(  # type: ignore[misc]
                [hit.path for hit in store.nearest(query, FIRST, ALL, approximate)] for query in asked
            )
        )
    matrix = np.concatenate([vectors for _, vectors in blocks(photos, width, grouped)])
    firsts: list[np.ndarray] = []

    def multiply() -> None:
        for query in asked:
            scores = matrix @ query
            first = np.argpartition(-scores, FIRST)[:FIRST]
            firsts.append(first[np.argsort(-scores[first])])

    product = seconds(multiply)
    true = [{f"/photos/{row:08d}.jpg" for row in first} for first in firsts]

    def share(paths: list[list[str]]) -> str:
        return f"{np.mean([len(one & set(own)) / FIRST for one, own in zip(true, paths, strict=True)]):.3f}"

    return [
        ("build", f"{building:.1f} s ({photos / building:,.0f} photographs/s)"),
        (
            "memory added by building and exact search",
            f"{memory - before:.0f} MB (all vectors: {matrix.nbytes / 1e6:.0f} MB)",
        ),
        ("exact: share of the matrix product's first 10", share(found[False])),
        ("exact: time of the first query, in the files", f"{1e3 * from_files:.1f} ms"),
        ("exact: time of the second, which reads the vectors", f"{1e3 * reading:.1f} ms"),
        ("exact: time of a further query", f"{1e3 * searching[False] / queries:.1f} ms"),
        ("matrix product in memory: time of a query", f"{1e3 * product / queries:.1f} ms"),
        ("first exact search / matrix product", f"{from_files / (product / queries):.2f}"),
        ("further exact searches / matrix product", f"{searching[False] / product:.2f}"),
        ("approximate: building", f"{clustering:.1f} s"),
        ("approximate: share of the matrix product's first 10", share(found[True])),
        ("approximate: time of a query", f"{1e3 * searching[True] / queries:.1f} ms"),
        ("approximate / exact", f"{searching[True] / searching[False]:.2f}"),
    ]


def run(photos: int, width: int, queries: int, grouped: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder) / "photos.lance", photos, width, queries, grouped)
    print_table(["", ""], rows, f"{photos:,} vectors of width {width}, {'in groups' if grouped else 'independent'}")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, nargs="+", default=[20_000, 100_000])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--queries", type=int, default=30)
    given = parser.parse_args()
    for grouped in (False, True):
        for photos in given.photos:
            arguments = (photos, given.width, given.queries, grouped)
            process = multiprocessing.get_context("spawn").Process(target=run, args=arguments)
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(process.exitcode)


if __name__ == "__main__":
    main()
