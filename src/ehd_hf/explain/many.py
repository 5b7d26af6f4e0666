"""Any number of windows: tables in, one file or a folder of Parquet files out, all with the columns of `FIELDS`.

A plan, made once, cuts the windows of a source into units of work: row groups of a Parquet file, which may be one that
holds the source's rows sorted by sequence. A unit reads its own rows only, and its file of answers depends on nothing
else: any number of processes, of one machine or of many, write the folder of one, and a run that was killed goes on.
"""

from __future__ import annotations

import copy
import functools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save
from tqdm.auto import tqdm

from .. import __version__
from ..data.sorting import alike, by_sequence, bytes_of, shares, write_groups
from ..data.tables import data_files, is_streamed, read_tables
from ..data.windows import before_each, ends, slides
from ..files import OneWriter, digest, identity, locked, make_folder, read_json, replaced_when_done, write_json
from ..models.point_process import in_double
from ..models.question import Question
from .explainer import WINDOW_COLUMNS, EHDDistiller
from .explanation import AGREEMENT, FIELDS, Windows
from .trace import find_causes
from .units import Failed, Work, check_engine, run_units

EXPLANATION_FILES = (".parquet", ".jsonl", ".csv")
# A unit ends before these many events too, so that long histories do not fill the memory.
_EVENTS_PER_FILE = 2_000_000
# Parquet readers skip files whose names start with "_".
_REQUEST, _DONE, _FAILED, _SEQUENCES = "_request.json", "_done.json", "_failed.json", "_sequences"
_SORTING, _PLANNING = ".sorting", ".planning"
_UNSEALED = "0" * 64  # stands in a file of answers where its digest will be


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
    failed: list[str] = field(default_factory=list)  # why units of work were given up; a repeated call tries again


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
            writes them; or a `datasets.Dataset` or `IterableDataset` of such rows. Rows that are events may come in
            any order. A folder of answers holds a sorted copy of all but Parquet files of sequences until it is done.
        out: a file (.parquet, .jsonl, .csv); or a folder, a new one or that of the same request.
        windows: explain every window of `history` and `future` events that slides over a sequence, not its end alone.
        future, history: as in `EHDDistiller.explain`; `asked` as in `EHDDistiller.question`.
        scores: also write `score`, an entry for each history event.
        columns: names of the columns sequence, time and mark, where they are not the usual ones; `time_format`.
    """
    work, explainer = work or Work(), aligned(explainer)
    question = explainer.question(**asked)
    how: Literal["ends", "slides"] = "slides" if windows else "ends"
    cut = _Cut(explainer, source, columns or {}, how, (future, history), work)
    solver = {name: value for name, value in vars(explainer.solver).items() if isinstance(value, int | float | str)}
    request = {"question": asdict(question), "windows": windows, "future": cut.future, "scores": scores}
    request |= {"solver": [type(explainer.solver).__name__, solver]}
    columns_out = FIELDS | (AGREEMENT if explainer.certifier.others else {}) | ({"score": _SCORE} if scores else {})
    job = _Job("explaining", Explained, columns_out, functools.partial(_table, explainer, question), _count)
    return _carry_out(job, cut, source, request, Path(out))


@dataclass(frozen=True)
class Traced:
    """What a run that looks for causes has written so far."""

    events: int
    causes: int  # rows that name a cause
    files: int
    finished: bool
    notes: list[str]
    failed: list[str] = field(default_factory=list)


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
    explainer = aligned(explainer)
    cut = _Cut(explainer, source, columns or {}, "each", (1, history), work or Work())
    mtpp = getattr(explainer.mtpp, "members", [explainer.mtpp])[0]
    table = functools.partial(_causes_table, mtpp, in_double(mtpp), at_least)
    job = _Job("tracing", Traced, _CAUSES, table, _count_causes)
    return _carry_out(job, cut, source, {"trace": True, "at_least": at_least}, Path(out))


class _Job(NamedTuple):
    """What is computed of the windows, and how it is stored and counted."""

    name: str
    result: Any
    columns: Mapping[str, Any]
    table: Callable[[Windows, pa.Schema], pa.Table]
    count_rows: Callable[[pa.Table], Counter[str]]


class _Unit(NamedTuple):
    """The windows `skip` to `skip + windows` of those that row groups `begin` to `end` of a file hold."""

    number: int
    file: int
    begin: int
    end: int
    row: int  # the number of its first row in the source
    skip: int
    windows: int


@dataclass(frozen=True)
class _Task:
    """Computes the units of a plan; what a process of any engine needs to know."""

    job: _Job
    cut: _Cut
    files: list[Path]
    schema: pa.Schema
    out: Path
    request: dict[str, Any]

    def run(self, unit: _Unit) -> Counter[str]:
        """Write the unit's file, unless it is there, and count its rows."""
        if (counts := self.counts_of(unit)) is None:
            table = self.table(unit)
            counts = self.job.count_rows(table)
            stamp = {"request": self.request, "unit": unit.number, "counts": counts, "digest": _UNSEALED}
            with replaced_when_done(self.path_of(unit)) as partial:
                with open(partial, "wb") as file, pq.ParquetWriter(file, table.schema, compression="zstd") as writer:
                    writer.write_table(table)
                    writer.add_key_value_metadata({"ehd_hf": json.dumps(stamp)})
                content = partial.read_bytes()
                partial.write_bytes(_sealed(content, _UNSEALED, digest(content)))
        return counts

    def table(self, unit: _Unit) -> pa.Table:
        windows = self.cut.read(self.files, unit)
        try:
            return self.job.table(windows, self.schema)
        except Exception as error:
            kind = ValueError if isinstance(error, ValueError) else RuntimeError
            raise kind(f"sequences {windows.names[0]!r} to {windows.names[-1]!r}: {error}") from error

    def path_of(self, unit: _Unit) -> Path:
        return self.out / f"part-{unit.number:06d}.parquet"

    def counts_of(self, unit: _Unit) -> Counter[str] | None:
        """Those of a finished file; None if it is not there, not whole, or not of this unit."""
        try:
            content = self.path_of(unit).read_bytes()
            stamp = json.loads(pq.read_metadata(pa.BufferReader(content)).metadata[b"ehd_hf"])
            is_whole = digest(_sealed(content, seal := stamp["digest"], _UNSEALED)) == seal
            is_ours = [stamp["request"], stamp["unit"]] == [self.request, unit.number]
        except (OSError, ValueError, LookupError, TypeError, pa.ArrowException):
            return None
        return Counter(stamp["counts"]) if is_whole and is_ours else None


