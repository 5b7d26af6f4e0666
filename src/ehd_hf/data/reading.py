"""A table of events as people have it: which column is which, how its times are written, which marks to keep apart.

`read_events` detects all that and reports it. The result, a `Reading`, is stored beside a model that was trained on
the events, so that later tables are read in the same way. `load_events` guesses nothing; both share one checked door.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from .sequences import (
    TIME_UNITS,
    YEARS,
    EventSequences,
    check_column,
    checked_sequences,
    date_pattern,
    event_rows,
    has_known_year,
    name_of,
    numbers_are_names,
    numbers_of_text,
    split_files,
    unit_in_nanoseconds,
)
from .tables import (
    encoded,
    first_rows,
    is_csv,
    is_large,
    is_number,
    is_split_folder,
    is_text,
    nearest,
    num_events,
    plain,
    read_some,
    read_table,
    read_tables,
)

# More kinds of events than this are not told apart: the rarest, and all that happen less than so often, become OTHER.
MAX_MARKS, SELDOM = 100, 20
# Of larger files, so many events are trained on at most.
MAX_EVENTS = 10_000_000
OTHER = "other"
# Where more events than this share their time with the one before, times are spread within their resolution.
TIED_SHARE = 0.01
# More rows than this without a time, a mark or a sequence: the columns are probably not the right ones.
MISSING_SHARE = 0.05

# What people call their columns; taken, in this order, where none is named.
COLUMN_NAMES: dict[str, tuple[str, ...]] = {
    "time": ("time", "times", "timestamp", "ts", "datetime", "date", "when", "event_time", "created_at"),
    "mark": ("mark", "marks", "type", "event_type", "event", "kind", "action", "activity", "event_name", "category"),
    "sequence": ("seq_id", "sequence", "sequence_id", "user", "user_id", "case", "case_id", "session", "session_id")
    + ("patient", "patient_id", "machine", "machine_id", "device", "device_id", "customer", "customer_id", "host")
    + ("service",),
}
NUMBER, ISO = "number", "iso"
EPOCHS = ("s", "ms", "us", "ns")  # numbers that count from 1970
_YEAR_2000, _YEAR_2100 = 946_684_800, 4_102_444_800  # in seconds since 1970
_LATEST = 9.2e18  # nanoseconds since 1970 that 64 bits hold
_DATES: tuple[str, ...] = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%d %b %Y")
_DATES += ("%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%d-%b-%Y", "%d/%b/%Y", "%d.%m.%y", "%d/%m/%y", "%m/%d/%y")
_DATES += ("%a, %d %b %Y", "%Y%m%d")
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p", " %H:%M:%S %z", ":%H:%M:%S %z")
_SHORTENED = _CLOCKS[3::-1]  # one clock, as programs write it that leave out what is 0
EITHER = "|"  # between patterns of which each time fits one
_SAMPLE = 1000  # distinct times on which formats are tried
_IN_UTC = "Times name their zone; they are shown in UTC."
_WRITE_A_PATTERN = "Write a pattern as the time_format, such as '%d.%m.%Y %H:%M'."


@dataclass(frozen=True)
class Reading:
    """How a table becomes event sequences."""

    time: str | None = None  # names of the columns
    mark: str | None = None
    sequence: str | None = None  # None: all rows are one sequence
    # "iso" (timestamps), "number", "s", "ms", "us", "ns" (since 1970), or a pattern as of strptime; several with |
    # between them, if some times are written shorter than others.
    time_format: str | None = None
    time_unit: str | None = None  # what timestamps are converted to, or a name for the unit of numbers
    marks: tuple[str, ...] = ()  # names of the kinds of events
    merges: bool = False  # whether marks of other names become the one called "other"
    resolution: float | None = None  # in `time_unit`, what times were rounded to, if they are spread within it

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"marks": list(self.marks)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Reading:
        names = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - names):
            raise ValueError(f"A reading has the fields {', '.join(sorted(names))}; got unknown {', '.join(unknown)}.")
        kinds: dict[str, Any] = {"marks": list | tuple, "merges": bool, "resolution": int | float | None}
        for name, value in values.items():
            is_of_kind = isinstance(value, kind := kinds.get(name, str | None))
            if not is_of_kind or (name == "marks" and not all(isinstance(mark, str) for mark in value)):
                raise ValueError(f"a reading's {name} must be {kind}; got {value!r:.80}. Correct it, or train anew.")
        return cls(**{**values, "marks": tuple(values.get("marks", ()))})


class Read(NamedTuple):
    """Events, how they were read, and what a person should know about it."""

    events: EventSequences
    reading: Reading
    notes: list[str]
    splits: dict[str, EventSequences] | None = None  # of a folder of train, validation and test files


def read_events(
    source: Any,
    *,
    time: str | None = None,
    mark: str | None = None,
    sequence: str | None = None,
    time_format: str | None = None,
    time_unit: str | None = None,
    max_marks: int = MAX_MARKS,
    max_events: int | None = None,
    reading: Reading | None = None,
) -> Read:
    """Event sequences from a table as people have them, in order of time.

    Args:
        source: what `load_events` takes, such as a .csv or .parquet file; or a folder of files named train, validation
            and test, which are read as one table and returned apart as `Read.splits`.
        time, mark, sequence: names of the columns; where one is not given, the first of `COLUMN_NAMES` that is there.
        time_format: see `Reading`; detected if not given.
        time_unit: as in `load_events`; by default timestamps have the one in which their median interval is nearest 1.
        max_marks: how many kinds of events to tell apart at most.
        max_events: of a file larger than memory, how many events to take at most (see `tables.read_some`).
        reading: how earlier events were read; what it says of marks, unit and resolution is kept.
    """
    if max_marks < 2:
        raise ValueError(f"max_marks must be at least 2; got {max_marks}. The default is {MAX_MARKS}.")
    asked, kept = {"time": time, "mark": mark, "sequence": sequence}, reading or Reading()
    notes: list[str] = []
    read_rows = _read_folder if (is_folder := is_split_folder(source)) else _read_rows
    rows, names = read_rows(source, asked, kept, max_events, notes)
    rows = _without_missing(rows, names, notes)
    times, written = _read_times(plain(rows["time"]), time_format, kept.time_format, names["time"], notes)
    marks, codes, merges = _read_marks(rows["mark"], kept, max_marks, names["mark"], notes)
    unit = time_unit or kept.time_unit
    detects_unit = not is_number(times.type) and unit is None
    if detects_unit and kept.marks:
        raise ValueError("this model was trained on numbers without a unit; got timestamps. Give such numbers.")
    rows = rows.set_column(0, "time", times).set_column(1, "mark", pa.array(codes))
    events = checked_sequences(rows, dict(enumerate(marks)), "ns" if detects_unit else unit, sort=True)
    if detects_unit:
        events = _in_natural_unit(events)
    resolution = kept.resolution if kept.marks else _tied_resolution(events, times, notes)
    if resolution is not None:
        events = spread_ties(events, resolution)
    columns = (names["time"], names["mark"], names.get("sequence"))
    reading = Reading(*columns, written, events.time_unit, tuple(marks), merges, resolution)
    events, splits = _apart(events) if is_folder else (events, None)
    return Read(events, reading, notes, splits)


# --- columns


def _read_folder(
    folder: Any, asked: Mapping[str, str | None], kept: Reading, max_events: int | None, notes: list[str]
) -> tuple[pa.Table, dict[str, str]]:
    """The rows of all files, so that marks, unit and format are the same. Ids begin with the split's name and "/"."""
    files = split_files(Path(folder))
    share = max_events and max_events // len(files)
    tables, columns = [], dict[str, str]()
    for split, file in files.items():
        rows, names = _read_rows(file, asked, kept, share, notes)
        if "sequence" not in rows.column_names:  # events are one sequence
            rows = rows.append_column("sequence", pa.array(["0"]).take(pa.array(np.zeros(rows.num_rows, np.int64))))
        ids = pc.binary_join_element_wise(split, plain(rows["sequence"]).cast(pa.string()), "/")
        tables.append(rows.set_column(2, "sequence", ids))
        columns = columns or names
    return pa.concat_tables(tables, promote_options="permissive"), columns


