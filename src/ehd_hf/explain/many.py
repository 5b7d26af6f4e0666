"""Any number of windows: tables in, one file or a folder of Parquet files out, all with the columns of `FIELDS`.

The windows of a source are numbered as they come and computed in units of `rows_per_file`. Which windows make a unit,
and which of them are computed together, depends on nothing else: a run that was killed goes on where it was, and any
number of processes, each taking every n-th unit, write the same rows as one.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save
from tqdm.auto import tqdm

from .. import __version__
from ..data.sequences import EventSequences
from ..data.tables import data_files, is_streamed, read_tables, whole_sequences
from ..data.windows import before_each, ends, slides
from ..files import make_folder, replaced_when_done, write_text
from ..models.point_process import in_double
from ..models.question import Question
from .explainer import WINDOW_COLUMNS, EHDDistiller
from .explanation import AGREEMENT, FIELDS, Windows
from .trace import find_causes

EXPLANATION_FILES = (".parquet", ".jsonl", ".csv")
ROWS_PER_FILE = 10_000
# A unit ends before these many events too, so that long histories do not fill the memory.
_EVENTS_PER_FILE = 2_000_000
_REQUEST, _DONE = "_request.json", "_done.json"  # Parquet readers skip files whose names start with "_"


@dataclass(frozen=True)
class Explained:
    """What a run has written so far."""

    windows: int  # rows
    explained: int  # of which so many have this status
    explains_nothing: int
    infeasible: int
    mean_size: float | None  # mean number of distilled events of those that are explained
    too_short: int  # sequences that have no window
    files: int  # units of work that are done; in a folder, its files
    finished: bool  # whether all is written; if not, other processes have not written their files yet
    notes: list[str]  # what a person should know about how the events were read


@dataclass(frozen=True)
class Work:
    """How the work is shared and shown."""

    rows_per_file: int = ROWS_PER_FILE  # windows in a unit of work: what a killed process computes again at most
    rank: int = field(default_factory=lambda: int(os.environ.get("RANK", 0)))  # as torchrun and accelerate say
    world_size: int = field(default_factory=lambda: int(os.environ.get("WORLD_SIZE", 1)))
    progress: bool | None = None  # by default a bar is shown by the first process, if someone looks

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must lie in [0, {self.world_size}); got {self.rank}. Leave both to torchrun.")
        if self.rows_per_file < 1:
            raise ValueError(f"rows_per_file must be at least 1; got {self.rows_per_file}. Try {ROWS_PER_FILE}.")


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
    on after an interruption, files that are there are not computed again. Both have the columns `FIELDS`, those of an
    ensemble `AGREEMENT` too: `window` is the position of a window's first event in its sequence, `positions` those of
    the distilled events in the window.

    Args:
        source: a file or a folder of files, one row per sequence or one per event; or windows as `export_windows`
            writes them; or a `datasets.Dataset` or `IterableDataset` of such rows. If `out` is a folder, events are
            read table by table, and those of a sequence must stand together.
        out: a file (.parquet, .jsonl, .csv); or a folder, a new one or that of the same request.
        windows: explain every window of `history` and `future` events that slides over a sequence, not its end alone.
        future, history: as in `EHDDistiller.explain`; `asked` as in `EHDDistiller.question`.
        scores: also write `score`, an entry for each history event.
        columns: names of the columns sequence, time and mark, where they are not the usual ones; `time_format`.
    """
    out, work, question = Path(out), work or Work(), explainer.question(**asked)
    is_file = out.suffix != ""
    if is_file and out.suffix not in EXPLANATION_FILES:
        raise ValueError(f"answers go to a file that ends in {', '.join(EXPLANATION_FILES)}, or a folder; got {out}.")
    how: Literal["ends", "slides"] = "slides" if windows else "ends"
    cut = _Cut(explainer, source, columns or {}, how, (future, history), whole=is_file)
    solver = {name: value for name, value in vars(explainer.solver).items() if isinstance(value, int | float | str)}
    request = {"question": asdict(question), "windows": windows, "future": cut.future, "history": cut.history}
    request |= {"scores": scores, "rows_per_file": work.rows_per_file, "columns": cut.columns, "version": __version__}
    request |= {"solver": [type(explainer.solver).__name__, solver], "model": _model_digest(explainer)}
    schema = functools.partial(
        _schema, fields=FIELDS | (AGREEMENT if explainer.certifier.others else {}), scores=scores
    )
    table = functools.partial(_table, explainer, question)
    job = _Job("explaining", Explained, schema, table, _count, ["status", "num_distilled"])
    return _carry_out(job, cut, request, out, work)