def _sealed(content: bytes, old: str, new: str) -> bytes:
    """A file with one digest in its last part in the place of another."""
    before, _, after = content.rpartition(old.encode())
    return before + new.encode() + after


def _carry_out(job: _Job, cut: _Cut, source: Any, request: dict[str, Any], out: Path) -> Any:
    work, model = cut.work, _model_digest(cut.explainer)
    request |= {"history": cut.history, "rows_per_file": work.rows_per_file, "columns": cut.columns}
    request = json.loads(json.dumps(request | {"version": __version__, "model": model}, default=str))
    keep_freed_memory()
    if out.suffix == "":
        return _into_folder(job, cut, source, request, out)
    if out.suffix not in EXPLANATION_FILES:
        raise ValueError(f"answers go to a file that ends in {', '.join(EXPLANATION_FILES)}, or a folder; got {out}.")
    if work.is_shared:
        raise ValueError(f"several processes write to a folder; got {out}. Name one without an ending.")
    with TemporaryDirectory() as scratch, _appending(out) as append:
        plan = _plan(cut, source, Path(scratch))
        files = [Path(scratch) / _SEQUENCES] if plan["sequences"] else data_files(Path(source))
        task, counts = _Task(job, cut, files, _schema(job.columns, plan), out, request), list[Counter[str] | None]()
        with _bar(job.name, plan, work) as bar:
            for unit in map(_Unit._make, plan["units"]):
                append(table := task.table(unit))
                counts.append(job.count_rows(table))
                bar.update(unit.windows)
    return _result(job, plan, counts, [])