def _apart(events: EventSequences) -> tuple[EventSequences, dict[str, EventSequences] | None]:
    """The events of a folder, whole and by split; sequences keep the split's name where files share an id."""
    owners, ids = zip(*(str(name).split("/", 1) for name in events.seq_ids), strict=True)
    if len(set(ids)) == len(ids):
        events = replace(events, seq_ids=ids)
    splits = {split: events.select(np.flatnonzero(np.array(owners) == split)) for split in dict.fromkeys(owners)}
    return events, splits if len(splits) > 1 else None


def _read_rows(
    source: Any, asked: Mapping[str, str | None], kept: Reading, max_events: int | None, notes: list[str]
) -> tuple[pa.Table, dict[str, str]]:
    """A row per event, and the column of each role; of a large file at most so many events, and a note says so."""
    if max_events is not None and is_large(source):
        names = _find_columns(next(read_tables(source)), asked, kept)
        table, total = read_some(source, names, max_events)
        if (taken := num_events(table, names["time"])) < total:
            notes.append(
                f"{taken:,} of the {total:,} events of {Path(source).name} are taken: whole sequences, chosen by a "
                f"hash of their names, with at most {max_events:,} events (max_events)."
            )
    elif is_csv(source):
        names = _find_columns(first_rows(source), asked, kept)
        # Marks and ids are text, whatever their first rows look like.
        text = [names[role] for role in ("mark", "sequence") if role in names]
        table = read_table(source, columns=names.values(), text_columns=text)
    else:
        table = read_table(source)
        names = _find_columns(table, asked, kept)
    return event_rows(table, names, forgiving=True), names


