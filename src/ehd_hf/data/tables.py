"""The only file that opens data files: any source becomes one Arrow table, or Arrow tables of bounded size."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from glob import escape
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from ..files import check_manifest

FILE_TYPES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
# What files of splits are called.
SPLIT_NAMES = {"train": "train", "test": "test"} | dict.fromkeys(("validation", "valid", "val", "dev"), "validation")
# What `read_tables` reads at once: rows that hold lists, rows that are events, bytes of text.
_LISTS_AT_ONCE, _EVENTS_AT_ONCE, _BYTES_AT_ONCE = 1_000, 100_000, 2**23
# Files above so many bytes are read table by table where a part of their sequences will do; Parquet is compressed.
LARGE_TEXT, LARGE_PARQUET = 2**29, 2**26
_FEWEST_SEQUENCES = 20  # that a part must have
_HEAD = 1_000_000  # bytes at the beginning of a text file that are checked, and searched for column names


def read_table(source: Any, *, columns: Iterable[str] = (), text_columns: Iterable[str] = ()) -> pa.Table:
    """Any source as one Arrow table: typed columns, lists without Python objects.

    Args:
        source: a file of `FILE_TYPES`, a pandas DataFrame, a `datasets.Dataset`, an Arrow table, a dict of columns, a
            list of rows (dicts), or a list of sequences, each a list of (time, mark) pairs.
        columns: of a CSV file, the only columns to read.
        text_columns: of a CSV file, columns to read as text, whatever their values look like; empty text is missing.
    """
    if is_file := isinstance(source, str | Path):
        _check_file(Path(source))
    try:
        table = _plain_types(_read_file(Path(source), columns, text_columns) if is_file else _as_table(source))
        table.validate(full=True)  # text that is not UTF-8, lists that reach beyond their values
        table.column_names  # noqa: B018  # may be no text either
    except PermissionError:
        raise
    except Exception as error:  # a damaged file, or an object of another shape, may fail in any way
        raise _unreadable(source, error) from error
    if table.num_rows == 0:
        name = source if is_file else "the source"
        raise ValueError(f"{name} holds no events; expected at least one. Check that it is the right file or query.")
    return table


def read_tables(source: Any, text_columns: Sequence[str] = ()) -> Iterator[pa.Table]:
    """The rows of a file, a folder of files of one type, a `datasets.Dataset` or `IterableDataset`, in their order and
    in tables of bounded size. `text_columns` of CSV files are read as text, whatever their first rows look like."""
    if isinstance(source, str | Path):
        for path in data_files(Path(source)):
            _check_file(path)
            try:
                yield from (_plain_types(table) for table in _tables_of_file(path, text_columns) if table.num_rows)
            except (pa.ArrowException, json.JSONDecodeError, UnicodeError, RecursionError) as error:
                raise _unreadable(path, error) from error
        return
    if not (hasattr(source, "with_format") and hasattr(source, "iter")):
        kind = type(source).__name__
        raise ValueError(f"a source is a file, a folder or a dataset; got {kind}. Write it to a Parquet file.")
    metadata = None if source.features is None else source.features.arrow_schema.metadata
    for table in source.with_format("arrow").iter(_LISTS_AT_ONCE):
        yield _plain_types(table).replace_schema_metadata(metadata)


def whole_sequences(tables: Iterable[pa.Table], column: str) -> Iterator[pa.Table]:
    """The same rows, one per event, in tables that end where a sequence ends."""
    begun: list[pa.Table] = []  # of the sequence that is not over yet, whose id is `last`
    last = None
    for table in tables:
        ids = plain(table[column])
        is_last = pc.fill_null(pc.equal(ids, ids[-1]), False).to_numpy(zero_copy_only=False)
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


def is_large(source: Any) -> bool:
    """Whether the source is a file that may not fit into memory."""
    if not isinstance(source, str | Path) or not os.path.isfile(source):
        return False
    return os.path.getsize(source) > (LARGE_PARQUET if _is_parquet(source) else LARGE_TEXT)


def read_some(source: Any, names: Mapping[str, str], most: int) -> tuple[pa.Table, int]:
    """At most `most` events of a file of any size, in bounded memory, and how many events it has: all those of some
    sequences, chosen by a hash of their names, so that the order of the rows does not matter.

    `names`: the columns of time, mark and sequence. Rows that hold lists are a sequence each.
    """
    text = [names[role] for role in ("mark", "sequence") if role in names]
    kept: list[tuple[pa.Table, np.ndarray]] = []  # rows, and the hashes of their sequences
    limit, total, row = 2**64 - 1, 0, 0
    for table in read_tables(source, text):
        hashes = _sequence_hashes(table, names, row)
        columns = {name: table[name] for name in names.values()}
        table = pa.table({name: encoded(c) if is_text(c.type) else c for name, c in columns.items()})
        row, total = row + table.num_rows, total + num_events(table, names["time"])
        kept.append(_below(limit, table, hashes))
        while limit and sum(num_events(table, names["time"]) for table, _ in kept) > most:
            limit = limit * 9 // 10
            kept = [_below(limit, *part) for part in kept]
    if limit < 2**64 - 1 and len(np.unique(np.concatenate([hashes for _, hashes in kept]))) < _FEWEST_SEQUENCES:
        raise ValueError(
            f"of {total:,} events at most {most:,} (max_events) are taken, in whole sequences; fewer than "
            f"{_FEWEST_SEQUENCES} would be left. Raise max_events, name another sequence column, or cut the log."
        )
    return pa.concat_tables([table for table, _ in kept], promote_options="permissive"), total


def _below(limit: int, table: pa.Table, hashes: np.ndarray) -> tuple[pa.Table, np.ndarray]:
    return table.filter(pa.array(hashes <= limit)), hashes[hashes <= limit]


def num_events(table: pa.Table, time: str) -> int:
    """Of a table with a row per event, or lists of them."""
    is_lists = pa.types.is_nested(table.schema.field(time).type)
    return int(pc.sum(pc.list_value_length(table[time])).as_py() or 0) if is_lists else table.num_rows


def _sequence_hashes(table: pa.Table, names: Mapping[str, str], row: int) -> np.ndarray:
    """A number (N,) for the sequence of each row; of lists, and of rows without an id, for the row itself."""
    numbers = np.arange(row, row + table.num_rows)
    if "sequence" not in names:
        is_lists = pa.types.is_nested(table.schema.field(names["time"]).type)
        return pd.util.hash_array(numbers if is_lists else np.zeros_like(numbers))
    hashes, ids = pd.util.hash_array(numbers), encoded(table[names["sequence"]])
    by_name = pd.util.hash_array(ids.dictionary.cast(pa.string()).to_numpy(zero_copy_only=False))
    hashes[ids.is_valid().to_numpy(zero_copy_only=False)] = by_name[ids.indices.drop_null().to_numpy()]
    return hashes


def is_streamed(source: Any) -> bool:
    """Whether reading it twice may mean fetching it twice."""
    return not isinstance(source, str | Path) and not hasattr(source, "__len__")


def is_csv(source: Any) -> bool:
    """Whether the source is a file whose values have no types of their own."""
    return isinstance(source, str | Path) and Path(source).suffix in (".csv", ".tsv")


def _is_parquet(source: Any) -> bool:
    return isinstance(source, str | Path) and Path(source).suffix == ".parquet"


def is_split_folder(source: Any) -> bool:
    """Whether the source is a folder with a file of events named train, validation or test."""
    is_folder = isinstance(source, str | Path) and os.path.isdir(source)
    return is_folder and any(map(_is_split, Path(source).iterdir()))


def _is_split(file: Path) -> bool:
    return file.stem in SPLIT_NAMES and file.suffix in FILE_TYPES


def data_files(path: Path) -> list[Path]:
    """A file, or the files of a folder, which must be of one type; names that begin with . or _ are skipped. Of a
    folder of splits, the files of the splits alone."""
    if not path.exists():
        raise FileNotFoundError(f"no file or folder {path}; check the path")
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.name[0] not in "._")
    files = list(filter(_is_split, files)) or files
    if path.is_dir():
        check_manifest(path, remedy="Copy it again")  # none of them may be missing
    kinds = {file.suffix for file in files if file.suffix in FILE_TYPES}
    if len(kinds) != 1:
        got = ", ".join(sorted(kinds)) or "none"
        raise ValueError(f"{path} must hold files of one type of {', '.join(FILE_TYPES)}; got {got}. Name one file.")
    return [file for file in files if file.suffix in kinds]


def column_names(source: Any) -> list[str]:
    """Names of the columns of a source, without reading all of a CSV or Parquet file."""
    return list(first_rows(source).column_names)


def first_rows(source: Any) -> pa.Table:
    """The first rows of a CSV file, without those of a wrong length; none of a Parquet file; all of anything else."""
    if not (is_csv(source) or _is_parquet(source)):
        return read_table(source)
    _check_file(Path(source))
    try:
        if _is_parquet(source):
            table = pq.read_schema(source).empty_table()
        else:
            options = _csv_options(Path(source), block_size=_HEAD, invalid_row_handler=lambda row: "skip")
            with pa.csv.open_csv(source, **options) as reader:
                table = pa.Table.from_batches(list(islice(reader, 1)), reader.schema)
        table.column_names  # noqa: B018  # may be no text
        return table
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise _unreadable(source, error) from error


def _rows_to_table(rows: Sequence[Any]) -> pa.Table:
    """Rows as columns; what a row does not have is missing."""
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise ValueError(f"row {number} must be an object with named values; got {row!r:.80}")
    names = dict.fromkeys(str(name) for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def _plain_types(table: pa.Table) -> pa.Table:
    """The table with what Arrow calls views of text, which many of its functions do not take, as text."""
    schema = pa.schema([field.with_type(_plain_type(field.type)) for field in table.schema], table.schema.metadata)
    return table if schema.equals(table.schema) else table.cast(schema)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return pa.string() if pa.types.is_string_view(kind) else pa.binary()
    inside = kind.value_type if pa.types.is_list(kind) else None
    return kind if inside is None or inside == _plain_type(inside) else pa.list_(_plain_type(inside))


def plain(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    """One array of plain values: no chunks, no dictionary."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def encoded(values: pa.ChunkedArray | pa.Array) -> pa.DictionaryArray:
    """One array of codes and the distinct values they stand for."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return array if pa.types.is_dictionary(array.type) else array.dictionary_encode()


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def nearest(asked: Any, names: Iterable[Any]) -> str:
    """ " Did you mean 'timestamp'?", or nothing if no name is near what was asked for."""
    by_lower = {str(name).lower(): str(name) for name in names}
    wanted = str(asked).lower()
    close = get_close_matches(wanted, by_lower, n=3, cutoff=0.6)
    close = close or [name for name in by_lower if name in wanted or wanted in name][:3]
    return f" Did you mean {' or '.join(repr(by_lower[name]) for name in close)}?" if close else ""


def shorten(text: str, length: int) -> str:
    """One line of at most so many characters, control characters spelt out."""
    line = " ".join(text[: 4 * length].split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return line if len(line) <= length and len(text) <= 4 * length else f"{line[: length - 1]}…"


def reason_of(error: Exception) -> str:
    """What a library says of a failure, in one line."""
    if isinstance(error, UnicodeError):
        return "it is not text in UTF-8"
    if isinstance(error, RecursionError):
        return "its values are nested too deep"
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__


# --- files


def _check_file(path: Path) -> None:
    """Refuse what cannot hold events, by its name and, of a text file, its beginning."""
    types = ", ".join(FILE_TYPES)
    if os.path.isdir(path):
        inside = sorted(file.name for file in path.iterdir() if file.suffix in FILE_TYPES)
        hint = f"Pass one of its files: {', '.join(inside[:5])}." if inside else "It holds no table."
        raise ValueError(f"events come from one file ({types}); {path} is a folder. {hint}")
    if not os.path.isfile(path):  # False for a name that no file can have
        beside = [file.name for file in path.parent.iterdir()] if os.path.isdir(path.parent) else []
        fix = f"Check the path; a file of events is one of {types}."
        raise FileNotFoundError(f"there is no file {str(path)[:200]}.{nearest(path.name, beside)} {fix}")
    if path.suffix not in FILE_TYPES:
        raise ValueError(f"a file of events is one of {types}; got {path.name!r}. Convert or rename it.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty: it holds no events. Check how it was written.")
    check_manifest(path.parent, [escape(path.name)], "Copy it again")
    if _is_parquet(path):
        return
    with open(path, "rb") as file:
        head = file.read(_HEAD)
    if head.startswith((b"\x1f\x8b", b"PK\x03\x04")):
        raise ValueError(f"{path} is compressed, and a {path.suffix} file is text. Unpack it first.")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
        if b"\0" in head:
            raise UnicodeError("NUL bytes: another encoding, or no text")
    except UnicodeError as error:
        raise _unreadable(path, error) from error


def _unreadable(source: Any, error: Exception) -> ValueError:
    is_file = isinstance(source, str | Path)
    if _is_parquet(source):
        return ValueError(f"{source} cannot be read as Parquet: {reason_of(error)}. Was it written completely?")
    fix = "Each column needs values of one type; a list holds (time, mark) pairs, or dicts."
    if is_file and isinstance(error, UnicodeError):
        fix = "If it is a table, save it with that encoding."
    elif is_csv(source) or isinstance(error, json.JSONDecodeError):
        fix = "Correct that row."
    name = source if is_file else f"the {type(source).__name__}"
    return ValueError(f"{name} cannot be read as columns: {reason_of(error)}. {fix}")


def _read_file(path: Path, columns: Iterable[str], text_columns: Iterable[str]) -> pa.Table:
    if _is_parquet(path):
        return pq.read_table(path)
    if is_csv(path):
        return _read_csv(path, columns, text_columns)
    if path.suffix == ".json":
        try:
            return _as_table(json.loads(path.read_bytes()))
        except json.JSONDecodeError:
            pass  # many .json files hold one object per line
    return next(_json_tables(path, -1))


def _tables_of_file(path: Path, text_columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of a file in tables of bounded size; a .json file is one value and read as a whole."""
    if _is_parquet(path):
        yield from _parquet_tables(path)
    elif path.suffix == ".jsonl":
        yield from _json_tables(path, _BYTES_AT_ONCE)
    elif is_csv(path):
        with pa.csv.open_csv(path, **_csv_options(path, text_columns, block_size=_BYTES_AT_ONCE)) as reader:
            yield from (pa.Table.from_batches([batch]) for batch in reader)
    else:
        yield read_table(path)


