"""Marked event sequences: what a user has, checked once at the door and then trusted.

`load_events` makes them from files, frames, datasets and lists; `reading.read_events` from tables whose columns and
formats it detects first. Both go through `event_rows` and `checked_sequences`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from .tables import FILE_TYPES, SPLIT_NAMES, encoded, is_list, is_number, is_text, nearest, plain, read_table

TIME_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}  # in nanoseconds
TIME_UNITS |= {"D": 24 * TIME_UNITS["h"], "W": 7 * 24 * TIME_UNITS["h"]}
# More integer marks than this are surely identifiers; naming each of them would only fill the memory.
MAX_INFERRED_MARKS = 1_000_000
# Models count in float32, which ends at 3e38; nothing measured in a sensible unit comes near.
LONGEST_SPAN = 1e30
# What 64 bits of nanoseconds hold, whole years.
YEARS = "timestamps must lie in 1678 to 2261"
_TIMES = "times must be numbers, timestamps or ISO strings"
# The columns that `load_events` takes by default.
_DEFAULTS = {"time": ("times", "time"), "mark": ("marks", "mark"), "sequence": ("seq_id",), "start": ()}


def unit_in_nanoseconds(unit: str) -> float:
    """Length of a time unit: one of `TIME_UNITS`, or a multiple of one such as "1e6 s"."""
    factor, _, name = str(unit).rpartition(" ")
    try:
        length = TIME_UNITS[name] * float(factor or 1)
    except (KeyError, ValueError):
        length = math.nan
    if not 0 < length < math.inf:
        raise ValueError(f"a unit of time is one of {', '.join(TIME_UNITS)}, or such as '1e6 s'; got {unit!r}.")
    return length


@dataclass(frozen=True)
class EventSequences:
    """Many marked event sequences, stored flat: N events of S sequences."""

    times: np.ndarray  # (N,) float64, in `time_unit`, finite, non-decreasing within a sequence (ties allowed)
    marks: np.ndarray  # (N,) int64 in [0, num_marks)
    offsets: np.ndarray  # (S + 1,) int64; sequence i owns events offsets[i]:offsets[i + 1]
    seq_ids: tuple[Any, ...]  # S ids as the source names its sequences
    id2label: Mapping[int, str]  # name of every mark; its length is the number of marks
    starts: np.ndarray  # (S,) float64, when each observation began; NaN where unknown
    time_unit: str | None = None  # of `times` ("s", "h", "1e6 s", ...); None if the source does not say
    epochs: np.ndarray | None = None  # (S,) datetime64[ns], the timestamp each sequence calls 0, if it has timestamps
    # If given, the source rounded its times down to multiples of it, and `times` lie somewhere inside (see
    # `reading.spread_ties`). People are shown the source's.
    resolution: float | None = None

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
    def lengths(self) -> np.ndarray:
        """(S,) number of events of each sequence."""
        return np.diff(self.offsets)

    def previous_times(self) -> np.ndarray:
        """(N,) time of the event before each one; before a sequence's first, its start, or its own time if unknown."""
        previous, first = np.roll(self.times, 1), self.offsets[:-1]
        previous[first] = np.where(np.isnan(self.starts), self.times[first], self.starts)
        return previous

    def intervals(self) -> np.ndarray:
        """(N,) time since the event before; 0 for the first of a sequence whose start is unknown."""
        return self.times - self.previous_times()

    def shown_times(self) -> np.ndarray:
        """(N,) times as the source gives them: numbers, or timestamps exact to the microsecond."""
        times, epochs = self.times, self.epochs
        if epochs is None:
            return times if self.resolution is None else np.floor(times / self.resolution) * self.resolution
        # float64 is exact to the microsecond for decades, so rounding restores the source's timestamps.
        unit = unit_in_nanoseconds(self.time_unit or "s")
        since = np.rint(times * (unit / 1000)).astype("timedelta64[us]").astype("timedelta64[ns]")
        step = 1 if self.resolution is None else round(self.resolution * unit)
        return ((np.repeat(epochs, self.lengths) + since).astype(np.int64) // step * step).astype("datetime64[ns]")

    def select(self, indices: Sequence[int] | np.ndarray, begin: Any = 0, end: Any = None) -> EventSequences:
        """The sequences at `indices` (n,), in that order; of each its events `begin` to `end`, numbers or (n,)."""
        indices = np.asarray(indices, dtype=np.int64)
        lengths = (self.lengths[indices] if end is None else end) - np.broadcast_to(begin, indices.shape)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        where = np.arange(offsets[-1]) + np.repeat(self.offsets[indices] + begin - offsets[:-1], lengths)
        return replace(
            self,
            times=self.times[where],
            marks=self.marks[where],
            offsets=offsets,
            seq_ids=tuple(self.seq_ids[i] for i in indices),
            starts=np.where(np.asarray(begin) == 0, self.starts[indices], np.nan),
            epochs=None if self.epochs is None else self.epochs[indices],
        )


def find_sequence(events: EventSequences, name: Any) -> int:
    """Position of the sequence of this id; a number and its text are the same."""
    names = [str(seq_id) for seq_id in events.seq_ids]
    if str(name) not in names:
        hint = nearest(name, names) + f" Choose one of {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}."
        raise ValueError(f"there is no sequence {name!r} among {len(names):,}.{hint}")
    return names.index(str(name))


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
    by_name: bool = False,
) -> EventSequences:
    """Event sequences from a file, a frame, a dataset or plain lists: a row per event, or per sequence with lists.

    Args:
        source: anything `tables.read_table` takes: a file, a pandas DataFrame, a `datasets.Dataset`, a dict of
            columns, or a list of sequences, each a list of (time, mark) pairs or a dict of times and marks.
        sequence: column of sequence ids; default `seq_id` if there is one. Else lists are numbered, events are one.
        time: column of times, default `times` or `time`: numbers, timestamps or ISO strings.
        mark: column of marks, default `marks` or `mark`: integers, or strings, which are numbered in sorted order.
        id2label: names of the marks; string marks outside it are an error.
        num_marks: number of integer marks, if larger than the largest one seen plus 1.
        start: column of when a sequence's observation began, of the same kind as the times.
        time_unit: for timestamps the unit to convert to ("s" by default); for numbers only a name to keep.
        sort: put the events of each sequence in order of time (ties keep their order) instead of refusing them.
        by_name: integers among the marks are names too, such as "404", and no positions in `id2label`.

    ```python
    >>> load_events([[(0.5, "login"), (2.0, "error")], [(1.0, "login")]]).id2label
    {0: 'error', 1: 'login'}
    ```
    """
    keywords: Any = {"id2label": id2label, "num_marks": num_marks, "time_unit": time_unit, "sort": sort}
    return load_splits(
        {"": source}, by_name=by_name, time=time, mark=mark, sequence=sequence, start=start, **keywords
    )[""]


