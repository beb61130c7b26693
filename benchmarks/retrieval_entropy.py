"""Time and memory of retrieval entropy at COCO's size, from a part of it.

    .venv/bin/python benchmarks/retrieval_entropy.py [--captions 4096] [--rounds 5]

109,000 image vectors of width 512, as in COCO's training split, and a part of its 548,000 captions, all drawn at random
on the unit sphere. Each caption costs the same, so the time of all is the time of the part × 548,000 / captions. The
time of reading a checkpoint and of embedding images and captions is not in it: it depends on the retriever.

Relative to the bare matrix product of the same blocks, in float32 into the same memory: at 100 % the sums cost nothing
on top of it. Checked: a few captions against the whole row in float64.

CPU time on one thread, alternating rounds, medians; the aim is at most 20 minutes and 2 GB in all.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is imported

import resource
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from tellapart.evaluation import retrieval_entropy
from tellapart.evaluation.entropy_sums import CAPTIONS, IMAGES, TEMPERATURE, vector_entropies

ALL_IMAGES, ALL_CAPTIONS, WIDTH = 109_000, 548_000, 512
CHECKED = 16


def unit_vectors(count: int, seed: int) -> torch.Tensor:
    drawn = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(drawn, dim=1)


def bare_product(images: torch.Tensor, captions: torch.Tensor) -> None:
    """The matrix products of the same blocks, each into the same memory."""
    memory = torch.empty(CAPTIONS * IMAGES)
    for start in range(0, len(captions), CAPTIONS):
        part = captions[start : start + CAPTIONS]
        for first in range(0, len(images), IMAGES):
            block = images[first : first + IMAGES].t()
            torch.mm(part, block, out=memory[: len(part) * block.shape[1]].view(len(part), block.shape[1]))


def whole_row(images: torch.Tensor, captions: torch.Tensor) -> NDArray[np.float64]:
    """Entropies in float64."""
    scores = captions.double() @ images.double().t() / TEMPERATURE
    found: NDArray[np.float64] = torch.special.entr(scores.softmax(dim=1)).sum(dim=1).numpy()
    return found


def cpu_seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--captions", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    images, captions = unit_vectors(ALL_IMAGES, 0), unit_vectors(options.captions, 1)
    seconds: dict[str, list[float]] = {"bare product": [], "entropies": []}
    for _ in range(options.rounds):
        seconds["bare product"].append(cpu_seconds(lambda: bare_product(images, captions)))
        seconds["entropies"].append(cpu_seconds(lambda: vector_entropies(images, captions)))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    error = np.abs(vector_entropies(images, captions[:CHECKED]) - whole_row(images, captions[:CHECKED])).max()
    print(f"{ALL_IMAGES} images × {options.captions} captions, width {WIDTH}, blocks {CAPTIONS} × {IMAGES}")
    for name, values in seconds.items():
        spent = statistics.median(values)
        whole = spent * ALL_CAPTIONS / options.captions / 60
        print(f"{name}: {spent:.1f} s [{min(values):.1f}, {max(values):.1f}]; all of COCO {whole:.1f} min")
    ratio = statistics.median(seconds["bare product"]) / statistics.median(seconds["entropies"])
    print(f"{100 * ratio:.0f} % of the speed of the bare product")
    print(f"largest difference from float64: {error:.1e} nats at a temperature of {TEMPERATURE}")
    print(f"largest memory: {memory:.2f} GB; a block of a file is {retrieval_entropy.BLOCK} captions")


if __name__ == "__main__":
    main()
