"""`ehd-hf`: from a table of events to a trained model and a readable explanation, at the command line.

Reads arguments, asks the modules, prints. torch and transformers load when a command needs them, never for --help.
"""

from __future__ import annotations

import atexit
import errno
import functools
import gc
import itertools
import json as json_module
import math
import os
import shlex
import signal
import sys
import time as time_module
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass, fields, is_dataclass
from inspect import Signature, signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from . import __version__

if TYPE_CHECKING:
    from .data.reading import Read
    from .data.sequences import EventSequences
    from .explain.explainer import EHDDistiller
    from .explain.explanation import Explanation
    from .explain.units import Work
    from .training.recipe import Verdict

DONE, ANSWER_IS_NO, BAD_INPUT, SYSTEM_FAILED, INTERRUPTED = 0, 1, 2, 3, 130
EVENTS_SHOWN, ROWS_SHOWN, MOST_CAUSES, LEAST_SHOWN = 30, 20, 8, 0.005
ROOTS_WITHIN = 1000  # events before the one asked about
PLACES = ("out", "figure", "table")  # parameters that name what a command writes
# What the package calls by its role, and the option that names it.
FLAGS = {"the time column": "--time", "the mark column": "--mark", "the sequence column": "--sequence"}
FLAGS |= {"time_format": "--time-format", "max_marks": "--max-marks", "max_events": "--max-events"}

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
data = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at a table of events, or write one to try.")
app.add_typer(data, name="data")


# --- arguments and options that several commands share


def _option(help: str, metavar: str | None = None, default: Any = None, **more: Any) -> Any:
    return typer.Option(default, metavar=metavar, help=help, show_default=False, **more)


def _flag(help: str, *names: str, **more: Any) -> Any:
    return typer.Option(False, *names, help=help, **more)


_EVENTS = "CSV, TSV, JSONL or Parquet, a row per event; or a folder of files named train, validation and test."
_FORMAT = "a pattern such as '%d.%m.%Y %H:%M'; iso; number; s, ms, us or ns since 1970. Found out if not given."
_THREADS = "CPU threads; 0: what OMP_NUM_THREADS says, or as many as help when tried."
_AT_MOST = "Of a file larger than memory: events of whole sequences at most."
EVENTS: Any = typer.Argument(metavar="EVENTS", help=_EVENTS)
MODEL: Any = typer.Argument(metavar="MODEL", help="Folder of a model, a bundled name, or a Hub id.")
TIME = _option("Column of when it happened.", "COLUMN")
MARK = _option("Column of what happened.", "COLUMN")
SEQUENCE = _option("Column of whom it happened to.", "COLUMN")  # or --sequence-column, beside the name of one
TIME_FORMAT = _option(f"How times are written: {_FORMAT}", "FORMAT")
MAX_MARKS: Any = typer.Option(100, metavar="N", help="Kinds of events to tell apart at most.")
MAX_EVENTS: Any = typer.Option(10_000_000, min=1, metavar="N", help=_AT_MOST)
THREADS: Any = typer.Option(0, min=0, metavar="N", help="CPU threads; 0: all, or what OMP_NUM_THREADS says.")


def _event(asked: str) -> Any:
    """Which event: an index, a time as a number, or what is left to `find_events`: a mark, a timestamp."""
    for number in (int, float):
        with suppress(ValueError):
            return number(asked)
    return asked


def _history(asked: str) -> Any:
    """How many events to look at: a number, or "all" (or 0). Other words `explain` refuses."""
    return int(asked) or "all" if asked.isdecimal() else asked


FUTURE = _option("How many last events to explain; by default as trained.", "N")
HISTORY = _option("How many events before them to look at, or all; by default as trained.", "N|all", parser=_history)
CONTEXT_EVENTS = _option("A second table: events that may be causes and are never predicted.", "FILE")
RELATED = _option("A table of sequence, neighbour, whose events may be causes too, as 'near: ...'.", "FILE")
AS_JSON = _flag("Print JSON, for programs.", "--json")


# --- how a command ends


@atexit.register
def _leave() -> None:
    """To collect thousands of modules would take seconds; and Ctrl-C comes too late for a command that is done."""
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _command(*examples: str, name: str | None = None, group: typer.Typer = app) -> Callable[..., Any]:
    """A command whose help ends with examples, whose outcome is the exit code, and whose failures are a sentence. A
    parameter that is a dataclass stands for its fields, which are options too."""

    def register(command: Callable[..., int]) -> Callable[..., None]:
        own = signature(command, eval_str=True).parameters.values()
        groups: dict[str, Any] = {one.name: one.annotation for one in own if is_dataclass(one.annotation)}
        parts = [signature(group, eval_str=True).parameters.values() for group in groups.values()]

        @functools.wraps(command)
        def run(**options: Any) -> None:
            try:
                for place in filter(None, map(options.get, PLACES)):
                    _check_place(place)
                for name, group in groups.items():
                    options[name] = group(**{field.name: options.pop(field.name) for field in fields(group)})
                code = command(**options)
            except KeyboardInterrupt:
                _say("interrupted; nothing was written.", stderr=True)
                code = INTERRUPTED
            except Exception as error:
                code = _explain_failure(error)
            raise typer.Exit(code)

        flat = itertools.chain((one for one in own if one.name not in groups), *parts)
        run.__signature__ = Signature([*flat])  # type: ignore[attr-defined]
        return group.command(name, epilog="\n".join(["\b\nExample:", *(f"  ehd-hf {line}" for line in examples)]))(run)

    return register


