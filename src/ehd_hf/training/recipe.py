"""What `ehd-hf train` does: look at the events, plan, train both stages, judge the model by unseen sequences.

A model's folder: `config.json` + `model.safetensors` (the distiller with its point process), `reading.json` (how its
events are read), `plan.json` (how they were split and trained on), `results.jsonl` (how good it is), `training/` (both
runs; an interrupted one goes on from there). The first two appear when everything is done.
"""

from __future__ import annotations

import json
import math
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoModel
from transformers.utils import logging as transformers_logging

from .. import __version__
from ..data.reading import EITHER, EPOCHS, SELDOM, Reading
from ..data.sequences import EventSequences, unit_in_nanoseconds
from ..data.windows import CropStore, WindowStore, make_crops, make_windows
from ..evaluation.answers import compare
from ..evaluation.scores import checkpoint_stamp, evaluate_mtpp, events_digest, trivial_baselines
from ..files import holds_nothing, locked, make_folder, read_rows, remove_folder, replaced_when_done, write_text
from ..models.distiller import DistillerModel
from ..models.fullynn import FullyNNConfig, FullyNNModel
from ..models.point_process import MTPPModel
from ..models.question import Question
from ..models.ranking import RankingDistillerModel
from .trainer import Trainer, TrainingArguments

Row = dict[str, Any]

PLAN_FILE, READING_FILE, RESULTS_FILE = "plan.json", "reading.json", "results.jsonl"
STAGES = {"point_process": "learning what usually follows what", "distiller": "learning what explains it"}
SHARE = 0.7
# A point process that has not improved for so many evaluations has learnt what it can.
PATIENCE = 5
SECONDS_BETWEEN_CHECKPOINTS = 20
MOST_TEST_EVENTS, MOST_TEST_WINDOWS = 50_000, 200
# Nats per event by which a model must beat the trivial ones to count as one that knows more.
SMALLEST_GAIN = 0.02
# Explanations this much smaller than the most recent events would have to be say more than "recently".
LESS_THAN_RECENT = 0.95
MODEL, SOLVER = "this model", "distiller+prune"
SPLITS = {"train": 0.8, "validation": 0.1, "test": 0.1}
SHORTEST_WINDOW, LONGEST_WINDOW = 4, 36  # events, history and future together
FUTURE_SHARE = 1 / 6
CROP_LENGTH = 64
BATCH_SIZE = 64
# Steps of each stage: so many passes over the training data, within bounds.
MTPP_PASSES, MTPP_STEPS = 100, (1000, 6000)
DISTILLER_PASSES, DISTILLER_STEPS = 10, (300, 1500)
# A budget shrinks the stages to these steps at most, stretches them by this factor, and gives this share to the first.
FEWEST_STEPS, MOST_OF_PLAN, MTPP_TIME = (20, 10), 4.0, 0.4
NUM_EVALUATIONS = {"mtpp": 16, "distiller": 6}
VALIDATION_ITEMS = {"mtpp": 1000, "distiller": 300}
FINAL_SECONDS = 10.0  # scoring the test split at the end; a guess
# When to warn: fewer events, a mean interval so many times the first quartile (of draws at random 3.5).
FEW_EVENTS, BURSTY = 2000, 100


@dataclass(frozen=True)
class Plan:
    """How to train both stages.

    Args:
        history, future: L and K of the windows.
        crop_length: most events the point process sees at a time.
        mtpp_steps, distiller_steps: optimiser steps of the stages.
        mtpp_batch, distiller_batch: crops, and windows, in a step.
        split: "by sequence"; or "in time", where sequences are too few: the first part of each, the next, the last.
        seed: of the split, the initial weights and all that is drawn.
    """

    history: int
    future: int
    crop_length: int
    mtpp_steps: int
    distiller_steps: int
    mtpp_batch: int = BATCH_SIZE
    distiller_batch: int = BATCH_SIZE
    split: str = "by sequence"
    seed: int = 0

    @property
    def window(self) -> int:
        return self.history + self.future

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Costs(NamedTuple):
    """Seconds of one training step of each stage."""

    mtpp: float
    distiller: float


