"""Any number of windows: tables in, one file or a folder of Parquet files out, all with the columns of `FIELDS`.

The windows of a source are numbered as they come and written `rows_per_file` at a time. Which windows make a file, and
which of them are computed together, depends on nothing else: so a run that was killed goes on where it was, and any
number of processes, each taking every n-th file, write the same rows as one.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from tqdm.auto import tqdm

from .. import __version__
from ..data.sequences import EventSequences, load_events
from ..data.tables import data_files, is_streamed, read_tables, whole_sequences
from ..data.windows import Spans, ends, runs, slides
from ..files import replaced_when_done
from ..models.point_process import MTPPModel
from ..models.question import Question
from ..models.window import Window
from .certify import Answer
from .explainer import EHDDistiller
from .explanation import FIELDS, Status

EXPLANATION_FILES = (".parquet", ".jsonl", ".csv")
WINDOW_COLUMNS = ("history_times", "history_marks", "future_times", "future_marks")
ROWS_PER_FILE = 10_000
# A file ends before these many events too, so that long histories do not fill the memory.
_EVENTS_PER_FILE = 2_000_000
_REQUEST, _DONE = "_request.json", "_done.json"  # Parquet readers skip files whose names start with "_"
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


@dataclass(frozen=True)
class Work:
    """How the work is shared and shown.

    Args:
        rows_per_file: windows in a file: what a killed process computes again at most.
        rank, world_size: which process of how many this is; by default as torchrun and accelerate say.
        progress: show a bar; by default if this is the first process and someone looks.
    """

    rows_per_file: int = ROWS_PER_FILE
    rank: int = field(default_factory=lambda: int(os.environ.get("RANK", 0)))
    world_size: int = field(default_factory=lambda: int(os.environ.get("WORLD_SIZE", 1)))
    progress: bool | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            got = f"{self.rank} of {self.world_size}"
            raise ValueError(f"rank must lie in [0, world_size); got {got}. Leave both to torchrun.")
        if self.rows_per_file < 1:
            raise ValueError(
                f"rows_per_file must be at least 1; got {self.rows_per_file}. The default is {ROWS_PER_FILE}."
            )


def explain_many(
    explainer: EHDDistiller,
    source: Any,
    out: str | Path,
    *,
    windows: bool = False,
    future: int | None = None,
    history: int | Literal["all"] | None = None,
    scores: bool = False,
    columns: Mapping[str, str | None] | None = None,
    work: Work | None = None,
    **asked: Any,
) -> Explained:
    """Explain every sequence, or every window, of a source of any size.

    The answers go to one file, which appears when it is whole, or to a folder of Parquet files: repeat the call to go
    on after an interruption, files that are there are not computed again. Both have the columns `FIELDS`: `window` is
    the position of a window's first event in its sequence, `positions` those of the distilled events in the window.

    Args:
        source: a file or a folder of files: Parquet, CSV or JSON Lines, one row per sequence or one per event, where
            the rows of a sequence must stand together; or windows as `export_windows` writes them; or a
            `datasets.Dataset` or `IterableDataset` of such rows.
        out: a file (.parquet, .jsonl, .csv); or a folder, a new one or that of the same request.
        windows: explain every window of `history` and `future` events that slides over a sequence, not its end alone.
        future, history: as in `EHDDistiller.explain`.
        scores: also write `score`, an entry for each history event.
        columns: names of the columns sequence, time, mark, start, where they are not the usual ones; `time_format`.
        work: how the work is shared and shown.
        asked: epsilon, share, size, delta, refine as in `EHDDistiller.explain`.

    Example:

    ```python
    >>> explain_many(explainer, "events.parquet", "answers")
    >>> pandas.read_parquet("answers")
    ```
    """
    out, work, question = Path(out), work or Work(), explainer.question(**asked)
    named = {"sequence": None, "time": None, "mark": None, "start": None, "time_format": None, **(columns or {})}
    text = [name for role in ("sequence", "mark") if (name := named[role]) is not None]
    if out.suffix and out.suffix not in EXPLANATION_FILES:
        raise ValueError(f"answers go to a file that ends in {', '.join(EXPLANATION_FILES)}, or a folder; got {out}.")
    if (head := next(read_tables(source, text), None)) is None:
        raise ValueError("the source holds no rows; expected at least one. Check that it is the right one.")
    cut = _Cut.of(explainer, head, named, windows, future, history)
    request = {
        "question": asdict(question),
        "windows": windows,
        "future": cut.future,
        "history": cut.history,
        "scores": scores,
        "rows_per_file": work.rows_per_file,
        "columns": list(named.values()),
        "solver": _solver(explainer),
        "model": _model_digest(explainer),
        "source": _identity(source, head),
        "version": __version__,
    }
    write = _write_file if out.suffix else _write_folder
    answers = _Answers(explainer, question, scores, explainer.certifier.double())
    total = write(out, answers, cut, lambda: read_tables(source, text), request, work, not is_streamed(source))
    if not total.windows and total.finished:
        needed = f"{cut.history if windows else 'at least 1'} + {cut.future}"
        raise ValueError(
            f"none of {cut.too_short:,} sequences is long enough: a window has {needed} events. Ask for fewer."
        )
    return total


def _write_folder(
    out: Path, answers: _Answers, cut: _Cut, tables: Callable[[], Any], request: Any, work: Work, countable: bool
) -> Explained:
    _settle(out, request)
    if (out / _DONE).is_file():
        done = Explained(**json.loads((out / _DONE).read_text(encoding="utf-8")))
        if done.files == len(list(out.glob("part-*.parquet"))):
            return done
    summaries: list[Any] = []
    with _bar(cut, tables, work, countable) as bar:
        for number, pieces in enumerate(_files(cut(tables()), work.rows_per_file)):
            path = out / f"part-{number:06d}.parquet"
            summary = _read_summary(path)
            if summary is None and number % work.world_size == work.rank:
                table, summary = answers.table(pieces)
                metadata = {b"ehd_hf": json.dumps({"counts": summary, "request": request}).encode()}
                with replaced_when_done(path) as partial:
                    pq.write_table(table.replace_schema_metadata(metadata), partial, compression="zstd")
            bar.update(summary["windows"] if summary else 0)
            summaries.append(summary or path)
    # What the other processes wrote in the meantime counts too.
    whole = [_read_summary(summary) if isinstance(summary, Path) else summary for summary in summaries]
    total = _sum([summary for summary in whole if summary is not None], cut.too_short, None not in whole)
    if total.windows and total.finished:
        for left in out.glob(".part-*.partial"):
            left.unlink(missing_ok=True)
        _write_whole(out / _DONE, asdict(total))
    return total


def _write_file(
    out: Path, answers: _Answers, cut: _Cut, tables: Callable[[], Any], request: Any, work: Work, countable: bool
) -> Explained:
    summaries = []
    with ExitStack() as opened, _bar(cut, tables, work, countable) as bar:
        writer: Any = None
        for pieces in _files(cut(tables()), work.rows_per_file):
            table, summary = answers.table(pieces)
            summaries.append(summary)
            if writer is None:
                unfinished = opened.enter_context(replaced_when_done(out))
                is_parquet = out.suffix == ".parquet"
                opening: Any = pq.ParquetWriter if is_parquet else open
                options: Any = (table.schema,) if is_parquet else ("w", -1, "utf-8")
                writer = opened.enter_context(opening(unfinished, *options))
            if out.suffix == ".parquet":
                writer.write_table(table)
            elif out.suffix == ".jsonl":
                writer.writelines(json.dumps(row, default=str) + "\n" for row in table.to_pylist())
            else:
                frame = table.to_pandas()
                for name in (name for name, kind in FIELDS.items() if isinstance(kind, list)):
                    frame[name] = [";".join(map(str, values)) for values in frame[name]]
                frame.to_csv(writer, index=False, header=len(summaries) == 1)
            bar.update(summary["windows"])
    return _sum(summaries, cut.too_short, True)


def _bar(cut: _Cut, tables: Callable[[], Any], work: Work, countable: bool) -> Any:
    number = None
    if work.rank == 0 and countable:
        # Reading takes a small part of the time; better to find a bad row now than after hours.
        number = sum(len(piece.spans) for piece in replace(cut)(tables()))
    keep_freed_memory()
    show = work.rank == 0 if work.progress is None else work.progress
    # disable=None leaves the bar away where no one looks.
    return tqdm(desc="explaining", total=number, unit=" windows", unit_scale=True, disable=None if show else True)


def keep_freed_memory() -> None:
    """Let glibc keep the memory that a batch frees for the next one. It returns it to the system, to ask for it again
    page by page, until one large block was freed; from then on it keeps twice that for every thread. So this is for
    long runs of one thread, not for servers. Untouched, the block costs nothing."""
    torch.empty(31 * 2**20, dtype=torch.uint8)


# --- from tables to windows


class _Piece(NamedTuple):
    """W windows, the times of their flat events as the source shows them (N,), and their sequences' names (W,)."""

    spans: Spans
    shown: np.ndarray
    names: pa.Array

    def part(self, begin: int, end: int) -> _Piece:
        return _Piece(self.spans.rows(slice(begin, end)), self.shown, self.names[begin:end])