def load_splits(
    source: str | Path | Mapping[str, Any],
    *,
    id2label: Mapping[int, str] | None = None,
    num_marks: int | None = None,
    time_unit: str | None = None,
    sort: bool = False,
    by_name: bool = False,
    **columns: str | None,
) -> dict[str, EventSequences]:
    """Splits that share one mark vocabulary; `columns` (time, mark, sequence, start) and keywords as in `load_events`.

    The source is a folder with files named train, validation (or valid, val, dev) and test, of which any may be
    missing; other files are ignored. A single file is the split train. Or it maps splits to `load_events` sources.
    """
    if unknown := columns.keys() - _DEFAULTS.keys():
        raise TypeError(f"columns are {', '.join(_DEFAULTS)}; got {', '.join(sorted(unknown))}. Correct the keyword.")
    sources = source if isinstance(source, Mapping) else split_files(Path(source))
    tables = {split: read_table(piece) for split, piece in sources.items()}
    names = {split: _named_columns(table.column_names, columns) for split, table in tables.items()}
    if id2label is None:
        id2label = next(filter(None, (_class_names(tables[split], names[split]["mark"]) for split in tables)), None)
    rows = {split: event_rows(table, names[split]) for split, table in tables.items()}
    for row in rows.values():
        if len(pattern := date_pattern(plain(row["time"])) or "") > len("%Y%m%d"):
            got = f"{row['time'][0]} and others that read as dates ({pattern})"
            raise ValueError(f"times that are numbers count from some beginning; got {got}. Pass timestamps.")
    if by_name:
        rows = {split: row.set_column(1, "mark", _as_names(row["mark"])) for split, row in rows.items()}
    labels = _vocabulary([plain(table["mark"]) for table in rows.values()], id2label, num_marks)
    built = {}
    for split, table in tables.items():
        stored = _metadata(table, "ehd_hf", "time_unit")  # as `export_windows` writes it
        try:
            unit = time_unit or (stored if isinstance(stored, str) else None)
            built[split] = checked_sequences(rows[split], labels, unit, sort)
        except ValueError as error:
            raise ValueError(f"split {split!r}: {error}" if split else str(error)) from None
    return built