def _into_folder(job: _Job, cut: _Cut, source: Any, request: dict[str, Any], out: Path) -> Any:
    is_new, rank = not out.exists(), cut.work.rank
    names = {file.name for file in out.iterdir() if file.name[0] != "."} if out.is_dir() else set()
    if (names - {_SEQUENCES} and _REQUEST not in names) or not (is_new or out.is_dir()):
        raise ValueError(f"{out} holds something else; expected a new folder. Choose another.")
    check_engine(cut.work)
    make_folder(out)
    try:
        with locked(out / f".rank-{rank}"):
            try:
                with _waiting_for(out / _PLANNING):  # the processes of several ranks need one plan
                    plan = _settle(cut, source, request, out)
                files = [out / _SEQUENCES] if plan["sequences"] else data_files(Path(source))
                return _run(_Task(job, cut, files, _schema(job.columns, plan), out, request), plan, source)
            except BaseException as error:
                is_refused = isinstance(error, ValueError) and cut.work.world_size == 1
                if not (out / _REQUEST).exists() or (is_refused and not any(out.glob("part-*.parquet"))):
                    _clear(out, _REQUEST)
                raise
    finally:
        if is_new:
            with suppress(OSError):  # it is not empty
                out.rmdir()


def _settle(cut: _Cut, source: Any, request: dict[str, Any], out: Path) -> dict[str, Any]:
    """Make the folder one of this request, or refuse it; its plan, which is made if it is not there."""
    before: dict[str, Any] = read_json(out / _REQUEST) if (out / _REQUEST).exists() else {}
    plan, seen = before.pop("plan", None), _identity(source, cut.head, before.get("source", ()))
    request["source"] = _unchanging(seen)
    if before:
        before["source"] = _unchanging(before["source"])
    differ = [name for name in sorted(before.keys() | request.keys()) if before.get(name) != request.get(name)]
    if differ and any(out.glob("part-*.parquet")):
        asked = f"expected {differ[0]} {before.get(differ[0])!r}, got {request.get(differ[0])!r}"
        raise ValueError(f"{out} holds answers to another request: {asked}. Choose another folder, or remove it.")
    if differ or plan is None:
        plan = _plan(cut, source, out)
        write_json(out / _REQUEST, request | {"source": seen, "plan": plan})
    return plan


def _run(task: _Task, plan: dict[str, Any], source: Any) -> Any:
    out, work, units = task.out, task.cut.work, [_Unit._make(unit) for unit in plan["units"]]
    counts = {unit: task.counts_of(unit) for unit in units}
    mine = [unit for unit in units if counts[unit] is None and unit.number % work.world_size == work.rank]
    if mine and plan["sequences"] and _copy_of(out) != plan["sequences"]:  # the folder was done, or it is damaged
        _sorted(task.cut, source, out, [])
    failed: dict[_Unit, str] = {}
    with _bar(task.job.name, plan, work) as bar:
        bar.update(sum(unit.windows for unit in units if counts[unit] is not None))
        for unit, result in run_units(task, mine, work):
            if isinstance(result, Failed):
                failed[unit] = f"part {unit.number}: {result.reason}"
            else:
                counts[unit] = result
            bar.update(unit.windows)
    for unit in set(units).difference(mine):  # the other processes may have written theirs in the meantime
        counts[unit] = counts[unit] or task.counts_of(unit)
    reasons = [failed[unit] for unit in units if unit in failed]
    if reasons and not any(counts.values()):
        raise ValueError(f"no part could be computed; {reasons[0]}")
    total = _result(task.job, plan, list(counts.values()), reasons)
    if reasons:
        write_json(out / _FAILED, {"failed": reasons})
    elif total.finished:
        _clear(out)
        with suppress(OneWriter):  # another process writes the same
            write_json(out / _DONE, asdict(total))
    return total


