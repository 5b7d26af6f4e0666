"""What a table of events looks like, and what may go wrong when a model is trained on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from .reading import EITHER, EPOCHS, SELDOM, Reading
from .sequences import EventSequences
from .splits import choose_window, num_windows

# When to warn: fewer events, a mean interval so many times the first quartile (of draws at random 3.5).
FEW_EVENTS, BURSTY = 2000, 100


class Findings(NamedTuple):
    figures: dict[str, Any]  # what a table of events looks like
    warnings: list[str]  # what may go wrong with it


def inspect_events(events: EventSequences) -> Findings:
    """Figures of the events, and what may go wrong when a model is trained on them."""
    lengths = events.lengths
    # Times that were spread within their resolution are looked at as the source has them, in units of it.
    unit = events.resolution or 1.0
    times = events.times if events.resolution is None else np.floor(events.times / unit)
    between = events.offsets[1:-1] - 1  # from one sequence to the next
    intervals, changes = (np.delete(np.diff(values), between) for values in (times, events.marks))
    intervals, num_repeated = intervals * unit, int(((intervals == 0) & (changes == 0)).sum())
    counts = np.bincount(events.marks, minlength=events.num_marks)
    fewest, most, (history, future) = int(lengths.min()), int(lengths.max()), choose_window(lengths)
    figures: dict[str, Any] = {
        "sequences": len(events),
        "events": events.num_events,
        "marks": events.num_marks,
        "events_per_sequence": {"fewest": fewest, "median": float(np.median(lengths)), "most": most},
        "time_unit": events.time_unit,
        "interval": None,
        "tied": float((intervals == 0).mean()) if len(intervals) else 0.0,
        "window": {"history": history, "future": future},
        "windows": int(num_windows(lengths, history + future).sum()),
        "mark_counts": {events.id2label[int(mark)]: int(counts[mark]) for mark in np.argsort(-counts, kind="stable")},
    }
    if len(intervals):
        values = (intervals.mean(), *np.quantile(intervals, (0.05, 0.5, 0.95)))
        figures["interval"] = dict(zip(("mean", "5 %", "median", "95 %"), map(float, values), strict=True))
    if events.epochs is not None:
        for name, end in (("from", events.epochs.min()), ("to", events.shown_times().max())):
            figures[name] = str(end.astype("datetime64[s]")).replace("T", " ")
    return Findings(figures, list(_warnings(events, figures, intervals, num_repeated)))


def _warnings(
    events: EventSequences, figures: Mapping[str, Any], intervals: np.ndarray, num_repeated: int
) -> Iterator[str]:
    """Sentences, the gravest first."""
    unit = f" {events.time_unit}" if events.time_unit else ""
    history, future = figures["window"].values()
    counts = {name: count for name, count in figures["mark_counts"].items() if count}
    if len(events) == 1:
        yield "There is one sequence only; it will be cut in time. If there are several, name the sequence column."
    if len(counts) == 1:
        yield "All events are of one kind, so only their times can be explained. Is the mark column the right one?"
    if events.num_events < FEW_EVENTS:
        yield f"{events.num_events:,} events are few: expect a model that knows little more than averages."
    if len(intervals) and intervals.min() == intervals.max():
        yield f"All intervals are equal ({intervals[0]:g}{unit}): the times carry no information."
    elif len(intervals):
        mean, quartile = intervals.mean(), float(np.quantile(intervals[intervals > 0], 0.25))
        if mean > BURSTY * quartile:
            yield (
                f"Events come in bursts: a quarter follow within {quartile:.3g}{unit}, though the mean interval is "
                f"{mean:.3g}{unit}. Such bursts are easy to predict and will be much of what is explained."
            )
    if figures["tied"] > 0.01 and events.resolution is None:  # else a note says it, and the times were spread
        yield f"{figures['tied']:.1%} of the intervals are 0: events share their time, and have the file's order."
    if num_repeated > 0.01 * events.num_events:
        yield f"{num_repeated:,} events repeat the one before them, time and mark: were rows written twice?"
    short = int((events.lengths < history + future).sum())
    if short > 0.25 * len(events):
        yield (
            f"{short:,} of {len(events):,} sequences have fewer than {history + future} events, too short for a "
            f"window of {history} past and {future} future ones."
        )
    if rare := [name for name, count in counts.items() if count < SELDOM]:
        listed = ", ".join(rare[:3]) + (", ..." if len(rare) > 3 else "")
        happen = "mark happens" if len(rare) == 1 else "marks happen"
        yield f"{len(rare)} {happen} fewer than {SELDOM} times ({listed}): too seldom to learn from."
    if events.epochs is not None and (early := int((events.epochs < np.datetime64("1980-01-01")).sum())):
        yield f"{early:,} sequences begin before 1980: are these times, or blanks that were filled in?"


_UNIT_WORDS = {"ms": "milliseconds", "s": "seconds", "min": "minutes", "h": "hours", "D": "days"}
_WRITTEN = {"iso": "timestamps", "number": "plain numbers"} | {unit: f"{unit} since 1970" for unit in EPOCHS}


def describe_events(findings: Findings, reading: Reading) -> list[tuple[str, str]]:
    """Figures of the events for people: names and texts."""
    figures = findings.figures
    lengths, interval, window = figures["events_per_sequence"], figures["interval"] or {}, figures["window"]
    unit = _UNIT_WORDS.get(reading.time_unit or "", reading.time_unit) or "numbers without a unit"
    written = _WRITTEN.get(reading.time_format or "", reading.time_format or "").replace(EITHER, " or ")
    columns = ", ".join(f"{role} {getattr(reading, role)!r}" for role in ("time", "mark", "sequence"))
    span = ", ".join(figures[end].removesuffix(" 00:00:00") for end in ("from", "to") if end in figures)
    return [
        ("events", f"{figures['events']:,} in {figures['sequences']:,} sequences"),
        ("a sequence", f"{lengths['fewest']:,} to {lengths['most']:,} events, median {lengths['median']:g}"),
        ("columns", columns.replace("sequence None", "no sequence column")),
        *([("from, to", span)] if span else []),
        ("times", written if unit == written else f"{written}, here in {unit}"),
        ("intervals", ", ".join(f"{name} {value:.3g}" for name, value in interval.items()) or "none"),
        ("windows", f"{figures['windows']:,} of {window['history']} past and {window['future']} next events"),
    ]
