"""What to do with a table of events: how it looks, how to split it, which windows, how many steps, how long it takes.

Decisions only, from counts and intervals; `fitting` carries them out. No torch here: a plan is shown at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..data.reading import EITHER, EPOCHS, SELDOM, Reading
from ..data.sequences import EventSequences, unit_in_nanoseconds

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
            "Give more events, name the column of sequences with --sequence, or ask for a shorter --history."
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
        yield "There is one sequence only; it will be cut in time. If there are several, name their column: --sequence"
    if (counts > 0).sum() == 1:
        yield "All events are of one kind, so only their times can be explained. Is --mark the right column?"
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