class Findings(NamedTuple):
    """What a table of events looks like: figures by name, and what may go wrong with it."""

    figures: dict[str, Any]
    warnings: list[str]


def make_plan(
    events: EventSequences, *, history: int | None = None, future: int | None = None, seed: int = 0
) -> tuple[Plan, dict[str, EventSequences]]:
    """A plan for these events, and their splits train, validation and test."""
    history, future = choose_window(events.lengths, history, future)
    splits, how = split_events(events, history + future, seed)
    train = splits["train"]
    crop_length = int(min(max(CROP_LENGTH, history + future), max(train.lengths.max(), 2)))
    crop = min(crop_length, float(train.lengths.mean()))
    windows = num_windows(train.lengths, history + future)
    mtpp_batch, distiller_batch = (int(min(BATCH_SIZE, size)) for size in (train.num_events, windows))
    plan = Plan(
        history=history,
        future=future,
        crop_length=crop_length,
        mtpp_steps=_between(MTPP_PASSES * train.num_events / (mtpp_batch * crop), MTPP_STEPS),
        distiller_steps=_between(DISTILLER_PASSES * windows / distiller_batch, DISTILLER_STEPS),
        mtpp_batch=mtpp_batch,
        distiller_batch=distiller_batch,
        split=how,
        seed=seed,
    )
    return plan, splits


def _between(value: float, bounds: tuple[int, int]) -> int:
    return int(round(min(max(value, bounds[0]), bounds[1]), -1))


# --- windows and splits


def choose_window(lengths: np.ndarray, history: int | None = None, future: int | None = None) -> tuple[int, int]:
    """L and K: three quarters of the median sequence, at most 36 events, a sixth of them the future.

    Where fewer than three sequences are long enough, so that each must be cut in time: a twelfth of the longest.
    """
    for name, value in (("history", history), ("future", future)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1 event; got {value}. Leave it out to have it chosen.")
    if history is not None and future is not None:
        return history, future
    if (lengths >= SHORTEST_WINDOW).sum() >= 3:
        typical = 0.75 * float(np.median(lengths[lengths >= SHORTEST_WINDOW]))
    else:
        typical = float(lengths.max()) / 12
    window = int(min(max(typical, SHORTEST_WINDOW), LONGEST_WINDOW))
    if history is not None:
        return history, max(1, round(history * FUTURE_SHARE / (1 - FUTURE_SHARE)))
    if future is None:
        future = max(1, round(window * FUTURE_SHARE))
    return max(window - future, future, 1), future


def num_windows(lengths: np.ndarray, window: int) -> int:
    """How many windows sequences of these lengths give (see `windows.make_windows`)."""
    return int(np.where(lengths == window, 1, np.maximum(lengths - window, 0)).sum())


def split_events(events: EventSequences, window: int, seed: int = 0) -> tuple[dict[str, EventSequences], str]:
    """Splits train, validation and test, each with a window of `window` events, and how they were made.

    Whole sequences, by a hash of their names: the order of the rows in a file does not matter. Where fewer than three
    sequences are long enough, every sequence is cut in time instead.
    """
    lengths = events.lengths
    is_long = lengths >= window
    if is_long.sum() < 3:
        return _cut_in_time(events, window), "in time"
    key = np.array([zlib.crc32(f"{seed}:{name}".encode()) for name in events.seq_ids])
    chosen: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
    for group, fewest in ((is_long, 1), (~is_long, 0)):
        members = np.flatnonzero(group)
        members = members[np.lexsort((members, key[members]))]
        held_out = max(fewest, round(SPLITS["validation"] * len(members)))
        chosen["validation"].append(members[:held_out])
        chosen["test"].append(members[held_out : 2 * held_out])
        chosen["train"].append(members[2 * held_out :])
    return {split: events.select(np.sort(np.concatenate(parts))) for split, parts in chosen.items()}, "by sequence"


def _cut_in_time(events: EventSequences, window: int) -> dict[str, EventSequences]:
    """The first 80 %, the next 10 % and the last 10 % of every sequence that is long enough for a window in each."""
    lengths = events.lengths
    edges = np.cumsum([0.0, *SPLITS.values()])
    bounds = np.rint(lengths[:, None] * edges).astype(np.int64)  # (S, 4)
    whole = np.flatnonzero((np.diff(bounds, axis=1) >= window).all(1))
    if not len(whole):
        raise ValueError(
            f"training needs three sequences of at least {window} events, or one of about {10 * window + 5}; there "
            f"{'is' if len(events) == 1 else 'are'} {len(events):,}, the longest of {int(lengths.max()):,} events. "
            "Give more events, name the column of sequences, or ask for a shorter history."
        )
    previous, splits = events.previous_times(), {}
    for number, split in enumerate(SPLITS):
        first = events.offsets[whole] + bounds[whole, number]
        last = events.offsets[whole] + bounds[whole, number + 1]
        where = np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)])
        splits[split] = replace(
            events.select(whole),
            times=events.times[where],
            marks=events.marks[where],
            offsets=np.concatenate([[0], np.cumsum(last - first)]).astype(np.int64),
            starts=events.starts[whole] if number == 0 else previous[first],
        )
    return splits