def _find_columns(table: pa.Table, asked: Mapping[str, str | None], kept: Reading) -> dict[str, str]:
    """The column of each role; there may be none of sequences."""
    names = table.column_names
    columns = {role: check_column(names, role, name) for role, name in asked.items() if name is not None}
    lower = {column.lower().strip(): column for column in reversed(names)}
    for role, usual in COLUMN_NAMES.items():
        candidates = [getattr(kept, role), *(lower.get(guess) for guess in usual)]
        free = [name for name in candidates if name in names and name not in columns.values()]
        if role not in columns and free:
            columns[role] = check_column(names, role, free[0])
    if "time" not in columns:
        timestamps = [name for name, values in zip(names, table.columns, strict=True) if _holds_timestamps(values)]
        columns |= {"time": check_column(names, "time", *timestamps)} if len(timestamps) == 1 else {}
    if missing := [role for role in ("time", "mark") if role not in columns]:
        which = " and which ".join({"time": "when it happened", "mark": "what happened"}[role] for role in missing)
        roles = " and ".join(f"the {role} column" for role in missing)
        has_values = any(any(map(str.isdigit, name)) and not any(map(str.isalpha, name)) for name in names)
        hint = " Does the file lack a line of column names?" if has_values else ""
        raise ValueError(f"which column says {which}? The columns are {', '.join(names)}.{hint} Name {roles}.")
    return {role: columns[role] for role in COLUMN_NAMES if role in columns}


def _holds_timestamps(values: pa.ChunkedArray) -> bool:
    """Whether the first values of a column are timestamps beyond doubt."""
    try:
        sample = plain(values.slice(0, 200).drop_null())
        return len(sample) > 0 and _understand(sample, None, "", [])[1] != NUMBER
    except ValueError:
        return False


def _without_missing(table: pa.Table, names: Mapping[str, str], notes: list[str]) -> pa.Table:
    """The rows in which nothing is missing; marks and ids without blanks around them."""
    missing: dict[str, np.ndarray] = {}
    for role, values in zip(table.column_names, table.columns, strict=True):
        if role != "time" and is_text(getattr(values.type, "value_type", values.type)):
            distinct = encoded(values)
            trimmed = pc.utf8_trim_whitespace(distinct.dictionary)
            trimmed = pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, trimmed.type), trimmed)
            values = trimmed.take(distinct.indices)
            table = table.set_column(table.column_names.index(role), role, values)
        missing[role] = pc.is_null(values, nan_is_null=True).to_numpy(zero_copy_only=False)
    anywhere = np.logical_or.reduce(list(missing.values()))
    count, total = int(anywhere.sum()), table.num_rows
    worst = max(missing, key=lambda role: missing[role].sum())
    if count > MISSING_SHARE * total:
        most = f"most in the {worst} column {names[worst]!r}; up to {MISSING_SHARE:.0%} are left out by themselves"
        fix = "Check that it is the right column, or clean the file."
        raise ValueError(f"{count:,} of {total:,} rows lack a value, {most}. {fix}")
    if count:
        roles = " or a ".join(role for role in missing if missing[role].any())
        notes.append(f"{count:,} of {total:,} rows lack a {roles}: left out.")
    return table.filter(pa.array(~anywhere)) if count else table


# --- times


