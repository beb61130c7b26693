"""How well the metrics agree with people: Kendall's τ with the Flickr8k judgements.

    .venv/bin/python benchmarks/judgements.py FLICKR8K

FLICKR8K is the folder with `text/Flickr8k.token.txt` and `judgements/` (Expert and CrowdFlower annotations).
Expert: τ-c; each of a pair's three ratings (1…4) is a point; pairs whose caption is one of the image's own references
are left out. CrowdFlower: τ-b with the share of "yes"; the same pairs left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tellapart.errors import MissingExtraError
from tellapart.metrics import bleu_scores, cider_scores, rouge_scores, tokenize

Figures = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("flickr8k", type=Path)
    folder = parser.parse_args().flickr8k
    captions = read_captions(folder / "text" / "Flickr8k.token.txt")
    for name, tau in expert(folder, captions).items():
        print(f"Expert       tau-c {name:8} {100 * tau:6.2f}")
    for name, tau in crowd(folder, captions).items():
        print(f"CrowdFlower  tau-b {name:8} {100 * tau:6.2f}")


def read_captions(path: Path) -> dict[str, str]:
    """`image.jpg#number` → PTB tokens."""
    lines = path.read_text(encoding="utf-8").splitlines()
    keys, texts = zip(*(line.split("\t", 1) for line in lines if line), strict=True)
    return dict(zip(keys, tokenize(texts), strict=True))


def expert(folder: Path, captions: dict[str, str]) -> dict[str, float]:
    pairs, ratings = _judged(folder / "judgements" / "ExpertAnnotations.txt", captions)
    return {name: kendall_tau_c(np.repeat(values, 3), ratings.ravel()) for name, values in _scores(pairs, captions)}


def crowd(folder: Path, captions: dict[str, str]) -> dict[str, float]:
    pairs, answers = _judged(folder / "judgements" / "CrowdFlowerAnnotations.txt", captions)
    return {name: kendall_tau_b(values, answers[:, 0]) for name, values in _scores(pairs, captions)}


def _judged(path: Path, captions: dict[str, str]) -> tuple[list[tuple[str, str]], Figures]:
    """Pairs (image, caption key) and what people said of them, without captions that are a reference of the image."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line]
    kept = [row for row in rows if captions[row[1]] not in _references(row[0], captions)]
    return [(row[0], row[1]) for row in kept], np.array([row[2:5] for row in kept], dtype=np.float64)


def _references(image: str, captions: dict[str, str]) -> list[str]:
    return [captions[f"{image}#{number}"] for number in range(5)]


def _scores(pairs: list[tuple[str, str]], captions: dict[str, str]) -> list[tuple[str, Figures]]:
    references = [_references(image, captions) for image, _ in pairs]
    candidates = [captions[key] for _, key in pairs]
    bleu = bleu_scores(references, candidates).per_image
    found = [
        ("Bleu_1", bleu[:, 0]),
        ("Bleu_4", bleu[:, 3]),
        ("ROUGE_L", rouge_scores(references, candidates).per_image),
        ("CIDEr", cider_scores(references, candidates).per_image),
    ]
    try:
        from tellapart.metrics.meteor import meteor_scores

        found.append(("METEOR", meteor_scores(references, candidates).per_image))
    except MissingExtraError as error:
        print(f"METEOR is not reported: {error}")
    return found


def kendall_tau_c(scores: Figures, ratings: Figures) -> float:
    """Stuart's τ-c: 2 (concordant - discordant) · m / (n² (m - 1)), m the smaller number of different values."""
    levels = min(len(np.unique(ratings)), len(np.unique(scores)))
    return 2 * _concordant_minus_discordant(scores, ratings) * levels / (len(scores) ** 2 * (levels - 1))


def kendall_tau_b(scores: Figures, ratings: Figures) -> float:
    """τ-b: (concordant - discordant) / √(pairs not tied in one · pairs not tied in the other)."""
    difference = _concordant_minus_discordant(scores, ratings)
    return difference / float(np.sqrt(_untied(scores) * _untied(ratings)))


def _concordant_minus_discordant(scores: Figures, ratings: Figures) -> int:
    """Over all pairs of points; few different ratings, so that each two of them are compared as a whole."""
    groups = [np.sort(scores[ratings == level]) for level in np.unique(ratings)]
    total = 0
    for i, low in enumerate(groups):
        for high in groups[i + 1 :]:
            above = len(low) - np.searchsorted(low, high, side="right")
            total += int((np.searchsorted(low, high, side="left") - above).sum())
    return total


def _untied(values: Figures) -> float:
    counts = np.unique(values, return_counts=True)[1].astype(np.float64)
    return float(len(values) * (len(values) - 1) / 2 - (counts * (counts - 1) / 2).sum())


if __name__ == "__main__":
    main()