def _explain_failure(error: Exception) -> int:
    """Say what went wrong and what to do; the exit code. A mistake of ours is raised: its traceback helps."""
    from huggingface_hub.errors import StrictDataclassError
    from pyarrow import ArrowException
    from safetensors import SafetensorError

    from .files import CannotWrite

    ours = (ValueError, TypeError, ImportError, OSError, MemoryError)
    if not isinstance(error, (*ours, ArrowException, StrictDataclassError, SafetensorError)):
        raise error
    text, number = " ".join(str(error).split()) or type(error).__name__, getattr(error, "errno", None)
    code = SYSTEM_FAILED
    if isinstance(error, CannotWrite):
        pass  # says what to do
    elif number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or isinstance(error, SafetensorError):
        text = f"no space left to write: {text}. What was finished is kept; free some space and repeat the command."
    elif isinstance(error, MemoryError):
        text = "out of memory. Give fewer events, or a shorter --history."
    elif isinstance(error, OSError) and number is not None:
        place = "" if error.filename is None else f": {error.filename}"
        text = f"{error.strerror}{place}. Choose a file you may read, or a place you may write to."
    else:
        code = BAD_INPUT
        flags = [flag for role, flag in FLAGS.items() if role in text and flag not in text]
        text += f" ({', '.join(flags)})" if flags else ""
    _say(f"error: {text}", stderr=True)
    return code


def _check_place(place: Path) -> None:
    """Refuse a place that cannot be written to before anything is computed."""
    above = next(folder for folder in place.absolute().parents if folder.exists())
    if not above.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{place} cannot be made: a file is in the way", str(above))
    if not os.access(above, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(above))


# --- what people see


def _say(text: str, *, stderr: bool = False) -> None:
    from rich.console import Console

    Console(stderr=stderr).print(_harmless(text), soft_wrap=True, markup=False, highlight=False)


def _harmless(text: str) -> str:
    """Control characters of a name spelt out: a terminal would obey them."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def _show(rows: Iterable[Iterable[Any]], columns: Iterable[str] = (), title: str | None = None) -> None:
    """A table; without columns, names and what is to be said of them."""
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    listed = [tuple(row) for row in rows]
    look: dict[str, Any] = {} if columns else {"show_header": False, "box": None, "padding": (0, 2, 0, 0)}
    # What a row is about must stay readable in a narrow terminal: it is what people type next.
    short = max((len(str(row[0])) for row in listed), default=0) <= 30
    headers = [Column(name, overflow="fold", no_wrap=short and place == 0) for place, name in enumerate(columns)]
    table = Table(*headers, title=title, title_justify="left", **look)
    for row in listed:
        table.add_row(*(Text(_harmless(str(cell))) for cell in row))  # names from the data are text, not markup
    Console().print(table)


def _show_notes(notes: Iterable[str], kind: str = "note", *, stderr: bool = False) -> None:
    for text in notes:
        _say(f"{kind}: {text}", stderr=stderr)


def _print_json(value: Any) -> None:
    typer.echo(json_module.dumps(value, default=str))


# --- what is written


def _write_table(frame: Any, out: Path) -> None:
    from .files import replaced_when_done

    with replaced_when_done(out) as partial:
        frame.to_csv(partial, index=False)


def _write_picture(answer: Any, out: Path) -> None:
    from .present.picture import save_figure

    save_figure(answer.plot(), out)


def _write(answer: Any, out: Path) -> None:
    """Write an answer as what the name of the file ends in says."""
    from .files import write_text

    match out.suffix:
        case ".csv":
            _write_table(answer.to_frame(), out)
        case ".html":
            write_text(out, answer.to_html())
        case ".json" if hasattr(answer, "to_perfetto"):
            answer.to_perfetto(out)
        case ".json":
            write_text(out, json_module.dumps(answer.to_dict(), default=str))
        case ".dot":
            write_text(out, answer.to_graphviz())
        case _:
            _write_picture(answer, out)


def _check_ending(out: Path | None, *endings: str) -> None:
    if out is not None and out.suffix not in endings:
        raise ValueError(f"--out must end in {', '.join(endings)} here; got {out.name!r}.")


# --- a model and the events it explains


def _set_threads(threads: int) -> int:
    """Let torch use so many, or as many as OMP_NUM_THREADS says, if it does; returns the number, 0 if nobody did."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    threads = threads or (int(asked) if asked.isdecimal() else 0)
    if threads:
        import torch

        torch.set_num_threads(threads)
    return threads


def _open_model(model: str, threads: int = 0) -> EHDDistiller:
    """An explainer; a point process alone explains too."""
    if not (Path(model) / "config.json").is_file() and (Path(model) / "plan.json").is_file():
        raise ValueError(f"training in {model} has no model yet. Repeat its command to go on, then ask again.")
    _say(f"Opening {model} ...", stderr=True)
    from transformers.utils import logging

    from .explain.explainer import EHDDistiller

    logging.disable_progress_bar()  # loading takes a blink
    _set_threads(threads)
    return EHDDistiller.from_pretrained(model)


@dataclass(frozen=True)
class Table:
    """What is said of a table of events that no model has read yet."""

    events: Path = EVENTS
    time: str | None = TIME
    mark: str | None = MARK
    sequence: str | None = SEQUENCE
    time_format: str | None = TIME_FORMAT
    max_marks: int = MAX_MARKS
    max_events: int = MAX_EVENTS

    def read(self, **more: Any) -> Read:
        from .data.reading import read_events

        asked = vars(self) | more
        return read_events(asked.pop("events"), **asked)


def _with_context(read: Read, context_events: Path | None, related: Path | None) -> tuple[Read, list[str]]:
    """The events with those of a second table and of neighbours, and the marks that these bring."""
    from .data.related import join_context, join_related

    marks = list[str]()
    for join, source in ((join_related, related), (join_context, context_events)):
        if source is not None:
            read, more = join(read, source)
            marks += more
    return read, marks


@dataclass(frozen=True)
class Planned:
    """What a plan is made from."""

    minutes: float | None = _option("Take so long, by the clock, all in all; more of them go on from there.", "N")
    history: int | None = _option("Past events of a window.", "N")
    future: int | None = _option("Events that are explained at once.", "N")
    seed: int = typer.Option(0, min=0, help="Of the split and of all that is drawn.")
    backbone: str = _option("auto: hawkes and lognormmix; or fullynn, attention; or several: a,b.", "KIND", "auto")
    ensemble: int | None = _option("Keep N backbones, or seeds: answers say how many agree.", "N", min=2)
    distiller: str = _option("ranking; ehd, the paper's; or none.", "KIND", "ranking")