def split_files(path: Path, types: Sequence[str] = FILE_TYPES) -> dict[str, Path]:
    """The file of each split in a folder; files of other names are ignored. A file alone is the split train."""
    if not path.is_dir():
        return {"train": path}
    files: dict[str, Path] = {}
    for file in sorted(file for file in path.iterdir() if file.stem in SPLIT_NAMES and file.suffix in types):
        other = files.setdefault(split := SPLIT_NAMES[file.stem], file)
        if other != file:
            raise ValueError(f"{path} has two files for {split}: {other.name} and {file.name}. Remove one.")
    if not files:
        inside = ", ".join(sorted(file.name for file in path.iterdir())) or "nothing"
        raise ValueError(f"{path} must hold train, validation or test files; it holds {inside}. Pass one file.")
    return {split: files[split] for split in ("train", "validation", "test") if split in files}


# --- columns


def check_column(names: Sequence[str], role: str, *candidates: Any) -> str:
    """The first of the candidates that is a column, which must be the only one of its name."""
    for name in (name for name in candidates if name in names):
        if names.count(name) > 1:
            raise ValueError(f"the {role} column must be one; {names.count(name)} are called {name!r}. Rename them.")
        return name
    asked, near = " or ".join(map(repr, candidates)), nearest(candidates[0], names)
    raise ValueError(f"there is no {role} column {asked}; the columns are {', '.join(names)}.{near} Name one.")


def _named_columns(names: Sequence[str], asked: Mapping[str, str | None]) -> dict[str, str]:
    """The column of each role; there may be none of sequences and of starts."""
    candidates = {role: usual if asked.get(role) is None else (asked[role],) for role, usual in _DEFAULTS.items()}
    if asked.get("sequence") is None and "seq_id" not in names:
        del candidates["sequence"]
    return {role: check_column(names, role, *options) for role, options in candidates.items() if options}


def event_rows(table: pa.Table, names: Mapping[str, str], forgiving: bool = False) -> pa.Table:
    """The columns of the roles in `names` (time, mark, perhaps sequence and start), called by them, a row per event:
    lists are unfolded, and numbered if without ids. `forgiving`: they may be empty, and several have the same id."""
    table = table.select(list(names.values())).rename_columns(list(names))
    kinds = dict(zip(names, table.schema.types, strict=True))
    if (are_lists := is_list(kinds["time"])) != is_list(kinds["mark"]):
        raise ValueError(f"times and marks must both be lists, or both not; got {kinds['time']} and {kinds['mark']}.")
    for role, kind in kinds.items():
        kind = kind.value_type if are_lists and role in ("time", "mark") else kind
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            raise ValueError(f"the {role} column {names[role]!r} must hold single values; got {kind}. Convert it.")
    if not are_lists:
        return table
    times, marks = plain(table["time"]), plain(table["mark"])
    ids = plain(table["sequence"]) if "sequence" in names else pa.array(range(table.num_rows))
    counts, mark_counts = (pc.fill_null(pc.list_value_length(values), 0).to_numpy() for values in (times, marks))
    each = _Order(np.arange(len(ids) + 1), ids.to_pylist())
    both = [f"{t} and {m}" for t, m in zip(counts, mark_counts, strict=True)]
    each.refuse(counts != mark_counts, both, "times and marks must be equally many", "Check the source.")
    if not forgiving:
        each.refuse(counts == 0, counts, "a sequence needs at least one event", "Leave it out.")
        again = pd.Series(each.seq_ids, dtype=object).duplicated().to_numpy()
        twice = [f"{name!r} twice" for name in each.seq_ids]
        each.refuse(again, twice, "sequence ids must differ", "Renumber them, or leave the column out.")
    if counts.sum() == 0:
        raise ValueError(f"the lists of {names['time']!r} hold no events; expected at least one. Check the source.")
    owner = pa.array(np.repeat(np.arange(len(counts)), counts))
    rows = {"time": times.flatten(), "mark": marks.flatten(), "sequence": ids.take(owner)}
    return pa.table(rows | ({"start": plain(table["start"]).take(owner)} if "start" in names else {}))