# --- time


def estimate_seconds(plan: Plan, costs: Costs) -> float:
    """How long both stages and the last evaluation take."""
    mtpp, distiller = _evaluation_seconds(plan, costs)
    return plan.mtpp_steps * costs.mtpp + mtpp + plan.distiller_steps * costs.distiller + distiller + FINAL_SECONDS


def _evaluation_seconds(plan: Plan, costs: Costs) -> Costs:
    """What the evaluations of each stage take: they look at their items once and learn nothing, half a step's work."""
    batches = (plan.mtpp_batch, plan.distiller_batch)
    items = zip(NUM_EVALUATIONS.values(), VALIDATION_ITEMS.values(), batches, costs, strict=True)
    return Costs(*(number * size / batch * 0.5 * cost for number, size, batch, cost in items))


def fit_to_budget(plan: Plan, costs: Costs, minutes: float) -> Plan:
    """The plan with as many steps as `minutes` allow, at most four times its own.

    The point process comes first, up to 40 % of the time: explanations cannot be better than it is.
    """
    if not minutes > 0:
        raise ValueError(f"minutes must be above 0; got {minutes}. Leave it out for the plan's own time.")
    evaluations = _evaluation_seconds(plan, costs)
    available = 60 * minutes - FINAL_SECONDS - sum(evaluations)
    few, most = FEWEST_STEPS, MOST_OF_PLAN
    mtpp = min(plan.mtpp_steps, int(MTPP_TIME * available / costs.mtpp))
    distiller = min(int(most * plan.distiller_steps), int((available - mtpp * costs.mtpp) / costs.distiller))
    rest = available - distiller * costs.distiller
    mtpp = max(mtpp, min(int(most * plan.mtpp_steps), int(rest / costs.mtpp)))
    return replace(plan, mtpp_steps=max(few[0], mtpp), distiller_steps=max(few[1], distiller))