def _read_times(
    values: pa.Array, asked: str | None, stored: str | None, column: str, notes: list[str]
) -> tuple[pa.Array, str]:
    """Times in the format asked for, else in the stored one if they fit it, else as detected."""
    # Only ambiguous patterns and plain numbers cannot be detected again.
    if asked is None and ("%" in (stored or "") or stored == NUMBER):
        try:
            return _understand(values, stored, column, notes)
        except ValueError:
            pass  # this table writes its times in another way
    return _understand(values, asked, column, notes)


def _understand(array: pa.Array, wanted: str | None, column: str, notes: list[str]) -> tuple[pa.Array, str]:
    """Times as timestamps or float64, and their format; what to say about it is added to the notes."""
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        notes += [_IN_UTC] if getattr(kind, "tz", None) else []
        return array, ISO
    if pa.types.is_time(kind):
        raise ValueError(f"times need a date; column {column!r} holds times of day such as {array[0]}. Add the date.")
    if is_number(kind):
        return _understand_numbers(array, wanted, column, notes)
    if not is_text(kind):
        raise ValueError(f"times are numbers, timestamps or text; column {column!r} holds {kind}. Convert it.")
    return _understand_text(array, wanted, column, notes)


def _understand_numbers(array: pa.Array, wanted: str | None, column: str, notes: list[str]) -> tuple[pa.Array, str]:
    numbers = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    lowest, highest = float(numbers.min()), float(numbers.max())
    if wanted is None:
        for power, unit in enumerate(EPOCHS):
            if _YEAR_2000 * 1000**power <= lowest and highest <= _YEAR_2100 * 1000**power:
                wanted = unit
                notes.append(f"Times count {unit} since 1970; time_format number would take them as plain numbers.")
    is_integer = pa.types.is_integer(array.type)
    if wanted is None and (wanted := date_pattern(array)) is not None:
        notes.append(f"Times are dates written as {array[0]} ({wanted}).")
    if wanted in EPOCHS:
        factor = TIME_UNITS[wanted]
        if not -_LATEST <= lowest * factor <= highest * factor <= _LATEST:
            got = f"{lowest:.15g} to {highest:.15g}, taken as {wanted} since 1970"
            raise ValueError(f"{YEARS}; got {got}. Choose another time_format, or leave those rows out.")
        if is_integer:
            nanoseconds = array.cast(pa.int64()).to_numpy(zero_copy_only=False) * factor
        else:
            nanoseconds = np.rint(numbers * (factor / 1000)).astype(np.int64) * 1000  # to the microsecond
        return pa.array(nanoseconds.view("datetime64[ns]")), str(wanted)
    if wanted is not None and "%" in wanted:
        whole = array if is_integer else array.cast(pa.int64(), safe=False)
        return _understand_text(whole.cast(pa.string()), wanted, column, [])
    if wanted not in (None, NUMBER):
        raise ValueError(f"times of column {column!r} are numbers; got the format {wanted!r}. Use {NUMBER} or s, ms.")
    return (array if is_integer or pa.types.is_decimal(array.type) else pa.array(numbers)), NUMBER


def _understand_text(array: pa.Array, wanted: str | None, column: str, notes: list[str]) -> tuple[pa.Array, str]:
    as_number = wanted != ISO and "%" not in (wanted or "")
    if as_number and (numbers := numbers_of_text(array)) is not None:
        return _understand_numbers(numbers, wanted, column, notes)
    if as_number and wanted is not None:
        text = array[0].as_py()
        raise ValueError(f"the format {wanted!r} is for numbers; column {column!r} has {text!r}. {_WRITE_A_PATTERN}")
    detects, wanted = wanted is None, wanted or _find_format(array, column)
    ways = wanted.replace(EITHER, " or ")
    parsed = _parsed(array, wanted)
    if parsed.isna().any():
        bad = array[int(np.argmax(parsed.isna()))].as_py()
        raise ValueError(f"times of column {column!r} must read as {ways}; got {bad!r}. Correct it or the format.")
    if not (is_known := has_known_year(parsed)).all():
        bad = array[int(np.argmin(is_known))].as_py()
        raise ValueError(f"{YEARS}; got {bad!r} in column {column!r}. Correct it, or leave its row out.")
    if wanted == ISO:
        zoned = pc.match_substring_regex(array, r"\d:\d\d.*(Z|[+-]\d\d:?\d*)$").to_numpy(zero_copy_only=False)
        notes += [_IN_UTC] if zoned.any() else []
        if zoned.any() and not zoned.all():
            notes.append(f"{int((~zoned).sum()):,} of {len(zoned):,} times name no zone and are taken as UTC.")
    elif detects:
        notes.append(f"Times are written as {ways}.")
        notes += ["What the shorter ones leave out is taken as 0."] if EITHER in wanted else []
    return pa.array(parsed.dt.tz_localize(None).to_numpy(dtype="datetime64[ns]")), wanted


