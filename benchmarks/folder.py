"""Captioning a folder of photographs beside reading and encoding them alone, in one run.

    .venv/bin/python benchmarks/folder.py FOLDER [--images 1000] [--rounds 1]

The shipped model, one thread. "Alone" is what no captioner can leave out: the pictures are read from the disk and
encoded, in the same blocks. CPU time, the best of alternating rounds; the features of both are asserted to be equal.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import numpy as np
import torch
from side_by_side import cpu_seconds, show

from tellapart.captioning import caption_blocks, expand_images
from tellapart.data.images import load_image
from tellapart.decoding.search import BLOCK
from tellapart.describing import Describer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    paths = expand_images([chosen.folder])[: chosen.images]
    describer = Describer()
    encoder = describer.encoder

    def alone() -> list[np.ndarray]:
        found = []
        for start in range(0, len(paths), BLOCK):
            pictures = [
                encoder.squeeze(load_image(path, at_least=encoder.size)) for path in paths[start : start + BLOCK]
            ]
            found.append(encoder.encode(pictures))
        return found

    def ours() -> list[str]:
        blocks = caption_blocks(paths)
        return [row["caption"] for row in itertools.chain.from_iterable(block.rows for block in blocks)]

    best = cpu_seconds({"ours": ours, "alone": alone}, chosen.rounds)
    features = torch.from_numpy(alone()[0])
    assert torch.equal(features, describer.features(paths[:BLOCK])), "features are not those that are captioned"
    show(f"a folder of {len(paths)} photographs", best["ours"], best["alone"], best["alone"])
    print(f"captioning takes {best['ours'] / best['alone']:.2f} times reading and encoding alone")


if __name__ == "__main__":
    main()
