"""Tables of events: the only file that opens CSV, TSV, JSON Lines, JSON and Parquet, in tables of bounded size."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from .sequences import read_table, rows_to_table

FILE_TYPES = (".parquet", ".csv", ".tsv", ".jsonl", ".json")
# What is read at once: rows that hold lists, rows that are events, bytes of text.
_LISTS_AT_ONCE, _EVENTS_AT_ONCE, _BYTES_AT_ONCE = 1_000, 100_000, 2**23


def read_tables(source: Any, text: Sequence[str] = ()) -> Iterator[pa.Table]:
    """The rows of a file, a folder of files or a dataset, in their order and in tables of bounded size.

    Args:
        text: columns of CSV files to be read as text, whatever their first rows look like.
    """
    if not isinstance(source, str | Path):
        if not (hasattr(source, "with_format") and hasattr(source, "iter")):
            kind = type(source).__name__
            raise ValueError(f"a source is a file, a folder or a dataset; got {kind}. Write it to a Parquet file.")
        for table in source.with_format("arrow").iter(_LISTS_AT_ONCE):
            metadata = None if source.features is None else source.features.arrow_schema.metadata
            yield table.replace_schema_metadata(metadata)
        return
    for path in data_files(Path(source)):
        try:
            if path.suffix == ".parquet":
                tables = _parquet_tables(path)
            elif path.suffix in (".csv", ".tsv"):
                tables = _csv_tables(path, text)
            elif path.suffix == ".jsonl":
                tables = _json_tables(path)
            else:
                tables = iter([read_table(path)])  # one value, to be read as a whole
            yield from (table for table in tables if table.num_rows)
        except (pa.ArrowException, json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise ValueError(
                f"{path} cannot be read as columns: {reason}. Each column needs values of one type."
            ) from error


def is_streamed(source: Any) -> bool:
    """Whether reading it twice may mean fetching it twice."""
    return not isinstance(source, str | Path) and not hasattr(source, "__len__")


def data_files(path: Path) -> list[Path]:
    if not path.exists():
        raise FileNotFoundError(f"no file or folder {path}; check the path")
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.name[0] not in "._")
    kinds = {file.suffix for file in files if file.suffix in FILE_TYPES}
    files = [file for file in files if file.suffix in kinds]
    if len(kinds) != 1:
        found = ", ".join(sorted(kinds)) or "none"
        raise ValueError(f"{path} must hold files of one type of {', '.join(FILE_TYPES)}; got {found}. Name one file.")
    return files


def _parquet_tables(path: Path) -> Iterator[pa.Table]:
    # Not memory-mapped: the pages read so far would count as this process's memory.
    with pq.ParquetFile(path, buffer_size=2**20) as file:
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group)
            values = max((rows.column(index).num_values for index in range(rows.num_columns)), default=0)
            at_once = _EVENTS_AT_ONCE * rows.num_rows // max(values, 1)  # lists count by what is in them
            for batch in file.iter_batches(max(at_once, 1), row_groups=[group]):
                yield pa.Table.from_batches([batch])


def _csv_tables(path: Path, text: Sequence[str]) -> Iterator[pa.Table]:
    with open(path, "rb") as file:
        delimiter = max(b",;\t|", key=file.readline(1_000_000).count)
    with pa.csv.open_csv(
        path,
        read_options=pa.csv.ReadOptions(block_size=_BYTES_AT_ONCE),
        parse_options=pa.csv.ParseOptions(delimiter=chr(delimiter)),
        convert_options=pa.csv.ConvertOptions(
            column_types=dict.fromkeys(text, pa.string()), strings_can_be_null=bool(text)
        ),
    ) as reader:
        for batch in reader:
            yield pa.Table.from_batches([batch])


def _json_tables(path: Path) -> Iterator[pa.Table]:
    with open(path, "rb") as file:
        # By Python's own parser: a line that is no object ends Arrow's, and the process with it.
        while lines := file.readlines(_BYTES_AT_ONCE):
            yield rows_to_table([json.loads(line) for line in lines if line.strip()])


def whole_sequences(tables: Iterable[pa.Table], column: str) -> Iterator[pa.Table]:
    """The same rows, one per event, in tables that end where a sequence ends."""
    begun: list[pa.Table] = []  # of the sequence that is not over yet, whose id is `last`
    last = None
    for table in tables:
        ids = table.column(column)
        ids = ids.cast(ids.type.value_type) if pa.types.is_dictionary(ids.type) else ids
        is_last = pc.fill_null(pc.equal(ids, ids[-1]), False).to_numpy()
        cut = len(ids) - int(np.argmin(is_last[::-1])) if not is_last.all() else 0
        if begun and (cut or last != ids[0]):
            yield pa.concat_tables([*begun, table.slice(0, cut)], promote_options="permissive")
            begun = []
        elif cut:
            yield table.slice(0, cut)
        begun.append(table.slice(cut))
        last = ids[-1]
    if begun:
        yield pa.concat_tables(begun, promote_options="permissive")
