"""METEOR in NumPy against the Java program of pycocoevalcap, on the same captions, side by side in one run (Linux).

    .venv/bin/python benchmarks/meteor.py [--images 5000]

The captions are COCO's, which come with pycocoevalcap: five references an image; the candidate is the first half of
one caption of the image and the second half of another. Both sides are warm: our arrays and Java's tables are loaded,
and other captions have been scored. Figures are CPU seconds, those of all of Java's threads and of the Python that
feeds it included. Java compiles as it goes, so its first round costs more than the next ones: all are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tellapart.metrics.meteor import meteor_scores
from tellapart.metrics.ptb import tokenize

ROUNDS = 3
WARM_UP = 200
COLD = """
import os, resource, time
from pathlib import Path
from tellapart.metrics.meteor import meteor_scores
for what in ("made", "read"):
    began = time.process_time()
    from tellapart.metrics.meteor.lexicon import open_lexicon
    open_lexicon.cache_clear()
    meteor_scores([["a dog runs"]], ["a dog ran"])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"arrays {what}: {time.process_time() - began:.2f} s of CPU, peak memory {memory:.0f} MB so far")
size = sum(path.stat().st_size for path in Path(os.environ["TELLAPART_CACHE"]).iterdir())
print(f"cached file: {size / 2**20:.0f} MB")
"""


def read_captions(images: int) -> tuple[list[list[str]], list[str]]:
    """References and candidates of so many images of val2014."""
    spec = find_spec("pycocoevalcap")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("pycocoevalcap is not installed; it comes with: pip install 'tellapart[metrics]'")
    jar = Path(next(iter(spec.submodule_search_locations))) / "spice" / "spice-1.0.jar"
    with zipfile.ZipFile(jar) as archive:
        annotations = json.loads(archive.read("coco/annotations/captions_val2014.json"))["annotations"]
    groups: dict[int, list[str]] = {}
    for annotation in annotations:
        groups.setdefault(annotation["image_id"], []).append(annotation["caption"])
    references = [tokenize(groups[image][:5]) for image in sorted(groups)[:images]]
    candidates = []
    for number, group in enumerate(references):
        head, tail = (group[(number + shift) % len(group)].split(" ") for shift in (0, 1))
        candidates.append(" ".join(head[: len(head) // 2] + tail[len(tail) // 2 :]))
    return references, candidates


def cpu_of(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_java(java: Any, references: list[list[str]], candidates: list[str]) -> tuple[float, float, np.ndarray]:
    """CPU seconds, corpus score, scores by image."""
    by_image = dict(enumerate(references))
    began, began_java = time.process_time(), cpu_of(java.meteor_p.pid)
    corpus, scores = java.compute_score(by_image, {image: [text] for image, text in enumerate(candidates)})
    return time.process_time() - began + cpu_of(java.meteor_p.pid) - began_java, corpus, np.array(scores)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=5000)
    references, candidates = read_captions(parser.parse_args().images + WARM_UP)
    with tempfile.TemporaryDirectory() as folder:
        print("cold, in a process of its own:", flush=True)
        subprocess.run([sys.executable, "-c", COLD], check=True, env={**os.environ, "TELLAPART_CACHE": folder})

    from pycocoevalcap.meteor.meteor import Meteor

    java = Meteor()
    warm_up, references = references[:WARM_UP], references[WARM_UP:]
    warm_up_candidates, candidates = candidates[:WARM_UP], candidates[WARM_UP:]
    run_java(java, warm_up, warm_up_candidates)
    print(f"Java, until its first {WARM_UP} images are scored: {cpu_of(java.meteor_p.pid):.2f} s of CPU")
    meteor_scores(warm_up, warm_up_candidates)

    print(f"{len(candidates)} images, {sum(map(len, references))} references, CPU seconds")
    print(f"{'round':>5} {'ours':>6} {'Java':>6} {'ratio':>6}")
    for number in range(ROUNDS):
        began = time.process_time()
        scores = meteor_scores(references, candidates)
        ours = time.process_time() - began
        taken, corpus, per_image = run_java(java, references, candidates)
        print(f"{number + 1:5} {ours:6.2f} {taken:6.2f} {taken / ours:6.1f}", flush=True)
    print(f"largest |Δ| of an image {np.abs(scores.per_image - per_image).max():.1e}, ", end="")
    print(f"of the corpus {abs(scores.corpus - corpus):.1e} (METEOR {corpus:.4f})")
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MB")


if __name__ == "__main__":
    main()
