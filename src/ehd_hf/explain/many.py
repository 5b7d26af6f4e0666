"""Explanations of more windows than fit in memory: tables in, Parquet files out.

The windows of a source are numbered as they come and written `rows_per_file` at a time. Which windows make a file, and
which of them are computed together, depends on nothing else: so a run that was killed goes on where it was, and any
number of processes, each taking every n-th file, write the same rows as one.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from tqdm.auto import tqdm

from .. import __version__
from ..data.sequences import EventSequences, load_events
from ..data.tables import read_table, rows_to_table
from ..data.windows import _runs, make_windows
from ..files import replaced_when_done
from .explainer import (
    Answers,
    EHDDistiller,
    Question,
    Refinement,
    batches_of_like_length,
    check_finite,
    padded_windows,
)
from .explanation import Status

FILE_TYPES = (".parquet", ".csv", ".tsv", ".jsonl", ".json")
WINDOW_COLUMNS = ("history_times", "history_marks", "future_times", "future_marks")
ROWS_PER_FILE = 10_000
# A file ends before these many events too, so that long histories do not fill the memory.
_EVENTS_PER_FILE = 2_000_000
# What is read at once: rows that hold lists, rows that are events, bytes of text.
_LISTS_AT_ONCE, _EVENTS_AT_ONCE, _BYTES_AT_ONCE = 1_000, 100_000, 2**23
_REQUEST, _DONE = "_request.json", "_done.json"  # readers of Parquet folders pass over names that begin so
Layout = Literal["sequences", "events", "windows"]
_STATUSES: tuple[Status, ...] = ("explained", "explains_nothing", "infeasible")


@dataclass(frozen=True)
class Explained:
    """What a run has written so far.

    Args:
        windows: how many windows were explained, or tried: rows in the folder.
        explained, explains_nothing, infeasible: how many have this status.
        mean_size: mean number of distilled events of those that are explained; None if there are none.
        too_short: sequences that have no window.
        files: how many files they are in.
        finished: whether all windows are in the folder; if not, the other processes have not written theirs yet.
    """

    windows: int
    explained: int
    explains_nothing: int
    infeasible: int
    mean_size: float | None
    too_short: int
    files: int
    finished: bool


def explain_to_parquet(
    explainer: EHDDistiller,
    source: Any,
    out: str | Path,
    *,
    windows: bool = False,
    future: int | None = None,
    history: int | None = None,
    epsilon: float | None = None,
    share: float | None = None,
    size: int | None = None,
    delta: float | None = None,
    refine: Refinement | None = None,
    scores: bool = False,
    sequence: str | None = None,
    time: str | None = None,
    mark: str | None = None,
    start: str | None = None,
    read: Callable[[pa.Table], EventSequences] | None = None,
    rows_per_file: int = ROWS_PER_FILE,
    rank: int | None = None,
    world_size: int | None = None,
    progress: bool | None = None,
) -> Explained:
    """Explain every sequence, or every window, of a source of any size; the answers go to a folder of Parquet files.

    Repeat the call to go on after an interruption: files that are there are not computed again. Columns: `seq_id` and
    `window` (position of the window's first event in its sequence), `num_history`, `num_future`, `num_distilled`,
    `positions` (of the distilled events in the window), the values and judgements of `Explanation` under their names,
    and `score`, an entry for each history event, if `scores` are asked for.

    Args:
        source: a file or a folder of files: Parquet, CSV or JSON Lines, one row per sequence or one per event, where
            the rows of a sequence must stand together; or windows as `export_windows` writes them; or a
            `datasets.Dataset` or `IterableDataset` of such rows.
        out: folder to write, a new one or that of the same request.
        windows: explain every window of `history` and `future` events that slides over a sequence, not its end alone.
        future, history, epsilon, share, size, delta, refine: as in `EHDDistiller.explain`; with `windows`, the history
            is by default the one the model was trained on.
        scores: also write the score of each history event.
        sequence, time, mark, start: columns, as in `load_events`.
        read: makes sequences of a table of complete ones, where `load_events` cannot.
        rows_per_file: windows in a file: what a killed process computes again at most.
        rank, world_size: which process of how many this is; by default as torchrun and accelerate say.
        progress: show a bar; by default if this is the first process and someone looks.

    Example:

    ```python
    >>> explain_to_parquet(explainer, "events.parquet", "answers")
    >>> pandas.read_parquet("answers")
    ```
    """
    question = explainer._question(epsilon, share, size, delta, refine)
    rank = int(os.environ.get("RANK", 0)) if rank is None else rank
    world_size = int(os.environ.get("WORLD_SIZE", 1)) if world_size is None else world_size
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must lie in [0, world_size); got {rank} of {world_size}. Leave both to torchrun.")
    if rows_per_file < 1:
        raise ValueError(f"rows_per_file must be at least 1; got {rows_per_file}. The default is {ROWS_PER_FILE}.")
    text = [column for column in (sequence, mark) if read is not None and column is not None]
    if (head := next(read_tables(source, text), None)) is None:
        raise ValueError("the source holds no rows; expected at least one. Check that it is the right one.")
    layout = _layout(head.schema, time)
    sequence = "seq_id" if sequence is None and "seq_id" in head.column_names else sequence
    if sequence is not None and sequence not in head.column_names:
        listed = ", ".join(head.column_names)
        raise ValueError(f"no sequence column {sequence!r}; the columns are {listed}. Pass sequence=<one of them>.")
    if start is None and layout == "sequences" and "start" in head.column_names:
        start = "start"  # as `export_windows` writes it
    if windows and history is None:
        history = getattr(explainer.model.config, "history", None)
    if layout != "windows" and future is None:
        future = explainer.future
    if layout == "windows" or read is None:
        named = {} if layout == "windows" else {"sequence": sequence, "time": time, "mark": mark, "start": start}
        read = _strict_reader(explainer, head.schema, **named)
    cut = _Cut(layout, read, sequence, windows, future, history, explainer.max_length)
    asked = {
        "question": question._asdict(),
        "windows": windows,
        "future": future,
        "history": history,
        "scores": scores,
        "rows_per_file": rows_per_file,
        "columns": [sequence, time, mark, start],
        "conditioning": explainer.conditioning,
        "solver": _solver(explainer),
        "model": _model_digest(explainer),
        "source": _identity(source, head),
        "version": __version__,
    }
    out = Path(out)
    _settle(out, asked)
    if (out / _DONE).is_file():
        done = Explained(**json.loads((out / _DONE).read_text(encoding="utf-8")))
        if done.files == len(list(out.glob("part-*.parquet"))):
            return done

    number_of_windows = None
    if rank == 0 and not _is_streamed(source):
        # Reading takes a small part of the time; better to find a bad row now than after hours.
        number_of_windows = sum(len(piece.lengths) for piece in replace(cut)(read_tables(source, text)))
    keep_freed_memory()
    double, summaries = copy.deepcopy(explainer.mtpp).double(), []
    show = rank == 0 if progress is None else progress
    # disable=None leaves the bar away where no one looks.
    look: dict[str, Any] = {"unit": " windows", "unit_scale": True, "disable": None if show else True}
    with tqdm(desc="explaining", total=number_of_windows, **look) as bar:
        for number, parts in enumerate(_files(cut(read_tables(source, text)), rows_per_file)):
            path = out / f"part-{number:06d}.parquet"
            summary = _read_summary(path)
            if summary is None and number % world_size == rank:
                table, summary = _answer_file(explainer, parts, question, double, scores)
                kept = {b"ehd_hf": json.dumps({"counts": summary, "request": asked}).encode()}
                with replaced_when_done(path) as partial:
                    pq.write_table(table.replace_schema_metadata(kept), partial, compression="zstd")
            bar.update(summary["windows"] if summary else 0)
            summaries.append(summary or path)
    # What the others wrote in the meantime counts too.
    known = [_read_summary(summary) if isinstance(summary, Path) else summary for summary in summaries]
    total = _sum([summary for summary in known if summary is not None], cut.too_short, None not in known)
    if not total.windows and total.finished:
        needed = f"{history if windows else 'at least 1'} + {future}"
        raise ValueError(
            f"none of {cut.too_short:,} sequences is long enough: a window has {needed} events. Ask for fewer."
        )
    if total.finished:
        for left in out.glob(".part-*.partial"):
            left.unlink(missing_ok=True)
        _write_whole(out / _DONE, asdict(total))
    return total


def keep_freed_memory() -> None:
    """Let glibc keep the memory that a batch frees for the next one. It returns it to the system, to ask for it again
    page by page, until one large block was freed; from then on it keeps twice that for every thread. So this is for
    long runs of one thread, not for servers. Untouched, the block costs nothing."""
    torch.empty(31 * 2**20, dtype=torch.uint8)


# --- tables, some rows at a time


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
    for path in _data_files(Path(source)):
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


def _is_streamed(source: Any) -> bool:
    """Whether reading it twice may mean fetching it twice."""
    return not isinstance(source, str | Path) and not hasattr(source, "__len__")


def _data_files(path: Path) -> list[Path]:
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


def _together(tables: Iterable[pa.Table], column: str) -> Iterator[pa.Table]:
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


# --- windows on flat events


def _layout(schema: pa.Schema, time: str | None) -> Layout:
    if set(WINDOW_COLUMNS) <= set(schema.names):
        return "windows"
    found = [name for name in ((time,) if time else ("times", "time")) if name in schema.names]
    return "events" if found and not pa.types.is_nested(schema.field(found[0]).type) else "sequences"


def _strict_reader(
    explainer: EHDDistiller, schema: pa.Schema, **columns: str | None
) -> Callable[[pa.Table], EventSequences]:
    """`load_events` in the model's marks and unit of time."""
    config: Any = explainer.mtpp.config
    stored = json.loads((schema.metadata or {}).get(b"ehd_hf", b"{}")).get("time_unit")
    if b"huggingface" in (schema.metadata or {}):  # files may name their marks as datasets do
        from datasets import Features

        named = SimpleNamespace(features=Features.from_arrow_schema(schema))
        for column in (columns.get("mark") or "marks", "mark", "history_marks", "future_marks"):
            explainer._check_names(named, column)

    def read(table: pa.Table) -> EventSequences:
        cells, options = {name: table.column(name) for name in table.column_names}, dict[str, Any](columns)
        events = load_events(cells, id2label=config.id2label, time_unit=stored or config.time_unit, **options)
        if events.epochs is not None and config.time_unit is None:
            raise ValueError(
                "timestamps need a model that knows its unit of time. Pass numbers in the unit of its data."
            )
        return explainer.load(events)

    return read


class _Windows(NamedTuple):
    """W windows on flat `times` and `marks` (N,); the rest is (W,): where a window begins there, its length, how many
    of its last events are the future, its clock's origin, its sequence, where it begins in that."""

    times: np.ndarray
    marks: np.ndarray
    first: np.ndarray
    lengths: np.ndarray
    num_future: np.ndarray
    origins: np.ndarray
    seq_id: pa.Array
    window: pa.Array

    def part(self, begin: int, end: int) -> _Windows:
        return _Windows(self.times, self.marks, *(column[begin:end] for column in self[2:]))

    def compact(self) -> _Windows:
        """Without the events that no window has; for windows that do not overlap."""
        first = np.cumsum(self.lengths) - self.lengths
        where = _runs(self.first, self.lengths)
        return self._replace(times=self.times[where], marks=self.marks[where], first=first)


@dataclass
class _Cut:
    """Tables to windows.

    Args:
        layout: of the tables' rows.
        read: makes sequences of a table of complete ones.
        sequence: column of sequence ids, if there is one.
        slides: every window, not the end of each sequence.
        future, history: number of events; all there are where `history` is None, or as rows that are windows say.
        too_short: counts the sequences that have no window.
    """

    layout: Layout
    read: Callable[[pa.Table], EventSequences]
    sequence: str | None
    slides: bool
    future: int | None
    history: int | None
    max_length: int
    too_short: int = 0
    id_type: pa.DataType | None = None

    def __post_init__(self) -> None:
        if self.layout == "windows" and (self.slides or self.future is not None or self.history is not None):
            raise ValueError(
                "The rows are windows and say which events are the future. Leave out windows, future and history."
            )
        if self.layout != "windows" and self.future is None:
            raise ValueError("Say how many events to explain: an MTPP alone does not know. Pass future=5.")
        if self.slides and self.history is None:
            raise ValueError("Say how long a window's history is: an MTPP alone does not know. Pass history=40.")
        for name, count in (("future", self.future), ("history", self.history)):
            if count is not None and count < 1:
                raise ValueError(f"{name} must be a number of events of at least 1; got {count}.")

    def __call__(self, tables: Iterable[pa.Table]) -> Iterator[_Windows]:
        if self.layout == "events" and self.sequence is not None:
            tables = _together(tables, self.sequence)
        elif self.layout == "events":  # all rows are one sequence
            tables = [pa.concat_tables(list(tables), promote_options="permissive")]
        seen: set[int] = set()
        row = 0
        for table in tables:
            try:
                found = self._windows(table, row, seen)
            except (ValueError, TypeError) as error:  # Arrow's are of both kinds
                raise ValueError(f"rows {row:,} to {row + table.num_rows - 1:,}: {error}") from error
            row += table.num_rows
            if found is not None:
                yield found

    def _windows(self, table: pa.Table, row: int, seen: set[int]) -> _Windows | None:
        """Of a table that begins at a row of the source; `seen` are the sequences before."""
        if self.layout == "windows":
            found: _Windows | None = self._given(table, row)
        else:
            if self.layout == "sequences" and self.sequence is None:
                table = table.append_column("seq_id", pa.array(range(row, row + table.num_rows)))
            events = self.read(table)
            if self.layout == "events":
                _check_new(events.seq_ids, seen)
            found = self._slide(events) if self.slides else self._ends(events)
        if found is not None and (longest := int(found.lengths.max())) > self.max_length:
            name = found.seq_id[int(found.lengths.argmax())].as_py()
            raise ValueError(
                f"A window may have at most max_length = {self.max_length} events; got {longest} in sequence {name!r}"
                ". Pass history=<number of events> to look at the most recent ones only."
            )
        return found

    def _ends(self, events: EventSequences) -> _Windows | None:
        """The last events of each sequence."""
        assert self.future is not None
        enough = np.flatnonzero(events.lengths > self.future)
        self.too_short += len(events) - len(enough)
        if not len(enough):
            return None
        whole = events.lengths[enough]
        lengths = whole if self.history is None else np.minimum(whole, self.history + self.future)
        first = events.offsets[1:][enough] - lengths
        return _Windows(
            events.times,
            events.marks,
            first,
            lengths,
            np.full(len(enough), self.future),
            events.previous_times()[first],
            self._ids(events.seq_ids).take(pa.array(enough)),
            pa.array(whole - lengths),
        ).compact()

    def _slide(self, events: EventSequences) -> _Windows | None:
        """Every window of fixed length."""
        assert self.future is not None and self.history is not None
        length = self.future + self.history
        if events.lengths.max() < length:
            self.too_short += len(events)
            return None
        store = make_windows(events, future=self.future, history=self.history)
        self.too_short += store.num_too_short
        return _Windows(
            events.times,
            events.marks,
            store.first,
            np.full(len(store), length),
            np.full(len(store), self.future),
            store.origins,
            self._ids(events.seq_ids).take(pa.array(store.sequence_index)),
            pa.array(store.window_offset),
        )

    def _ids(self, names: Sequence[Any]) -> pa.Array:
        """Whole numbers as such, all else as text; of one type in all files."""
        if self.id_type is None:
            self.id_type = pa.int64() if all(isinstance(name, int) for name in names) else pa.string()
        return pa.array(names if self.id_type == pa.int64() else [str(name) for name in names], self.id_type)

    def _given(self, table: pa.Table, row: int) -> _Windows:
        """Rows that are windows; their times count from the clock's origin."""
        lists = [table.column(name).combine_chunks() for name in WINDOW_COLUMNS]
        counts = [pc.fill_null(pc.list_value_length(values), 0).to_numpy() for values in lists]
        for name, ours, theirs in (("history", *counts[:2]), ("future", *counts[2:])):
            bad = (ours != theirs) | (ours == 0)
            if bad.any():
                where = int(np.argmax(bad))
                raise ValueError(
                    f"{name}_times and {name}_marks must be equally many, at least one; got {ours[where]} and "
                    f"{theirs[where]} in row {row + where:,}. Check the source."
                )
        past, later = counts[0], counts[2]
        lengths = past + later
        first = np.cumsum(lengths) - lengths
        # Where each history event and each future event goes when the two stand one after the other.
        places = [_runs(first, past), _runs(first + past, later)]
        order = np.empty(lengths.sum(), np.int64)
        order[np.concatenate(places)] = np.arange(len(order))
        times, marks = (
            pa.concat_arrays([lists[index].flatten(), lists[index + 2].flatten()]).take(pa.array(order))
            for index in (0, 1)
        )
        offsets = pa.array(np.append(first, len(order)).astype(np.int32))
        rows = np.arange(row, row + table.num_rows)
        joined = {"times": pa.ListArray.from_arrays(offsets, times), "marks": pa.ListArray.from_arrays(offsets, marks)}
        schema = table.schema.metadata
        events = self.read(pa.table(joined | {"seq_id": rows}).replace_schema_metadata(schema))
        names = table.column_names
        seq_id = self._ids(table.column("seq_id").to_pylist()) if "seq_id" in names else pa.array(rows)
        window = table.column("window").combine_chunks() if "window" in names else pa.array(np.zeros(len(rows), int))
        origins = np.zeros(len(rows))
        return _Windows(events.times, events.marks, first, lengths, later, origins, seq_id, window)


def _check_new(names: Sequence[Any], seen: set[int]) -> None:
    """Refuse a sequence that comes again: its events would be taken for two."""
    for name in names:
        if hash(name) in seen:
            raise ValueError(
                f"the rows of a sequence must stand together; got sequence {name!r} again after others. Sort the file "
                "by sequence and time, or explain it as a whole, with a file such as answers.parquet to write to."
            )
        seen.add(hash(name))


# --- from windows to files


def _files(pieces: Iterable[_Windows], rows_per_file: int) -> Iterator[list[_Windows]]:
    """The windows of each file, wherever the pieces end."""
    parts: list[_Windows] = []
    rows = events = 0
    for piece in pieces:
        begin = 0
        reached = np.cumsum(piece.lengths)
        while begin < len(piece.lengths):
            before = reached[begin - 1] if begin else 0
            room = int(np.searchsorted(reached, before + _EVENTS_PER_FILE - events, side="right"))
            end = min(begin + rows_per_file - rows, max(room, begin + (rows == 0)))
            if end > begin:
                parts.append(piece.part(begin, end))
                rows, events, begin = rows + end - begin, events + int(reached[end - 1] - before), end
            if begin < len(piece.lengths):
                yield parts
                parts, rows, events = [], 0, 0
        if rows == rows_per_file:
            yield parts
            parts, rows, events = [], 0, 0
    if parts:
        yield parts


def _answer_file(
    explainer: EHDDistiller, parts: list[_Windows], question: Question, double: Any, scores: bool
) -> tuple[pa.Table, dict[str, int]]:
    """The rows of one file, and what they come to."""
    starts = np.cumsum([0, *(len(part.times) for part in parts)])
    times, marks = (np.concatenate([part[index] for part in parts]) for index in (0, 1))
    first = np.concatenate([part.first + start for part, start in zip(parts, starts, strict=False)])
    lengths, num_future, origins = (np.concatenate([part[index] for part in parts]) for index in (3, 4, 5))
    batches = list(batches_of_like_length(lengths.tolist(), num_future.tolist()))
    answers, seq_ids = [], pa.concat_arrays([part.seq_id for part in parts])
    for batch in batches:
        spans = (first[batch], lengths[batch], num_future[batch], origins[batch])
        tensors = padded_windows(times, marks, *spans, explainer.mtpp.device)
        found_here = explainer._answer(*tensors, question, double, curves=False)
        check_finite(seq_ids.take(pa.array(batch)).to_pylist(), found_here)
        answers.append(_columns(found_here, question, scores))
    # Back into the order of the source.
    found = pa.concat_tables(answers).take(pa.array(np.argsort(np.concatenate(batches), kind="stable")))
    known = {
        "seq_id": seq_ids,
        "window": pa.concat_arrays([part.window for part in parts]),
        "num_history": pa.array((lengths - num_future).astype(np.int32)),
        "num_future": pa.array(num_future.astype(np.int32)),
    }
    table = pa.table(known | {name: found.column(name) for name in found.column_names})
    status = table.column("status").to_numpy()
    sizes = table.column("num_distilled").to_numpy()[status == "explained"]
    summary = {"windows": table.num_rows, "sizes": int(sizes.sum())}
    return table, summary | {name: int((status == name).sum()) for name in _STATUSES}


def _columns(found: Answers, question: Question, scores: bool) -> pa.Table:
    """The answers of a batch, a row for each window."""
    history, chosen = found.history.cpu().numpy(), found.distill_mask.cpu().numpy()
    met, clearly, nothing, one_minimal = (
        judged.cpu().numpy() for judged in (found.met, found.met_with_margin, found.nothing, found.one_minimal)
    )
    values = {name: value.cpu().numpy() for name, value in found.values.items()}
    num_history, sizes = history.sum(1), chosen.sum(1)
    rows, columns = chosen.nonzero()
    positions = columns - (history.shape[1] - num_history)[rows]  # padding stands before
    explained = met & ~nothing
    as_asked = explained if question.size is None else explained & (sizes == np.minimum(question.size, num_history))
    last = np.arange(history.shape[1]) >= (history.shape[1] - sizes)[:, None]
    table = {
        "num_distilled": sizes.astype(np.int32),
        "positions": _lists(positions.astype(np.int32), sizes),
        **values,
        "status": pa.array(np.array(_STATUSES)[np.where(explained, 0, np.where(nothing, 1, 2))]),
        "certified": as_asked & clearly,
        "one_minimal": pa.array(one_minimal, mask=~one_minimal),  # not checked, not False
        "constraint_met": as_asked,
        "is_most_recent": (chosen <= last).all(1),
    }
    if scores:
        table["score"] = _lists(found.scores.cpu().numpy()[history].astype(np.float32), num_history)
    return pa.table(table)


def _lists(values: np.ndarray, counts: np.ndarray) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(counts)).astype(np.int32)), pa.array(values))