def _metadata(table: pa.Table, writer: str, *keys: str) -> Any:
    """What a writer left beside the schema under these keys, one inside the other; None if it is damaged."""
    try:
        content = json.loads(table.schema.metadata[writer.encode()])
        return reduce(getitem, keys, content)
    except (LookupError, TypeError, ValueError, RecursionError):
        return None


def _class_names(table: pa.Table, column: str) -> dict[int, str] | None:
    """Names of a ClassLabel column, single or in lists, as `datasets` keeps them beside the schema."""
    path = ("huggingface", "info", "features", column)
    names = _metadata(table, *path, "names") or _metadata(table, *path, "feature", "names")
    is_named = isinstance(names, list) and names and all(isinstance(label, str) for label in names)
    return dict(enumerate(names)) if is_named else None


def _vocabulary(
    marks: Sequence[pa.Array], id2label: Mapping[int, str] | None, num_marks: int | None
) -> dict[int, str]:
    """One name per mark for all splits together."""
    is_count = isinstance(num_marks, int | np.integer) and 1 <= num_marks <= MAX_INFERRED_MARKS
    if num_marks is not None and not is_count:
        raise ValueError(f"num_marks must be a number from 1 to {MAX_INFERRED_MARKS:,}; got {num_marks!r}.")
    text = {is_text(values.type) for values in marks}
    if id2label is not None:
        try:
            labels = {int(mark): str(id2label[mark]) for mark in sorted(id2label, key=int)}
        except (TypeError, ValueError):
            labels = {-1: ""}
        if list(labels) != list(range(len(labels))) or len(set(labels.values())) != len(labels):
            raise ValueError(f"id2label must map 0..n-1 to different names; got {id2label!r:.80}. Renumber it.")
    elif text == {True}:
        labels = dict(enumerate(sorted(set().union(*(pc.unique(values).to_pylist() for values in marks)) - {None})))
    elif text == {True, False}:
        raise ValueError("marks are integers in one split and strings in another. Write them the same way in all.")
    else:
        numeric = [values.cast(pa.float64(), safe=False).to_numpy(False) for values in marks if is_number(values.type)]
        seen = 1 + int(max((numbers[np.isfinite(numbers)].max(initial=-1) for numbers in numeric), default=-1))
        if num_marks is None and seen > MAX_INFERRED_MARKS:
            raise ValueError(f"marks must count from 0; got {seen - 1}. Pass identifiers as strings, or num_marks.")
        labels = {mark: str(mark) for mark in range(num_marks or seen)}
    if num_marks is not None and num_marks != len(labels):
        raise ValueError(f"num_marks is {num_marks} but there are {len(labels)} mark names. Leave num_marks out.")
    return labels


# --- the one door


class _Order(NamedTuple):
    """Which sequence an event belongs to: offsets (S + 1,) and S ids."""

    offsets: np.ndarray
    seq_ids: Sequence[Any]

    def refuse(self, bad: np.ndarray, values: Any, rule: str, fix: str) -> None:
        """Raise if any of `bad`, (N,) events or (S,) sequences, is True: the rule, the first value against it, its
        sequence, the remedy."""
        if bad.any():
            where = int(np.argmax(bad))
            index = int(np.searchsorted(self.offsets, where, side="right")) - 1
            name = self.seq_ids[where if len(bad) == len(self.seq_ids) else index]
            value = values[where].as_py() if isinstance(values, pa.Array) else values[where]
            raise ValueError(f"{rule}; got {value} in sequence {name!r}. {fix}")