@dataclass(frozen=True)
class Asked:
    """What every question about a table of events says."""

    model: str = MODEL
    events: Path = EVENTS
    time: str | None = TIME
    mark: str | None = MARK
    sequence_column: str | None = SEQUENCE
    time_format: str | None = TIME_FORMAT
    context_events: Path | None = CONTEXT_EVENTS
    related: Path | None = RELATED
    threads: int = THREADS

    @property
    def has_context(self) -> bool:
        return self.context_events is not None or self.related is not None

    @property
    def columns(self) -> dict[str, Any]:
        named = {"time": self.time, "mark": self.mark, "sequence": self.sequence_column}
        return named | {"time_format": self.time_format}

    def open(self, **limits: Any) -> tuple[EHDDistiller, Read]:
        """The explainer and the events, read the way the explainer's training events were."""
        from .data.tables import column_names, is_split_folder

        is_split_folder(self.events) or column_names(self.events)  # refused before a model is opened
        explainer = _open_model(self.model, self.threads)
        read = explainer.read(self.events, **self.columns, **limits)
        read, _ = _with_context(read, self.context_events, self.related)
        _show_notes(read.notes, stderr=True)
        return explainer, read

    def open_for_parts(self) -> EHDDistiller:
        """The explainer alone, where the events are read a part at a time."""
        if self.has_context:
            got = "got --context-events or --related, which need all events at once"
            raise ValueError(f"answers to a file are of one table; {got}. Join the tables first, or ask about one.")
        return _open_model(self.model, self.threads)

    def open_one(self, sequence: str | None) -> tuple[EHDDistiller, EventSequences]:
        """The explainer and one of the sequences."""
        from .data.sequences import find_sequence

        explainer, read = self.open()
        names = read.events.seq_ids
        if sequence is None and len(names) > 1:
            shown = ", ".join(map(str, names[:5])) + (", ..." if len(names) > 5 else "")
            raise ValueError(
                f"which of {len(names):,} sequences? Name one with --sequence ({shown}); explain also takes --all."
            )
        return explainer, read.events.select([0 if sequence is None else find_sequence(read.events, sequence)])


@dataclass(frozen=True)
class Shared:
    """How the work on a folder of answers is shared."""

    workers: int | None = _option("With a folder as --out: so many processes, or workers of a cluster.", "N", min=1)
    engine: str = typer.Option("local", metavar="local|ray", help="With a folder as --out: what runs them.")
    address: str | None = _option("Of a Ray cluster, or auto; by default Ray starts on this machine.", "HOST:PORT")
    memory: str = typer.Option("1GB", metavar="SIZE", help="Rows in any order are sorted on disk beyond that.")

    @property
    def work(self) -> Work:
        from .explain.units import Work

        return Work(**vars(self))


# --- commands


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ehd-hf {__version__}")
        raise typer.Exit


@app.callback(
    epilog="Exit codes: 0 done; 1 done, and the answer is no (nothing explains it, the model predicts no better than "
    "a trivial one, the events cannot be trained on); 2 bad input, nothing was written; 3 the system refused: no "
    "space, no memory, no permission; 130 interrupted."
)
def main(
    version: bool = _flag("Print the version.", "--version", callback=_print_version, is_eager=True),
) -> None:
    """Which past events are responsible for what just happened?

    Three commands, from a table of events to an answer:

    \b
        ehd-hf data inspect events.csv
        ehd-hf train events.csv --time ts --mark type --sequence user --out model/
        ehd-hf explain model/ events.csv --sequence 42 --future 10

    Nothing at hand? Try ehd-hf demo, or write a table with ehd-hf data example.
    """


@_command("demo --out demo.html")
def demo(
    out: Path = typer.Option(Path("ehd_hf_demo.html"), help="HTML page to write."),
    model: str = typer.Option("incidents", help="Bundled model that has example events."),
    json: bool = AS_JSON,
) -> int:
    """Say why one of some bundled events happened, and write a page about all of them."""
    from .explain.explainer import load_example
    from .files import write_text

    events = load_example(model)
    explainer = _open_model(model)
    trace: Any = explainer.trace(events)
    event = trace.telling()
    answer: Any = explainer.why(events, event=event)
    write_text(out, trace.to_html(title=f"Demo: {model}", event=event))
    if json:
        _print_json(answer.to_dict() | {"page": str(out)})
        return DONE
    _say(f"Why did {answer.event.name} happen, event {event + 1} of {len(trace)}?\n\n{answer}")
    _say_root(trace, event)
    _say(f"\nOpen {out} in a browser: click any event, and arrows come from its causes.")
    _say("Your own events: ehd-hf train events.csv --out model/, then ehd-hf why model/ events.csv --event -1")
    return DONE