@dataclass
class _Cut:
    """Tables to windows.

    Args:
        layout: of the tables' rows.
        read: makes sequences of a table of complete ones.
        sequence: column of sequence ids, if there is one.
        slides: every window, not the end of each sequence.
        future, history: number of events; all there are where `history` is None, or as rows that are windows say.
        explainer: checks the lengths.
        too_short: counts the sequences that have no window.
    """

    layout: Layout
    read: Callable[[pa.Table], EventSequences]
    sequence: str | None
    slides: bool
    future: int
    history: int | None
    explainer: EHDDistiller
    too_short: int = 0
    id_type: pa.DataType | None = None

    @classmethod
    def of(
        cls, explainer: EHDDistiller, head: pa.Table, named: dict[str, Any], slides: bool, future: Any, history: Any
    ) -> _Cut:
        """For a source whose first table is `head`."""
        read: Callable[[pa.Table], EventSequences]
        layout = _layout(head.schema, named["time"])
        if layout == "windows" and (slides or future is not None or history is not None):
            raise ValueError(
                "The rows are windows and say which events are the future. Leave out windows, future and history."
            )
        if layout == "events" and named["start"] is None:
            reading = explainer.read(_cells(head), **{role: named[role] for role in (*_ROLES, "time_format")}).reading
            named |= {role: getattr(reading, role) for role in (*_ROLES, "time_format")}

            names = {role: named[role] for role in (*_ROLES, "time_format")}
            read = partial(_read_alike, explainer, names)
        else:
            if named["sequence"] is None and "seq_id" in head.column_names:
                named["sequence"] = "seq_id"
            if named["start"] is None and layout == "sequences" and "start" in head.column_names:
                named["start"] = "start"  # as `export_windows` writes it
            roles = {} if layout == "windows" else {role: named[role] for role in (*_ROLES, "start")}
            read = _strict_reader(explainer, head.schema, **roles)
        if named["sequence"] is not None and named["sequence"] not in head.column_names:
            listed = ", ".join(head.column_names)
            raise ValueError(f"no sequence column {named['sequence']!r}; the columns are {listed}. Name one of them.")
        num_future, num_history = (0, None) if layout == "windows" else explainer.window_size(future, history)
        if slides and num_history is None:
            raise ValueError("every window needs a history of a fixed length; got all. Pass history=40.")
        return cls(layout, read, named["sequence"], slides, num_future, num_history, explainer)

    def __call__(self, tables: Iterable[pa.Table]) -> Iterator[_Piece]:
        if self.layout == "events" and self.sequence is not None:
            tables = whole_sequences(tables, self.sequence)
        elif self.layout == "events":  # all rows are one sequence
            tables = [pa.concat_tables(list(tables), promote_options="permissive")]
        seen: set[int] = set()
        row = 0
        for table in tables:
            try:
                piece = self._windows(table, row, seen)
            except (ValueError, TypeError) as error:  # Arrow's are of both kinds
                raise ValueError(f"rows {row:,} to {row + table.num_rows - 1:,}: {error}") from error
            row += table.num_rows
            if piece is not None:
                yield piece

    def _windows(self, table: pa.Table, row: int, seen: set[int]) -> _Piece | None:
        """Of a table that begins at a row of the source; `seen` are the sequences before."""
        if self.layout == "windows":
            piece = self._given(table, row)
        else:
            if self.layout == "sequences" and self.sequence is None:
                table = table.append_column("seq_id", pa.array(range(row, row + table.num_rows)))
            events = self.read(table)
            if self.layout == "events":
                _check_new(events.seq_ids, seen)
            enough = np.flatnonzero(
                events.lengths >= (self.future + (self.history or 0) if self.slides else self.future + 1)
            )
            self.too_short += len(events) - len(enough)
            if not len(enough):
                return None
            if self.slides:
                spans = slides(events, self.future, self.history or 0)
                shown = events.shown_times()
            else:
                events = events if len(enough) == len(events) else events.select(enough)
                spans = ends(events, self.future, self.history)
                shown = events.shown_times()[runs(spans.first, spans.lengths)]
                spans = spans.compact()
            piece = _Piece(spans, shown, self._ids(events.seq_ids).take(pa.array(spans.sequence)))
        self.explainer.check_length(piece.spans, piece.names.to_pylist())
        return piece

    def _ids(self, names: Sequence[Any]) -> pa.Array:
        """Whole numbers as such, all else as text; of one type in all files."""
        if self.id_type is None:
            self.id_type = pa.int64() if all(isinstance(name, int) for name in names) else pa.string()
        return pa.array(names if self.id_type == pa.int64() else [str(name) for name in names], self.id_type)

    def _given(self, table: pa.Table, row: int) -> _Piece:
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
        places = [runs(first, past), runs(first + past, later)]
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
        names = self._ids(table.column("seq_id").to_pylist()) if "seq_id" in table.column_names else pa.array(rows)
        offset = table.column("window").to_numpy() if "window" in table.column_names else np.zeros(len(rows), int)
        spans = Spans(events.times, events.marks, first, lengths, later, np.zeros(len(rows)), rows - row, offset)
        return _Piece(spans, events.times, names)


