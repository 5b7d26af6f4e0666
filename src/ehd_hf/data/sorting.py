"""Rows of any source in a Parquet file whose row groups hold whole sequences: what can be shared out among processes.

Rows that are events may come in any order: they are sorted by sequence and line, in memory or, if they do not fit, on
disk by DuckDB. Reading puts those of a sequence in order of time, which keeps the lines of one time in their order.
"""

from __future__ import annotations

import re
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tqdm.auto import tqdm

from ..files import replaced_when_done
from .reading import MISSING_SHARE
from .tables import is_text, plain, whole_sequences

MEMORY = "1GB"  # for sorting; more is sorted on disk
_ROWS_AT_ONCE = 100_000
_LEAST_FOR_DUCKDB = 128 * 10**6  # bytes: with less it may not sort at all


def bytes_of(text: str) -> int:
    """What "500MB" or "1.5 GB" says."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT])i?B?\s*", str(text), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise ValueError(f"memory is written like 500MB or 1.5GB; got {text!r}.")
    return int(float(match[1]) * 1000 ** ("KMGT".index(match[2].upper()) + 1))


def shares(weights: np.ndarray, most: float) -> list[tuple[int, int]]:
    """Where to cut a row of weights, so that the parts weigh at most `most`, or are one that alone weighs more."""
    until, ends = np.cumsum(weights), [0]
    while ends[-1] < len(weights):
        limit = until[ends[-1]] - weights[ends[-1]] + most * (1 + 1e-9)
        ends.append(max(int(np.searchsorted(until, limit, side="right")), ends[-1] + 1))
    return list(pairwise(ends))


def write_groups(
    tables: Iterable[pa.Table],
    path: Path,
    most: float,
    weigh: Callable[[np.ndarray], np.ndarray],
    sequence: str | None,
    lists: Sequence[str],
) -> None:
    """Write rows to a Parquet file, in row groups that weigh at most `most`, if no sequence alone weighs more. `weigh`
    says what sequences of so many events (S,) weigh: rows that hold `lists` of events, or rows that are events and
    stand together by `sequence`; without either all rows are one."""
    with replaced_when_done(path) as partial, open(partial, "wb") as file:
        writer: pq.ParquetWriter | None = None
        for table in tables:
            writer = writer or pq.ParquetWriter(file, table.schema, compression="zstd")
            if lists:
                begins = np.arange(table.num_rows)
                lengths = sum(pc.fill_null(pc.list_value_length(table[name]), 0).to_numpy() for name in lists)
            else:
                codes = np.zeros(table.num_rows) if sequence is None else _codes(table[sequence])
                begins = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
                lengths = np.diff(np.append(begins, table.num_rows))
            ends = np.append(begins, table.num_rows)
            for first, last in shares(weigh(lengths), most):
                writer.write_table(table.slice(ends[first], ends[last] - ends[first]))
        if writer is not None:
            writer.close()


def _codes(names: pa.ChunkedArray) -> np.ndarray:
    return plain(names).dictionary_encode().indices.to_numpy()


def alike(
    tables: Iterable[pa.Table], roles: Mapping[str, str] | None = None, numbers: Sequence[str] = ()
) -> Iterator[pa.Table]:
    """Tables with the columns and types of the first; only the columns of `roles` if given, without dictionaries.
    Whole `numbers` become float64: rows of JSON write 1 and 1.5."""
    schema: pa.Schema = None
    row = 0
    for table in tables:
        if roles is not None:
            table = pa.table({name: plain(table[name]) for name in roles.values() if name in table.column_names})
        if schema is None:
            kinds = {
                field.name: _widened(field.type) if field.name in numbers else field.type for field in table.schema
            }
            schema = pa.schema(kinds, table.schema.metadata)
        try:
            columns = [table[name] if name in table.column_names else pa.nulls(len(table)) for name in schema.names]
            yield pa.table([column.cast(kind) for column, kind in zip(columns, schema.types, strict=True)], schema)
        except (pa.ArrowException, ValueError) as error:
            place = f"rows {row:,} to {row + table.num_rows - 1:,}"
            raise ValueError(f"{place}: values must be of the kinds of the first rows; {error}") from error
        row += table.num_rows


def _widened(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_widened(kind.value_type))
    return pa.float64() if pa.types.is_integer(kind) else kind


def by_sequence(
    tables: Iterable[pa.Table], column: str, memory: int, scratch: Path, notes: list[str], progress: bool | None = None
) -> Iterator[pa.Table]:
    """The same rows sorted by sequence and line, in tables that end where a sequence ends. Rows without a sequence are
    left out, and the notes say so. More than an eighth of `memory` (bytes) is sorted on disk, in the folder
    `scratch`."""
    held = deque[pa.Table]()
    with tqdm(
        desc="sorting", unit=" rows", unit_scale=True, disable=None if progress is None else not progress
    ) as bar:
        named = _named(tables, column, notes, bar)
        for table in named:
            held.append(table)
            if sum(table.nbytes for table in held) > memory // 8:
                first = (held.popleft() for _ in range(len(held)))
                whole = _by_duckdb(chain(first, named), column, max(memory // 2, _LEAST_FOR_DUCKDB), scratch)
                break
        else:
            table = pa.concat_tables(held)
            whole = iter([table.take(pc.sort_indices(table, sort_keys=[(column, "ascending")]))])  # is stable
        parts = (table.slice(at, _ROWS_AT_ONCE) for table in whole for at in range(0, len(table), _ROWS_AT_ONCE))
        yield from whole_sequences(parts, column)


def _named(tables: Iterable[pa.Table], column: str, notes: list[str], bar: Any) -> Iterator[pa.Table]:
    """Tables without the rows that have no sequence; names without blanks around them."""
    total = missing = 0
    for table in tables:
        names = plain(table[column])
        if is_text(names.type):
            names = pc.utf8_trim_whitespace(names)
            names = pc.if_else(pc.equal(names, ""), pa.scalar(None, names.type), names)
        is_there = pc.invert(pc.is_null(names, nan_is_null=True))
        total, missing = total + table.num_rows, missing + table.num_rows - is_there.true_count
        bar.update(table.num_rows)
        yield table.set_column(table.column_names.index(column), column, names).filter(is_there)
    if missing > MISSING_SHARE * total:
        got = f"{missing:,} of {total:,} rows lack a value, most in the sequence column {column!r}"
        raise ValueError(f"{got}; up to {MISSING_SHARE:.0%} are left out. Check that it is the right column.")
    if missing:
        notes.append(f"{missing:,} of {total:,} rows lack a sequence: left out.")


def _by_duckdb(tables: Iterator[pa.Table], column: str, memory: int, scratch: Path) -> Iterator[pa.Table]:
    try:
        import duckdb
    except ImportError as error:
        fix = "Install it with pip install 'ehd-hf[sort]', or allow more memory."
        raise ValueError(f"more events than fit in the memory allowed are sorted on disk by DuckDB. {fix}") from error
    # DuckDB sees numbers and text only: it must not round timestamps, or guess what a text means.
    first = next(tables)
    names, kinds = [f"c{index}" for index in range(first.num_columns)], [_stored(kind) for kind in first.schema.types]
    stored, lines, failure = pa.schema(list(zip(names, kinds, strict=True))), count(), list[Exception]()

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for table in chain([first], tables):
                columns = [column.cast(kind) for column, kind in zip(table.columns, kinds, strict=True)]
                numbers = pa.array(np.fromiter(lines, np.int64, table.num_rows))
                yield from pa.table([*columns, numbers], [*names, "line"]).combine_chunks().to_batches()
        except Exception as error:
            failure.append(error)
            raise

    reader = pa.RecordBatchReader.from_batches(stored.append(pa.field("line", pa.int64())), batches())
    shutil.rmtree(scratch, ignore_errors=True)
    settings: dict[str, Any] = {"memory_limit": f"{memory // 10**6}MB", "temp_directory": str(scratch), "threads": 2}
    try:
        with closing(duckdb.connect(config=settings | {"preserve_insertion_order": False})) as connection:
            connection.register("events", reader)
            key = names[first.column_names.index(column)]
            query = f"select * exclude line from events order by {key}, line"
            for batch in pa.RecordBatchReader.from_stream(connection.sql(query)):
                columns = [
                    values.cast(kind).cast(to)
                    for values, kind, to in zip(batch, kinds, first.schema.types, strict=True)
                ]
                yield pa.table(columns, first.schema)
    except duckdb.Error as error:
        raise failure[0] if failure else ValueError(f"DuckDB could not sort the events: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _stored(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) or pa.types.is_date64(kind) else kind
