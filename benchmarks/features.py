"""How near the feature store's throughput comes to what the processor allows, and to eager torch, in one run.

    .venv/bin/python benchmarks/features.py DATA [--images 2048]

DATA is any data set that `tellapart prepare` reads. The bound is cores / (decode + forward), both measured as CPU
seconds per picture on one thread. Eager torch is the same network and the same decoding, batch by batch.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image

from tellapart.data.encoding import BATCH
from tellapart.data.images import load_image
from tellapart.data.prepare import open_dataset
from tellapart.data.records import Dataset
from tellapart.data.settings import DataSettings
from tellapart.data.write_features import write_store
from tellapart.encoders import open_encoder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--encoder", default="efficientnet-lite0")
    chosen = parser.parse_args()
    dataset = open_dataset(DataSettings(source=chosen.data))
    dataset = replace(dataset, records=dataset.records[: chosen.images])
    cores = len(os.sched_getaffinity(0))
    sample = dataset.records[:256]

    encoder = open_encoder(chosen.encoder)

    def decode(records: tuple[object, ...]) -> list[Image.Image]:
        return [encoder.squeeze(load_image(dataset.path(r), at_least=encoder.size)) for r in records]  # type: ignore[arg-type]

    encoder.encode(decode(sample[:BATCH]))  # exports, warms up, fills the file cache
    decode(sample)
    began = time.process_time()
    pictures = decode(sample)
    decoding = (time.process_time() - began) / len(sample)
    one = open_encoder(chosen.encoder, threads=1)
    one.encode(pictures[:BATCH])
    began = time.process_time()
    for start in range(0, len(pictures), BATCH):
        one.encode(pictures[start : start + BATCH])
    forward = (time.process_time() - began) / len(sample)
    bound = cores / (decoding + forward)

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        write_store(Path(folder) / "store", dataset, encoder, max_skipped=1.0)
        throughput = len(dataset) / (time.perf_counter() - began)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

    eager = _eager(dataset, chosen.encoder, cores)
    print(f"decode {1000 * decoding:.2f} ms, forward {1000 * forward:.2f} ms of CPU a picture; {cores} cores")
    print(f"bound      {bound:7.1f} images/s")
    print(f"store      {throughput:7.1f} images/s, {100 * throughput / bound:.1f} % of the bound")
    print(f"eager      {eager:7.1f} images/s; the store is {throughput / eager:.1f} times as fast")
    print(f"peak memory before eager torch ran: {memory:.2f} GiB")


def _eager(dataset: Dataset, name: str, cores: int) -> float:
    """The usual loop: decode a batch, run the torch network on all cores."""
    torch.set_num_threads(cores)
    encoder = open_encoder(name, device="cpu")
    records = dataset.records[:256]
    encoder.encode([load_image(dataset.path(records[0]), at_least=encoder.size)])
    began = time.perf_counter()
    for start in range(0, len(records), BATCH):
        batch = records[start : start + BATCH]
        encoder.encode([encoder.squeeze(load_image(dataset.path(r), at_least=encoder.size)) for r in batch])
    return len(records) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
