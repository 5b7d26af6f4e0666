"""What a data set is made of, as the paper's tables of features and of window counts say it of theirs."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

import numpy as np

from ehd_hf.data.splits import num_windows

from . import Cache, Row, load_data

PAIRS = {"stackoverflow": ("15-40", "15-45", "15-50", "20-50", "25-50")}
PAIRS |= {"retweet_seismic738_segments": ("10-25", "10-30", "10-35", "15-35", "20-35")}
SPLITS = ("train", "validation", "test")


def find_rows(arguments: Namespace, cache: Cache) -> Iterator[Row]:
    """A row for all splits together, and one for the windows of each pair."""
    splits, stamp = load_data(arguments, *SPLITS)
    stamp |= {"task": "data", "split": "all"}
    parts = [splits[split] for split in SPLITS]
    inner = []
    for part in parts:
        intervals = part.intervals()
        intervals[part.offsets[:-1]] = np.nan  # between two adjacent events
        inner.append(intervals)
    intervals = np.concatenate(inner)
    yield stamp | {
        "num_sequences": sum(map(len, parts)),
        "num_events": sum(part.num_events for part in parts),
        "num_marks": parts[0].num_marks,
        "interval_mean": float(np.nanmean(intervals)),
        "interval_std": float(np.nanstd(intervals)),
        "t0": float(min(part.times.min() for part in parts)),
        "T": float(max(part.times.max() for part in parts)),
    }
    for pair in PAIRS.get(stamp["data"], ()):
        size = sum(map(int, pair.split("-")))
        yield stamp | {"pair": pair} | {split: int(num_windows(splits[split].lengths, size).sum()) for split in SPLITS}