@_command(
    "train events.csv --time ts --mark type --sequence user --out model/",
    "train events.csv --out model/ --minutes 10 --yes",
    "train events.csv --out model/ --minutes 10 --finish",
)
def train(
    table: Table,
    plan: Planned,
    out: Path = typer.Option(help="Folder of the model."),
    finish: bool = _flag("Train no further: judge and keep the best model so far.", "--finish"),
    yes: bool = _flag("Start without asking.", "--yes", "-y"),
    dry_run: bool = _flag("Show the plan and stop.", "--dry-run"),
    time_unit: str | None = _option("ms, s, min, h or D; for plain numbers, what they count.", "UNIT"),
    keep_all: bool = _flag("Of several backbones keep all, in the folder backbones.", "--keep-all"),
    context: str | None = _option("Marks that are only causes, never predicted, with commas between.", "MARK,MARK"),
    context_events: Path | None = CONTEXT_EVENTS,
    related: Path | None = RELATED,
    config: Path | None = _option("Train by this plan: plan.json of a model, or YAML.", "FILE"),
    threads: int = typer.Option(0, min=0, metavar="N", help=_THREADS),
    json: bool = AS_JSON,
) -> int:
    """Train a model on a table of events.

    It learns what usually follows what, then what explains it. Columns, unit of
    time, windows and steps are chosen from the data. You see the plan, with the
    time it takes, before it starts. Where there are more than --max-marks kinds
    of events, the rarest become one, 'other'. 80 % of the sequences are for
    training, 10 % choose the best model, 10 % judge it; files of your own named
    train, validation and test are taken as they are. Ctrl-C keeps the best model
    so far, ready to explain; the same command goes on where it was.
    """
    began = time_module.monotonic()
    if plan.minutes is not None and not 0 < plan.minutes < math.inf:
        raise ValueError(f"--minutes must be above 0; got {plan.minutes}. Leave it out for the plan's own time.")
    from .data.inspection import inspect_events
    from .data.reading import Reading
    from .files import OneWriter, read_rows
    from .training import recipe as fitting

    said = [f"--{name}" for name, value in vars(plan).items() if value != getattr(Planned, name).default]
    if config is not None and said:
        raise ValueError(f"--config holds the plan. Leave out {', '.join(said)}.")
    if finish and not (out / fitting.PLAN_FILE).is_file():
        raise ValueError(f"--finish is for a training that has begun; there is none in {out}. Leave it out to begin.")
    earlier = None if config is None else fitting.Run.load(config)
    events = table.events
    _say(f"Reading {events} ...", stderr=True)
    read = table.read(time_unit=time_unit, reading=earlier and Reading.from_dict(earlier.reading))
    read, causes = _with_context(read, context_events, related)
    findings = inspect_events(read.events)
    threads = _set_threads(threads)
    _say("Planning ...", stderr=True)
    options: dict[str, Any] = {"plan": earlier and earlier.plan, "threads": threads}
    if causes or context:
        options["context"] = [*dict.fromkeys([*(context.split(",") if context else ()), *causes])]
    run, splits = fitting.prepare(out, read, events.name, **options, **vars(plan))
    if not (out / fitting.PLAN_FILE).is_file():
        if not json:
            _show(fitting.describe_plan(run, splits, findings), title=f"Plan for {out}")
            _show_notes(read.notes)
            _show_notes(findings.warnings, "warning")
        elif dry_run:
            seconds = fitting.estimate_seconds(run.plan, run.costs)
            _print_json(asdict(run) | {"seconds": seconds, "notes": read.notes, "warnings": findings.warnings})
        if not (dry_run or yes):
            if not sys.stdin.isatty():
                raise ValueError(
                    "nobody is here to agree to the plan. Pass --yes to start, or --dry-run to see it only."
                )
            asked_at = time_module.monotonic()
            if not typer.confirm("Start?", default=True):
                _say("Nothing was started.", stderr=True)
                return DONE
            began += time_module.monotonic() - asked_at  # the clock stands still while people think
    elif dry_run:
        _say(f"{out} holds this run already: {'finished' if run.finished else 'the same command goes on with it'}.")
    if dry_run:
        return DONE
    if run.finished:
        return _show_verdict(out, events, run, read_rows(out / fitting.RESULTS_FILE), json, "was trained before")
    try:
        with redirect_stdout(sys.stderr):  # what the stages say on their way is not the answer
            options = {"threads": threads, "began": began, "finish": finish, "keep_all": keep_all}
            options |= {"progress": not json and sys.stderr.isatty(), "announce": functools.partial(_say, stderr=True)}
            rows = fitting.carry_out(out, splits, run, **options)
    except OneWriter:
        if not finish:
            raise
        (out / fitting.FINISH_FILE).touch()
        _say(f"The training that runs in {out} was asked to finish; it takes a few seconds.", stderr=True)
        return DONE
    except KeyboardInterrupt:
        kept = "has no model yet."
        if (out / "config.json").is_file():
            kept = f"holds the best model so far; it explains at once: {_explain_command(out, events)}."
        again = "The same command goes on; with --finish it judges and keeps what there is."
        _say(f"\ninterrupted. {out} {kept} {again}", stderr=True)
        return INTERRUPTED
    return _show_verdict(out, events, fitting.Run.load(out / fitting.PLAN_FILE), rows, json, "is ready")


def _show_verdict(out: Path, events: Path, run: Any, rows: list[dict[str, Any]], json: bool, how: str) -> int:
    from .training.recipe import describe_choice

    verdict = _judge(rows, json, model=str(out), plan=asdict(run.plan), compared=run.compared)
    if not json:
        if len(run.compared) > 1:
            _say(describe_choice(run.compared))
        _say(f"{out} {how}. {verdict.sentence}")
        _say(f"Next: {_explain_command(out, events) if verdict.good else verdict.advice}")
    return DONE if verdict.good else ANSWER_IS_NO


def _explain_command(out: Path, events: Path) -> str:
    return shlex.join(["ehd-hf", "explain", str(out), str(events), "--all"])


def _judge(rows: list[dict[str, Any]], json: bool, **about: Any) -> Verdict:
    """The verdict on rows of `score_model`; printed with the rows and `about` as JSON, or the scores as a table."""
    from .training.recipe import judge

    verdict = judge(rows)
    if json:
        short = [{key: value for key, value in row.items() if key not in ("qq", "sizes")} for row in rows]
        _print_json({**about, **verdict._asdict(), "rows": short})
        return verdict
    scored = [row for row in rows if row["task"] == "mtpp"]
    _show(
        ([row["model"], *(f"{row[name]:.3f}" for name in ("nll", "time_nll", "mark_nll", "ks"))] for row in scored),
        ("model", "NLL per event", "of its time", "of its mark", "KS"),
        f"How well {scored[0]['num_events']:,} events are predicted (lower is better)",
    )
    return verdict