# --- the folder


def _settle(out: Path, asked: dict[str, Any]) -> None:
    """Make the folder one of this request, or refuse it."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} holds something else; expected a folder. Choose another.")
    out.mkdir(parents=True, exist_ok=True)
    names = {file.name for file in out.iterdir() if not file.name.startswith(".")}
    if _REQUEST not in names and names:
        raise ValueError(f"{out} holds something else; expected a new folder. Choose another.")
    if not names - {_REQUEST, _DONE}:  # no answers yet, to whatever was asked
        (out / _DONE).unlink(missing_ok=True)
        _write_whole(out / _REQUEST, asked)
        return
    before, asked = json.loads((out / _REQUEST).read_text(encoding="utf-8")), json.loads(json.dumps(asked))
    for name in sorted(before.keys() | asked.keys()):
        if before.get(name) != asked.get(name):
            raise ValueError(
                f"{out} holds answers to another request: expected {name} {before.get(name)!r}, got "
                f"{asked.get(name)!r}. Choose another folder, or remove this one to start anew."
            )


def _write_whole(path: Path, value: Any) -> None:
    """Several processes may write the same at the same time."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", suffix=".partial", delete=False) as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(file.name, 0o644)  # a temporary file is for its owner alone
    os.replace(file.name, path)


def _read_summary(path: Path) -> dict[str, int] | None:
    """What a finished file says of its rows; None if it is not there or not whole."""
    try:
        return json.loads(pq.read_metadata(path).metadata[b"ehd_hf"])["counts"]
    except (FileNotFoundError, pa.ArrowException, KeyError, TypeError):
        return None