def checked_sequences(
    rows: pa.Table, id2label: Mapping[int, str], time_unit: str | None, sort: bool = False
) -> EventSequences:
    """The one door: behind it times are finite and in order and marks are in range. `rows` are those of `event_rows`;
    `time_unit` and `sort` as in `load_events`. Sequences come as they appear; without ids all rows are one."""
    ids = plain(rows["sequence"]) if "sequence" in rows.column_names else pa.array(np.zeros(rows.num_rows, np.int64))
    if pc.any(pc.is_null(ids, nan_is_null=True)).as_py():
        raise ValueError("sequence ids must not be missing; got a row without one. Fill it in.")
    distinct = ids.dictionary_encode()
    codes, seq_ids = distinct.indices.to_numpy(), tuple(distinct.dictionary.to_pylist())
    offsets = np.concatenate([[0], np.cumsum(np.bincount(codes))]).astype(np.int64)
    order, by_sequence = _Order(offsets, seq_ids), pa.array(np.argsort(codes, kind="stable"))
    rows = {name: plain(rows[name]).take(by_sequence) for name in rows.column_names}
    marks, times = _mark_ids(rows["mark"], id2label, order), _parsed_times(rows["time"], order)
    order.refuse(~np.isfinite(times), times, "times must be finite", "Remove the event or fill in its time.")
    if sort:
        by_time = np.lexsort((times, np.sort(codes)))  # stable
        times, marks = times[by_time], marks[by_time]
    backwards = np.append(False, times[1:] < times[:-1])
    backwards[offsets[:-1]] = False  # from one sequence to the next
    fix = "Pass sort=True to load_events, or name the column of sequence ids."
    order.refuse(backwards, times, "times must not decrease within a sequence", fix)

    first, is_number = times[offsets[:-1]], times.dtype == np.float64
    with np.errstate(over="ignore"):  # what overflows is refused
        spans = times[offsets[1:] - 1].astype(np.float64) - first.astype(np.float64)  # of timestamps: in ns
    longest, rule = (LONGEST_SPAN, f"{LONGEST_SPAN:g}") if is_number else (2.0**63, "292 years")
    fix = "Choose a larger unit of time, or check the source."
    order.refuse(~(spans < longest), spans, f"times of a sequence must span less than {rule}", fix)
    starts = np.full(len(seq_ids), np.array("NaN" if is_number else "NaT", times.dtype))
    if "start" in rows and not pa.types.is_null(rows["start"].type):
        given = _parsed_times(rows["start"], order)
        if given.dtype != times.dtype:
            raise ValueError(f"starts must be {times.dtype}, as the times are; got {given.dtype}. Convert them.")
        starts = given[offsets[:-1]]
        same = np.repeat(starts, np.diff(offsets))
        differ = (given != same) & ~(np.isnan(given) & np.isnan(same))
        order.refuse(differ, given, "the start column must hold one value per sequence", "Check the source.")
    late = ~np.isnan(starts) & ((starts > first) | ~np.isfinite(first - starts))
    order.refuse(late, starts, "a start must be finite and not after the first event", "Check the starts.")
    events = EventSequences(times, marks, offsets, seq_ids, dict(id2label), starts, time_unit)
    if is_number:
        return events
    unit = unit_in_nanoseconds(time_unit or "s")
    elapsed = (times - np.repeat(first, events.lengths)).astype(np.int64) / unit
    starts = np.where(np.isnat(starts), np.nan, (starts - first).astype(np.int64) / unit)
    return replace(events, times=elapsed, starts=starts, time_unit=time_unit or "s", epochs=first)


def numbers_of_text(values: pa.Array) -> pa.Array | None:
    """Whole numbers and numbers with a decimal comma, where all text is such."""
    if not pc.all(pc.match_substring_regex(values, r"^[+-]?\d{1,18}(,\d+)?$")).as_py():
        return None
    if not len(with_comma := values.filter(pc.match_substring(values, ","))):
        return values.cast(pa.int64())
    if pc.all(pc.match_substring_regex(with_comma, r"^[+-]?[1-9]\d{0,2},\d{3}$")).as_py():
        got = f"{with_comma[0]}, whose comma may be that of a decimal or of thousands"
        raise ValueError(f"times must be numbers that read in one way; got {got}. Write them without commas.")
    return pc.replace_substring(values, ",", ".").cast(pa.float64())


def has_known_year(times: pd.Series) -> np.ndarray:
    """Which timestamps (N,) 64 bits of nanoseconds can hold; a missing one is not."""
    return times.dt.year.between(1678, 2261).to_numpy()


def date_pattern(values: pa.Array) -> str | None:
    """How whole numbers are written that are all dates, such as 20260331 or 20260331235959."""
    if not is_number(values.type) or pa.types.is_decimal(values.type) or not len(values):
        return None
    lowest, highest = (float(end.as_py() or 0) for end in pc.min_max(values).values())
    for pattern, unit in (("%Y%m%d", 1), ("%Y%m%d%H%M", 10**4), ("%Y%m%d%H%M%S", 10**6)):
        if 19_000_101 * unit <= lowest and highest < 21_001_232 * unit:
            whole = pc.all(pc.equal(pc.floor(values), values)).as_py()
            texts = values.cast(pa.int64(), safe=False).cast(pa.string()).to_pandas()
            return pattern if whole and pd.to_datetime(texts, format=pattern, errors="coerce").notna().all() else None
    return None