@_command(
    "explain model/ events.csv --sequence 42 --future 10",
    "explain model/ events.csv --sequence 42 --size 3 --json",
    "explain model/ events.csv --all --out explanations.parquet",
    "explain model/ events.parquet --all --windows --out answers/",
)
def explain(
    asked: Asked,
    shared: Shared,
    sequence: str | None = _option("Which sequence to explain.", "ID"),
    all_sequences: bool = _flag("Explain the end of every sequence.", "--all"),
    out: Path | None = _option("For --all: a file (.parquet, .jsonl, .csv), or a folder for data larger than memory."),
    windows: bool = _flag("With --out: every window, not each end alone.", "--windows"),
    scores: bool = _flag("With --out: also the score of every event.", "--scores"),
    split: str | None = _option("EVENTS is a data set, local or of the Hub: its split."),
    pair: str | None = _option("And its windows of K future and L past events.", "K-L"),
    future: int | None = FUTURE,
    history: Any = HISTORY,
    share: float | None = _option("Ask for events that carry this share of what the past explains, 0 to 1."),
    epsilon: float | None = _option("Ask for events without which the last ones are this much as likely, 0 to 1."),
    size: int | None = _option("Ask for so many events.", "N"),
    delta: float | None = _option("Ask besides: from them alone, at most so many nats worse."),
    refine: str | None = _option("none, prefix or prune: how hard to look for fewer.", "HOW"),
    event: Any = _option(
        "Explain this event alone: an index (-1: the last), a time or a mark.", "EVENT", parser=_event
    ),
    kind: str | None = _option("Of the last events explain those of one mark only.", "MARK"),
    only: str | None = _option("Marks that may explain, with commas between; all others are kept.", "MARK,MARK"),
    figure: Path | None = _option("Also draw it, to a PNG, SVG or PDF file.", "FILE"),
    table: Path | None = _option("Also write every event with its role, as CSV.", "FILE"),
    json: bool = AS_JSON,
) -> int:
    """Which past events explain the last ones?

    Columns are those the model was trained on, unless you name others. Every
    answer is checked: the last events are scored again without those that
    explain them.
    """
    from .data.tables import is_split_folder
    from .explain.many import EXPLANATION_FILES

    if sequence is not None and all_sequences:
        raise ValueError("--sequence asks about one sequence, --all about every one; got both. Leave one out.")
    if out is not None and not all_sequences:
        raise ValueError("--out is for --all. To keep one explanation, write what --json prints to a file.")
    if out is not None and out.suffix and out.suffix not in EXPLANATION_FILES:
        raise ValueError(f"--out must end in {', '.join(EXPLANATION_FILES)}, or be a folder; got {out.name!r}.")
    if (windows or scores) and out is None:
        raise ValueError("--windows and --scores need a place to write to. Name one, such as --out answers.")
    if split is not None and not is_split_folder(asked.events) and (out is None or out.suffix):
        raise ValueError("--split takes windows of a data set, whose answers go to a folder. Name one with --out.")
    if (figure or table) and all_sequences:
        raise ValueError("--figure and --table show one sequence; got --all. Name one with --sequence.")
    question: dict[str, Any] = {"epsilon": epsilon, "share": share, "size": size, "delta": delta, "refine": refine}
    question |= {"future": future, "history": history, "kind": kind}
    question |= {"only": None if only is None else [name.strip() for name in only.split(",")]}
    if event is not None and all_sequences:
        raise ValueError("--event asks about one event of one sequence; got --all. Name one with --sequence.")
    if all_sequences:
        source = _windows_of(asked.events, pair, split)
        explainer = asked.open_for_parts()
        options: dict[str, Any] = {"windows": windows, "scores": scores, "columns": asked.columns, "work": shared.work}
        return _explain_many(explainer, source, out, json, **options, **question)
    explainer, chosen = asked.open_one(sequence)
    answer: Any = explainer.explain(chosen, **question, event=event, intensities=figure is not None)
    if figure is not None:
        _write_picture(answer, figure)
    if table is not None:
        _write_table(answer.to_frame(), table)
    if json:
        _print_json(answer.to_dict())
    else:
        _show_explanation(answer)
    return DONE if answer.status == "explained" else ANSWER_IS_NO


def _windows_of(events: Path, pair: str | None, split: str | None) -> Any:
    """A file or folder as it is; or a split of a data set of the Hub, or of a folder of `ehd-hf data windows`."""
    from .data.sequences import split_files
    from .data.tables import column_names, is_split_folder

    if split is None:
        events.is_dir() or column_names(events)  # a file that cannot be read is refused before a model is opened
        return events
    if pair is None and is_split_folder(events):
        files = split_files(events)
        if split not in files:
            raise ValueError(f"{events} holds the splits {', '.join(files)}; got {split!r}. Name one of these.")
        return files[split]
    import datasets

    return datasets.load_dataset(str(events), pair, split=split)


def _show_failed(failed: list[str]) -> None:
    for reason in failed[:EVENTS_SHOWN]:
        _say(f"given up: {reason}", stderr=True)
    if failed:
        _say(
            f"{len(failed):,} parts were given up; what was finished is kept. Repeat the command to try again.",
            stderr=True,
        )


def _show_explanation(answer: Explanation) -> None:
    frame: Any = answer.to_frame()
    rows = [
        (
            event.position,
            str(event.time)[:19].removesuffix(" 00:00:00") if hasattr(event.time, "year") else f"{event.time:.6g}",
            event.mark,
            "explains" if event.role == "distilled" else "is explained",
            "" if event.role == "future" else f"{event.score:.3g}",
            *([f"{event.agreement} of {answer.num_models}"] if answer.agreement and event.role != "future" else []),
        )
        for event in frame[frame["role"] != "left"].tail(EVENTS_SHOWN).itertuples()
    ]
    _show(rows, ("event", "time", "mark", "role", "score", *(["models"] if answer.agreement else [])))
    _say(str(answer))


def _explain_many(explainer: EHDDistiller, source: Any, out: Path | None, json: bool, **asked: Any) -> int:
    """Explain any number of windows into a file or a folder; without one, print the answers."""
    from .explain.many import explain_many

    with TemporaryDirectory() as scratch:
        file = Path(scratch) / "answers.jsonl" if out is None else out
        try:
            done = explain_many(explainer, source, file, **asked)
        except KeyboardInterrupt:
            kept = "nothing was written" if file.suffix else "what was finished is kept. Repeat the command to go on"
            _say(f"interrupted; {kept}.", stderr=True)
            return INTERRUPTED
        _show_notes(done.notes, stderr=True)
        _show_failed(done.failed)
        if out is None:
            _show_answers(file, json)
    where = "" if out is None else f" Answers{'' if done.finished else ' so far'}: {out}"
    mean = "" if done.mean_size is None else f", by {done.mean_size:.1f} events on average"
    if json and out is not None:
        _print_json({**vars(done), "out": str(out)})
    elif not json:
        _say(
            f"{done.explained:,} of {done.windows:,} windows are explained{mean}. In {done.explains_nothing:,} the "
            f"past explains nothing, in {done.infeasible:,} no set meets the target; {done.too_short:,} sequences are "
            f"too short.{where}"
        )
    if done.failed:
        return BAD_INPUT
    return DONE if done.explained else ANSWER_IS_NO