def _parsed(array: pa.Array, time_format: str) -> pd.Series:
    """Timestamps in UTC; NaT where a text does not fit."""
    styles = ["ISO8601"] if time_format == ISO else time_format.split(EITHER)
    texts = array.to_pandas()
    try:
        ways = (pd.to_datetime(texts, format=style, utc=True, errors="coerce") for style in styles)
        return reduce(pd.Series.fillna, ways)
    except (ValueError, pd.errors.OutOfBoundsDatetime) as error:
        raise ValueError(f"{time_format!r} is not a pattern for times ({error}). See strptime.") from error


def _find_format(array: pa.Array, column: str) -> str:
    """The one pattern that fits all of these texts, or one date with clocks that differ in what they leave out."""
    sample = pc.unique(array)[:_SAMPLE]
    counts = {ISO: int(_parsed(sample, ISO).notna().sum())}
    if counts[ISO] == len(sample):
        return ISO
    for pattern in map("".join, product(_DATES, _CLOCKS)):
        counts[pattern] = int(_parsed(sample, pattern).notna().sum())
    fits = [pattern for pattern, count in counts.items() if count == len(sample)]
    if not fits:
        ways = (EITHER.join(date + clock for clock in _SHORTENED if counts[date + clock]) for date in _DATES)
        fits = [pattern for pattern in ways if EITHER in pattern and _parsed(sample, pattern).notna().all()]
    if len(fits) == 1:
        return fits[0]
    if fits:
        dates = " or ".join(f"{_parsed(array[:1], pattern).iloc[0]:%d %B %Y}" for pattern in fits[:2])
        formats = " or ".join(map(repr, fits[:2]))
        raise ValueError(f"{array[0].as_py()!r} in column {column!r} may be {dates}. Give the time_format {formats}.")
    best = max(counts, key=lambda pattern: counts[pattern])
    unread = _parsed(sample, best).isna().to_numpy()
    example = sample[int(np.argmax(unread))].as_py()
    if counts[best] == 0:
        fix = f"Name the time column. {_WRITE_A_PATTERN}"
        raise ValueError(f"column {column!r} does not read as times: {example!r}. {fix}")
    both = f"{sample[int(np.argmin(unread))].as_py()!r} ({best}) and {example!r}"
    raise ValueError(f"times must be written in one way; column {column!r} has {both}. Correct those that differ.")


def natural_unit(seconds: float) -> str:
    """The unit of time in which a duration is nearest to 1."""
    return min(("ms", "s", "min", "h", "D"), key=lambda unit: abs(math.log(seconds * 1e9 / TIME_UNITS[unit])))


def _in_natural_unit(events: EventSequences) -> EventSequences:
    """Events in ns in the unit of their median interval; to the last bit as if they had been loaded in it."""
    intervals = events.intervals()
    positive = intervals[intervals > 0]
    unit = natural_unit(float(np.median(positive)) / 1e9) if len(positive) else "s"
    length = TIME_UNITS[unit]
    return replace(events, times=events.times / length, starts=events.starts / length, time_unit=unit)


# --- tied times


def _tied_resolution(events: EventSequences, times: pa.Array, notes: list[str]) -> float | None:
    """What the times were rounded to, in the events' unit, if that makes many of them equal."""
    intervals = np.delete(events.intervals(), events.offsets[:-1])
    tied = int((intervals == 0).sum())
    if tied <= TIED_SHARE * max(1, len(intervals)):
        return None
    share = f"{tied / events.num_events:.0%} of the events have the very time of the one before"
    if not is_number(times.type):
        nanoseconds = times.cast(pa.timestamp("ns")).view(pa.int64()).to_numpy(zero_copy_only=False)
        for unit, name in {"D": "day", "h": "hour", "min": "minute", "s": "second", "ms": "millisecond"}.items():
            if (nanoseconds % TIME_UNITS[unit] == 0).all():
                spread = "A model sees them spread over it, in their order."
                notes.append(f"{share}: times are rounded to the {name}. {spread}")
                return TIME_UNITS[unit] / unit_in_nanoseconds(events.time_unit or "s")
    elif (events.times == np.floor(events.times)).all():
        notes.append(f"{share}: times are whole numbers. The model sees them spread over the unit, in their order.")
        return 1.0
    notes.append(f"{share}, and it is not rounding: the likelihood of such events means little.")
    return None