def duration(seconds: float) -> str:
    """ "40 s", "6 min", "2.5 h": as precise as an estimate deserves."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# --- how a table looks


def inspect_events(events: EventSequences) -> Findings:
    """Figures of the events, and what may go wrong when a model is trained on them."""
    lengths, intervals = events.lengths, events.intervals()
    inner = np.ones(events.num_events, dtype=bool)
    inner[events.offsets[:-1]] = False
    # What was spread within its resolution is looked at as the source has it.
    shown = intervals[inner]
    if events.resolution is not None:
        before, after = events.times[:-1][inner[1:]], events.times[1:][inner[1:]]
        shown = (np.floor(after / events.resolution) - np.floor(before / events.resolution)) * events.resolution
    counts = np.bincount(events.marks, minlength=events.num_marks)
    history, future = choose_window(lengths)
    figures: dict[str, Any] = {
        "sequences": len(events),
        "events": events.num_events,
        "marks": events.num_marks,
        "events_per_sequence": {
            "fewest": int(lengths.min()),
            "median": float(np.median(lengths)),
            "most": int(lengths.max()),
        },
        "time_unit": events.time_unit,
        "interval": None,
        "tied": float((shown == 0).mean()) if len(shown) else 0.0,
        "window": {"history": history, "future": future},
        "windows": num_windows(lengths, history + future),
        "mark_counts": {events.id2label[int(mark)]: int(counts[mark]) for mark in np.argsort(-counts, kind="stable")},
    }
    if len(shown):
        low, median, high = np.quantile(shown, (0.05, 0.5, 0.95))
        figures["interval"] = {"mean": shown.mean(), "5 %": low, "median": median, "95 %": high}
        figures["interval"] = {name: float(value) for name, value in figures["interval"].items()}
    if events.epochs is not None:
        last = events.times[events.offsets[1:] - 1]
        if events.resolution is not None:
            last = np.floor(last / events.resolution) * events.resolution
        last = last * unit_in_nanoseconds(events.time_unit or "s")
        ends = events.epochs + last.astype("timedelta64[ns]")
        for name, moment in (("from", events.epochs.min()), ("to", ends.max())):
            figures[name] = str(moment.astype("datetime64[s]")).replace("T", " ")
    return Findings(figures, list(_warnings(events, figures, shown, counts)))


def _warnings(
    events: EventSequences, figures: Mapping[str, Any], intervals: np.ndarray, counts: np.ndarray
) -> Iterator[str]:
    """Sentences, the gravest first."""
    lengths, unit = events.lengths, f" {events.time_unit}" if events.time_unit else ""
    window = sum(figures["window"].values())
    if len(events) == 1:
        yield "There is one sequence only; it will be cut in time. If there are several, name the sequence column."
    if (counts > 0).sum() == 1:
        yield "All events are of one kind, so only their times can be explained. Is the mark column the right one?"
    if events.num_events < FEW_EVENTS:
        yield f"{events.num_events:,} events are few: expect a model that knows little more than averages."
    if len(intervals) and intervals.max() == 0:
        yield "All events of a sequence have the same time: nothing can be learnt from intervals."
    elif len(intervals) and intervals.min() == intervals.max():
        yield f"All intervals are equal ({intervals[0]:g}{unit}): the times carry no information."
    elif len(intervals):
        mean, quartile = intervals.mean(), float(np.quantile(intervals[intervals > 0], 0.25))
        if mean > BURSTY * quartile:
            yield (
                f"Events come in bursts: a quarter follow within {quartile:.3g}{unit}, though the mean interval is "
                f"{mean:.3g}{unit}. Such bursts are easy to predict and will be much of what is explained."
            )
    if figures["tied"] > 0.01 and events.resolution is None:  # else it was said, and something was done about it
        yield f"{figures['tied']:.1%} of the intervals are 0: events share their time, and have the file's order."
    times, marks = events.times, events.marks
    if events.resolution is not None:
        times = np.floor(times / events.resolution)
    repeated = (times[1:] == times[:-1]) & (marks[1:] == marks[:-1])
    repeated[events.offsets[1:-1] - 1] = False  # from one sequence to the next
    if repeated.sum() > 0.01 * events.num_events:
        yield f"{int(repeated.sum()):,} events repeat the one before them, time and mark: were rows written twice?"
    short = int((lengths < window).sum())
    if short > 0.25 * len(events):
        yield (
            f"{short:,} of {len(events):,} sequences have fewer than {window} events, too short for a window of "
            f"{figures['window']['history']} past and {figures['window']['future']} future ones."
        )
    rare = [name for name, count in figures["mark_counts"].items() if 0 < count < SELDOM]
    if rare:
        listed = ", ".join(rare[:3]) + (", ..." if len(rare) > 3 else "")
        happen = "mark happens" if len(rare) == 1 else "marks happen"
        yield f"{len(rare)} {happen} fewer than {SELDOM} times ({listed}): too seldom to learn from."
    if events.epochs is not None and (lone := int((events.epochs < np.datetime64("1980-01-01")).sum())):
        yield f"{lone:,} sequences begin before 1980: are these times, or blanks that were filled in?"


# --- in words

_UNIT_WORDS = {"ms": "milliseconds", "s": "seconds", "min": "minutes", "h": "hours", "D": "days"}
_WRITTEN = {"iso": "timestamps", "number": "plain numbers"} | {unit: f"{unit} since 1970" for unit in EPOCHS}


def describe_events(findings: Findings, reading: Reading) -> list[tuple[str, str]]:
    """Figures of the events for people: names and texts."""
    figures = findings.figures
    lengths, interval, window = figures["events_per_sequence"], figures["interval"], figures["window"]
    unit = _UNIT_WORDS.get(reading.time_unit or "", reading.time_unit) or "numbers without a unit"
    written = _WRITTEN.get(reading.time_format or "", reading.time_format or "").replace(EITHER, " or ")
    columns = ", ".join(f"{role} {getattr(reading, role)!r}" for role in ("time", "mark", "sequence"))
    span = []
    if "from" in figures:
        span = [("from, to", ", ".join(figures[end].removesuffix(" 00:00:00") for end in ("from", "to")))]
    told = ", ".join(f"{name} {value:.3g}" for name, value in interval.items()) if interval else "none"
    return [
        ("events", f"{figures['events']:,} in {figures['sequences']:,} sequences"),
        ("a sequence", f"{lengths['fewest']:,} to {lengths['most']:,} events, median {lengths['median']:g}"),
        ("columns", columns.replace("sequence None", "no sequence column")),
        *span,
        ("times", written if unit == written else f"{written}, here in {unit}"),
        ("intervals", told),
        ("windows", f"{figures['windows']:,} of {window['history']} past and {window['future']} next events"),
    ]


def describe_plan(
    plan: Plan, splits: Mapping[str, EventSequences], findings: Findings, reading: Reading, costs: Costs
) -> list[tuple[str, str]]:
    """A plan for people: names and texts."""
    counts = list(findings.figures["mark_counts"].items())
    marks = f"{len(counts)}, from {counts[0][0]} ({counts[0][1]:,}) to {counts[-1][0]} ({counts[-1][1]:,})"
    sizes = " / ".join(f"{len(splits[name]):,}" for name in SPLITS)
    windows = num_windows(splits["train"].lengths, plan.window)
    return [
        *(row for row in describe_events(findings, reading) if row[0] != "windows"),
        ("marks", marks),
        ("window", f"{plan.history} past events explain the next {plan.future}; {windows:,} windows to train on"),
        ("split", f"{plan.split}: {sizes} sequences for training / validation / test"),
        ("steps", f"{plan.mtpp_steps:,} of the point process, {plan.distiller_steps:,} of the distiller"),
        ("time", f"about {duration(estimate_seconds(plan, costs))}, judging by a few steps that were tried"),
    ]


class Verdict(NamedTuple):
    """How good a model is, in a sentence; what to do next; and whether it knows more than averages."""

    sentence: str
    advice: str
    good: bool


# --- the run's folder


def saved_run(out: Path) -> dict[str, Any] | None:
    """What `plan.json` of a model's folder says; None if there is none."""
    file = out / PLAN_FILE
    if not file.is_file():
        return None
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
        if missing := {"request", "reading", "plan", "seconds_per_step", "finished"} - set(run):
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        return run
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{file} is not the plan of a training run: {error}. Train again, in another folder."
        ) from error


