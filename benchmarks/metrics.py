"""Our metrics and pycocoevalcap's on the same captions, in one run: figures, CPU time, memory.

    .venv/bin/python benchmarks/metrics.py [--images 5000]

The captions are COCO's val2014 ones, which come with pycocoevalcap; a candidate is the first half of an image's first
caption and the second half of another. Times are CPU seconds, child processes (their Java) included. "Warm" is
another set of candidates against references that have been seen before (only their tokens are remembered), "first" a
process that remembers nothing; medians. Growth and memory are measured in a fresh process for each number of images.
METEOR has a benchmark of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import resource
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

QUALITY = ["bleu", "rouge", "cider"]
SUITE = [*QUALITY, "diversity"]
REFERENCES = 5
REPEATS = 5
SIZES = (1_000, 5_000, 10_000, 20_000, 40_504)

T = TypeVar("T")
Groups = dict[str, list[str]]
Candidates = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--alone", type=int, help="evaluate so many images in this process, and print what it took")
    chosen = parser.parse_args()
    if chosen.alone is not None:
        alone(chosen.alone)
        return
    compare(chosen.images)
    print("\nours, raw text, the suite without METEOR, a fresh process each:")
    for images in (1, *SIZES):
        command = [sys.executable, __file__, "--alone", str(images)]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip(), flush=True)


def compare(images: int) -> None:
    from tellapart.metrics import Scores, evaluate, ptb

    references = read_references(images)
    candidates = [splice(references, other) for other in range(1, REPEATS + 1)]

    print(f"{images} images, {REFERENCES} references each")
    tokens, their_tokenizer = timed(lambda: their_tokens(references, candidates[0]))
    theirs, their_scorers = timed(lambda: their_scores(*tokens))

    def from_tokens(said: Candidates) -> Scores:
        return evaluate(tokens[0], said, tokenized=True, metrics=QUALITY)

    def from_text(said: Candidates) -> Scores:
        return evaluate(references, said, metrics=QUALITY)

    token_candidates = [their_tokens({}, said)[1] for said in candidates]
    for name, run, versions, their_time in (
        ("from tokens", from_tokens, token_candidates, their_scorers),
        ("from raw text", from_text, candidates, their_tokenizer + their_scorers),
    ):
        run(versions[0])  # what any first call loads and compiles is reported below, as cold start
        firsts = []
        for _ in range(REPEATS):
            ptb.forget()
            ours, seconds = timed(lambda run=run, versions=versions: run(versions[0]))  # type: ignore[misc]
            firsts.append(seconds)
        warm = [timed(lambda run=run, said=said: run(said))[1] for said in versions[1:]]  # type: ignore[misc]
        # A neighbour's load now and then doubles a time.
        first, middle = statistics.median(firsts), statistics.median(warm)
        print(
            f"{name:14} theirs {their_time:6.2f} s, ours {middle:6.3f} s warm ({their_time / middle:5.1f} x), "
            f"{first:6.3f} s first ({their_time / first:5.1f} x); {largest_difference(ours, theirs)}"
        )
    print(f"{'':14} theirs of that: tokenizer {their_tokenizer:.2f} s, scorers {their_scorers:.2f} s")


def alone(images: int) -> None:
    began = cpu_seconds()
    from tellapart.metrics import evaluate

    loaded = cpu_seconds() - began
    references = read_references(images)
    candidates = splice(references, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    _, seconds = timed(lambda: evaluate(references, candidates, metrics=SUITE))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{images:6} images: {seconds:7.3f} s, {1e6 * seconds / images:9.1f} us per image, "
        f"peak {peak:5.0f} MB ({peak - before:4.0f} MB above the captions); import {loaded:.2f} s"
    )


def read_references(images: int) -> Groups:
    """COCO's val2014 captions by image id, from the jar of pycocoevalcap's SPICE (a zip file)."""
    spec = find_spec("pycocoevalcap")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("this benchmark needs pycocoevalcap: pip install 'tellapart[metrics]'")
    jar = Path(next(iter(spec.submodule_search_locations))) / "spice" / "spice-1.0.jar"
    with zipfile.ZipFile(jar) as archive:
        annotations = json.loads(archive.read("coco/annotations/captions_val2014.json"))["annotations"]
    groups: Groups = {}
    for annotation in annotations:
        groups.setdefault(str(annotation["image_id"]), []).append(annotation["caption"])
    return {image: captions[:REFERENCES] for image, captions in list(groups.items())[:images]}


def splice(references: Groups, other: int) -> Candidates:
    """Half of one caption and half of another: right in part, as captions are."""
    said = {}
    for image, captions in references.items():
        start, end = captions[other // REFERENCES].split(), captions[other % REFERENCES].split()
        said[image] = " ".join(start[: len(start) // 2] + end[len(end) // 2 :])
    return said


def their_tokens(references: Groups, candidates: Candidates) -> tuple[Groups, Candidates]:
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    groups = {image: [{"caption": text} for text in texts] for image, texts in references.items()}
    said = {image: [{"caption": text}] for image, text in candidates.items()}
    tokens = PTBTokenizer().tokenize(groups) if groups else {}
    return tokens, {image: texts[0] for image, texts in PTBTokenizer().tokenize(said).items()}


def their_scores(references: Groups, candidates: Candidates) -> dict[str, Any]:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    said = {image: [text] for image, text in candidates.items()}
    with contextlib.redirect_stdout(io.StringIO()):
        _, bleu = Bleu(4).compute_score(references, said)
    per_image = {f"Bleu_{n + 1}": values for n, values in enumerate(bleu)}
    per_image["ROUGE_L"] = Rouge().compute_score(references, said)[1]
    per_image["CIDEr"] = Cider().compute_score(references, said)[1]
    return per_image


def largest_difference(ours: Any, theirs: dict[str, Any]) -> str:
    worst = max(
        abs(a - b)
        for name, values in theirs.items()
        for a, b in zip(ours.per_image[name].values(), values, strict=True)
    )
    return f"largest difference of an image's figure {worst:.1e}"


def timed(work: Callable[[], T]) -> tuple[T, float]:
    began = cpu_seconds()
    result = work()
    return result, cpu_seconds() - began


def cpu_seconds() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


if __name__ == "__main__":
    main()
