"""Captioning a folder of photographs beside reading and encoding them alone, in one run.

    .venv/bin/python benchmarks/folder.py FOLDER [--images 1000] [--rounds 1] [--threads 1]

The shipped model. "Alone" is what no captioner can leave out: the pictures are read from the disk and encoded, in the
same blocks. CPU time (on more threads wall-clock time), the best of alternating rounds. The captions are asserted to be
those that the captioner gives for the features of "alone".
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import numpy as np
import torch
from side_by_side import best_seconds, show

from tellapart.captioning import caption_blocks, expand_images
from tellapart.data.images import load_image
from tellapart.decoding.search import BLOCK, n_best
from tellapart.describing import Describer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    paths = expand_images([chosen.folder])[: chosen.images]
    describer = Describer()
    encoder = describer.encoder

    features: list[np.ndarray] = []  # of the blocks
    captions: list[str] = []

    def alone() -> None:
        features.clear()
        for start in range(0, len(paths), BLOCK):
            pictures = [
                encoder.squeeze(load_image(path, at_least=encoder.size)) for path in paths[start : start + BLOCK]
            ]
            features.append(encoder.encode(pictures))

    def ours() -> None:
        rows = itertools.chain.from_iterable(block.rows for block in caption_blocks(paths))
        captions[:] = [row["caption"] for row in rows]

    best = best_seconds({"ours": ours, "alone": alone}, chosen.rounds, warm_up=False)  # a round takes minutes
    first = n_best(describer.captioner, torch.from_numpy(features[0]), describer.decoding)
    assert captions[:BLOCK] == [said[0].caption for said in first], "the captions are not those of the features"
    show(f"a folder of {len(paths)} photographs", best["ours"], best["alone"], best["alone"])
    print(f"captioning takes {best['ours'] / best['alone']:.2f} times reading and encoding alone")


if __name__ == "__main__":
    main()
