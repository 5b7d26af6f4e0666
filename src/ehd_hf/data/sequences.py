"""Marked event sequences: what a user has, checked once at the door and then trusted.

`EventSequences` holds many sequences flat (one copy in memory, sequence i between two offsets). `load_events` makes it
from files, frames, datasets and lists. Everything later (windows, models, solvers) starts from here.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from .tables import FILE_TYPES, nearest, read_table

if TYPE_CHECKING:
    import torch

TIME_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}  # in nanoseconds
TIME_UNITS |= {"D": 24 * TIME_UNITS["h"], "W": 7 * 24 * TIME_UNITS["h"]}
SPLIT_NAMES = {"train": "train", "test": "test"} | dict.fromkeys(("validation", "valid", "val", "dev"), "validation")
# More integer marks than this are surely identifiers; naming each of them would only fill the memory.
MAX_INFERRED_MARKS = 1_000_000
# Models count in float32, which ends at 3e38; nothing measured in a sensible unit comes near.
LONGEST_SPAN = 1e30
# Float64 tells whole numbers apart up to here.
_LARGEST_WHOLE = 2**53
# What 64 bits of nanoseconds hold, whole years.
_FIRST_YEAR, _LAST_YEAR = 1678, 2261


def unit_in_nanoseconds(unit: str) -> float:
    """Length of a time unit: one of `TIME_UNITS`, or a multiple of one such as "1e6 s"."""
    factor, _, name = str(unit).rpartition(" ")
    try:
        length = TIME_UNITS[name] * (float(factor) if factor else 1)
    except (KeyError, ValueError):
        length = math.nan
    if not 0 < length < math.inf:
        raise ValueError(
            f"a unit of time is one of {', '.join(TIME_UNITS)}, or a multiple such as '1e6 s'; got {unit!r}."
        )
    return length


@dataclass(frozen=True)
class EventSequences:
    """Many marked event sequences, stored flat.

    Args:
        times: (N,) float64, in `time_unit`, finite, non-decreasing within a sequence (ties allowed).
        marks: (N,) int64 in [0, num_marks).
        offsets: (S + 1,) int64; sequence i owns events offsets[i]:offsets[i + 1].
        seq_ids: S ids as the source names its sequences.
        id2label: name of every mark; its length is the number of marks.
        starts: (S,) float64, when each observation began; NaN where unknown.
        time_unit: name of the unit of `times` ("s", "h", "1e6 s", ...), or None if the source does not say.
        epochs: (S,) datetime64[ns], the timestamp each sequence counts from, if its times came as timestamps.
        resolution: in `time_unit`; if given, the source rounded its times down to multiples of it, and `times` stand
            somewhere inside (see `reading.spread_ties`). People are shown the source's.
    """

    times: np.ndarray
    marks: np.ndarray
    offsets: np.ndarray
    seq_ids: tuple[Any, ...]
    id2label: Mapping[int, str]
    starts: np.ndarray
    time_unit: str | None = None
    epochs: np.ndarray | None = field(default=None)
    resolution: float | None = None

    @classmethod
    def from_lists(
        cls,
        times: Sequence[Any],
        marks: Sequence[Any],
        *,
        id2label: Mapping[int, str] | None = None,
        num_marks: int | None = None,
        seq_ids: Sequence[Any] | None = None,
        starts: Sequence[float] | np.ndarray | None = None,
        time_unit: str | None = None,
    ) -> EventSequences:
        """One list of numeric times and one of integer marks per sequence; validates and flattens."""
        try:
            times, marks = ([np.asarray(sequence) for sequence in values] for values in (times, marks))
            flat = all(sequence.ndim == 1 and sequence.dtype != object for sequence in (*times, *marks))
            first = None if starts is None else pa.array(np.asarray(starts, dtype=np.float64))
        except (TypeError, ValueError):
            flat = False
        if not flat:
            raise ValueError("from_lists takes a list of numbers per sequence; got others. Use load_events instead.")
        ids = tuple(range(len(times))) if seq_ids is None else tuple(seq_ids)
        if not len(times) == len(marks) == len(ids) > 0:
            raise ValueError(
                "times, marks and seq_ids must name the same sequences, at least one; "
                f"got {len(times)}, {len(marks)} and {len(ids)}. Give one list of each per sequence."
            )
        lengths, mark_lengths = (np.array([len(sequence) for sequence in values]) for values in (times, marks))
        offsets = _offsets(lengths, mark_lengths, ids)
        flat_times, flat_marks = (pa.array(np.concatenate(values)) for values in (times, marks))
        if _is_text(flat_times.type) or _is_text(flat_marks.type) or pa.types.is_timestamp(flat_times.type):
            raise ValueError("from_lists takes numeric times and marks; got text or dates. Use load_events instead.")
        labels = _vocabulary([flat_marks], id2label, num_marks)
        return checked_sequences(flat_times, flat_marks, first, offsets, ids, labels, time_unit)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Times and marks of one sequence."""
        index = range(len(self))[index]
        span = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return self.times[span], self.marks[span]

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return (self[index] for index in range(len(self)))

    @property
    def num_events(self) -> int:
        return len(self.times)

    @property
    def num_marks(self) -> int:
        return len(self.id2label)

    @property
    def label2id(self) -> dict[str, int]:
        return {label: mark for mark, label in self.id2label.items()}

    @property
    def lengths(self) -> np.ndarray:
        """(S,) number of events of each sequence."""
        return np.diff(self.offsets)

    def previous_times(self) -> np.ndarray:
        """(N,) time of the event before each one; before a sequence's first, its start, or its own time if unknown."""
        previous = np.empty_like(self.times)
        previous[1:] = self.times[:-1]
        first = self.offsets[:-1]
        previous[first] = np.where(np.isnan(self.starts), self.times[first], self.starts)
        return previous

    def intervals(self) -> np.ndarray:
        """(N,) time since the event before; 0 for the first of a sequence whose start is unknown."""
        return self.times - self.previous_times()

    def timestamps(self, index: int) -> np.ndarray | None:
        """Timestamps of one sequence's events as datetime64[ns], exact to the microsecond; None for numbers."""
        if self.epochs is None:
            return None
        # float64 is exact to the microsecond for decades, so rounding restores the source's timestamps.
        microseconds = np.rint(self[index][0] * (unit_in_nanoseconds(self.time_unit or "s") / 1000)).astype(
            "timedelta64[us]"
        )
        moments = self.epochs[index] + microseconds.astype("timedelta64[ns]")
        if self.resolution is None:
            return moments
        step = round(self.resolution * unit_in_nanoseconds(self.time_unit or "s"))
        return (moments.astype(np.int64) // step * step).astype("datetime64[ns]")

    def shown_times(self, index: int) -> np.ndarray:
        """Times of one sequence's events as the source gives them: moments, or numbers."""
        moments, times = self.timestamps(index), self[index][0]
        if moments is not None:
            return moments
        return times if self.resolution is None else np.floor(times / self.resolution) * self.resolution

    def select(self, indices: Sequence[int] | np.ndarray) -> EventSequences:
        """The sequences at `indices`, in that order."""
        indices = np.asarray(indices, dtype=np.int64)
        lengths = self.lengths[indices]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        where = np.arange(offsets[-1]) + np.repeat(self.offsets[indices] - offsets[:-1], lengths)
        return replace(
            self,
            times=self.times[where],
            marks=self.marks[where],
            offsets=offsets,
            seq_ids=tuple(self.seq_ids[i] for i in indices),
            starts=self.starts[indices],
            epochs=None if self.epochs is None else self.epochs[indices],
        )


@dataclass(frozen=True)
class EventBatch:
    """Sequences side by side, right-padded.

    Args:
        times: (B, T) float32, relative to each row's clock origin; padding repeats the last time.
        marks: (B, T) int64; 0 on padding.
        mask: (B, T) bool, True where there is an event.
    """

    times: torch.Tensor
    marks: torch.Tensor
    mask: torch.Tensor

    @classmethod
    def from_spans(
        cls, times: np.ndarray, marks: np.ndarray, first: np.ndarray, count: np.ndarray, origin: np.ndarray
    ) -> EventBatch:
        """Events first[b] : first[b] + count[b] of flat `times` and `marks` (N,); first, count and origin are (B,)."""
        import torch

        step = np.arange(count.max())
        mask = step < count[:, None]  # (B, T)
        where = first[:, None] + np.minimum(step, count[:, None] - 1)
        # The difference is taken in float64: float32 would lose small intervals far from zero.
        relative = (times[where] - origin[:, None]).astype(np.float32)
        return cls(torch.from_numpy(relative), torch.from_numpy(marks[where] * mask), torch.from_numpy(mask))


def load_events(
    source: Any,
    *,
    sequence: str | None = None,
    time: str | None = None,
    mark: str | None = None,
    id2label: Mapping[int, str] | None = None,
    num_marks: int | None = None,
    start: str | None = None,
    time_unit: str | None = None,
    sort: bool = False,
) -> EventSequences:
    """Event sequences from a file, a frame, a dataset or plain lists.

    Long format has one row per event (sequence id, time and mark columns), list format one row per sequence (list
    columns); the time column tells which. Marks given as strings get a vocabulary, in sorted order.

    Args:
        source: path to .csv, .jsonl, .json or .parquet; pandas DataFrame; `datasets.Dataset`; dict of columns; or a
            list of sequences, each a list of (time, mark) pairs or a dict of times and marks.
        sequence: column of sequence ids; default `seq_id` if there is one. Without ids rows are numbered (list
            format), or all belong to one sequence (long format).
        time: column of times, default `times` or `time`: numbers, timestamps or ISO strings.
        mark: column of marks, default `marks` or `mark`: integers or strings.
        id2label: names of the marks; string marks outside it are an error.
        num_marks: number of integer marks, if larger than the largest one seen plus 1.
        start: column with the moment a sequence's observation began, of the same kind as the times.
        time_unit: for timestamps the unit to convert to ("s" by default); for numbers only a name to keep.
        sort: put the events of each sequence in order of time (ties keep their order) instead of refusing them.

    Example:

    ```python
    >>> load_events([[(0.5, "login"), (2.0, "error")], [(1.0, "login")]]).id2label
    {0: 'error', 1: 'login'}
    ```
    """
    return _load({"": source}, sequence, time, mark, id2label, num_marks, start, time_unit, sort)[""]


def load_splits(source: str | Path | Mapping[str, Any], **keywords: Any) -> dict[str, EventSequences]:
    """Splits that share one mark vocabulary.

    Args:
        source: a folder with files named train, validation (or valid, val, dev) and test, of which any may be missing;
            other files are ignored. A single file is the split train. Or a mapping from split to `load_events` source.
        keywords: as in `load_events`.
    """
    return _load(source if isinstance(source, Mapping) else _split_files(Path(source)), **keywords)


def _load(
    sources: Mapping[str, Any],
    sequence: str | None = None,
    time: str | None = None,
    mark: str | None = None,
    id2label: Mapping[int, str] | None = None,
    num_marks: int | None = None,
    start: str | None = None,
    time_unit: str | None = None,
    sort: bool = False,
) -> dict[str, EventSequences]:
    tables = {split: read_table(source) for split, source in sources.items()}
    marks = {split: _column(table, "mark", mark, "marks", "mark") for split, table in tables.items()}
    stored = next(filter(None, (_class_names(tables[split], name) for split, (name, _) in marks.items())), None)
    values = [piece.flatten() if _is_list(piece.type) else piece for _, piece in marks.values()]
    labels = _vocabulary(values, stored if id2label is None else id2label, num_marks)
    built = {}
    for split, table in tables.items():
        try:
            times = _column(table, "time", time, "times", "time")[1]
            flat = _flatten(table, times, marks[split][1], sequence, start)
            built[split] = checked_sequences(*flat, labels, time_unit or _stored_unit(table), sort)
        except ValueError as error:
            raise ValueError(f"split {split!r}: {error}" if split else str(error)) from None
    return built


def _split_files(path: Path) -> dict[str, Path]:
    if not path.is_dir():
        return {"train": path}
    files: dict[str, Path] = {}
    for file in sorted(path.iterdir()):
        split = SPLIT_NAMES.get(file.stem)
        if split is None or file.suffix not in FILE_TYPES:
            continue
        if split in files:
            raise ValueError(f"{path} has two files for {split}: {files[split].name} and {file.name}. Remove one.")
        files[split] = file
    if not files:
        found = ", ".join(sorted(file.name for file in path.iterdir())) or "nothing"
        raise ValueError(
            f"{path} must hold train, validation or test files ({', '.join(FILE_TYPES)}); it holds {found}. "
            "Name them so, or pass one file."
        )
    return {split: files[split] for split in ("train", "validation", "test") if split in files}


def _column(table: pa.Table, role: str, asked: str | None, *defaults: str) -> tuple[str, pa.Array]:
    """Name and values of the column that plays a role."""
    for name in defaults if asked is None else (asked,):
        if table.column_names.count(name) > 1:
            raise ValueError(f"the {role} column must be one; several are called {name!r}. Rename them.")
        if name in table.column_names:
            values = table.column(name).combine_chunks()
            return name, values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    expected = " or ".join(map(repr, defaults if asked is None else (asked,)))
    found = ", ".join(table.column_names)
    near = nearest(asked or defaults[0], table.column_names)
    raise ValueError(f"no {role} column {expected}; the columns are {found}.{near} Pass {role}=<one of them>.")


def _beside(table: pa.Table, key: bytes) -> dict[str, Any]:
    """What a writer left beside the schema under a key; nothing if it is damaged."""
    try:
        found = json.loads((table.schema.metadata or {}).get(key, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _class_names(table: pa.Table, name: str) -> dict[int, str] | None:
    """Names of a ClassLabel column, as `datasets` keeps them beside the schema."""
    found: Any = _beside(table, b"huggingface")
    for key in ("info", "features", name):
        found = found.get(key) if isinstance(found, dict) else None
    if isinstance(found, dict):
        found = found["feature"] if isinstance(found.get("feature"), dict) else found
        names = found.get("names")
        if isinstance(names, list) and names and all(isinstance(label, str) for label in names):
            return dict(enumerate(names))
    return None


def _stored_unit(table: pa.Table) -> str | None:
    """The time unit, where `export_windows` wrote the file."""
    unit = _beside(table, b"ehd_hf").get("time_unit")
    return unit if isinstance(unit, str) else None


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _refuse(bad: np.ndarray, values: Any, offsets: np.ndarray, seq_ids: tuple[Any, ...], rule: str, fix: str) -> None:
    """Raise if any of `bad` is True: the rule, the first value against it, its sequence, the remedy."""
    if bad.any():
        where = int(np.argmax(bad))
        name = seq_ids[int(np.searchsorted(offsets, where, side="right")) - 1]
        value = values[where].as_py() if isinstance(values, pa.Array) else values[where]
        raise ValueError(f"{rule}; got {value} in sequence {name!r}. {fix}")


def _offsets(lengths: np.ndarray, mark_lengths: np.ndarray, seq_ids: tuple[Any, ...]) -> np.ndarray:
    each, both = np.arange(len(lengths) + 1), [f"{t} and {m}" for t, m in zip(lengths, mark_lengths, strict=True)]
    _refuse(lengths != mark_lengths, both, each, seq_ids, "times and marks must be equally many", "Check the source.")
    _refuse(lengths == 0, lengths, each, seq_ids, "a sequence needs at least one event", "Leave it out.")
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _flatten(
    table: pa.Table, times: pa.Array, marks: pa.Array, sequence: str | None, start: str | None
) -> tuple[pa.Array, pa.Array, pa.Array | None, np.ndarray, tuple[Any, ...]]:
    """Both formats as flat times and marks (N,), starts (S,), offsets (S + 1,) and S ids."""
    has_ids = sequence is not None or "seq_id" in table.column_names
    ids = _column(table, "sequence", sequence, "seq_id")[1] if has_ids else None
    starts = None if start is None else _column(table, "start", start)[1]
    if ids is not None and pa.types.is_nested(ids.type):
        raise ValueError(f"sequence ids must be single values; got {ids.type}. Name another column.")
    if ids is not None and pc.any(pc.is_null(ids, nan_is_null=True)).as_py():
        raise ValueError("sequence ids must not be missing; got a row without one. Fill it in.")
    if _is_list(times.type) != _is_list(marks.type):
        raise ValueError(f"times and marks must both be lists or both be single; got {times.type} and {marks.type}.")
    if _is_list(times.type):
        seq_ids = tuple(range(table.num_rows) if ids is None else ids.to_pylist())
        lengths, mark_lengths = (pc.fill_null(pc.list_value_length(lists), 0).to_numpy() for lists in (times, marks))
        offsets = _offsets(lengths, mark_lengths, seq_ids)
        return times.flatten(), marks.flatten(), starts, offsets, seq_ids

    codes, order, offsets, seq_ids = group_rows(ids, len(times))
    if starts is not None:
        distinct = pa.table({"sequence": codes, "start": starts}).group_by(["sequence", "start"]).aggregate([])
        count = np.bincount(distinct["sequence"].to_numpy())
        rule = f"column {start!r} must hold one value per sequence"
        _refuse(
            count > 1, [f"{n} values" for n in count], np.arange(len(count) + 1), seq_ids, rule, "Check the source."
        )
        starts = starts.take(order.take(pa.array(offsets[:-1])))
    return times.take(order), marks.take(order), starts, offsets, seq_ids


def group_rows(ids: pa.Array | None, num_rows: int) -> tuple[np.ndarray, pa.Array, np.ndarray, tuple[Any, ...]]:
    """Rows, one per event, by sequence: codes (N,), the order that puts them together, offsets (S + 1,), S ids.

    Sequences stand in the order in which they appear; without ids all rows are one.
    """
    encoded = (pa.array(np.zeros(num_rows, np.int64)) if ids is None else ids).dictionary_encode()
    codes, seq_ids = encoded.indices.to_numpy(), tuple(encoded.dictionary.to_pylist())
    offsets = np.concatenate([[0], np.cumsum(np.bincount(codes))]).astype(np.int64)
    return codes, pa.array(np.argsort(codes, kind="stable")), offsets, seq_ids


def _vocabulary(
    marks: Sequence[pa.Array], id2label: Mapping[int, str] | None, num_marks: int | None
) -> dict[int, str]:
    """One name per mark for all splits together."""
    text = {_is_text(values.type) for values in marks}
    is_count = isinstance(num_marks, int | np.integer) and not isinstance(num_marks, bool)
    if num_marks is not None and not (is_count and 1 <= num_marks <= MAX_INFERRED_MARKS):
        raise ValueError(
            f"num_marks must be a number from 1 to {MAX_INFERRED_MARKS:,}; got {num_marks!r}. Correct it."
        )
    if id2label is not None:
        labels = _given_names(id2label)
    elif text == {True}:
        labels = dict(enumerate(sorted(set().union(*(pc.unique(values).to_pylist() for values in marks)) - {None})))
    elif text == {True, False}:
        raise ValueError("marks are integers in one split and strings in another. Write them the same way in all.")
    else:
        numeric = [values for values in marks if pa.types.is_integer(values.type) or pa.types.is_floating(values.type)]
        numbers = [values.cast(pa.float64(), safe=False).drop_null().to_numpy() for values in numeric]
        seen = 1 + int(max((piece[np.isfinite(piece)].max(initial=-1) for piece in numbers), default=-1))
        if num_marks is None and seen > MAX_INFERRED_MARKS:
            raise ValueError(f"marks must count from 0; got {seen - 1}. Pass identifiers as strings, or num_marks.")
        labels = {mark: str(mark) for mark in range(seen if num_marks is None else num_marks)}
    if num_marks is not None and num_marks != len(labels):
        raise ValueError(f"num_marks is {num_marks} but there are {len(labels)} mark names. Leave num_marks out.")
    return labels


def _given_names(id2label: Mapping[int, str]) -> dict[int, str]:
    try:
        labels = {int(mark): str(id2label[mark]) for mark in sorted(id2label, key=int)}
    except (TypeError, ValueError) as error:
        raise ValueError(f"id2label must map the marks 0..n-1 to names; got {id2label!r:.80}. Renumber it.") from error
    if list(labels) != list(range(len(labels))) or len(set(labels.values())) != len(labels):
        raise ValueError(f"id2label must give the marks 0..n-1 different names; got {dict(id2label)}. Renumber it.")
    return labels


def _as_times(values: pa.Array, offsets: np.ndarray, seq_ids: tuple[Any, ...]) -> np.ndarray:
    """Numbers as float64, timestamps as datetime64[ns] (UTC); missing is NaN or NaT."""
    kind, expected = values.type, "times must be numbers, timestamps or ISO strings"
    if pa.types.is_integer(kind):
        numbers = values.fill_null(0).to_numpy()
        rule, fix = "whole times must stay below 2**53, where float64 tells them apart", "Pass timestamps instead."
        _refuse((numbers > _LARGEST_WHOLE) | (numbers < -_LARGEST_WHOLE), numbers, offsets, seq_ids, rule, fix)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    if _is_text(kind):
        parsed = pd.to_datetime(values.to_pandas(), format="ISO8601", utc=True, errors="coerce")
        unread = parsed.isna().to_numpy() & values.is_valid().to_numpy(zero_copy_only=False)
        fix = "Correct it or remove the event."
        _refuse(unread, values, offsets, seq_ids, expected, fix)
        unfit = ~parsed.dt.year.between(_FIRST_YEAR, _LAST_YEAR).to_numpy() & values.is_valid().to_numpy(False)
        _refuse(unfit, values, offsets, seq_ids, f"timestamps must lie in {_FIRST_YEAR} to {_LAST_YEAR}", fix)
        return parsed.dt.tz_localize(None).to_numpy(dtype="datetime64[ns]")
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise ValueError(f"{expected}; got {kind}. Convert the column.")
    try:
        return values.cast(pa.timestamp("ns", getattr(kind, "tz", None))).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"timestamps must lie in {_FIRST_YEAR} to {_LAST_YEAR}: {error}. Check the source."
        ) from error


def _mark_ids(
    values: pa.Array, id2label: Mapping[int, str], offsets: np.ndarray, seq_ids: tuple[Any, ...]
) -> np.ndarray:
    """(N,) int64 in range."""
    missing = values.is_null().to_numpy(zero_copy_only=False)
    _refuse(missing, values, offsets, seq_ids, "marks must not be missing", "Fill it in or remove the event.")
    if _is_text(values.type):
        blank = pc.equal(pc.utf8_trim_whitespace(values), "").to_numpy(zero_copy_only=False)
        _refuse(blank, values, offsets, seq_ids, "a mark must have a name", "Fill it in or remove the event.")
        names = pa.array(list(id2label.values()), values.type)
        found = pc.fill_null(pc.index_in(values, value_set=names), -1).to_numpy()
        rule = f"marks must be among the {len(id2label)} names of id2label"
        _refuse(found < 0, values, offsets, seq_ids, rule, "Add it to id2label.")
        return found.astype(np.int64)
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise ValueError(f"marks must be integers or strings; got {values.type}. Convert the column.")
    numbers = values.to_numpy(zero_copy_only=False)
    _refuse(~np.isfinite(numbers), numbers, offsets, seq_ids, "marks must be finite", "Check the source.")
    fix = "Check which column holds the marks."
    _refuse(numbers != np.floor(numbers), numbers, offsets, seq_ids, "marks must be whole numbers or strings", fix)
    _refuse(numbers < 0, numbers, offsets, seq_ids, "marks must not be negative", "Count marks from 0.")
    fix = f"Pass num_marks={int(numbers.max()) + 1} (or a longer id2label) or check the source."
    _refuse(numbers >= len(id2label), numbers, offsets, seq_ids, f"marks must lie in [0, {len(id2label)})", fix)
    return numbers.astype(np.int64)


def _backwards(times: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Which events lie before the one before them, in the same sequence."""
    backwards = np.append(False, times[1:] < times[:-1])
    backwards[offsets[:-1]] = False  # from one sequence to the next
    return backwards


def checked_sequences(
    raw_times: pa.Array,
    raw_marks: pa.Array,
    raw_starts: pa.Array | None,
    offsets: np.ndarray,
    seq_ids: tuple[Any, ...],
    id2label: Mapping[int, str],
    time_unit: str | None,
    sort: bool = False,
) -> EventSequences:
    """The one door: behind it times are finite and in order and marks are in range.

    Args:
        raw_times, raw_marks: (N,) of all sequences, one after the other: times as `load_events` takes them, names or
            numbers of marks.
        raw_starts: (S,) of the same kind as the times, or None.
        sort: put the events of each sequence in order of time instead of refusing them.
    """
    if len(set(seq_ids)) < len(seq_ids):
        twice = Counter(seq_ids).most_common(1)[0][0]
        raise ValueError(f"sequence ids must differ; got {twice!r} twice. Renumber them, or leave the column out.")
    marks = _mark_ids(raw_marks, id2label, offsets, seq_ids)
    times = np.require(_as_times(raw_times, offsets, seq_ids), requirements="W")  # Arrow's memory is read-only
    fix = "Remove the event or fill in its time."
    _refuse(~np.isfinite(times), times, offsets, seq_ids, "times must be finite", fix)
    if sort and _backwards(times, offsets).any():  # a log in order of time is in order within its sequences
        order = np.lexsort((times, np.repeat(np.arange(len(seq_ids)), np.diff(offsets))))  # stable
        times, marks = times[order], marks[order]
    fix = "Pass sort=True to load_events, or name the column of sequence ids."
    _refuse(_backwards(times, offsets), times, offsets, seq_ids, "times must not decrease within a sequence", fix)

    first, each = times[offsets[:-1]], np.arange(len(seq_ids) + 1)
    with np.errstate(over="ignore"):  # what overflows is refused
        spans = times[offsets[1:] - 1].astype(np.float64) - first.astype(np.float64)  # of moments: in ns
    rule, fix = f"times of a sequence must span less than {LONGEST_SPAN:g}", "Choose a larger unit of time."
    if times.dtype != np.float64:
        rule, fix = "timestamps of a sequence must lie within 292 years", "Check the source."
    longest = LONGEST_SPAN if times.dtype == np.float64 else 2.0**63
    _refuse(~(spans < longest), spans, each, seq_ids, rule, fix)
    starts = np.full(len(seq_ids), np.array("NaN" if times.dtype == np.float64 else "NaT", times.dtype))
    if raw_starts is not None and not pa.types.is_null(raw_starts.type):
        starts = _as_times(raw_starts, each, seq_ids)
    if len(starts) != len(seq_ids) or starts.dtype != times.dtype:
        got, expected = f"{len(starts)} of {starts.dtype}", f"{len(seq_ids)} of {times.dtype}, as the times are"
        raise ValueError(f"starts must be {expected}; got {got}. Convert them.")
    late = ~np.isnan(starts) & ((starts > first) | ~np.isfinite(first - starts))
    _refuse(late, starts, each, seq_ids, "a start must be finite and not after the first event", "Check the starts.")
    if times.dtype == np.float64:
        return EventSequences(times, marks, offsets, seq_ids, dict(id2label), starts, time_unit)

    time_unit = time_unit or "s"
    unit = unit_in_nanoseconds(time_unit)
    elapsed = (times - np.repeat(first, np.diff(offsets))).astype(np.int64) / unit
    starts = np.where(np.isnat(starts), np.nan, (starts - first).astype(np.int64) / unit)
    return EventSequences(elapsed, marks, offsets, seq_ids, dict(id2label), starts, time_unit, first)