_ROLES = ("sequence", "time", "mark")


def _read_alike(explainer: EHDDistiller, names: dict[str, Any], table: pa.Table) -> EventSequences:
    """Read in the way the first table was understood."""
    return explainer.load(explainer.read(_cells(table), **names).events)


def _cells(table: pa.Table) -> dict[str, Any]:
    return {name: table.column(name) for name in table.column_names}


def _layout(schema: pa.Schema, time: str | None) -> Layout:
    if set(WINDOW_COLUMNS) <= set(schema.names):
        return "windows"
    times = [name for name in ((time,) if time else ("times", "time")) if name in schema.names]
    return "events" if not times or not pa.types.is_nested(schema.field(times[0]).type) else "sequences"


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
            explainer.check_mark_names(named, column)

    def read(table: pa.Table) -> EventSequences:
        options = dict[str, Any](columns)
        events = load_events(_cells(table), id2label=config.id2label, time_unit=stored or config.time_unit, **options)
        if events.epochs is not None and config.time_unit is None:
            raise ValueError(
                "timestamps need a model that knows its unit of time. Pass numbers in the unit of its data."
            )
        return explainer.load(events)

    return read


def _check_new(names: Sequence[Any], seen: set[int]) -> None:
    """Refuse a sequence that comes again: its events would be taken for two."""
    for name in names:
        if hash(name) in seen:
            raise ValueError(
                f"the rows of a sequence must stand together; got sequence {name!r} again after others. Sort the file "
                "by sequence and time, or explain it as a whole, with a file such as answers.parquet to write to."
            )
        seen.add(hash(name))


