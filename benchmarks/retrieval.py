"""Speed and memory of retrieval, compared with the bare matrix product in the same run.

    .venv/bin/python benchmarks/retrieval.py [--rounds 7] [--skip-steps] [--skip-memory]
    .venv/bin/python benchmarks/retrieval.py --coco [--whole]

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

With `--coco` instead: what the search for hard negatives and the clusters of prototypes take at growing sizes, the
exponents, and what follows for COCO's training split (109,488 images with 547,741 captions, and 566,000 pairs). One
block of images is ranked among 1/8 to all of the captions, with the vectors of all images in memory; blocks do not
depend on each other, so the time of all is that of one times their number. Clusters are measured with K = 5,000 and
10,000 and 28.3 points for each, in random groups: a pass over near centres, and 10,000 points compared with all
centres, from which the time of all points follows. Time at K = 20,000 is extrapolated by a K + b K², memory by a line.
Each size has its own process, so that its peak of memory counts nothing else. With `--whole` nothing is extrapolated:
all blocks of images are ranked among all captions, and 566,000 points are clustered into K = 20,000 from the start, and
then again from the centres found, as after the next epoch.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is imported

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
import torch
from made_up import IDENTITY, WORDS, make_data
from numpy.typing import NDArray

from tellapart.data.batches import BatchSource
from tellapart.data.negatives import CaptionPool
from tellapart.engine.schedule import make_optimiser
from tellapart.engine.settings import TrainingSettings
from tellapart.evaluation import hard_negatives
from tellapart.evaluation.vector_ranks import vector_ranks
from tellapart.objectives import prototypes
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


# --- COCO's size ------------------------------------------------------------------------------------------------------

COCO_IMAGES, COCO_CAPTIONS, COCO_PAIRS = 109_488, 547_741, 566_000
POINTS = COCO_PAIRS / 20_000  # for each cluster
COMPARED = 10_000  # points compared with all centres


def rank_blocks(captions: int, images: int, width: int = 256) -> tuple[float, float]:
    """CPU seconds to rank captions for the first images, block by block, and peak memory in MB."""
    vectors = np.empty((COCO_IMAGES + captions, width), np.float32)
    rng = np.random.default_rng(0)
    for start in range(0, len(vectors), 4096):
        part = rng.standard_normal((len(vectors[start : start + 4096]), width), dtype=np.float32)
        vectors[start : start + 4096] = part / np.linalg.norm(part, axis=1, keepdims=True)
    pool = CaptionPool([[str(5 * image + number) for number in range(5)] for image in range(captions // 5)])
    compare = hard_negatives.compare_on_grid(vectors[:COCO_IMAGES], vectors[COCO_IMAGES:][: len(pool.captions)])
    count = hard_negatives.LARGEST // COCO_IMAGES

    def rank() -> None:
        for start in range(0, images, hard_negatives.IMAGES):
            block = slice(start, min(start + hard_negatives.IMAGES, images))
            hard_negatives.best_captions(compare, pool, block, count)

    return cpu_seconds(rank), peak_megabytes()


def grouped_points(clusters: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points in as many groups as there are to be clusters, and their groups; ten groups have a common direction."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(clusters // 10, width, generator=generator).repeat_interleave(10, dim=0)
    groups = common.add_(torch.randn(clusters, width, generator=generator))
    labels = torch.randint(0, clusters, (round(POINTS * clusters),), generator=generator)
    points = torch.empty(len(labels), width, dtype=torch.float16)
    for part, group in zip(torch.split(points, 4096), torch.split(labels, 4096), strict=True):
        part.copy_(groups[group] + 2 * torch.randn(len(part), width, generator=generator))
    return points, labels


def fits(clusters: int = 500, width: int = 256, near: int = 8) -> list[float]:
    """Mean cosine with the centre at the start, after passes over all centres, and after passes over near ones."""
    torch.set_num_threads(1)
    points, _ = grouped_points(clusters, width)
    found = [prototypes.spherical_kmeans(points, clusters, iterations=count).similarity for count in (0, 20)]
    prototypes.ALL_COMPARED, prototypes.NEAR = 0, near
    return [*found, prototypes.spherical_kmeans(points, clusters).similarity]


def cluster(clusters: int, width: int = 1024) -> tuple[float, float, float]:
    """CPU seconds to compare some points with all centres, and of a pass over near centres; peak memory in MB."""
    torch.set_num_threads(1)
    points, labels = grouped_points(clusters, width)
    centres = torch.nn.functional.normalize(points[:clusters].float(), dim=1)

    def near_pass() -> None:
        moved = prototypes._directions(points, labels, centres, 4096)
        prototypes._assign_near(points, labels, moved, prototypes.NEAR)

    some = cpu_seconds(lambda: prototypes.nearest_centres(points[:COMPARED], centres))
    return some, cpu_seconds(near_pass), peak_megabytes()


def cluster_all(clusters: int = 20_000, width: int = 1024) -> tuple[list[tuple[float, float, int]], float]:
    """CPU seconds, mean cosine and passes of the first clustering and of a later one; peak memory in MB."""
    torch.set_num_threads(1)
    points, _ = grouped_points(clusters, width)
    centres, told = None, []
    for iterations in (20, 5):  # as `Prototypes.cluster`
        began = time.process_time()
        found = prototypes.spherical_kmeans(points, clusters, centres, iterations)
        told.append((time.process_time() - began, found.similarity, found.iterations))
        centres = found.centres
    return told, peak_megabytes()


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of a line through log time over log size."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def extrapolated(sizes: Sequence[int], seconds: Sequence[float], to: int) -> float:
    """Seconds at another size by the fitted a size + b size²: one part or the other may count most."""
    slope, start = np.polyfit(sizes, np.array(seconds) / sizes, 1)
    return float((start + slope * to) * to)


def coco_negatives(apart: ProcessPoolExecutor) -> None:
    print(f"hard negatives of {hard_negatives.IMAGES} images, width 256:")
    captions = [COCO_CAPTIONS // share for share in (8, 4, 2, 1)]
    ranked = []
    for size in captions:
        seconds, peak = apart.submit(rank_blocks, size, hard_negatives.IMAGES).result()
        ranked.append(seconds)
        print(f"  {size:7,} captions: {seconds:6.2f} s CPU, peak {peak:5.0f} MB", flush=True)
    minutes = ranked[-1] * COCO_IMAGES / hard_negatives.IMAGES / 60
    print(f"  exponent {exponent(captions, ranked):.2f}; all of COCO's images: {minutes:.1f} minutes", flush=True)


def coco_clusters(apart: ProcessPoolExecutor) -> None:
    print(f"clusters of {POINTS:.1f} points each, width 1024, in half precision:")
    sizes = [5000, 10_000]
    measured = []
    for size in sizes:
        measured.append(apart.submit(cluster, size).result())
        print(f"  K = {size:6,}, {round(POINTS * size):7,} points: ", end="")
        compared, passed, peak = measured[-1]
        print(f"{compared:5.2f} s CPU for 10,000 points and all centres, ", end="")
        print(f"{passed:5.1f} s for a pass over near centres, peak {peak:5.0f} MB", flush=True)
    some, near, peaks = (list(column) for column in zip(*measured, strict=True))
    over_all = extrapolated(sizes, some, 20_000) * COCO_PAIRS / COMPARED
    over_near, (slope, base) = extrapolated(sizes, near, 20_000), np.polyfit(sizes, peaks, 1)
    print(
        f"  exponents {exponent(sizes, some):.2f} and {exponent(sizes, near):.2f}; K = 20,000, 566,000 points: ", end=""
    )
    print(f"passes of {over_all:.0f} s and {over_near:.0f} s, peak {base + slope * 20_000:.0f} MB")
    for which, passes in (("first clustering", 20), ("later ones", 5)):
        minutes, before = (2 * over_all + passes * over_near) / 60, (1 + passes) * over_all / 60
        # With K = 2,000 a sample of the points decides the centres, of which there are a tenth.
        sample = prototypes.POINTS_PER_CLUSTER * 2000 / COCO_PAIRS
        fewer = (1 + (1 + passes) * sample) * over_all / 10 / 60
        print(
            f"  {which}: K = 20,000 at most {minutes:.1f} minutes ({before:.0f} if all passes are over all centres), "
        )
        print(f"    K = 2,000 {fewer:.1f}", flush=True)
    start, over_all, over_near = apart.submit(fits).result()
    print(f"  mean cosine with the centre, K = 500: at the start {start:.4f}, ", end="")
    print(f"passes over all centres {over_all:.4f}, over 8 near ones {over_near:.4f}")


def coco_whole(apart: ProcessPoolExecutor) -> None:
    seconds, peak = apart.submit(rank_blocks, COCO_CAPTIONS, COCO_IMAGES).result()
    print(f"hard negatives of {COCO_IMAGES:,} images among {COCO_CAPTIONS:,} captions, width 256: ", end="")
    print(f"{seconds / 60:.1f} minutes of CPU, peak {peak:.0f} MB", flush=True)
    told, peak = apart.submit(cluster_all).result()
    for which, (seconds, similarity, passes) in zip(("first", "later"), told, strict=True):
        print(
            f"{which} clustering of {COCO_PAIRS:,} points × 1024, K = 20,000: {seconds / 60:.1f} minutes of CPU, ",
            end="",
        )
        print(f"{passes} passes between the first and the last, mean cosine {similarity:.4f}")
    print(f"  peak {peak:.0f} MB", flush=True)


def coco(whole: bool) -> None:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as apart:
        if whole:
            coco_whole(apart)
        else:
            coco_negatives(apart)
            coco_clusters(apart)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--skip-steps", action="store_true")
    parser.add_argument("--skip-memory", action="store_true")
    parser.add_argument("--coco", action="store_true")
    parser.add_argument("--whole", action="store_true", help="with --coco: measure all of it, nothing extrapolated")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.coco:
        coco(chosen.whole)
        return
    if not chosen.skip_memory:
        memory()  # first, since the peak includes everything before it
    ranking(chosen.rounds, 1000, (256, 512, 1024, 2048))
    ranking(max(1, chosen.rounds // 3), 5000, (512, 2048))
    if not chosen.skip_steps:
        steps(chosen.rounds)


if __name__ == "__main__":
    main()
