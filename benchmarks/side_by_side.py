"""Shared by the benchmarks of speed: times in alternating rounds, the bare cost of a run, and its row of a table.

Times are CPU time on one thread, so that other load counts little. On more threads they are wall-clock time, since CPU
time adds up what the threads do side by side; measure them on a machine that does nothing else.

The bare cost is what the matrix products of a run take alone: each shape as often as the run has it. Plain products go
into memory that is there already and starts its rows at cache lines; those with weights in blocks
(`captioners/packed.py`) have weights that are in blocks already.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tellapart.captioners.packed import Linear

# Operator -> places of its two matrices among the arguments.
PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "addmm_": (1, 2), "baddbmm": (1, 2)}


IN_BLOCKS = "_linear_pointwise"


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the matrix products of what runs inside it: (weights in blocks or not, batch, rows, inner, columns)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: Counter[tuple[bool, int, int, int, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        if name in PRODUCTS:
            one, other = (args[place] for place in PRODUCTS[name])
            batch = one.shape[0] if one.ndim == 3 else 1
            self.shapes[False, batch, one.shape[-2], one.shape[-1], other.shape[-1]] += 1
        if name == IN_BLOCKS:
            self.shapes[True, 1, args[0].numel() // args[0].shape[-1], args[0].shape[-1], args[1].shape[0]] += 1
        return func(*args, **(kwargs or {}))


def bare_cost(run: Callable[[], Any], repeats: int = 3) -> float:
    """Seconds of the matrix products of a run alone, the best of some repeats."""
    with Products() as products:
        run()
    total = 0.0
    for (in_blocks, *sizes), count in products.shapes.items():
        if math.prod(sizes):
            multiply = _in_blocks(*sizes[1:]) if in_blocks else _plain(*sizes)
            times = []
            for _ in range(repeats + 1):
                began = clock()
                multiply()
                times.append(clock() - began)
            total += count * min(times)
    return total


def _plain(batch: int, rows: int, inner: int, columns: int) -> Callable[[], Any]:
    one, other = torch.randn(batch, rows, inner), torch.randn(batch, inner, -(-columns // 16) * 16)
    found = torch.empty(batch, rows, other.shape[2])
    return lambda: torch.bmm(one, other, out=found)


def _in_blocks(rows: int, inner: int, columns: int) -> Callable[[], Any]:
    layer, inputs = Linear(inner, columns), torch.randn(rows, inner)
    return torch.no_grad()(lambda: layer(inputs))


def clock() -> float:
    """Seconds: CPU time on one thread, wall-clock time on more."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def best_seconds(runs: Mapping[str, Callable[[], Any]], rounds: int, warm_up: bool = True) -> dict[str, float]:
    """The best seconds of each, in alternating rounds; one more round before them warms up, if asked for."""
    best = dict.fromkeys(runs, float("inf"))
    for number in range(rounds + warm_up):
        for name, run in runs.items():
            began = clock()
            run()
            taken = clock() - began
            if number >= warm_up:
                best[name] = min(best[name], taken)
    return best


def show(row: str, ours: float, peer: float, bare: float | None = None, note: str = "") -> None:
    """Print one row: both times, how many times faster ours is, and the share of our time that cannot be avoided."""
    bound = "" if bare is None else f"  bare {1000 * bare:8.1f} ms ({bare / ours:4.0%} of ours)"
    text = f"{row:44} ours {1000 * ours:8.1f} ms  peer {1000 * peer:8.1f} ms  ratio {peer / ours:5.2f}{bound}"
    print(f"{text}  {note}".rstrip(), flush=True)