# --- from windows to rows


def _files(pieces: Iterable[_Piece], rows_per_file: int) -> Iterator[list[_Piece]]:
    """The windows of each file, wherever the pieces end."""
    parts: list[_Piece] = []
    rows = events = 0
    for piece in pieces:
        begin = 0
        reached = np.cumsum(piece.spans.lengths)
        while begin < len(piece.spans):
            before = reached[begin - 1] if begin else 0
            room = int(np.searchsorted(reached, before + _EVENTS_PER_FILE - events, side="right"))
            end = min(begin + rows_per_file - rows, max(room, begin + (rows == 0)))
            if end > begin:
                parts.append(piece.part(begin, end))
                rows, events, begin = rows + end - begin, events + int(reached[end - 1] - before), end
            if begin < len(piece.spans):
                yield parts
                parts, rows, events = [], 0, 0
        if rows == rows_per_file:
            yield parts
            parts, rows, events = [], 0, 0
    if parts:
        yield parts


class _Answers(NamedTuple):
    """Windows to rows."""

    explainer: EHDDistiller
    question: Question
    scores: bool
    double: MTPPModel

    def table(self, pieces: list[_Piece]) -> tuple[pa.Table, dict[str, int]]:
        """The rows of one file, and what they come to."""
        starts = np.cumsum([0, *(len(piece.spans.times) for piece in pieces)])
        first = np.concatenate([piece.spans.first + start for piece, start in zip(pieces, starts, strict=False)])
        columns = [np.concatenate([piece.spans[index] for piece in pieces]) for index in range(len(Spans._fields))]
        spans = Spans(*columns)._replace(first=first)
        shown, names = np.concatenate([piece.shown for piece in pieces]), pa.concat_arrays([p.names for p in pieces])
        batches, tables = list(spans.batches()), []
        for batch in batches:
            part = spans.rows(batch)
            window = Window(*part.tensors(self.explainer.mtpp.device))
            answer = self.explainer.certifier.answer(window, self.question, self.double, curves=False)
            answer.check_finite(names.take(pa.array(batch)).to_pylist())
            tables.append(self._rows(part, shown, answer))
        # Back into the order of the source.
        table = pa.concat_tables(tables).take(pa.array(np.argsort(np.concatenate(batches), kind="stable")))
        table = table.add_column(0, "seq_id", names)
        status, sizes = table.column("status").to_numpy(), table.column("num_distilled").to_numpy()
        summary = {"windows": table.num_rows, "sizes": int(sizes[status == "explained"].sum())}
        return table, summary | {name: int((status == name).sum()) for name in _STATUSES}

    def _rows(self, spans: Spans, shown: np.ndarray, answer: Answer) -> pa.Table:
        """The answers of a batch, a row for each window, without the sequences' names."""
        config: Any = self.explainer.mtpp.config
        question, number = self.question, len(spans)
        history, chosen = answer.history.cpu().numpy(), answer.distill_mask.cpu().numpy()
        values = {name: value.cpu().numpy() for name, value in answer.values.items()}
        met, certified, nothing, one_minimal, recent = (
            judged.cpu().numpy()
            for judged in (
                answer.met,
                answer.certified,
                answer.explains_nothing,
                answer.one_minimal,
                answer.is_most_recent,
            )
        )
        num_history, sizes = history.sum(1), chosen.sum(1)
        row, place = chosen.nonzero()
        positions = place - (history.shape[1] - num_history)[row]  # padding stands before
        where, later = spans.first[row] + positions, runs(spans.first + num_history, spans.num_future)
        labels = np.array([config.id2label[mark] for mark in range(config.num_marks)], dtype=object)
        times = shown if np.issubdtype(shown.dtype, np.floating) else shown.astype("datetime64[us]")
        explains = ~nothing & (values["dppl_empty"] < 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = values["dppl_left"] / values["dppl_empty"] + 0.0
        columns: dict[str, Any] = {
            "window": spans.offset,
            "num_history": num_history.astype(np.int32),
            "num_future": spans.num_future.astype(np.int32),
            "num_distilled": sizes.astype(np.int32),
            "positions": _lists(positions.astype(np.int32), sizes),
            "times": _lists(times[where], sizes),
            "marks": _lists(labels[spans.marks[where]], sizes),
            "scores": _lists(answer.scores.cpu().numpy()[row, place], sizes),
            "future_times": _lists(times[later], spans.num_future),
            "future_marks": _lists(labels[spans.marks[later]], spans.num_future),
            **values,
            "ds": values["dppl_distilled"] - values["dppl_left"],
            "explained_share": pa.array(share, mask=~explains),
            "epsilon": pa.array([question.epsilon] * number, pa.float64()),
            "share": pa.array([question.share] * number, pa.float64()),
            "asked_size": _sizes_asked(question, num_history),
            "delta": pa.array([question.delta] * number, pa.float64()),
            "conditioning": pa.array([question.conditioning] * number),
            "status": pa.array(np.array(_STATUSES)[np.where(met, 0, np.where(nothing, 1, 2))]),
            "certified": certified,
            "one_minimal": pa.array(one_minimal, mask=~one_minimal),  # not checked, not False
            "constraint_met": met,
            "is_most_recent": recent,
            "time_unit": pa.array([config.time_unit] * number, pa.string()),
        }
        columns = {name: columns[name] for name in FIELDS if name != "seq_id"}
        if self.scores:
            columns["score"] = _lists(answer.scores.cpu().numpy()[history].astype(np.float32), num_history)
        return pa.table(columns)


def _sizes_asked(question: Question, num_history: np.ndarray) -> pa.Array:
    if question.size is None:
        return pa.nulls(len(num_history), pa.int32())
    return pa.array(np.minimum(question.size, num_history).astype(np.int32))


def _lists(values: np.ndarray, counts: np.ndarray) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(counts)).astype(np.int32)), pa.array(values))


