"""What if these events had not happened, or others had? Futures of a log in two worlds, as it was and changed.

Both worlds begin at the log's last event, "now", also if that is taken out: nothing has happened since the last event
that is left. The same random numbers drive both, so that their difference is the events' doing. What is simulated is
what the model believes; it is no experiment.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..data.sequences import EventSequences, unit_in_nanoseconds
from ..data.tables import shorten
from ..models.from_function import CallableMTPP
from ..models.point_process import MTPPModel, in_double
from .explanation import NAME_LENGTH, Event, Windows, listed, time_text
from .futures import Estimate, mean, middle, share, share_difference, simulate
from .targets import find_events

# Differences told in the text, and the number of futures below which none is called clear.
_MOST_TOLD, _FEWEST_FUTURES = 3, 30


@dataclass(frozen=True, eq=False)
class WhatIf:
    """What the model expects within `horizon` of now, per kind of event. Names in `with` are of the world as it was,
    those in `without` of the changed world; differences are changed minus as it was, of pairs of futures."""

    kinds: tuple[str, ...]
    without: tuple[Event, ...]  # taken out; positions in the window
    adding: tuple[Event, ...]  # put in; positions in the changed window
    now: float | np.datetime64
    horizon: float  # in `time_unit`
    time_unit: str | None
    num_samples: int  # futures of each world
    count_with: Estimate  # expected number of events
    count_without: Estimate
    difference: Estimate
    probability_with: Estimate  # of at least one
    probability_without: Estimate
    probability_difference: Estimate
    # Time from now to the first, in futures that have one: the median, and the range of the middle 90 % of them.
    first_with: Estimate
    first_without: Estimate

    def to_frame(self) -> pd.DataFrame:
        """One row per kind: kind, count_with, count_with_low, count_with_high, and so on for every estimate."""
        columns: dict[str, Any] = {"kind": self.kinds}
        for name in (item.name for item in fields(self) if item.type == "Estimate"):
            value, low, high = getattr(self, name)
            columns |= {name: value, f"{name}_low": low, f"{name}_high": high}
        return pd.DataFrame(columns)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists; timestamps as ISO strings, None for a first time that no
        future has. `kinds` is a list of the rows of `to_frame`."""
        events = {
            name: [{**event._asdict(), "time": _plain(event.time)} for event in getattr(self, name)]
            for name in ("without", "adding")
        }
        facts = {name: getattr(self, name) for name in ("horizon", "time_unit", "num_samples")}
        rows = json.loads(self.to_frame().to_json(orient="records", double_precision=15))
        return {**events, "now": _plain(self.now), **facts, "kinds": rows}

    def __str__(self) -> str:
        parts = [f"without {listed(self.without, self.time_unit)}"] if self.without else []
        parts += [f"with {listed(self.adding, self.time_unit)} added"] if self.adding else []
        opening, horizon = " and ".join(parts), time_text(self.horizon, self.time_unit)
        told = [self._sentence(kind, horizon) for kind in self._clearest()]
        text = "; ".join(told) if told else f"nothing changes within {horizon} beyond chance"
        source = f"From {self.num_samples:,} simulated futures of each world."
        caveat = "This is what the model believes; it is no experiment."
        return f"{opening[0].upper()}{opening[1:]}, {text}. {source} {caveat}"

    def _clear(self) -> list[np.ndarray]:
        """How clear the differences of probability and of count are, (C,) each, 0 if they may be chance."""
        told = self.num_samples >= _FEWEST_FUTURES
        return [told * change.clear(2 * len(self.kinds)) for change in (self.probability_difference, self.difference)]

    def _clearest(self) -> list[int]:
        """At most three kinds whose difference is no chance, the clearest first."""
        clear = np.maximum(*self._clear())
        return [kind for kind in np.argsort(-clear, kind="stable")[:_MOST_TOLD].tolist() if clear[kind] > 0]

    def _sentence(self, kind: int, horizon: str) -> str:
        """ "the probability of alert within 1 h falls from 62 % to 11 % (95 % interval of the difference: ...)"."""
        if self._clear()[0][kind] > 0:
            what, points, show, scale = "probability", " points", _percent, 100
            before, after, change = self.probability_with, self.probability_without, self.probability_difference
        else:  # there are some in either world, but fewer or more
            what, points, show, scale = "expected number", "", _number, 1
            before, after, change = self.count_with, self.count_without, self.difference
        moves = "rises" if change.value[kind] > 0 else "falls"
        low, high = sorted(abs(scale * float(end[kind])) for end in (change.low, change.high))
        interval = f"95 % interval of the difference: {_number(low)} to {_number(high)}{points}"
        values = f"from {show(before.value[kind])} to {show(after.value[kind])}"
        return f"the {what} of {shorten(self.kinds[kind], NAME_LENGTH)} within {horizon} {moves} {values} ({interval})"