def _show_answers(file: Path, json: bool) -> None:
    """The rows of a JSON Lines file: as they are, or the first few in a table."""
    with file.open(encoding="utf-8") as lines:
        if json:
            sys.stdout.writelines(lines)
            return
        rows = [json_module.loads(line) for line in itertools.islice(lines, ROWS_SHOWN)]
    shown = ((row["seq_id"], row["status"], row["num_distilled"], ", ".join(row["marks"][-5:])) for row in rows)
    _show(shown, ("sequence", "status", "events", "the last of them"))


@_command(
    "why model/ events.csv --sequence 42 --event page",
    "why model/ events.csv --sequence 42 --event -1 --out why.html",
)
def why(
    asked: Asked,
    sequence: str | None = _option("In which sequence.", "ID"),
    event: Any = _option(
        "An index (-1: the last), a time, or a mark, whose last event is meant.", "EVENT", "-1", parser=_event
    ),
    out: Path | None = _option("Also write a page (.html), a picture (.png, .svg, .pdf) or a table (.csv).", "FILE"),
    history: Any = HISTORY,
    json: bool = AS_JSON,
) -> int:
    """Why did this one event happen?

    The probability of each event before it to be the cause, and of none of them.
    """
    _check_ending(out, ".html", ".csv", ".png", ".svg", ".pdf")
    explainer, chosen = asked.open_one(sequence)
    answer: Any = explainer.why(chosen, event=event, history=history)
    if out is not None:
        _write(answer, out)
    if json:
        _print_json(answer.to_dict())
        return DONE
    if answer.history:
        weighed = sorted(answer.history, key=lambda one: abs(one.score or 0.0), reverse=True)
        told = [one for one in weighed[:MOST_CAUSES] if abs(one.score or 0.0) >= LEAST_SHOWN]
        rows = [(one.position, str(one.time)[:19].replace("T", " "), one.mark, f"{one.score:.1%}") for one in told]
        _show([*rows, ("", "", "nothing before it", f"{answer.p_none:.1%}")], ("event", "time", "mark", "probability"))
    _say(str(answer))
    end = answer.event.position + 1
    recent = chosen.select([0], max(end - ROOTS_WITHIN, 0), end)
    _say_root(explainer.trace(recent, history=history, progress=False), recent.num_events - 1)
    return DONE


def _say_root(trace: Any, event: int) -> None:
    """With what an event began, if it did not begin with itself."""
    root = trace.roots(event).iloc[0]
    if root.event != event:
        when = str(root.time)[:19]
        _say(f"It most likely began with the {root.mark} at {when} ({root.probability:.0%}).")


@_command("what-if model/ events.csv --sequence 42 --without deploy --horizon 1h", name="what-if")
def what_if(
    asked: Asked,
    horizon: Any = _option(
        "How far to look: such as 90min, or a number of the model's unit.", "LENGTH", ..., parser=_event
    ),
    sequence: str | None = _option("After which sequence.", "ID"),
    without: list[Any] | None = _option(
        "Event to take out: an index, a time, or a mark for all. Repeatable.", "EVENT", parser=_event
    ),
    adding: list[str] | None = _option("Event to put in: its time, a comma, its mark. Repeatable.", "TIME,MARK"),
    samples: int = typer.Option(1000, min=1, metavar="N", help="Futures to simulate of each world."),
    history: Any = HISTORY,
    seed: int = typer.Option(0, min=0, help="Of the simulation."),
    json: bool = AS_JSON,
) -> int:
    """What would follow if these events had not happened?

    Futures are simulated from the last event on, with and without them, or with
    others added. It is what the model believes, and no experiment.
    """
    pairs = [tuple(text.split(",", 1)) for text in adding or ()]
    if bad := [text for text, pair in zip(adding or (), pairs, strict=True) if len(pair) < 2]:
        raise ValueError(f"--adding is a time, a comma and a mark; got {bad[0]!r}. Try --adding '3.5,deploy'.")
    explainer, chosen = asked.open_one(sequence)
    options: dict[str, Any] = {"without": without or (), "num_samples": samples, "history": history, "seed": seed}
    options["adding"] = [(_event(when), what.strip()) for when, what in pairs]
    answer = explainer.what_if(chosen, horizon=horizon, **options)
    if json:
        _print_json(answer.to_dict())
        return DONE
    frame = answer.to_frame()
    names = ("count_with", "count_without", "probability_with", "probability_without")
    rows = [(row["kind"], *(f"{row[name]:.2f}" for name in names)) for _, row in frame.iterrows()]
    _show(rows, ("kind", "expected, as it was", "changed", "at least one, as it was", "changed"))
    _say(str(answer))
    return DONE


@_command("trace model/ events.csv --out causes.parquet", "trace model/ events.csv --sequence 42 --out trace.html")
def trace(
    asked: Asked,
    shared: Shared,
    out: Path = typer.Option(
        help="File or folder of causes; of one sequence also .html (a page), .png, .svg, .pdf, .json (Perfetto), .dot."
    ),
    sequence: str | None = _option("One sequence; by default all.", "ID"),
    at_least: float = typer.Option(0.01, min=0, max=1, help="Leave out causes less probable than that."),
    history: Any = HISTORY,
    json: bool = AS_JSON,
) -> int:
    """Which event caused which, in a whole log?

    A row for each event and each of its probable causes: event, cause (both by
    their position in the sequence), probability, lag. Or of one sequence a page
    with arrows, a picture, or a file for ui.perfetto.dev or Graphviz.
    """
    of_one = (".html", ".png", ".svg", ".pdf", ".json", ".dot")
    if out.suffix in of_one or sequence is not None:
        _check_ending(out, ".csv", *of_one)
        explainer, chosen = asked.open_one(sequence)
        found: Any = explainer.trace(chosen, history=history, at_least=at_least)
        _write(found, out)
        if json:
            _print_json(found.to_frame().to_dict("records"))
        else:
            _say(f"{found}\nThe whole is in {out}.")
        return DONE
    from .explain.many import trace_many

    explainer = asked.open_for_parts()
    options: dict[str, Any] = {"history": history, "at_least": at_least, "columns": asked.columns}
    done = trace_many(explainer, asked.events, out, **options, work=shared.work)
    _show_notes(done.notes, stderr=True)
    _show_failed(done.failed)
    if json:
        _print_json({**vars(done), "out": str(out)})
    else:
        _say(f"{done.causes:,} probable causes of {done.events:,} events: {out}")
    return BAD_INPUT if done.failed else DONE