@dataclass(frozen=True)
class Traced:
    """What a run that looks for causes has written so far."""

    events: int
    causes: int  # rows that name a cause
    files: int
    finished: bool
    notes: list[str]


def trace_many(
    explainer: EHDDistiller,
    source: Any,
    out: str | Path,
    *,
    history: int | None = None,
    at_least: float = 0.01,
    columns: Mapping[str, str | None] | None = None,
    work: Work | None = None,
) -> Traced:
    """The causes of every event of a source of any size: columns seq_id, event, cause (both by position in the
    sequence), probability (negative: it held the event back) and lag, in the model's unit of time. A row without a
    cause says how probable it is that nothing was one. Causes less probable than `at_least` have no row.

    `source`, `out`, `columns`, `work` and what happens after an interruption are as in `explain_many`; `history` as in
    `EHDDistiller.why`.
    """
    out, work = Path(out), work or Work()
    is_file = out.suffix != ""
    if is_file and out.suffix not in EXPLANATION_FILES:
        raise ValueError(f"causes go to a file that ends in {', '.join(EXPLANATION_FILES)}, or a folder; got {out}.")
    cut = _Cut(explainer, source, columns or {}, "each", (1, history), whole=is_file)
    request: dict[str, Any] = {
        "trace": True,
        "at_least": at_least,
        "history": cut.history,
        "rows_per_file": work.rows_per_file,
    }
    request |= {"columns": cut.columns, "version": __version__, "model": _model_digest(explainer)}
    mtpp = getattr(explainer.mtpp, "members", [explainer.mtpp])[0]
    table = functools.partial(_causes_table, mtpp, in_double(mtpp), at_least)
    return _carry_out(
        _Job("tracing", Traced, _causes_schema, table, _count_causes, ["cause"]), cut, request, out, work
    )


class _Job(NamedTuple):
    """What is computed of the windows, and how it is stored and counted."""

    name: str
    result: Any
    schema: Callable[[Windows], pa.Schema]
    table: Callable[[Windows, pa.Schema], pa.Table]
    count_rows: Callable[[pa.Table], Counter[str]]
    counted: list[str]  # the columns that `count_rows` needs

    def read_counts(self, path: Path) -> Counter[str] | None:
        """Those of a finished file; None if it is not there or not whole."""
        try:
            return self.count_rows(pq.read_table(path, columns=self.counted))
        except (FileNotFoundError, pa.ArrowException):
            return None


def _carry_out(job: _Job, cut: _Cut, request: dict[str, Any], out: Path, work: Work) -> Any:
    is_file = out.suffix != ""
    request |= {"source": _identity(cut.source, cut.head)}
    if not is_file and (done := _settle(out, request, work.rank, job.result)) is not None:
        return done
    keep_freed_memory()
    parts: list[Counter[str] | Path] = []  # what the units of work come to; the files that other processes write
    schema: Any = None
    with ExitStack() as opened:
        append = opened.enter_context(_appending(out)) if is_file else None
        bar = opened.enter_context(_bar(job.name, cut, work))
        for number, unit in enumerate(_units(cut, work.rows_per_file)):
            schema = schema or job.schema(unit)
            path = out / f"part-{number:06d}.parquet"
            counted = None if append else job.read_counts(path)
            if counted is None and (append or number % work.world_size == work.rank):
                table = job.table(unit, schema)
                counted = job.count_rows(table)
                if append:
                    append(table)
                else:
                    with _appending(path) as write:
                        write(table.replace_schema_metadata({b"ehd_hf": json.dumps({"request": request}).encode()}))
            bar.update(len(unit.names) if counted else 0)
            parts.append(counted or path)
        if not parts:
            got = f"none of {cut.too_short:,} sequences is long enough"
            needed = f"{cut.history if cut.how == 'slides' else 'at least 1'} + {cut.future}"
            raise ValueError(f"{got}: a window has {needed} events. Ask for fewer.")
    # The other processes may have written theirs in the meantime.
    counted_parts = [job.read_counts(part) if isinstance(part, Path) else part for part in parts]
    counts: Counter[str] = sum(filter(None, counted_parts), Counter())
    known = {"finished": None not in counted_parts, "too_short": cut.too_short, "notes": cut.notes}
    known |= {"mean_size": counts["sizes"] / counts["explained"] if counts["explained"] else None}
    names = (field.name for field in fields(job.result))
    total = job.result(**{name: known[name] if name in known else counts[name] for name in names})
    if total.finished and not is_file:
        for left in out.glob(".part-*.partial"):
            left.unlink(missing_ok=True)
        _put(out / _DONE, asdict(total), work.rank)
    return total


