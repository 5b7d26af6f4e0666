"""Groups of benchmarks, one file each with a function `measure(repeats) -> rows`; and how all of them take time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Row = dict[str, Any]


def time_interleaved(calls: Sequence[Callable[[], Any]], repeats: int, least_seconds: float = 0.1) -> np.ndarray:
    """Seconds per call (repeats, len(calls)); calls take turns, so that a busy machine slows all of them alike.

    Short calls are repeated until `least_seconds` have passed, and the first round, which warms up, does not count.
    """
    seconds = np.empty((repeats + 1, len(calls)))
    counts = [1] * len(calls)
    for turn in range(repeats + 1):
        for index, call in enumerate(calls):
            began = time.perf_counter()
            for _ in range(counts[index]):
                call()
            seconds[turn, index] = (time.perf_counter() - began) / counts[index]
            if turn == 0:
                counts[index] = max(1, int(least_seconds / seconds[turn, index]))
    return seconds[1:]


def summarize(figure: str, values: Sequence[float] | np.ndarray, target: str | None = None) -> Row:
    """A row of a figure from its value in each repeat."""
    values = [float(value) for value in values]
    return {
        "figure": figure,
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
        "repeats": len(values),
        "target": target,
    }
