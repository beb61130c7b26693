"""The image encoder under ONNX Runtime against the same network in eager torch, side by side in one run.

.venv/bin/python benchmarks/encoder.py
"""

from __future__ import annotations

import time

import numpy as np
import torch
from PIL import Image

from tellapart.encoders.images import EfficientNetLite0


def main() -> None:
    torch.set_num_threads(1)
    encoder = EfficientNetLite0(threads=1)
    network = encoder.network()
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (224, 224, 3), dtype=np.uint8)) for _ in range(16)]
    pixels = torch.from_numpy(encoder.pixels(images))
    seconds: dict[str, list[float]] = {"onnx": [], "torch": []}
    encoder.encode(images)  # exports and warms up
    for _ in range(5):  # interleaved, so that other load on the machine touches both alike
        began = time.perf_counter()
        encoder.encode(images)
        seconds["onnx"].append(time.perf_counter() - began)
        began = time.perf_counter()
        with torch.no_grad():
            network.extract_features(pixels)  # type: ignore[operator]
        seconds["torch"].append(time.perf_counter() - began)
    best = {name: min(times) for name, times in seconds.items()}
    for name, value in best.items():
        print(f"{name:6} {len(images) / value:7.1f} images/s on one thread")
    print(f"ONNX Runtime is {best['torch'] / best['onnx']:.1f} times as fast as eager torch")


if __name__ == "__main__":
    main()