def _bar(name: str, cut: _Cut, work: Work) -> Any:
    # Reading takes a small part of the time; better to find a bad row now than after hours.
    counts = work.rank == 0 and not is_streamed(cut.source)
    number = sum(len(windows.names) for windows in cut) if counts else None
    shows = work.rank == 0 if work.progress is None else work.progress
    # disable=None leaves the bar away where no one looks.
    return tqdm(desc=name, total=number, unit=" windows", unit_scale=True, disable=None if shows else True)


def keep_freed_memory() -> None:
    """Let glibc keep the memory that a batch frees for the next one, instead of asking the system for it page by page:
    once a large block was freed, it keeps twice that for every thread. For long runs of one thread, no servers."""
    torch.empty(31 * 2**20, dtype=torch.uint8)


class _Cut:
    """The windows of a source, table by table. Columns that are not named are found in the first table. If `whole`,
    rows that are events are read at once, so that those of a sequence may stand anywhere."""

    def __init__(self, explainer: EHDDistiller, source: Any, named: Any, how: str, size: Any, whole: bool) -> None:
        self.explainer, self.source, self.how, self.whole = explainer, source, how, whole
        self.columns = {role: name for role, name in named.items() if name is not None}
        if (head := next(self._tables(), None)) is None:
            raise ValueError("the source holds no rows; expected at least one. Check that it is the right one.")
        self.head = head
        times = next((name for name in (named.get("time"), "times", "time") if name in head.column_names), None)
        self.are_windows = set(WINDOW_COLUMNS) <= set(head.column_names)
        are_lists = times is not None and pa.types.is_nested(head.schema.field(times).type)
        self.are_events = not self.are_windows and not are_lists
        if self.are_windows and (how != "ends" or size != (None, None)):
            raise ValueError("The rows are windows and have their future. Leave out windows, future and history.")
        self.future, self.history = (0, None) if self.are_windows else explainer.window_size(*size)
        if how == "slides" and self.history is None:
            raise ValueError("every window needs a history of a fixed length; got all. Pass history=40.")
        if self.are_events:
            reading = explainer.read(head, **self.columns).reading
            self.columns = {role: getattr(reading, role) for role in ("sequence", "time", "mark", "time_format")}
        else:
            self.columns.pop("time_format", None)
            if "seq_id" in head.column_names:
                self.columns.setdefault("sequence", "seq_id")

    def _tables(self) -> Iterator[pa.Table]:
        text = [self.columns[role] for role in ("sequence", "mark") if self.columns.get(role) is not None]
        return read_tables(self.source, text)

    def __iter__(self) -> Iterator[Windows]:
        self.too_short, self.notes, row = 0, list[str](), 0
        self.seen: set[int] = set()
        tables: Iterable[pa.Table] = self._tables()
        if self.are_events and not self.whole and (sequence := self.columns["sequence"]) is not None:
            tables = whole_sequences(tables, sequence)
        elif self.are_events:
            tables = [pa.concat_tables(list(tables), promote_options="permissive")]
        for table in tables:
            try:
                windows = self.explainer.given(table, row) if self.are_windows else self._windows(table, row)
                self.explainer.check_length(windows)
            except (ValueError, TypeError) as error:  # Arrow's are of both kinds
                raise ValueError(f"rows {row:,} to {row + table.num_rows - 1:,}: {error}") from error
            row += table.num_rows
            yield windows

    def _windows(self, table: pa.Table, row: int) -> Windows:
        """Of a table of sequences that begins at a row of the source."""
        if not self.are_events and "sequence" not in self.columns:
            table = table.append_column("seq_id", pa.array(range(row, row + table.num_rows)))
        events = self._read_rows(table) if self.are_events else self.explainer.load(table, **self.columns)
        if self.how == "each":
            return Windows.of(events, before_each(events, np.arange(events.num_events), self.history))
        enough = np.flatnonzero(events.lengths >= self.future + ((self.history or 0) if self.how == "slides" else 1))
        self.too_short += len(events) - len(enough)
        events = events.select(enough)
        if self.how == "slides":
            return Windows.of(events, slides(events, self.future, self.history or 0))
        return Windows.of(events, ends(events, self.future, self.history)).compact()

    def _read_rows(self, table: pa.Table) -> EventSequences:
        read = self.explainer.read(table, **self.columns)
        self.notes = self.notes or read.notes
        for name in read.events.seq_ids:
            if hash(name) in self.seen:
                got = f"the rows of a sequence must stand together; got sequence {name!r} again after others"
                raise ValueError(f"{got}. Sort the file, or write to a file such as answers.parquet.")
            self.seen.add(hash(name))
        return self.explainer.load(read.events)