def reading_of(model: str, explainer: Any) -> Reading:
    """How the events of a model are read; a folder without `reading.json` may have it in `plan.json`."""
    if not (Path(model) / READING_FILE).is_file() and (run := saved_run(Path(model))):
        return Reading.from_dict(run["reading"])
    return explainer.reading


def open_run(out: Path, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """The interrupted or finished run in `out`, if it was asked for in the same way; None if `out` is free."""
    saved = saved_run(out)
    if saved is None:
        if not holds_nothing(out):
            raise ValueError(f"{out} exists and is not a model of ehd-hf train. Choose another folder.")
        return None
    before, now = ({**asked, **asked.get("reading", {})} for asked in (saved["request"], request))
    changed = [key for key in now if key != "reading" and before.get(key) != now[key]]
    if changed:
        short = (key for key in changed if key not in ("events", "marks"))
        said = [f"{key}: {before.get(key)!r} -> {now[key]!r}" for key in short] or ["other events"]
        raise ValueError(
            f"{out} holds a run that began otherwise ({', '.join(said)}). Repeat its command to go on with it, or "
            "choose another folder."
        )
    return saved


def read_results(out: Path) -> list[Row]:
    """The rows of a finished run."""
    return read_rows(out / RESULTS_FILE)


def request_of(events: EventSequences, **options: Any) -> dict[str, Any]:
    """What makes two runs the same: the events, and what was asked."""
    return {"events": events_digest(events), **options}


def run_record(request: Mapping[str, Any], reading: Reading, plan: Plan, costs: Costs, data: str) -> dict[str, Any]:
    """The contents of `plan.json`."""
    return {
        "version": __version__,
        "data": data,
        "request": dict(request),
        "reading": reading.to_dict(),
        "plan": plan.to_dict(),
        "seconds_per_step": list(costs),
        "finished": False,
    }


def unseen_part(out: Path, events: EventSequences) -> tuple[EventSequences, EventSequences] | None:
    """The test and training splits, if the model in `out` was trained on these very events."""
    run = saved_run(out)
    if run is None or run["request"]["events"] != events_digest(events):
        return None
    plan = Plan(**run["plan"])
    splits, _ = split_events(events, plan.window, plan.seed)
    return splits["test"], splits["train"]


# --- training


def trial(splits: Mapping[str, EventSequences], plan: Plan) -> Costs:
    """Seconds of a training step of each stage, by trying a few."""
    with torch.random.fork_rng():
        mtpp = _new_mtpp(splits["train"], plan)
        crops = make_crops(splits["train"], length=plan.crop_length)
        first = _seconds_per_step(mtpp, crops, plan.mtpp_batch, 6)
        distiller = _new_distiller(mtpp, plan)
        windows = make_windows(splits["train"], future=plan.future, history=plan.history)
        return Costs(first, _seconds_per_step(distiller, windows, plan.distiller_batch, 3))


def _seconds_per_step(model: Any, store: CropStore | WindowStore, batch_size: int, repeats: int) -> float:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.0)
    indices = np.random.default_rng(0).integers(len(store), size=(repeats, batch_size))
    seconds = []
    model.train()
    for rows in indices:
        began = time.perf_counter()
        model(**store.__getitems__(rows)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds[1:]))  # the first one warms up


