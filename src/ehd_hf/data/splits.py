"""Windows that suit a table of events, and its splits: train, validation and test."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from .sequences import EventSequences

SPLITS = {"train": 0.8, "validation": 0.1, "test": 0.1}
SHORTEST_WINDOW, LONGEST_WINDOW = 4, 36  # events, history and future together
FUTURE_SHARE = 1 / 6


def choose_window(lengths: np.ndarray, history: int | None = None, future: int | None = None) -> tuple[int, int]:
    """L and K: three quarters of the median sequence, at most 36 events, a sixth of them the future.

    Where fewer than three sequences are long enough, so that each must be cut in time: a twelfth of the longest.
    """
    if min(value for value in (history, future, 1) if value is not None) < 1:
        raise ValueError(f"history and future must be at least 1 event; got {history} and {future}. Leave them out.")
    if history is not None:
        return history, future or max(1, round(history * FUTURE_SHARE / (1 - FUTURE_SHARE)))
    long = lengths[lengths >= SHORTEST_WINDOW]
    typical = 0.75 * float(np.median(long)) if len(long) >= 3 else float(lengths.max()) / 12
    window = int(min(max(typical, SHORTEST_WINDOW), LONGEST_WINDOW))
    future = future or max(1, round(window * FUTURE_SHARE))
    return max(window - future, future, 1), future


def num_windows(lengths: np.ndarray, window: int) -> np.ndarray:
    """How many windows of `window` events sequences of these lengths (S,) give, each (see `windows.make_windows`)."""
    return np.where(lengths == window, 1, np.maximum(lengths - window, 0))


def split_events(
    events: EventSequences, window: int, seed: int = 0, given: Mapping[str, EventSequences] | None = None
) -> tuple[dict[str, EventSequences], str]:
    """Splits train, validation and test, each with a window of `window` events, and how they were made.

    Those `given` are kept. Else whole sequences, by a hash of their names: the order of the rows in a file does not
    matter. Where fewer than three sequences are long enough, every sequence is cut in time instead.
    """
    if given is not None:
        longest = {split: int(given[split].lengths.max()) if split in given else 0 for split in SPLITS}
        if short := [split for split in SPLITS if longest[split] < window]:
            raise ValueError(
                f"the files train, validation and test must each hold a sequence of at least {window} events; the "
                f"longest of {short[0]} has {longest[short[0]]}. Add events, or ask for a shorter history."
            )
        return dict(given), "given"
    is_long = events.lengths >= window
    if is_long.sum() < 3:
        return _cut_in_time(events, window), "in time"
    key = np.array([zlib.crc32(f"{seed}:{name}".encode()) for name in events.seq_ids])
    split_of = np.full(len(events), "train", dtype=object)
    for group, fewest in ((is_long, 1), (~is_long, 0)):
        members = np.flatnonzero(group)
        members = members[np.argsort(key[members], kind="stable")]
        held_out = max(fewest, round(SPLITS["validation"] * len(members)))
        split_of[members[:held_out]] = "validation"
        split_of[members[held_out : 2 * held_out]] = "test"
    return {split: events.select(np.flatnonzero(split_of == split)) for split in SPLITS}, "by sequence"


def _cut_in_time(events: EventSequences, window: int) -> dict[str, EventSequences]:
    """The first 80 %, the next 10 % and the last 10 % of every sequence that is long enough for a window in each."""
    bounds = np.rint(events.lengths[:, None] * np.cumsum([0.0, *SPLITS.values()])).astype(np.int64)  # (S, 4)
    whole = np.flatnonzero((np.diff(bounds, axis=1) >= window).all(1))
    if not len(whole):
        raise ValueError(
            f"training needs three sequences of at least {window} events, or one of about {10 * window + 5}; there "
            f"{'is' if len(events) == 1 else 'are'} {len(events):,}, the longest of {int(events.lengths.max()):,} "
            "events. Give more events, name the column of sequences, or ask for a shorter history."
        )
    previous, splits = events.previous_times(), dict[str, EventSequences]()
    for split, begin, end in zip(SPLITS, bounds[whole].T, bounds[whole].T[1:], strict=False):
        part = events.select(whole, begin, end)
        starts = np.where(begin == 0, part.starts, previous[events.offsets[whole] + begin])
        splits[split] = replace(part, starts=starts)
    return splits
