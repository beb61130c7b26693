"""Speed and memory of retrieval, compared with the bare matrix product in the same run.

    .venv/bin/python benchmarks/retrieval.py [--rounds 7] [--skip-steps] [--skip-memory]

Scoring: all similarities as `Retriever.similarity` computes them, and all ranks in both directions (`vector_ranks`, as
in `evaluate-retrieval` and validation), relative to the bare product `a @ b.T` of the same vectors in float32. Widths
are those of the Flickr8k recipes (256, with concepts 512) and of the paper (1024, 2048). Sizes are 1,000 images and
5,000 captions (the splits of Flickr8k and Flickr30K), and 5,000 and 25,000 (COCO), in strips of 1,000 images. At 100 %
ranking costs nothing on top of the product; scores should reach 90 %. A product that overwrites the same memory each
time is not useful, but shows the cost of fresh memory, which ranks avoid.

Steps: a step of DCL with coupled banks of 4096, relative to one without, at the size of the Flickr8k recipes
(`dcl-bank`, `dcl`), on random features and made-up captions: forward, backward, clipping, Adam, momentum and banks.
The momentum encoders' pass alone would give a ratio of 4/3; it should be at most 1.6.

Memory: the ranks of 5,000 images and 25,000 captions (COCO's test split), whose scores would take 500 MB in float32.

CPU time on one thread, alternating rounds; ratios are of medians.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is imported

import resource
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from made_up import IDENTITY, WORDS, make_data
from numpy.typing import NDArray

from tellapart.data.batches import BatchSource
from tellapart.engine.schedule import make_optimiser
from tellapart.engine.settings import TrainingSettings
from tellapart.evaluation.vector_ranks import vector_ranks
from tellapart.objectives.base import Progress, Roles
from tellapart.objectives.coder import CoderObjective, CoderObjectiveSettings
from tellapart.retrievers.base import inner_products
from tellapart.retrievers.coder import Coder, CoderSettings
from tellapart.text import Vocabulary

CAPTIONS = 5
STRIP = 1000


def unit_vectors(count: int, width: int, seed: int, common: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Unit vectors; `common` is added to captions of these images, so that R@1 is about 0.3 among 1,000."""
    vectors = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    if common is not None:
        vectors += 3 * np.repeat(common, count // len(common), axis=0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def cpu_seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def alternate(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median CPU seconds of each, after a warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            spent = cpu_seconds(call)
            if number:
                seconds[name].append(spent)
    return {name: statistics.median(values) for name, values in seconds.items()}


def product(images: torch.Tensor, captions: torch.Tensor, into: torch.Tensor | None = None) -> None:
    """The bare product, a strip of images at a time, optionally always into the same memory."""
    for start in range(0, len(images), STRIP):
        torch.mm(images[start : start + STRIP], captions.t(), out=into)


def similarities(images: torch.Tensor, captions: torch.Tensor) -> None:
    """As `Retriever.similarity` on index vectors, a strip of images at a time."""
    for start in range(0, len(images), STRIP):
        inner_products(images[start : start + STRIP], captions)


def ranking(rounds: int, images: int, widths: tuple[int, ...]) -> None:
    owner = np.repeat(np.arange(images), CAPTIONS)
    print(f"{images} images × {images * CAPTIONS} captions relative to the bare product (scores should reach 90 %)")
    for width in widths:
        pictures = unit_vectors(images, width, 0)
        captions = unit_vectors(images * CAPTIONS, width, 1, pictures)
        both = torch.from_numpy(pictures), torch.from_numpy(captions)
        calls: dict[str, Callable[[], object]] = {
            "product": partial(product, *both),
            "scores": partial(similarities, *both),
            "ranks": partial(vector_ranks, pictures, captions, owner, rounding=1e-6),
            "overwritten": partial(product, *both, torch.empty(STRIP, len(captions))),
        }
        seconds = alternate(calls, rounds)
        share = {name: seconds["product"] / spent for name, spent in seconds.items()}
        first = float((vector_ranks(pictures, captions, owner, rounding=1e-6).text_to_image == 1).mean())
        pairs = images * len(captions) / seconds["ranks"] / 1e6
        print(
            f"  width {width:5}: product {1e3 * seconds['product']:7.1f} ms; scores {share['scores']:6.1%}, ranks "
            f"{share['ranks']:6.1%} of its speed ({share['overwritten']:.1%} when overwritten), "
            f"{pairs:.1f} million pairs ranked a second (text→image R@1 {first:.2f})",
            flush=True,
        )


def stepper(settings: CoderObjectiveSettings, source: BatchSource) -> Callable[[], None]:
    """A function that trains one step; batches are drawn before."""
    torch.manual_seed(0)
    target = Coder(CoderSettings(), Vocabulary(WORDS), IDENTITY)
    objective = CoderObjective(settings, Roles(target)).train()
    training = TrainingSettings(steps=100, optimiser="adam", learning_rate=5e-4)
    optimiser = make_optimiser(training, [weight for weight in objective.parameters() if weight.requires_grad])
    batches = [source.at(step) for step in range(4)]
    done = 0

    def step() -> None:
        nonlocal done
        totals = objective(batches[done % len(batches)], Progress(done, 100))
        loss = sum(weight * totals[name].sum / totals[name].count for name, weight in objective.losses().items())
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 2.0)
        optimiser.step()
        objective.after_step()
        done += 1

    return step


def steps(rounds: int) -> None:
    dataset, store = make_data(512)
    source = BatchSource(dataset, store, "train", 128, 1, 0, seed=0)
    print("a step of DCL with banks of 4096 relative to one without, 128 pairs (should be at most 1.6)")
    calls: dict[str, Callable[[], object]] = {
        "without": stepper(CoderObjectiveSettings(), source),
        "with banks": stepper(CoderObjectiveSettings(bank=4096, diversity_of_bank=True), source),
    }
    seconds = alternate(calls, rounds)
    print(f"  without {seconds['without']:.3f} s, with banks {seconds['with banks']:.3f} s CPU: ", end="")
    print(f"{seconds['with banks'] / seconds['without']:.2f} times", flush=True)


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory(width: int = 512) -> None:
    images = unit_vectors(5000, width, 0)
    captions = unit_vectors(25000, width, 1, images)
    owner = np.repeat(np.arange(5000), 5)
    before = peak_megabytes()
    spent = cpu_seconds(lambda: vector_ranks(images, captions, owner, rounding=1e-6))
    print(
        f"ranks of 5,000 images × 25,000 captions of width {width}: {spent:.1f} s CPU; "
        f"peak memory {peak_megabytes():.0f} MB, {before:.0f} MB of it before ranking (the matrix would be 500 MB)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--skip-steps", action="store_true")
    parser.add_argument("--skip-memory", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if not chosen.skip_memory:
        memory()  # first, since the peak includes everything before it
    ranking(chosen.rounds, 1000, (256, 512, 1024, 2048))
    ranking(max(1, chosen.rounds // 3), 5000, (512, 2048))
    if not chosen.skip_steps:
        steps(chosen.rounds)


if __name__ == "__main__":
    main()
