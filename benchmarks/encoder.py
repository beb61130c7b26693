"""The image encoders under ONNX Runtime against the same networks in eager torch, side by side in one run.

.venv/bin/python benchmarks/encoder.py [NAME ...]

Eager torch asks the system for the memory of every large activation anew and pays with page faults; ONNX Runtime keeps
what it has. So torch is measured twice: as it comes, and with a C library told to keep memory (as the environment
variables MALLOC_MMAP_MAX_=0 and MALLOC_TRIM_THRESHOLD_=2147483647 would tell it; Linux with glibc only).
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time

import numpy as np
import torch
from PIL import Image

from tellapart.encoders.efficientnet import EfficientNetLite

NAMES = ("efficientnet-lite0", "efficientnet-lite2", "efficientnet-lite0@448", "efficientnet-lite2@448")
ROUNDS = 5
EXPORT = "import sys; from PIL import Image; from tellapart.encoders import open_encoder; "
EXPORT += "[open_encoder(name).encode([Image.new('RGB', (9, 9))]) for name in sys.argv[1:]]"

Seconds = dict[tuple[str, str], float]


def measure(encoders: dict[tuple[str, str], EfficientNetLite], pixels: dict[str, np.ndarray]) -> Seconds:
    """Seconds an image, the best of some rounds: interleaved, so that other load on the machine touches all alike."""
    seconds: Seconds = {}
    for number in range(ROUNDS + 1):
        for (name, way), encoder in encoders.items():
            began = time.perf_counter()
            encoder.run(pixels[name])
            taken = (time.perf_counter() - began) / len(pixels[name])
            if number:  # the first round loads and warms up
                seconds[name, way] = min(taken, seconds.get((name, way), taken))
    return seconds


def keep_memory() -> bool:
    """Tell glibc not to give freed memory back to the system; whether it has understood."""
    mmap_max, trim_threshold = -4, -1  # from malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError):
        return False
    return bool(mallopt(mmap_max, 0) and mallopt(trim_threshold, 2**31 - 1))


def main() -> None:
    torch.set_num_threads(1)
    names = sys.argv[1:] or list(NAMES)
    # In a process of its own: an export leaves the allocator of its process in another state.
    subprocess.run([sys.executable, "-c", EXPORT, *names], check=True)
    rng = np.random.default_rng(0)
    encoders: dict[tuple[str, str], EfficientNetLite] = {}
    pixels: dict[str, np.ndarray] = {}
    for name in names:
        encoders[name, "onnx"] = EfficientNetLite(name, threads=1)
        encoders[name, "torch"] = EfficientNetLite(name, device="cpu")
        side = encoders[name, "onnx"].size
        noise = rng.integers(0, 256, (max(1, 16 * 224**2 // side**2), side, side, 3), dtype=np.uint8)
        pixels[name] = encoders[name, "onnx"].pixels([Image.fromarray(picture) for picture in noise])
    results = {"as it comes": measure(encoders, pixels)}
    if keep_memory():
        results["memory kept"] = measure(encoders, pixels)
    print(f"images/s on one thread, the best of {ROUNDS} rounds")
    print(f"{'encoder':24} {'grid':>6} {'allocator':>12} {'ONNX':>7} {'torch':>7} {'ratio':>6}")
    for name in names:
        side = encoders[name, "onnx"].size // 32
        for allocator, seconds in results.items():
            onnx, eager = seconds[name, "onnx"], seconds[name, "torch"]
            row = f"{name:24} {f'{side}×{side}':>6} {allocator:>12}"
            print(f"{row} {1 / onnx:7.1f} {1 / eager:7.1f} {eager / onnx:6.1f}")


if __name__ == "__main__":
    main()