def _new_mtpp(train: EventSequences, plan: Plan) -> MTPPModel:
    torch.manual_seed(plan.seed)
    config = FullyNNConfig(num_marks=train.num_marks, id2label=dict(train.id2label), time_unit=train.time_unit)
    mtpp = FullyNNModel(config)
    mtpp.fit_time_scale(torch.from_numpy(train.intervals()))
    return mtpp


def _new_distiller(mtpp: MTPPModel, plan: Plan) -> DistillerModel:
    torch.manual_seed(plan.seed)
    return RankingDistillerModel.from_mtpp(
        mtpp, history=plan.history, future=plan.future, share=SHARE, conditioning="survival"
    )


def begin(out: Path, run: Mapping[str, Any]) -> None:
    """Make the folder of a run and note its plan there."""
    make_folder(out)
    with locked(out):
        if open_run(out, run["request"]) is not None:
            raise ValueError(f"another run began in {out} meanwhile. Repeat the command to go on with it.")
        write_text(out / PLAN_FILE, json.dumps(run, indent=1))


def carry_out(
    out: Path,
    splits: Mapping[str, EventSequences],
    run: Mapping[str, Any],
    *,
    threads: int = 0,
    progress: bool = True,
    announce: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Train both stages, or what is left of them, judge the model by the test split and put it in place; its rows.

    Args:
        out: the model's folder.
        splits: of the events.
        run: the record of `run_record`.
        threads: CPU threads; 0 is all.
        progress: show bars.
        announce: is told what begins.
    """
    transformers_logging.disable_progress_bar()  # one bar at a time, and small models load in a blink
    plan, costs = Plan(**run["plan"]), Costs(*run["seconds_per_step"])
    with locked(out):
        for number, stage in enumerate(STAGES):
            folder = out / "training" / stage
            ended = (folder / "training.json").is_file()
            if ended and not (folder / "best").exists():  # if it is there, it was killed while it cleaned up
                continue
            announce(f"{number + 1} of 2: {STAGES[stage]}")
            resume = ended or any(folder.glob("checkpoints/step-*[0-9]"))
            if not resume:
                remove_folder(folder)  # it was interrupted before its first checkpoint
            make_trainer = _mtpp_trainer if number == 0 else _distiller_trainer
            make_trainer(out, splits, plan, _arguments(folder, plan, costs, threads, progress)).train(resume=resume)
        announce("Judging it by sequences it has not seen ...")
        folder = out / "training" / "distiller"
        distiller = AutoModel.from_pretrained(folder, use_safetensors=True).eval()
        stamp = {"data": run["data"], "split": "test", **checkpoint_stamp(folder)}
        rows = score_model(distiller, splits["test"], train=splits["train"], **stamp)
        write_text(out / RESULTS_FILE, "".join(json.dumps(row) + "\n" for row in rows))
        write_text(out / READING_FILE, json.dumps(run["reading"], indent=1))
        for name in ("model.safetensors", "config.json"):  # with the last one the folder becomes a model
            with replaced_when_done(out / name) as partial:
                shutil.copyfile(folder / name, partial)
        write_text(out / PLAN_FILE, json.dumps({**run, "finished": True}, indent=1))
        return rows


def _arguments(folder: Path, plan: Plan, costs: Costs, threads: int, progress: bool) -> TrainingArguments:
    is_mtpp = folder.name == "point_process"
    steps, cost = (plan.mtpp_steps, costs.mtpp) if is_mtpp else (plan.distiller_steps, costs.distiller)
    return TrainingArguments(
        out=str(folder),
        steps=steps,
        warmup_steps=steps // 20,
        batch_size=plan.mtpp_batch if is_mtpp else plan.distiller_batch,
        learning_rate=0.01 if is_mtpp else 0.001,
        eval_every=math.ceil(steps / NUM_EVALUATIONS["mtpp" if is_mtpp else "distiller"]),
        metric="loss" if is_mtpp else "size",
        patience=PATIENCE if is_mtpp else 0,
        save_every=max(1, round(SECONDS_BETWEEN_CHECKPOINTS / cost)),
        seed=plan.seed,
        num_threads=threads,
        progress=progress,
    )


def _mtpp_trainer(out: Path, splits: Mapping[str, EventSequences], plan: Plan, args: TrainingArguments) -> Trainer:
    train, validation = (make_crops(splits[name], length=plan.crop_length) for name in ("train", "validation"))
    mtpp = _new_mtpp(splits["train"], plan)
    return Trainer(mtpp, args, train, validation.sample(VALIDATION_ITEMS["mtpp"], seed=plan.seed))


def _distiller_trainer(
    out: Path, splits: Mapping[str, EventSequences], plan: Plan, args: TrainingArguments
) -> Trainer:
    mtpp = AutoModel.from_pretrained(out / "training" / "point_process", use_safetensors=True)
    train, validation = (
        make_windows(splits[name], future=plan.future, history=plan.history) for name in ("train", "validation")
    )
    distiller = _new_distiller(mtpp, plan)
    return Trainer(distiller, args, train, validation.sample(VALIDATION_ITEMS["distiller"], seed=plan.seed))


# --- how good it is


def score_model(
    model: DistillerModel | MTPPModel,
    test: EventSequences,
    *,
    train: EventSequences | None = None,
    **stamp: Any,
) -> list[Row]:
    """Rows of the point process beside trivial baselines; of a distiller, also of its explanations beside the most
    recent events.

    Args:
        test: events to be scored on; a part of them if they are very many.
        train: events the baselines are fitted to; those of `test` if not given, which flatters the baselines.
    """
    reached = np.cumsum(test.lengths)
    part = test.select(np.arange(min(len(test), int(np.searchsorted(reached, MOST_TEST_EVENTS)) + 1)))
    models: dict[str, Any] = dict(trivial_baselines(test if train is None else train))
    mtpp = model.mtpp if isinstance(model, DistillerModel) else model
    rows = list(evaluate_mtpp({**models, MODEL: mtpp}, part, **stamp))
    config: Any = model.config
    if not isinstance(model, DistillerModel) or part.lengths.max() < config.history + config.future:
        return rows
    history, future = config.history, config.future
    windows = make_windows(part, future=future, history=history).sample(MOST_TEST_WINDOWS)
    target = {"share": config.share} if config.share is not None else {"epsilon": config.epsilon}
    question = Question(**target, conditioning=config.conditioning)
    compared = list(compare(mtpp, windows, [SOLVER], question, distiller=model, reference="recency", **stamp))
    if not compared:  # no window's history explains anything
        pair = f"{future}-{history}"
        compared = [{"task": "explain", **stamp, "solver": SOLVER, "explains_nothing": 1.0, "pair": pair}]
    return rows + compared


def judge(rows: Sequence[Row]) -> Verdict:
    """The rows of `score_model` in words."""
    nll = {row["model"]: row["nll"] for row in rows if row["task"] == "mtpp"}
    own = nll.pop(MODEL)
    best = min(nll, key=lambda name: nll[name]) if nll else None
    gain = nll[best] - own if best else math.nan
    if not gain > SMALLEST_GAIN:
        averages = f"; {best} {nll[best]:.3f}" if best else ""
        return Verdict(
            f"It predicts these events no better than averages do (NLL {own:.3f}{averages}): its explanations would "
            "mean nothing.",
            "Give it more events or more minutes, check the columns (ehd-hf data inspect), or accept that "
            "these events do not depend on those before them.",
            False,
        )
    sentence = (
        f"Each unseen event is {math.exp(gain):.2f} times as likely under it as under the better of two trivial "
        f"models (NLL {own:.3f} against {nll[best or '']:.3f})"
    )
    explained = {row["solver"]: row for row in rows if row["task"] == "explain"}
    found, recent = explained.get(SOLVER), explained.get("recency")
    if found is None:
        return Verdict(f"{sentence}; explanations were not tried.", "Try some with ehd-hf explain.", True)
    if found["explains_nothing"] >= 1 or recent is None:
        return Verdict(
            f"{sentence}, but no past event helps to predict the next ones.",
            "Ask about a shorter future, such as 1 event, or train on longer histories.",
            False,
        )
    history = int(found["pair"].split("-")[1])
    target = f"{found['share']:.0%} of what they explain" if found["share"] is not None else "the future"
    sentence += f"; {found['size']:.1f} of {history} past events carry {target}, "
    if found["size"] < LESS_THAN_RECENT * recent["size"]:
        sentence += f"where the most recent ones would have to be {recent['size']:.1f}."
    else:
        sentence += "about as many as if simply the most recent were taken."
    if found["explains_nothing"] > 0.2:
        sentence += f" In {found['explains_nothing']:.0%} of the cases the past explains nothing."
    return Verdict(sentence, "Explain a sequence with it.", True)
