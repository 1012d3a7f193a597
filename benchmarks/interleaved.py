"""Timing several ways to do the same work in one run: in turn, so that a slow minute slows all of them."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

SAMPLES = 10_000
"""Of the bootstrap."""


def in_turn(
    sides: Mapping[str, Callable[[], object]],
    rounds: int,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each side in each round; the order is random in each round. A first round is not counted."""
    order, seconds = random.Random(seed), {name: [] for name in sides}
    for counted in range(rounds + 1):
        for name in order.sample(list(sides), len(sides)):
            start = clock()
            sides[name]()
            if counted:
                seconds[name].append(clock() - start)
    return seconds


def ratio(seconds: Sequence[float], to: Sequence[float]) -> dict[str, float]:
    """Median of the first over that of the second, with the 95 % percentile interval of the bootstrap over rounds."""
    a, b = np.array(seconds), np.array(to)
    rows = np.random.default_rng(0).integers(len(a), size=(SAMPLES, len(a)))
    drawn = np.median(a[rows], axis=1) / np.median(b[rows], axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {"ratio": float(np.median(a) / np.median(b)), "low": float(low), "high": float(high)}


def table(seconds: Mapping[str, Sequence[float]], yardstick: str, memory: Mapping[str, float] | None = None) -> dict:
    """Median and ratio to the yardstick of every side, printed as a table and returned."""
    rows = {}
    for name, taken in seconds.items():
        rows[name] = {"median": statistics.median(taken), **ratio(taken, seconds[yardstick])}
        if memory:
            rows[name]["peak_mb"] = memory[name]
    print(f"{'':34}{'median':>10}   ratio to {yardstick} (95 %)" + ("       peak" if memory else ""))
    for name, row in rows.items():
        interval = f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        peak = f"{row['peak_mb']:>10,.0f} MB" if memory else ""
        print(f"{name:34}{row['median']:>8.3f} s   {interval:<28}{peak}")
    return rows