@_command("influence model/ events.csv --out influence.png", "influence model/ alarms.csv --related related.csv")
def influence(
    asked: Asked,
    out: Path | None = _option("Also write every pair, to .csv or .json, or a picture, .png.", "FILE"),
    history: Any = HISTORY,
    json: bool = AS_JSON,
) -> int:
    """Which kinds of events drive which?

    How many events of one kind an event of another sets off, and which share of
    them it explains, with intervals, beside how often one simply comes before
    the other. A file larger than memory is read a part at a time.
    """
    _check_ending(out, ".csv", ".json", ".png", ".svg", ".pdf")
    source: Any = asked.events
    if asked.has_context:
        explainer, read = asked.open()
        source = explainer.load(read.events)
    else:
        explainer = asked.open_for_parts()
    found = explainer.influence(source, history=history, columns={} if asked.has_context else asked.columns)
    if out is not None:
        _write(found, out)
    if json:
        _print_json(found.to_dict())
        return DONE
    names = ("per_cause", "low", "high", "share", "lift")
    shown = found.to_frame().head(ROWS_SHOWN).to_dict("records")
    rows = [(row["cause"], row["effect"], *(f"{row[name]:.2f}" for name in names)) for row in shown]
    _show(rows, ("cause", "effect", "per cause", "from", "to", "share of effects", "lift"))
    _say(str(found))
    return DONE


@_command("evaluate model/ events.csv")
def evaluate(
    asked: Asked,
    max_events: int = MAX_EVENTS,
    json: bool = AS_JSON,
) -> int:
    """How good is a model on a table of events?

    Of the file it was trained on, the sequences it has not seen are taken. Of any
    other file all are, and the trivial models beside it are fitted to these very
    events, which flatters them. Exit code 1: the best of them is as good.
    """
    explainer, read = asked.open(max_events=max_events)
    from .training import recipe as fitting

    parts = fitting.unseen_part(Path(asked.model), read.events, read.splits)
    if read.splits is not None:
        _say("note: the sequences of its test file are taken.", stderr=True)
    elif parts is not None:
        _say("note: it was trained on this file; the sequences it has not seen are taken.", stderr=True)
    split = "all" if parts is None else "test"
    rows = fitting.score_model(explainer.model, parts or {"test": read.events}, data=asked.events.name, split=split)
    verdict = _judge(rows, json, split=split)
    if not json:
        _say(verdict.sentence if verdict.good else f"{verdict.sentence} {verdict.advice}")
    return DONE if verdict.good else ANSWER_IS_NO


@_command("models")
def models(json: bool = AS_JSON) -> int:
    """The models that come with the package."""
    from .hub.fetch import CHECKPOINTS

    rows = []
    for file in sorted(CHECKPOINTS.glob("*/config.json")):
        config = json_module.loads(file.read_text(encoding="utf-8"))
        process = config["mtpp_config"]
        fields = ("model_type", "history", "future", "share", "epsilon", "conditioning")
        row = {"name": file.parent.name} | {name: config.get(name) for name in fields}
        row |= {"time_unit": process.get("time_unit"), "marks": list(process["id2label"].values())}
        rows.append(row | {"example": (file.parent / "example.csv").is_file()})
    if json:
        _print_json(rows)
        return DONE
    columns = {"name": "model", "model_type": "kind", "history": "past", "future": "next", "time_unit": "unit"}
    shown = (
        [*(row[name] for name in columns), f"{len(row['marks'])}: {', '.join(row['marks'][:4])}, ..."] for row in rows
    )
    _show(shown, (*columns.values(), "marks"))
    _say("Give one of these names where a command asks for a MODEL, or train your own with ehd-hf train.")
    return DONE


@_command("data inspect events.csv --time ts --mark type --sequence user", group=data)
def inspect(
    table: Table,
    json: bool = AS_JSON,
) -> int:
    """Look at a table, and at what may go wrong with it."""
    from .data.inspection import describe_events, inspect_events
    from .data.splits import split_events

    read = table.read()
    findings, problem = inspect_events(read.events), None
    try:
        split_events(read.events, sum(findings.figures["window"].values()), given=read.splits)
    except ValueError as error:
        problem = str(error)
    columns = {role: getattr(read.reading, role) for role in ("time", "mark", "sequence")}
    if json:
        told = {"notes": read.notes, "warnings": findings.warnings, "trainable": problem is None, "problem": problem}
        _print_json({**findings.figures, "columns": columns, "time_format": read.reading.time_format, **told})
        return DONE if problem is None else ANSWER_IS_NO
    _show(describe_events(findings, read.reading), title=str(table.events))
    counts = list(findings.figures["mark_counts"].items())
    rows = [(name, f"{count:,}", f"{count / read.events.num_events:.1%}") for name, count in counts[:ROWS_SHOWN]]
    more = [(f"{len(counts) - ROWS_SHOWN} more", "", "")] if len(counts) > ROWS_SHOWN else []
    _show(rows + more, ("mark", "events", "share"))
    _show_notes(read.notes)
    _show_notes(findings.warnings, "warning")
    if problem is not None:
        _say(f"It cannot be trained on: {problem}")
        return ANSWER_IS_NO
    again = {**columns, "time-format": table.time_format}
    named = [word for role, name in again.items() if name is not None for word in (f"--{role}", name)]
    _say(f"It can be trained on: {shlex.join(['ehd-hf', 'train', str(table.events), *named, '--out', 'model/'])}")
    return DONE


