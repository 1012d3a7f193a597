"""Time several ways to do the same work, in turn, so that a slow phase of the machine affects all ways."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

SAMPLES = 10_000
"""Number of bootstrap samples."""


def in_turn(
    sides: Mapping[str, Callable[[], object]],
    rounds: int,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of each side in each round, in random order; an additional first round is not counted."""
    order, seconds = random.Random(seed), {name: [] for name in sides}
    for counted in range(rounds + 1):
        for name in order.sample(list(sides), len(sides)):
            start = clock()
            sides[name]()
            if counted:
                seconds[name].append(clock() - start)
    return seconds


def ratio(seconds: Sequence[float], to: Sequence[float]) -> dict[str, float]:
    """Return the ratio of medians, `seconds` over `to`, with its 95 % bootstrap percentile interval over rounds."""
    a, b = np.array(seconds), np.array(to)
    rows = np.random.default_rng(0).integers(len(a), size=(SAMPLES, len(a)))
    drawn = np.median(a[rows], axis=1) / np.median(b[rows], axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {"ratio": float(np.median(a) / np.median(b)), "low": float(low), "high": float(high)}


def table(seconds: Mapping[str, Sequence[float]], yardstick: str, memory: Mapping[str, float] | None = None) -> dict:
    """Print and return a table with the median of every side and its ratio to the yardstick."""
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