def _result(job: _Job, plan: dict[str, Any], counts: list[Counter[str] | None], failed: list[str]) -> Any:
    whole = sum(filter(None, counts), Counter[str]())
    known: dict[str, Any] = {name: plan[name] for name in ("too_short", "notes")}
    known |= {"mean_size": whole["sizes"] / whole["explained"] if whole["explained"] else None}
    known |= {"finished": None not in counts, "failed": failed}
    return job.result(**{one.name: known.get(one.name, whole[one.name]) for one in fields(job.result)})


def _clear(out: Path, *more: str) -> None:
    """Remove what is not needed when a folder is done, or was refused."""
    shutil.rmtree(out / _SORTING, ignore_errors=True)
    for left in (out / _SEQUENCES, out / _FAILED, *map(out.joinpath, more), *out.glob(".*.partial")):
        left.unlink(missing_ok=True)


@contextmanager
def _waiting_for(path: Path) -> Iterator[None]:
    """Hold a lock, and wait while another process does; one that dies lets go of it."""
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(locked(path))
                break
            except OneWriter:
                sleep(0.1)
        yield


def _bar(name: str, plan: dict[str, Any], work: Work) -> Any:
    shows = work.rank == 0 if work.progress is None else work.progress
    # disable=None leaves the bar away where no one looks.
    total = sum(unit[-1] for unit in plan["units"])
    return tqdm(desc=name, total=total, unit=" windows", unit_scale=True, disable=None if shows else True)


def aligned(explainer: EHDDistiller) -> EHDDistiller:
    """A copy, as another process would have it: the last bits of a product depend on where weights lie in memory."""
    return copy.deepcopy(explainer)


def keep_freed_memory() -> None:
    """Let glibc keep the memory that a batch frees for the next one, instead of asking the system for it page by page:
    once a large block was freed, it keeps twice that for every thread. For long runs of one thread, no servers."""
    torch.empty(31 * 2**20, dtype=torch.uint8)


class _Cut:
    """How the windows of a source are cut. Columns that are not named are found in its first table."""

    def __init__(self, explainer: EHDDistiller, source: Any, named: Any, how: str, size: Any, work: Work) -> None:
        self.columns: dict[str, Any]
        self.explainer, self.how, self.work = explainer, how, work
        self.columns = {role: name for role, name in named.items() if name is not None}
        if (head := next(self.tables(source), None)) is None:
            raise ValueError("the source holds no rows; expected at least one. Check that it is the right one.")
        self.head = head.slice(0, 10)
        times = next((name for name in (named.get("time"), "times", "time") if name in head.column_names), None)
        self.are_windows = set(WINDOW_COLUMNS) <= set(head.column_names)
        are_lists = times is not None and pa.types.is_nested(head.schema.field(times).type)
        self.are_events = not self.are_windows and not are_lists
        self.lists: list[Any] = ["history_times", "future_times"] if self.are_windows else [times] if are_lists else []
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

    def tables(self, source: Any) -> Iterator[pa.Table]:
        text = [self.columns[role] for role in ("sequence", "mark") if self.columns.get(role) is not None]
        return read_tables(source, text)

    def weights(self, lengths: np.ndarray) -> np.ndarray:
        """How large a part of a unit sequences, or windows, of so many events are: `rows_per_file` is a whole one."""
        if self.how == "ends":
            windows = np.ones(len(lengths))
        else:
            span = 1 if self.how == "each" else self.future + (self.history or 0)
            windows = np.maximum(lengths - span + 1, 0)
        return np.maximum(windows, lengths * (self.work.rows_per_file / _EVENTS_PER_FILE))

    def read(self, files: list[Path], unit: _Unit) -> Windows:
        path = files[unit.file]
        with _readable(path, unit.begin, unit.end), pq.ParquetFile(path, buffer_size=2**20) as file:
            table = file.read_row_groups(range(unit.begin, unit.end))
        return self.windows(table, unit.row)[0].rows(slice(unit.skip, unit.skip + unit.windows))

    def windows(self, table: pa.Table, row: int) -> tuple[Windows, int, list[str]]:
        """Those of a table that begins at a row of the source, how many sequences are too short, and notes."""
        try:
            windows, too_short, notes = self._of(table, row)
            self.explainer.check_length(windows)
        except (ValueError, TypeError) as error:  # Arrow's are of both kinds
            name, last = self.columns.get("sequence"), table.num_rows - 1
            place = f"rows {row:,} to {row + last:,}"
            if self.are_events and name is not None:  # they are sorted, and stand elsewhere in the source
                place = f"sequences {table[name][0].as_py()!r} to {table[name][last].as_py()!r}"
            raise ValueError(f"{place}: {error}") from error
        return windows, too_short, notes

    def _of(self, table: pa.Table, row: int) -> tuple[Windows, int, list[str]]:
        notes: list[str] = []
        if self.are_windows:
            given = self.explainer.given(table, row)
            return given._replace(names=np.fromiter(given.names, object)), 0, notes
        if self.are_events:
            read = self.explainer.read(table, **self.columns)
            events, notes = self.explainer.load(read.events), read.notes
        else:
            if "sequence" not in self.columns:
                table = table.append_column("seq_id", pa.array(range(row, row + table.num_rows)))
            events = self.explainer.load(table, **self.columns)
        if self.how == "each":
            return Windows.of(events, before_each(events, np.arange(events.num_events), self.history)), 0, notes
        enough = np.flatnonzero(events.lengths >= self.future + ((self.history or 0) if self.how == "slides" else 1))
        too_short = len(events) - len(enough)
        events = events.select(enough)
        if self.how == "slides":
            return Windows.of(events, slides(events, self.future, self.history or 0)), too_short, notes
        return Windows.of(events, ends(events, self.future, self.history)).compact(), too_short, notes