@_command("data example events.csv", group=data)
def example(
    out: Path = typer.Argument(Path("events.csv"), metavar="FILE", help="CSV file to write."),
    sequences: int = typer.Option(120, min=1, metavar="N", help="How many services the log is of."),
    seed: int = typer.Option(0, min=0, help="Of the simulation."),
) -> int:
    """Write a simulated log to try the commands on."""
    if out.suffix != ".csv":
        raise ValueError(f"the example is a CSV file; got {out.name!r}. Let the name end in .csv.")
    if out.exists():
        raise ValueError(f"{out} exists and is left as it is. Choose another name.")
    from .data.synthetic import example_log

    _write_table(frame := example_log(sequences, seed), out)
    _say(f"{len(frame):,} events of {frame['service'].nunique()} services are in {out}.")
    _say(f"Next: ehd-hf train {out} --time ts --mark type --sequence service --out model/")
    return DONE


@_command("data windows events.csv --sequence user --pair 5-20 --out windows/", name="windows", group=data)
def write_windows(
    source: Path = typer.Argument(metavar="SOURCE", help="File of events, or folder with train, ..., test."),
    out: Path = typer.Option(help="Folder to write; replaced if it is such a data set."),
    pair: list[str] | None = _option("Future and history, 15-40 if not given; may be repeated.", "K-L"),
    name: str | None = _option("Name of the data set; by default that of the source."),
    card: Path | None = _option("YAML file with the card's texts.", "FILE"),
    time: str | None = TIME,
    mark: str | None = MARK,
    sequence: str | None = SEQUENCE,
    time_unit: str | None = _option("Unit of the times: ms, s, min, h or D.", "UNIT"),
    sort: bool = _flag("Sort the events of each sequence by time.", "--sort"),
    context: str | None = _option("Marks that are only causes; the card says so.", "MARK,MARK"),
    overwrite: bool = _flag("Replace --out whatever it holds.", "--overwrite"),
) -> int:
    """Cut sequences into windows, as a data set for datasets.load_dataset."""
    import yaml

    from .data.export import export_windows
    from .data.sources import load_source
    from .data.windows import parse_pair

    pairs = pair or ["15-40"]
    given: dict[str, Any] = {"time": time, "mark": mark, "sequence": sequence, "time_unit": time_unit, "sort": sort}
    splits = load_source(source, **{key: value for key, value in given.items() if value})
    about: dict[str, Any] = {"name": name or source.resolve().stem, "overwrite": overwrite}
    about |= {"card": yaml.safe_load(card.read_text("utf-8"))} if card else {}
    about |= {"context_marks": context.split(",")} if context else {}
    written = export_windows(splits, out, [parse_pair(pair) for pair in pairs], **about)
    _say(f"{', '.join(pairs)} and the sequences are in {written}.")
    return DONE


@_command("report model/ events.csv --out report.html")
def report(
    asked: Asked,
    out: Path = typer.Option(Path("report.html"), help="HTML file to write."),
    title: str | None = _option("Title of the report."),
    max_explanations: int = typer.Option(200, min=1, metavar="N", help="Explanations in it at most."),
    future: int | None = FUTURE,
    history: Any = HISTORY,
    max_events: int = MAX_EVENTS,
) -> int:
    """Write a report that anyone can open.

    One HTML file: how good the model is, what explains what, and every
    explanation to look at.
    """
    if out.is_dir():
        raise ValueError(f"a report is one HTML file; {out} is a folder. Pass --out {out / 'report.html'}.")
    explainer, read = asked.open(max_events=max_events)
    from .present.report import write_report
    from .training.recipe import unseen_part

    options: dict[str, Any] = {"future": future, "history": history, "max_explanations": max_explanations}
    options |= unseen_part(Path(asked.model), read.events, read.splits) or {}
    written = write_report(explainer, read.events, out, title=title or asked.events.name, **options)
    _say(f"Open {written} in a browser.")
    return DONE


@_command(
    "push model/ somebody/model --dry-run",
    "push model/ somebody/model --card about_my_data.yaml --private",
    "push windows/ somebody/windows",
)
def push(
    folder: Path = typer.Argument(help="Of a trained model, of data windows, or with an app.py."),
    repo: str = typer.Argument(metavar="REPO", help="somebody/name on the Hub; made if it is not there."),
    card: Path | None = _option("YAML with words about a model's data.", "FILE"),
    rows: list[Path] | None = _option("Evaluation rows for its card, if not its own.", "FILE"),
    command: list[str] | None = _option("What trained it, in order, for its card."),
    dataset: str | None = _option("Hub id of what it was trained on, for its card.", "ID"),
    revision: str | None = _option("Branch; made if it is not there."),
    message: str | None = _option("Of the commit."),
    private: bool = _flag("Make a new repository private.", "--private"),
    dry_run: bool = _flag("Show what would be uploaded, and stop.", "--dry-run"),
) -> int:
    """Push a model, windows or an app to the Hub.

    One commit with weights, code, a card and the rows it is made from. Log in
    with hf auth login, or set HF_TOKEN.
    """
    from .hub.push import push_folder

    options: dict[str, Any] = {"rows": rows or (), "card": card, "commands": command or (), "dataset": dataset}
    options |= {"revision": revision, "private": private or None, "commit_message": message}
    done = push_folder(folder, repo, dry_run=dry_run, **options)
    _show(((path, f"{size:,}", state) for path, size, state in done.files), ("file", "bytes", "state"))
    _say(f"{done.repo_type} {repo}: {'nothing was uploaded.' if done.url is None else f'committed as {done.url}'}")
    return DONE


@_command("app --model model/", name="app")
def start_app(
    model: str = typer.Option("incidents", help="Folder, bundled name or Hub id to begin with."),
    port: int | None = _option("Port to listen on."),
) -> int:
    """Explain events in a browser, interactively."""
    from .app import launch  # says what to install where the extra is missing

    launch(model=model, port=port)
    return DONE


if __name__ == "__main__":
    app()