def _csv_options(
    path: Path, text: Iterable[str] = (), only: Iterable[str] = (), block_size: int | None = None, **parse: Any
) -> dict[str, Any]:
    """Options for Arrow's readers: the columns to read as text, the only columns to read, and how to parse."""
    with open(path, "rb") as file:
        first_line = file.readline(_HEAD)
    types = dict.fromkeys(text, pa.dictionary(pa.int32(), pa.string()))
    values = {"column_types": types, "strings_can_be_null": bool(types), "include_columns": list(dict.fromkeys(only))}
    return {
        "read_options": pa.csv.ReadOptions(block_size=block_size),
        "parse_options": pa.csv.ParseOptions(delimiter=chr(max(b",;\t|", key=first_line.count)), **parse),
        "convert_options": pa.csv.ConvertOptions(**values),
    }


def _read_csv(path: Path, columns: Iterable[str], text_columns: Iterable[str]) -> pa.Table:
    try:
        table = pa.csv.read_csv(path, **_csv_options(path, text_columns, columns))
    except pa.ArrowInvalid as error:
        try:  # slower: on one thread
            table = pa.csv.read_csv(path, **_csv_options(path, text_columns, columns, newlines_in_values=True))
        except pa.ArrowInvalid:
            raise error from None
    if any(pa.types.is_binary(kind) for kind in table.schema.types):
        raise UnicodeError("Arrow reads what is not UTF-8 as bytes")
    return table