# --- the plan


def _plan(cut: _Cut, source: Any, folder: Path) -> dict[str, Any]:
    """The units of work, and what reading all of the source once tells of it; every row is checked. Rows that cannot
    be shared out as they lie are written to a file in `folder` first, sorted by sequence."""
    notes: list[str] = []
    files = _shareable(cut, source)
    copy = None if files else _sorted(cut, source, folder, notes)
    most = cut.work.rows_per_file
    units, row, too_short, are_numbers, time = list[_Unit](), 0, 0, True, "float64"
    for number, path in enumerate(files or [folder / _SEQUENCES]):
        last = 0.0  # how full the last unit is, which may take more of this file
        for group, table in enumerate(_row_groups(path, cut.work)):
            windows, missed, more = cut.windows(table, row)
            too_short, notes = too_short + missed, list(dict.fromkeys([*notes, *more]))
            are_numbers = are_numbers and all(isinstance(name, int) for name in windows.names)
            time = "timestamp[us]" if windows.shown.dtype.kind == "M" else time
            weights = np.maximum(1, windows.spans.lengths * (most / _EVENTS_PER_FILE))
            if last and last + weights.sum() <= most:
                units[-1] = units[-1]._replace(end=group + 1, windows=units[-1].windows + len(weights))
                last += weights.sum()
            else:
                parts = [(begin, end - begin) for begin, end in shares(weights, most)]
                units += [
                    _Unit(len(units) + at, number, group, group + 1, row, *part) for at, part in enumerate(parts)
                ]
                last = weights.sum() if len(parts) == 1 else 0.0
            row += table.num_rows
    if not units:
        got = f"none of {too_short:,} sequences is long enough"
        needed = f"{cut.history if cut.how == 'slides' else 'at least 1'} + {cut.future}"
        raise ValueError(f"{got}: a window has {needed} events. Ask for fewer.")
    found = {"too_short": too_short, "notes": notes, "are_numbers": are_numbers, "time": time}
    return found | {"sequences": copy, "units": [list(unit) for unit in units]}


def _row_groups(path: Path, work: Work) -> Iterator[pa.Table]:
    quiet = None if work.progress is None else not work.progress
    with pq.ParquetFile(path, buffer_size=2**20) as file:
        for group in tqdm(range(file.num_row_groups), f"checking {path.name}", unit=" row groups", disable=quiet):
            with _readable(path, group, group + 1):
                table = file.read_row_group(group)
            yield table


