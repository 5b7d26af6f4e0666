"""Turn the SEISMIC release of retweet cascades into one Parquet file of sequences, marks by number of followers.

    python scripts/tools/seismic.py index.csv data.csv --out data/retweet/train.parquet

then, in Python: ehd_hf.load_windows("data/retweet", "15-40", start="start", time_unit="s").
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

FOLLOWER_CLASSES = (120, 1363)  # the boundaries of Retweet's three marks


def cascades(index: Path, data: Path, classes: Sequence[int] = FOLLOWER_CLASSES) -> pa.Table:
    """One cascade per row, times in seconds since the original tweet (the first event, at 0).

    Args:
        index: CSV, one cascade per row: `tweet_id`; `start_ind`, `end_ind`, its rows in `data` from 1, inclusive.
        data: CSV, one (re)tweet per row: `relative_time_second`, `number_of_followers`.
        classes: increasing boundaries; mark m has at least classes[m - 1] followers and fewer than classes[m].
    """
    if not len(classes) or (np.diff(classes) <= 0).any():
        raise ValueError(f"the classes must be increasing boundaries; got {classes}. Try 120 1363.")
    tweets, first, last = _columns(index, "tweet_id", "start_ind", "end_ind")
    times, followers = _columns(data, "relative_time_second", "number_of_followers")
    whole = (first == np.floor(first)) & (last == np.floor(last))
    for bad in np.flatnonzero(~(whole & (first >= 1) & (first <= last) & (last <= len(times))))[:1]:
        raise ValueError(
            f"start_ind and end_ind must be rows 1..{len(times)} of {data}; got {first[bad]}..{last[bad]} for tweet "
            f"{tweets[bad]}. Check that both files belong to the same release."
        )
    offsets = np.concatenate([[0], np.cumsum(last - first + 1)]).astype(np.int64)
    rows = np.arange(offsets[-1]) + np.repeat(first.astype(np.int64) - 1 - offsets[:-1], np.diff(offsets))
    marks = np.searchsorted(classes, followers, side="right")
    between = [f"{low:,} to {high - 1:,} followers" for low, high in zip(classes[:-1], classes[1:], strict=True)]
    labels = np.array([f"under {classes[0]:,} followers", *between, f"{classes[-1]:,} followers or more"])
    columns = {
        "seq_id": tweets,
        "times": pa.LargeListArray.from_arrays(offsets, times[rows]),
        "marks": pa.LargeListArray.from_arrays(offsets, labels[marks[rows]]),
        "start": np.zeros(len(tweets)),
    }
    return pa.table(columns)


def _columns(path: Path, *names: str) -> list[np.ndarray]:
    """Columns of numbers, none of them missing."""
    frame = pd.read_csv(path, skipinitialspace=True)
    if set(names) - set(frame):
        raise ValueError(
            f"{path} must have the columns {', '.join(names)}; got {', '.join(map(str, frame))}. Check that index and "
            "data are not swapped, and that the header is there."
        )
    for name in names:
        if not pd.api.types.is_numeric_dtype(frame[name]) or not np.isfinite(frame[name].to_numpy(float)).all():
            raise ValueError(f"column {name} of {path} must hold numbers; got a row without one. Correct it.")
    return [frame[name].to_numpy() for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--classes", type=int, nargs="+", default=FOLLOWER_CLASSES, help="boundaries of the marks")
    arguments = parser.parse_args()
    try:
        table = cascades(arguments.index, arguments.data, arguments.classes)
    except (ValueError, OSError) as error:
        sys.exit(f"seismic: {error}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, arguments.out)
    print(f"wrote {table.num_rows:,} cascades to {arguments.out}")


if __name__ == "__main__":
    main()