def spread_ties(events: EventSequences, resolution: float) -> EventSequences:
    """Times moved within their resolution, the order of the events kept; `shown_times` undoes it. The place follows
    from a sequence's name and an event's number in it: it stays when other events are added."""
    names = np.array([zlib.crc32(str(name).encode()) for name in events.seq_ids], dtype=np.uint64)
    owner = np.repeat(np.arange(len(events)), events.lengths)
    number = np.arange(events.num_events) - events.offsets[owner]
    mixed = (names[owner] << np.uint64(32)) + number.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    draws = ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2**53
    draws = draws[np.lexsort((draws, events.times, owner))]  # rising among events of one time
    # Not quite to the ends, so that rounding cannot carry a time over.
    return replace(events, times=events.times + resolution * (0.001 + 0.998 * draws), resolution=resolution)


# --- marks


def _read_marks(
    values: pa.ChunkedArray, kept: Reading, max_marks: int, column: str, notes: list[str]
) -> tuple[Sequence[str], np.ndarray, bool]:
    """Names of the marks, codes (N,), and whether some became "other"."""
    distinct = encoded(values)
    labels = [name_of(value) for value in distinct.dictionary.to_pylist()]
    counts = np.bincount(distinct.indices.to_numpy(), minlength=len(labels))
    marks, merges = (kept.marks, kept.merges) if kept.marks else _chosen_marks(labels, counts, max_marks)
    position = {label: code for code, label in enumerate(marks)}
    if kept.marks and kept.mark is None and not numbers_are_names(marks) and all(map(str.isdecimal, labels)):
        position = {str(code): code for code in range(len(marks))}  # of a model that was not trained on a table
    unknown = [label for label in labels if label not in position]
    if unknown and not merges:
        shown = ", ".join(map(repr, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
        names = ", ".join(map(repr, marks[:12])) + (", ..." if len(marks) > 12 else "")
        fix = f"It knows {names}. Leave such events out, or train on a file that has them."
        near = nearest(unknown[0], marks)
        raise ValueError(f"the model does not know {len(unknown)} of these marks: {shown}.{near} {fix}")
    codes = np.array([position.get(label, position.get(OTHER, -1)) for label in labels])
    merged = int(counts[codes == position.get(OTHER, -1)].sum())
    if not kept.marks and merges and merged > 0.5 * counts.sum():
        raise ValueError(
            f"column {column!r} has {len(labels):,} different values in {counts.sum():,} events, and the "
            f"{len(marks) - 1} most frequent cover less than half of them. A mark says what kind of event it was: "
            "name another mark column, or raise max_marks."
        )
    if not kept.marks and merges:
        notes.append(
            f"{len(labels):,} kinds of events, of which at most {max_marks} (max_marks) are kept apart: the rarest "
            f"{len(labels) - len(marks) + 1:,} ({merged / counts.sum():.1%} of the events) become {OTHER!r}."
        )
    elif unknown:
        share = sum(counts[code] for code, label in enumerate(labels) if label not in position) / counts.sum()
        notes.append(f"{len(unknown):,} kinds of events are {OTHER!r} to the model ({share:.1%} of the events).")
    return marks, codes[distinct.indices.to_numpy()], merges


def _chosen_marks(labels: Sequence[str], counts: np.ndarray, max_marks: int) -> tuple[Sequence[str], bool]:
    """All labels, or the frequent ones and "other"; numbers in their order, before names."""

    def natural(label: str) -> tuple[bool, int, str]:
        return (False, int(label), label) if label.isdecimal() and len(label) < 19 else (True, 0, label)

    if len(labels) <= max_marks:
        return sorted(labels, key=natural), False
    frequent = np.argsort(-counts, kind="stable")[: max_marks - 1]
    kept = {labels[code] for code in frequent if counts[code] >= SELDOM} - {OTHER}
    return [*sorted(kept, key=natural), OTHER], True