def _parsed_times(values: pa.Array, order: _Order) -> np.ndarray:
    """Numbers as float64, anything that means a timestamp as datetime64[ns] (UTC); missing is NaN or NaT."""
    if is_text(values.type) and pc.any(pc.match_substring(values, ",")).as_py():
        values = numbers_of_text(values) or values
    kind, fix = values.type, "Correct it or remove the event."
    if pa.types.is_integer(kind):
        whole = values.fill_null(0).to_numpy()
        rule = "whole times must stay below 2**53, where float64 tells them apart"
        order.refuse((whole > 2**53) | (whole < -(2**53)), whole, rule, "Pass timestamps instead.")
    if is_number(kind) or pa.types.is_null(kind):
        parsed = values.cast(pa.float64(), safe=False)
        if pa.types.is_decimal(kind) and len(pc.unique(parsed)) < len(pc.unique(values)):
            raise ValueError("times must differ as float64 where they differ; got longer decimals. Shorten them.")
    elif is_text(kind):
        read = pd.to_datetime(values.to_pandas(), format="ISO8601", utc=True, errors="coerce")
        is_there = values.is_valid().to_numpy(zero_copy_only=False)
        order.refuse(read.isna().to_numpy() & is_there, values, _TIMES, fix)
        order.refuse(~has_known_year(read) & is_there, values, YEARS, fix)
        parsed = pa.array(read.dt.tz_localize(None).to_numpy(dtype="datetime64[ns]"))
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        try:
            parsed = values.cast(pa.timestamp("ns", getattr(kind, "tz", None)))
        except pa.ArrowInvalid as error:
            there = values.drop_null().to_numpy(zero_copy_only=False)
            got = f"{there.min()!s:.10} to {there.max()!s:.10}"
            raise ValueError(f"{YEARS}; got {got}. Correct those, or leave their rows out.") from error
    else:
        raise ValueError(f"{_TIMES}; got {kind}. Convert the column.")
    return np.require(parsed.to_numpy(zero_copy_only=False), requirements="W")  # Arrow's memory is read-only


def numbers_are_names(names: Iterable[str]) -> bool:
    """Whether a number among marks is a name: some of the names are numbers. Else it can only be a position."""
    return any(re.fullmatch(r"[+-]?[0-9]+([.][0-9]+)?", name) for name in names)


def name_of(mark: Any) -> str:
    """What a mark is called that a table may hold as a number."""
    if isinstance(mark, bool):
        return str(mark).lower()
    return str(int(mark)) if isinstance(mark, float) and mark.is_integer() else str(mark)


def _as_names(marks: pa.ChunkedArray) -> pa.Array:
    """Numbers as the text that they are called by; anything else as it is."""
    if not is_number(marks.type):
        return plain(marks)
    distinct = encoded(marks)
    return pa.array(map(name_of, distinct.dictionary.to_pylist()), pa.string()).take(distinct.indices)


def _mark_ids(values: pa.Array, id2label: Mapping[int, str], order: _Order) -> np.ndarray:
    """(N,) int64 in range."""
    fix = "Fill it in or remove the event."
    order.refuse(values.is_null().to_numpy(zero_copy_only=False), values, "marks must not be missing", fix)
    if is_text(values.type):
        blank = pc.equal(pc.utf8_trim_whitespace(values), "").to_numpy(zero_copy_only=False)
        order.refuse(blank, values, "a mark must have a name", fix)
        names = pa.array(list(id2label.values()), values.type)
        codes = pc.fill_null(pc.index_in(values, value_set=names), -1).to_numpy()
        rule = f"marks must be among the {len(id2label)} names of id2label"
        order.refuse(codes < 0, values, rule, "Add it to id2label.")
        return codes.astype(np.int64)
    if not is_number(values.type):
        raise ValueError(f"marks must be integers or strings; got {values.type}. Convert the column.")
    numbers = values.cast(pa.float64(), safe=False).to_numpy()
    fix = "Check which column holds the marks; pass num_marks (or a longer id2label) if there are more."
    is_mark = (numbers == np.floor(numbers)) & (numbers >= 0) & (numbers < len(id2label))
    order.refuse(~is_mark, values, f"marks must be whole and lie in [0, {len(id2label)})", fix)
    return numbers.astype(np.int64)


def events_digest(*splits: EventSequences) -> str:
    """Twelve letters that change with any time or mark: whether two rows were computed on the same events."""
    arrays = (array for sequences in splits for array in (sequences.times, sequences.marks, sequences.offsets))
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:12]