def what_if(
    mtpp: MTPPModel, windows: Windows, without: Sequence[int], adding: Windows | None, **options: Any
) -> WhatIf:
    """The futures of one window in both worlds, the changed one without the events at these positions; `options`:
    horizon, num_samples, seed and progress of `simulate`. The times of `adding` count as those of `windows` do."""
    if isinstance(mtpp, CallableMTPP):
        raise ValueError(
            "what_if needs a model that events can be drawn from; this one is a function of log-probabilities. "
            "Train one of the package's backbones on the log."
        )
    config: Any = mtpp.config
    times, shown, marks = _of_window(windows)
    events = _events(shown, marks, config)
    kept = np.ones(len(events), dtype=bool)
    kept[list(without)] = False
    new = (np.zeros(0), shown[:0], marks[:0])
    if adding is not None:
        new = _of_window(adding._replace(spans=adding.spans._replace(origins=windows.spans.origins)))
    begin, end = (time_text(time, config.time_unit) for time in (shown[0], shown[-1]))
    context = mtpp.is_context(torch.arange(config.num_marks)).numpy()
    if len(outside := np.flatnonzero((new[0] < 0) | ((new[0] > times[-1]) & ~context[new[2]]))):
        got = f"got {time_text(new[1][outside[0]], config.time_unit)}. Move it; history='all' reaches further back."
        raise ValueError(f"what is added must lie in the window, {begin} to {end}, not after its last event; {got}")
    changed_times, changed_marks = np.append(times[kept], new[0]), np.append(marks[kept], new[2])
    order = np.argsort(changed_times, kind="stable")  # what is added comes after events of the same time
    worlds = [(times, marks), (changed_times[order], changed_marks[order])]
    counts, first = (
        values[..., ~context] for values in simulate(in_double(mtpp), worlds, float(times[-1]), **options)
    )
    happens, change = counts > 0, counts[1].astype(np.int64) - counts[0]
    places = np.argsort(order)[int(kept.sum()) :].tolist()
    added = zip(places, _events(new[1], new[2], config), strict=True)
    return WhatIf(
        kinds=tuple(config.id2label[mark] for mark in np.flatnonzero(~context)),
        without=tuple(event for event, stays in zip(events, kept, strict=True) if not stays),
        adding=tuple(event._replace(position=place) for place, event in added),
        now=shown[-1],
        horizon=options["horizon"],
        time_unit=config.time_unit,
        num_samples=options["num_samples"],
        count_with=mean(counts[0], lowest=0.0),
        count_without=mean(counts[1], lowest=0.0),
        difference=mean(change),
        probability_with=share(happens[0]),
        probability_without=share(happens[1]),
        probability_difference=share_difference(*happens),
        first_with=middle(first[0]),
        first_without=middle(first[1]),
    )


def _of_window(windows: Windows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times from the clock's origin, times as people see them, and marks of the first of the windows."""
    spans = windows.spans
    where = slice(spans.first[0], spans.first[0] + spans.lengths[0])
    return spans.times[where] - spans.origins[0], windows.shown[where], spans.marks[where]


def _events(shown: np.ndarray, marks: np.ndarray, config: Any) -> list[Event]:
    labels = [config.id2label[mark] for mark in marks.tolist()]
    return [Event(*event) for event in zip(range(len(labels)), shown, labels, strict=True)]


# --- what people say


def positions_of(without: Any, log: EventSequences, windows: Windows) -> list[int]:
    """Positions in the window of the events of the log that are meant: by an index in it, negative from its end, a
    time, a mark for all its events in the window, or a list of these."""
    several = without if isinstance(without, list | tuple | np.ndarray | pd.Series | pd.Index) else [without]
    first, chosen = int(windows.spans.first[0]), list[int]()
    for one in several:
        places = find_events(log, one, each=True) - first
        if not len(inside := places[places >= 0]):
            there = f"the window has those from {first} to {log.num_events - 1}"
            raise ValueError(
                f"{one!r} is no event that can be taken out: {there}. Name one of these, or pass history."
            )
        chosen += inside.tolist()
    return chosen


def length_of(horizon: Any, unit: str | None) -> float:
    """A horizon as a number in the model's `unit` of time."""
    length = horizon
    if isinstance(horizon, np.timedelta64):
        horizon = pd.Timedelta(horizon)
    if isinstance(horizon, str | timedelta):
        is_bare = isinstance(horizon, str) and not any(letter.isalpha() for letter in horizon)
        span = pd.NaT if is_bare else pd.to_timedelta(horizon, errors="coerce")
        if unit is None:
            raise ValueError(f"a horizon of {horizon} needs a model that knows its unit of time. Pass a number.")
        length = np.nan if pd.isna(span) else span / pd.Timedelta(1, "ns") / unit_in_nanoseconds(unit)
    is_number = isinstance(length, int | float | np.integer | np.floating) and not isinstance(length, bool)
    if not is_number or not 0 < length < np.inf:
        expected = f"a positive number{'' if unit is None else f' of {unit}'}, or a length of time such as '90min'"
        raise ValueError(f"horizon must be {expected}; got {horizon!r}. Pass such as horizon=1.0.")
    return float(length)


def on_clock_of(events: EventSequences, others: EventSequences) -> np.ndarray:
    """Times of `others`, one sequence, counted as those of `events` are."""
    if events.epochs is None and others.epochs is None:
        return others.times
    if events.epochs is None or others.epochs is None:
        expected, got = ("numbers" if part.epochs is None else "timestamps" for part in (events, others))
        raise ValueError(f"what is added must have {expected} as times, as the events have; got {got}. Convert them.")
    gap = (others.epochs[0] - events.epochs[0]).astype("timedelta64[ns]").astype(np.int64)
    return others.times + gap / unit_in_nanoseconds(events.time_unit or "s")


def _plain(time: float | np.datetime64) -> str | float:
    return str(time) if isinstance(time, np.datetime64) else float(time)


def _percent(value: float) -> str:
    points = 100 * float(value)
    return f"{points:.0f} %" if 1 <= points <= 99 or points in (0.0, 100.0) else f"{points:.3g} %"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"
