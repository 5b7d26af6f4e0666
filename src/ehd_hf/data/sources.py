"""Public data sets as people find them: EasyTPP rows, exported windows -> event sequences.

`load_source` recognises the layout of a path, or of a data set on the Hub; everything it reads goes through
`sequences.load_splits`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from huggingface_hub import snapshot_download

from ..files import check_manifest
from ..hub.fetch import hub_errors
from .sequences import EventSequences, load_splits, split_files
from .tables import read_table, reason_of

_EASYTPP = {"time_since_start", "type_event"}


def load_source(path: str | Path, *, revision: str | None = None, **keywords: Any) -> dict[str, EventSequences]:
    """The splits of a data set, with one shared mark vocabulary; a source without splits is the split train.

    Args:
        path: a file or a folder: EasyTPP rows (JSON, JSONL, Parquet), what `export_windows` writes, or anything
            `load_splits` reads; or the Hub id of a data set that holds one of these.
        revision: branch, tag or commit of a data set on the Hub.
        keywords: as in `load_events`; EasyTPP rows and exports know their columns.
    """
    if not os.path.exists(path) and re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)):
        path = _download(str(path), revision)
    path = Path(path)
    if not os.path.exists(path):  # False for a name that no file can have
        raise ValueError(f"a source is a file, a folder or the Hub id of a data set; {path} does not exist. Check it.")
    if (path / "sequences").is_dir():
        return _load_export(path / "sequences", keywords)
    tables = {split: read_table(file) for split, file in split_files(path).items()}
    if all(_EASYTPP <= set(table.column_names) for table in tables.values()):
        return _load_easytpp(tables, keywords)
    return load_splits(tables, **(_known_folder(path) | keywords))


def _download(repo_id: str, revision: str | None) -> str:
    """A data set of the Hub in the local cache, without its windows: they are made from its sequences."""
    windows = "[0-9]*-[0-9]*/*"
    try:
        with hub_errors(repo_id, "dataset", revision):
            return snapshot_download(repo_id, repo_type="dataset", revision=revision, ignore_patterns=windows)
    except OSError as error:
        raise OSError(f"there is no file or folder {repo_id}, and as the id of a data set: {error}") from error


def _load_export(folder: Path, keywords: dict[str, Any]) -> dict[str, EventSequences]:
    """The sequences behind exported windows, with the timestamps their times count from."""
    check_manifest(folder, remedy="Export it again")
    tables = {split: read_table(file) for split, file in split_files(folder).items()}
    splits = load_splits(tables, start="start", **keywords)
    for split, table in tables.items():
        if "epoch" not in table.column_names or table["epoch"].null_count:
            continue
        if not pa.types.is_timestamp(table["epoch"].type) or splits[split].epochs is not None:
            raise ValueError(f"epochs in {folder} must be timestamps beside numeric times. Export it again.")
        splits[split] = replace(splits[split], epochs=table["epoch"].cast(pa.timestamp("ns")).to_numpy())
    return splits


def _known_folder(folder: Path) -> dict[str, Any]:
    """What two folders of Parquet splits cannot say themselves: keywords of `load_splits`."""
    name = folder.resolve().name
    if name == "stackoverflow" and (folder / "badges.csv").is_file():
        rows = (row.values() for row in read_table(folder / "badges.csv").to_pylist())
        labels = {number - 1: badge.strip() for number, badge, *_ in rows}
        return {"id2label": labels, "time_unit": "1e6 s"}
    if name == "retweet_seismic738_segments":
        labels = {0: "under 120 followers", 1: "120 to 1,362 followers", 2: "1,363 followers or more"}
        return {"id2label": labels, "time_unit": "s"}
    return {}


def with_jitter(sequences: EventSequences, *, seed: int) -> EventSequences:
    """Whole-number times spread uniformly over their unit, each sequence sorted again (marks move along). Where times
    are rounded down many intervals are 0, where densities are unbounded: likelihoods compare after the same jitter."""
    for bad in np.flatnonzero(sequences.times != np.floor(sequences.times))[:1]:
        raise ValueError(f"jitter is for whole-number times; got {sequences.times[bad]}. These need none.")
    times = sequences.times + np.random.default_rng(seed).uniform(size=sequences.num_events)
    owner = np.repeat(np.arange(len(sequences)), sequences.lengths)
    order = np.lexsort((times, owner))
    return replace(sequences, times=times[order], marks=sequences.marks[order])


def _load_easytpp(tables: Mapping[str, pa.Table], keywords: dict[str, Any]) -> dict[str, EventSequences]:
    """EasyTPP rows of each split, one per sequence: `time_since_start` and `type_event` (lists); where present also
    `time_since_last_event`, `dim_process` (number of marks, unless the caller says) and `seq_idx`."""
    columns: dict[str, dict[str, Any]] = {}
    declared: list[Any] = []
    for split, table in tables.items():
        starts = _easytpp_starts(table, split)
        columns[split] = {"times": table["time_since_start"], "marks": table["type_event"], "start": starts}
        if "seq_idx" in table.column_names and not table["seq_idx"].null_count:
            columns[split]["seq_id"] = table["seq_idx"]
        declared += table["dim_process"].drop_null().to_pylist() if "dim_process" in table.column_names else []
    if declared and not {"id2label", "num_marks"} & keywords.keys():
        for bad in [count for count in declared if type(count) not in (int, float) or not 1 <= count < np.inf][:1]:
            raise ValueError(f"dim_process must be a number of marks; got {bad!r:.80}. Pass num_marks.")
        keywords = {"num_marks": int(max(declared)), **keywords}
    return load_splits(columns, start="start", **keywords)


def _easytpp_starts(table: pa.Table, split: str) -> np.ndarray:
    """(S,) when each observation began: the first interval before the first event; NaN (unknown) where that is 0."""
    starts = np.full(table.num_rows, np.nan)
    if "time_since_last_event" not in table.column_names:
        return starts
    both = [table[name] for name in ("time_since_start", "time_since_last_event")]
    try:
        lists = [column.cast(pa.list_(pa.float64())).to_pylist() for column in both]
    except pa.ArrowException as error:
        raise ValueError(f"times must be lists of numbers; got {reason_of(error)}. Correct them.") from error
    for row, pair in enumerate(zip(*lists, strict=True)):
        if not all(pair):
            continue
        times, gaps = (np.array(values, dtype=float) for values in pair)
        # Files round, some to single precision: what matters is that both fields tell the same story.
        with np.errstate(all="ignore"):  # what is not finite fails the comparison
            tolerance = 0.01 * np.abs(gaps[1:]).sum() + 1e-6 * len(times) * np.abs(times).max()
            agree = len(gaps) == len(times) and np.abs(np.diff(times) - gaps[1:]).sum() <= tolerance
        if not agree or not gaps[0] >= 0:
            got = f"{pair[1][:4]}... and {pair[0][:4]}... in row {row} of {split}. Correct it, or leave it out"
            raise ValueError(f"time_since_last_event must be the differences of time_since_start; got {got}.")
        if gaps[0] > 0:  # many files write 0 for "nothing before"
            starts[row] = 0.0 if np.isclose(gaps[0], times[0]) else float(times[0] - gaps[0])
    return starts