# --- the folder


def _settle(out: Path, request: dict[str, Any]) -> None:
    """Make the folder one of this request, or refuse it."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} holds something else; expected a folder. Choose another.")
    out.mkdir(parents=True, exist_ok=True)
    names = {file.name for file in out.iterdir() if not file.name.startswith(".")}
    if _REQUEST not in names and names:
        raise ValueError(f"{out} holds something else; expected a new folder. Choose another.")
    if not names - {_REQUEST, _DONE}:  # no answers yet, to whatever was asked
        (out / _DONE).unlink(missing_ok=True)
        _write_whole(out / _REQUEST, request)
        return
    before, request = json.loads((out / _REQUEST).read_text(encoding="utf-8")), json.loads(json.dumps(request))
    for name in sorted(before.keys() | request.keys()):
        if before.get(name) != request.get(name):
            raise ValueError(
                f"{out} holds answers to another request: expected {name} {before.get(name)!r}, got "
                f"{request.get(name)!r}. Choose another folder, or remove this one to start anew."
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
        return [[path.name, path.stat().st_size, _ends_digest(path)] for path in data_files(Path(source))]
    size = None if is_streamed(source) else len(source)
    rows = hashlib.sha256(json.dumps(head.slice(0, 10).to_pylist(), default=str).encode()).hexdigest()[:12]
    return [source.info.dataset_name, source.info.config_name, str(source.split), size, rows]


def _ends_digest(path: Path, at_most: int = 2**16) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read(at_most))
        file.seek(max(0, path.stat().st_size - at_most))
        digest.update(file.read())
    return digest.hexdigest()[:12]
