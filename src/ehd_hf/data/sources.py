"""Public data sets as people find them: EasyTPP rows, Neural Hawkes pickles, exported windows -> event sequences.

`load_source` recognises the layout of a path, or of a data set on the Hub; everything it reads goes through
`sequences.load_splits`.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from huggingface_hub import snapshot_download

from ..hub.fetch import hub_errors
from .sequences import SPLIT_NAMES, EventSequences, load_splits, split_files
from .tables import read_table, reason_of

PICKLES = (".pkl", ".pickle")
_EASYTPP = {"time_since_start", "type_event"}


def load_source(path: str | Path, *, revision: str | None = None, **keywords: Any) -> dict[str, EventSequences]:
    """The splits of a data set, with one shared mark vocabulary; a source without splits is the split train.

    Args:
        path: a file or a folder: EasyTPP rows (JSON, JSONL, Parquet), Neural Hawkes pickles, what `export_windows`
            writes, or anything `load_splits` reads; or the Hub id of a data set that holds one of these.
        revision: branch, tag or commit of a data set on the Hub.
        keywords: as in `load_events`; EasyTPP rows, pickles and exports know their columns.
    """
    if not os.path.exists(path) and re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)):
        path = _download(str(path), revision)
    path = Path(path)
    if not os.path.exists(path):  # False for a name that no file can have
        raise ValueError(f"a source is a file, a folder or the Hub id of a data set; {path} does not exist. Check it.")
    files = list(path.iterdir()) if path.is_dir() else [path]
    if (path / "sequences").is_dir():
        return _load_export(path / "sequences", keywords)
    if any(file.suffix in PICKLES for file in files):
        return from_neural_hawkes(path, **keywords)
    tables = {split: read_table(file) for split, file in split_files(path).items()}
    if all(_EASYTPP <= set(table.column_names) for table in tables.values()):
        return _load_easytpp(tables, keywords)
    return load_splits(tables, **(_known_folder(path) | keywords))


def _download(repo_id: str, revision: str | None) -> Path:
    """A data set of the Hub in the local cache, without its windows: they are made from its sequences."""
    try:
        with hub_errors(repo_id, "dataset", revision):
            return Path(
                snapshot_download(repo_id, repo_type="dataset", revision=revision, ignore_patterns="[0-9]*-[0-9]*/*")
            )
    except OSError as error:
        raise OSError(f"there is no file or folder {repo_id}, and as the id of a data set: {error}") from error


def _load_export(folder: Path, keywords: dict[str, Any]) -> dict[str, EventSequences]:
    """The sequences behind exported windows, with the timestamps their times count from."""
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


def from_easytpp(rows: Iterable[Mapping[str, Any]], **keywords: Any) -> EventSequences:
    """EasyTPP rows, a list of dicts or a `datasets.Dataset`: one sequence each.

    Fields: `time_since_start` and `type_event` (lists); `time_since_last_event` (checked, and its first entry, if
    positive, tells when the observation began), `dim_process` (number of marks) and `seq_idx` where present.
    """
    return _load_easytpp({"train": read_table(list(rows))}, keywords)["train"]


def from_neural_hawkes(path: str | Path, **keywords: Any) -> dict[str, EventSequences]:
    """Splits of the Neural Hawkes and Transformer Hawkes pickles, read without running anything inside them.

    Args:
        path: a pickle of {"dim_process": C, "train": sequences, "dev": ..., "test": ...}, a sequence being a list of
            {"time_since_start": ..., "time_since_last_event": ..., "type_event": ...}; or a folder with train.pkl,
            dev.pkl and test.pkl, each giving its own split (some releases repeat the others in every file).
    """
    path = Path(path)
    if path.is_dir():
        files = split_files(path, PICKLES)
        rows = {split: _pickled_rows(file).get(split, []) for split, file in files.items()}
    else:
        rows = _pickled_rows(path)
    for split in (split for split, sequences in rows.items() if not sequences):
        raise ValueError(f"split {split} must have a sequence; got none. Check its file, or leave it out.")
    return _load_easytpp({split: read_table(sequences) for split, sequences in rows.items()}, keywords)


def with_jitter(sequences: EventSequences, *, seed: int) -> EventSequences:
    """Whole-number times spread uniformly over their unit, each sequence sorted again (marks move along).

    Where times are rounded down many intervals are 0, and a continuous density is unbounded there: likelihoods compare
    only after every model has been given the same jitter.
    """
    for bad in np.flatnonzero(sequences.times != np.floor(sequences.times))[:1]:
        raise ValueError(f"jitter is for whole-number times; got {sequences.times[bad]}. These need none.")
    times = sequences.times + np.random.default_rng(seed).uniform(size=sequences.num_events)
    owner = np.repeat(np.arange(len(sequences)), sequences.lengths)
    order = np.lexsort((times, owner))
    return replace(sequences, times=times[order], marks=sequences.marks[order])


def _load_easytpp(tables: Mapping[str, pa.Table], keywords: dict[str, Any]) -> dict[str, EventSequences]:
    """EasyTPP rows of each split through `load_splits`; `dim_process` counts the marks unless the caller does."""
    columns: dict[str, dict[str, Any]] = {}
    declared: list[Any] = []
    for split in sorted(tables, key=["train", "validation", "test"].index):
        table = tables[split]
        if _EASYTPP - set(table.column_names):
            names, needed = ", ".join(table.column_names), " and ".join(sorted(_EASYTPP))
            raise ValueError(f"rows of {split} must have {needed}; got {names}. Rename the fields.")
        columns[split] = {"times": table["time_since_start"], "marks": table["type_event"]}
        columns[split]["start"] = _easytpp_starts(table, split)
        if "seq_idx" in table.column_names and not table["seq_idx"].null_count:
            columns[split]["seq_id"] = table["seq_idx"]
        declared += table["dim_process"].to_pylist() if "dim_process" in table.column_names else []
    declared = [count for count in declared if count is not None]
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
    for row, (given_times, given_gaps) in enumerate(zip(*lists, strict=True)):
        if not given_times or not given_gaps:
            continue
        times, gaps = np.array(given_times, dtype=float), np.array(given_gaps, dtype=float)
        # Files round, some to single precision: what matters is that both fields tell the same story.
        with np.errstate(all="ignore"):  # what is not finite fails the comparison
            tolerance = 0.01 * np.abs(gaps[1:]).sum() + 1e-6 * len(times) * np.abs(times).max()
            agree = len(gaps) == len(times) and np.abs(np.diff(times) - gaps[1:]).sum() <= tolerance
        if not agree or not gaps[0] >= 0:
            raise ValueError(
                f"time_since_last_event must be the differences of time_since_start; got {given_gaps[:4]}... and "
                f"{given_times[:4]}... in row {row} of {split}. Correct it, or leave out time_since_last_event."
            )
        if gaps[0] > 0:  # many files write 0 for "nothing before"
            starts[row] = 0.0 if np.isclose(gaps[0], times[0]) else float(times[0] - gaps[0])
    return starts


def _pickled_rows(file: Path) -> dict[str, list[dict[str, Any]]]:
    """EasyTPP rows of every split that has sequences; other keys of the pickle (args, devtest) are ignored."""
    fields = ("time_since_start", "time_since_last_event", "type_event")
    raw = file.read_bytes()
    try:
        _check_memo(raw)
        content = _PlainUnpickler(io.BytesIO(raw), encoding="latin1").load()  # latin1: many were written by Python 2
    except Exception as error:  # a damaged or hostile pickle may fail in any way
        raise ValueError(
            f"{file} must be a pickle of plain lists, dicts, numbers and strings; got {reason_of(error)}. Nothing in "
            "it was run. If you trust the file, convert it to JSON or Parquet yourself."
        ) from error
    try:
        splits = {SPLIT_NAMES[key]: value for key, value in content.items() if key in SPLIT_NAMES and value}
        # References make a pickle unfold: no event takes less than a byte, so more of them than bytes are a trap.
        too_many = sum(len(events) for sequences in splits.values() for events in sequences) > len(raw)
        rows = {
            split: [
                {field: [event[field] for event in events] for field in fields}
                | {"dim_process": content.get("dim_process")}
                for events in sequences
            ]
            for split, sequences in splits.items()
            if not too_many
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} must be a dict of splits, each a list of sequences of events with {', '.join(fields)}; got "
            f"{error!r}. Convert it to JSON or Parquet."
        ) from error
    if too_many or not rows:
        got = f"more events than its {len(raw):,} bytes" if too_many else ", ".join(map(str, content))
        raise ValueError(f"{file} must hold sequences under train, dev or test; got {got}. Check where it is from.")
    return rows


def _check_memo(raw: bytes) -> None:
    """Refuse a pickle that numbers its memo beyond its own length: the reader would make room for all up to there."""
    for code, argument, _ in pickletools.genops(raw):
        if code.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= int(argument or 0) <= len(raw):
            raise pickle.UnpicklingError(f"a memo of {argument:,} entries in {len(raw):,} bytes")


class _NumberType:
    """Stands for a numpy dtype inside a pickle: numbers only, so that no bytes are ever taken for objects."""

    __slots__ = ("dtype",)

    def __init__(self, code: Any, *_: Any) -> None:
        if not (isinstance(code, str) and re.fullmatch(r"[<>=|]?(b1|[iu][1248]|f[248])", code)):
            raise pickle.UnpicklingError(f"the numpy type {code!r}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


def _number(kind: Any, raw: Any) -> int | float | bool:
    if type(kind) is not _NumberType or type(raw) not in (str, bytes):
        raise pickle.UnpicklingError(f"a numpy scalar of {type(kind).__name__} and {type(raw).__name__}")
    return np.frombuffer(raw.encode("latin1") if isinstance(raw, str) else raw, dtype=kind.dtype, count=1)[0].item()


def _latin1(text: Any, encoding: Any) -> bytes:
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"text in the encoding {encoding!r}")
    return text.encode("latin1")


class _PlainUnpickler(pickle.Unpickler):
    """Containers, numbers and strings. Imports nothing: numpy's scalars, where named, are built by the code above."""

    stand_ins: Mapping[tuple[str, str], Callable[..., Any]] = {
        ("numpy.core.multiarray", "scalar"): _number,
        ("numpy._core.multiarray", "scalar"): _number,
        ("numpy", "dtype"): _NumberType,
        ("_codecs", "encode"): _latin1,  # how protocol 2 writes the bytes of a scalar
    }

    def find_class(self, module: str, name: str) -> Any:
        build = self.stand_ins.get((module, name))
        if build is None:
            raise pickle.UnpicklingError(f"a request to import {module}.{name}")
        # A fresh function each time, because a pickle may set attributes on what it is handed.
        return lambda *arguments: build(*arguments)