def _units(pieces: Iterable[Windows], rows_per_file: int) -> Iterator[Windows]:
    """The windows of each unit of work, wherever the pieces end."""
    parts: list[Windows] = []
    rows = events = 0
    for piece in pieces:
        begin = 0
        for index, length in enumerate(piece.spans.lengths.tolist()):
            if rows == rows_per_file or (rows and events + length > _EVENTS_PER_FILE):
                yield Windows.joined([*parts, piece.rows(slice(begin, index))])
                parts, rows, events, begin = [], 0, 0, index
            rows, events = rows + 1, events + length
        parts.append(piece.rows(slice(begin, None)))
    if rows:
        yield Windows.joined(parts)


def _schema(first: Windows, fields: Mapping[str, Any], scores: bool = False) -> pa.Schema:
    """Arrow types of `fields`, the same in all files: the first windows tell which names and times the source has."""
    time = "timestamp[us]" if first.shown.dtype.kind == "M" else "float64"

    def arrow(kind: Any) -> pa.DataType:
        return pa.list_(arrow(kind[0])) if isinstance(kind, list) else pa.type_for_alias(kind.replace("time", time))

    types = {name: arrow(kind) for name, kind in fields.items()}
    if all(isinstance(name, int) for name in first.names):
        types["seq_id"] = pa.int64()
    return pa.schema(types | ({"score": pa.list_(pa.float32())} if scores else {}))


def _causes_schema(first: Windows) -> pa.Schema:
    types = {"seq_id": "string", "event": "int64", "cause": "int64", "probability": "float64", "lag": "float64"}
    return _schema(first, types)


def _causes_table(mtpp: Any, double: Any, at_least: float, unit: Windows, schema: pa.Schema) -> pa.Table:
    """A row for each cause of each event, and one for nothing, sorted by event, then cause."""
    spans, found = unit.spans, find_causes(mtpp, double, unit.spans, at_least)
    window = np.append(found.window, np.arange(len(unit.names)))
    back = np.append(found.back, np.zeros(len(unit.names), np.int64))  # 0: the row for nothing
    probability = np.append(found.probability, found.p_none)
    order = np.lexsort((-back, window))
    window, back, probability = window[order], back[order], probability[order]
    event, place = (start + spans.lengths - 1 for start in (spans.offset, spans.first))
    lag = spans.times[place[window]] - spans.times[place[window] - back]
    names = unit.names[window]
    names = names if pa.types.is_integer(schema.field("seq_id").type) else [str(name) for name in names]
    nothing = back == 0
    columns = [pa.array(names, schema.field("seq_id").type), pa.array(event[window])]
    columns += [pa.array(event[window] - back, mask=nothing), pa.array(probability), pa.array(lag, mask=nothing)]
    return pa.table(columns, schema)


def _count_causes(table: pa.Table) -> Counter[str]:
    nothing = table["cause"].null_count
    return Counter(events=nothing, causes=table.num_rows - nothing, files=1)


def _table(explainer: EHDDistiller, question: Question, unit: Windows, schema: pa.Schema) -> pa.Table:
    has_numbers, rows = pa.types.is_integer(schema.field("seq_id").type), dict[int, Any]()
    if unit.shown.dtype.kind == "M":
        unit = unit._replace(shown=unit.shown.astype("datetime64[us]"))
    for index, explanation in explainer.answers(unit, question, curves=False):
        rows[index] = explanation.to_row() | {"score": [event.score for event in explanation.history]}
        if not has_numbers:
            rows[index]["seq_id"] = str(explanation.seq_id)
    return pa.Table.from_pylist([rows[index] for index in range(len(rows))], schema)


