"""Groups of benchmarks, one file each with a function `measure(repeats) -> rows`; and how all of them take time."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ehd_hf.data.windows import load_windows
from ehd_hf.explain.many import keep_freed_memory
from ehd_hf.models.window import Window

Row = dict[str, Any]
# StackOverflow is not part of the package: a folder written by `ehd-hf data windows`.
STACKOVERFLOW = Path(os.environ.get("EHD_HF_DATA", Path(__file__).resolve().parents[3] / "data" / "stackoverflow"))


def time_interleaved(calls: Sequence[Callable[[], Any]], repeats: int, least_seconds: float = 0.1) -> np.ndarray:
    """Seconds per call (repeats, len(calls)); calls take turns, so that a busy machine slows all of them alike.

    Short calls are repeated until `least_seconds` have passed, and the first round, which warms up, does not count.
    """
    keep_freed_memory()  # as long runs do
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


def summarize(figure: str, values: Sequence[float] | np.ndarray, target: str | None = None, **more: Any) -> Row:
    """A row of a figure from its value in each repeat. `more`: the `data` it was measured on; for a plot, the `axis`,
    the `x` on it, the `series` of points, and the `unit` of the median, which is the y."""
    values = [float(value) for value in values]
    return {
        "figure": figure,
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
        "repeats": len(values),
        "target": target,
        **more,
    }


def real_windows(history: int, future: int, number: int) -> tuple[Window, str]:
    """Windows of StackOverflow's test split, spread evenly over it, times in double precision; and the words for them.
    Random ones, and words that say so, where the data is not there."""
    if not STACKOVERFLOW.exists():
        return random_windows(history, future, number), "random events"
    windows = load_windows(STACKOVERFLOW, f"{future}-{history}", split="test")
    times, marks = windows.gather(np.linspace(0, len(windows) - 1, number).astype(int))
    return Window(times, marks, torch.ones_like(marks, dtype=torch.bool), future), "StackOverflow test"


def random_windows(history: int, future: int, number: int, num_marks: int = 22) -> Window:
    """Windows of a Poisson process of rate 1 with marks drawn alike, times in double precision."""
    generator = torch.Generator().manual_seed(0)
    shape = (number, history + future)
    times = torch.empty(shape, dtype=torch.float64).exponential_(generator=generator).cumsum(1)
    marks = torch.randint(num_marks, shape, generator=generator)
    return Window(times, marks, torch.ones(shape, dtype=torch.bool), future)