def _sum(summaries: list[dict[str, int]], too_short: int, finished: bool) -> Explained:
    total = {name: sum(summary[name] for summary in summaries) for name in ("windows", "sizes", *_STATUSES)}
    sizes = total.pop("sizes")
    mean_size = sizes / total["explained"] if total["explained"] else None
    return Explained(**total, mean_size=mean_size, too_short=too_short, files=len(summaries), finished=finished)


def _solver(explainer: EHDDistiller) -> Any:
    """Its name and its settings, as far as they can be written down."""
    plain = {name: value for name, value in vars(explainer.solver).items() if isinstance(value, int | float | str)}
    return [type(explainer.solver).__name__, plain]


def _model_digest(explainer: EHDDistiller) -> str:
    """Twelve letters that change with any weight or setting of the model."""
    digest = hashlib.sha256()
    settings = explainer.model.config.to_dict()
    dropped = ("transformers_version", "_name_or_path")
    digest.update(json.dumps({k: v for k, v in settings.items() if k not in dropped}, default=str).encode())
    for name, tensor in sorted(explainer.model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def _identity(source: Any, head: pa.Table) -> Any:
    """What tells a source from others without reading all of it: sizes, beginnings and ends."""
    if isinstance(source, str | Path):
        return [[path.name, path.stat().st_size, _ends_digest(path)] for path in _data_files(Path(source))]
    size = None if _is_streamed(source) else len(source)
    rows = hashlib.sha256(json.dumps(head.slice(0, 10).to_pylist(), default=str).encode()).hexdigest()[:12]
    return [source.info.dataset_name, source.info.config_name, str(source.split), size, rows]


def _ends_digest(path: Path, at_most: int = 2**16) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read(at_most))
        file.seek(max(0, path.stat().st_size - at_most))
        digest.update(file.read())
    return digest.hexdigest()[:12]