def _count(table: pa.Table) -> Counter[str]:
    """How many rows, files, and rows of each status; how many events explain those that are explained."""
    statuses, sizes = table["status"].to_pylist(), table["num_distilled"].to_pylist()
    explained = sum(size for size, status in zip(sizes, statuses, strict=True) if status == "explained")
    return Counter(statuses) + Counter(windows=table.num_rows, files=1, sizes=explained)


@contextmanager
def _appending(out: Path) -> Iterator[Callable[[pa.Table], Any]]:
    """A function that adds tables to one file, which appears when all are written."""
    with replaced_when_done(out) as unfinished, open(unfinished, "wb") as file, ExitStack() as opened:
        parquet: Any = None

        def append(table: pa.Table) -> None:
            nonlocal parquet
            if out.suffix == ".parquet":
                parquet = parquet or opened.enter_context(pq.ParquetWriter(file, table.schema, compression="zstd"))
                parquet.write_table(table)
            elif out.suffix == ".jsonl":
                file.writelines(f"{json.dumps(row, default=str)}\n".encode() for row in table.to_pylist())
            else:
                frame = table.to_pandas()
                for name in (name for name in table.column_names if pa.types.is_list(table[name].type)):
                    frame[name] = ["; ".join(map(str, () if values is None else values)) for values in frame[name]]
                file.write(frame.to_csv(index=False, header=file.tell() == 0).encode())

        yield append


def _settle(out: Path, request: dict[str, Any], rank: int, result: Any) -> Any:
    """Make the folder one of this request, or refuse it; if its answers are complete, what they come to."""
    names = {file.name for file in out.iterdir() if file.name[0] != "."} if out.is_dir() else set()
    if (names and _REQUEST not in names) or (out.exists() and not out.is_dir()):
        raise ValueError(f"{out} holds something else; expected a new folder. Choose another.")
    if not names - {_REQUEST, _DONE}:  # no answers yet, to whatever was asked
        make_folder(out)
        (out / _DONE).unlink(missing_ok=True)
        _put(out / _REQUEST, request, rank)
        return None
    before, request = json.loads((out / _REQUEST).read_text(encoding="utf-8")), json.loads(json.dumps(request))
    for name in sorted(before.keys() | request.keys()):
        if before.get(name) != request.get(name):
            asked = f"expected {name} {before.get(name)!r}, got {request.get(name)!r}"
            raise ValueError(f"{out} holds answers to another request: {asked}. Choose another folder, or remove it.")
    done = result(**json.loads((out / _DONE).read_text(encoding="utf-8"))) if _DONE in names else None
    return done if done is not None and done.files == len(list(out.glob("part-*.parquet"))) else None


def _put(path: Path, value: Any, rank: int) -> None:
    """Write a file that several processes may write at the same time, all the same."""
    mine = path.with_name(f".{path.name}.{rank}")
    write_text(mine, json.dumps(value, indent=1))
    mine.replace(path)


def _model_digest(explainer: EHDDistiller) -> str:
    """Twelve letters that change with any weight or setting of the model."""
    settings = explainer.model.config.to_dict() | {"transformers_version": None, "_name_or_path": None}
    weights = {name: tensor.detach().cpu().clone() for name, tensor in explainer.model.state_dict().items()}
    return _digest(json.dumps(settings, default=str).encode() + save(weights))


def _identity(source: Any, head: pa.Table) -> Any:
    """What tells a source from others without reading all of it: sizes, beginnings and ends."""
    if not isinstance(source, str | Path):
        rows = json.dumps(head.slice(0, 10).to_pylist(), default=str).encode()
        size = None if is_streamed(source) else len(source)
        return [source.info.dataset_name, source.info.config_name, str(source.split), size, _digest(rows)]
    identity = []
    for path in data_files(Path(source)):
        with open(path, "rb") as file:
            begin, size = file.read(2**16), path.stat().st_size
            file.seek(max(0, size - 2**16))
            identity.append([path.name, size, _digest(begin + file.read())])
    return identity


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