def _json_tables(path: Path, num_bytes: int) -> Iterator[pa.Table]:
    """One table per so many bytes of lines, or one of all lines (-1)."""
    with open(path, "rb") as file:
        # By Python's own parser: a line that is no object ends Arrow's, and the process with it.
        while lines := file.readlines(num_bytes):
            yield _rows_to_table([json.loads(line) for line in lines if line.strip()])


def _parquet_tables(path: Path) -> Iterator[pa.Table]:
    # Not memory-mapped: the pages read so far would count as this process's memory.
    with pq.ParquetFile(path, buffer_size=2**20) as file:
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group)
            values = max((rows.column(index).num_values for index in range(rows.num_columns)), default=0)
            at_once = _EVENTS_AT_ONCE * rows.num_rows // max(values, 1)  # lists count by what is in them
            for batch in file.iter_batches(max(at_once, 1), row_groups=[group]):
                yield pa.Table.from_batches([batch])


# --- objects


def _as_table(source: Any) -> pa.Table:
    if isinstance(source, pa.Table):
        return source
    if isinstance(source, pd.DataFrame):
        return pa.Table.from_pandas(source, preserve_index=False)
    if hasattr(source, "with_format") and hasattr(source, "features"):  # datasets.Dataset, without importing it
        return source.with_format("arrow")[:].replace_schema_metadata(source.features.arrow_schema.metadata)
    if isinstance(source, Mapping):
        return pa.table({str(name): values for name, values in source.items()})
    if not isinstance(source, Sequence) or isinstance(source, str | bytes):
        raise ValueError(f"events come from a path, DataFrame, Dataset, list or dict; got {type(source).__name__}")
    if source and isinstance(source[0], Mapping):
        return _rows_to_table(source)
    one = len(source) > 0 and len(source[0]) == 2 and np.ndim(source[0][0]) == 0
    pairs = [tuple(zip(*piece, strict=True)) or ((), ()) for piece in ([source] if one else source)]
    return pa.table({"times": [times for times, _ in pairs], "marks": [marks for _, marks in pairs]})