@contextmanager
def _readable(path: Path, begin: int, end: int) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        place = f"{path.name}, row groups {begin} to {end - 1},"
        raise ValueError(f"{place} cannot be read: {error}. Was it written completely, or changed since?") from error


def _shareable(cut: _Cut, source: Any) -> list[Path] | None:
    """The files of a source if they are Parquet files of sequences whose row groups are no larger than a unit."""
    if cut.are_events or not isinstance(source, str | Path):
        return None
    files = data_files(Path(source))
    if any(file.suffix != ".parquet" for file in files):
        return None
    for path in files:
        with _readable(path, 0, 1):
            metadata = pq.read_metadata(path)
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            values = max(group.column(index).num_values for index in range(group.num_columns))
            mean = np.full(group.num_rows, values / max(group.num_rows, 1))
            if group.num_rows > 1 and cut.weights(mean).sum() > cut.work.rows_per_file:
                return None
    return files


def _sorted(cut: _Cut, source: Any, folder: Path, notes: list[str]) -> str:
    """Write the source's rows to a file; of rows that are events, those of a sequence stand together. Its digest."""
    roles = {role: name for role, name in cut.columns.items() if role != "time_format" and name is not None}
    is_json = isinstance(source, str | Path) and data_files(Path(source))[0].suffix in (".jsonl", ".json")
    times: list[str] = [roles["time"]] if cut.are_events else cut.lists
    tables = alike(cut.tables(source), roles if cut.are_events else None, times if is_json else ())
    sequence = cut.columns["sequence"] if cut.are_events else None
    if sequence is not None:
        memory = bytes_of(cut.work.memory)
        tables = by_sequence(tables, sequence, memory, folder / _SORTING, notes, cut.work.progress)
    elif cut.are_events:
        tables = iter([pa.concat_tables(tables)])  # one sequence
    write_groups(tables, folder / _SEQUENCES, cut.work.rows_per_file, cut.weights, sequence, cut.lists)
    return _copy_of(folder)


def _copy_of(folder: Path) -> str:
    return digest(folder / _SEQUENCES) if (folder / _SEQUENCES).exists() else ""


# --- tables


_SCORE = ["float32"]
_CAUSES = {"seq_id": "string", "event": "int64", "cause": "int64", "probability": "float64", "lag": "float64"}


def _schema(columns: Mapping[str, Any], plan: dict[str, Any]) -> pa.Schema:
    """Arrow types of the columns, the same in all files: the source's names and times decide."""

    def arrow(kind: Any) -> pa.DataType:
        is_list = isinstance(kind, list)
        return pa.list_(arrow(kind[0])) if is_list else pa.type_for_alias(kind.replace("time", plan["time"]))

    types = {name: arrow(kind) for name, kind in columns.items()}
    return pa.schema(types | ({"seq_id": pa.int64()} if plan["are_numbers"] else {}))


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


def _model_digest(explainer: EHDDistiller) -> str:
    """Twelve letters that change with any weight or setting of the model."""
    settings = explainer.model.config.to_dict() | {"transformers_version": None, "_name_or_path": None}
    weights = {name: tensor.detach().cpu().clone() for name, tensor in explainer.model.state_dict().items()}
    return digest(json.dumps(settings, default=str).encode() + save(weights))[:12]


def _identity(source: Any, head: pa.Table, before: Any) -> list[Any]:
    """What tells a source from others: of files, all that is in them."""
    if isinstance(source, str | Path):
        return [identity(path, before) for path in data_files(Path(source))]
    rows = json.dumps(head.to_pylist(), default=str).encode()
    size = None if is_streamed(source) else len(source)
    return [source.info.dataset_name, source.info.config_name, str(source.split), size, digest(rows)[:12]]


def _unchanging(identities: list[Any]) -> list[Any]:
    """Identities without times of change."""
    return [[*one[:2], one[3][:16]] if isinstance(one, list) else one for one in identities]
