"""What if these events had not happened, or others had? Futures simulated from the end of a log, in two worlds.

Both worlds begin at the log's last event, "now": one with the events as they were, one with the events changed. Sample
s of one world is drawn from the same random numbers as sample s of the other, so that their difference is the events'
doing. What is simulated is what the model believes; it is no experiment.

Shapes: S samples, C kinds of events, R futures that have not ended.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from itertools import islice
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..data.sequences import EventSequences, unit_in_nanoseconds
from ..models.from_function import CallableMTPP
from ..models.point_process import MTPPModel, Past, in_double
from ..models.question import is_count
from .explanation import Event, Windows, listed, shown_time

# A future with more events than this is a model's explosion.
_MOST_EVENTS = 10_000
# Numbers that hold the states and intensities of all futures drawn together.
_NUMBERS_AT_ONCE = 2**22
_SECONDS_WITHOUT_BAR = 3
# Sentences in the text, and of how few futures none of them is clear.
_MOST_SENTENCES, _FEWEST_FUTURES = 3, 30
_Z = NormalDist().inv_cdf(0.975)


class Estimate(NamedTuple):
    """Of every kind of event a value, and its 95 % interval: (C,) each."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def clear(self, num_tests: int) -> np.ndarray:
        """How far each value is from 0 in widths of its interval, as wide as `num_tests` looks at once ask for: beyond
        1 it is no chance. (C,), 0 where it may be."""
        widening = NormalDist().inv_cdf(1 - 0.025 / num_tests) / _Z
        distance = np.abs(self.low + self.high) / np.maximum(self.high - self.low, 1e-300) / widening
        return np.where(distance > 1, distance, 0.0)


@dataclass(frozen=True, eq=False)
class WhatIf:
    """What the model expects within `horizon` after now, per kind of event. Names that end in `with` are of the world
    as it was, in `without` of the world changed; differences are changed minus as it was, from pairs of futures."""

    kinds: tuple[str, ...]
    without: tuple[Event, ...]  # the events taken out
    adding: tuple[Event, ...]  # and those put in; positions are those among the events of the changed world
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
    # Time from now to the first, in the futures that have one: the median, and where the middle 90 % of them lie; NaN
    # if none has.
    first_with: Estimate
    first_without: Estimate

    def to_frame(self) -> pd.DataFrame:
        """One row per kind: kind, count_with, count_with_low, count_with_high, and so on for every estimate."""
        columns: dict[str, Any] = {"kind": self.kinds}
        for name, estimate in self._estimates().items():
            columns |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        return pd.DataFrame(columns)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists; timestamps as ISO strings, None for no first time."""
        events = {
            name: [{"position": one.position, "time": _plain(one.time), "mark": one.mark} for one in getattr(self, name)]
            for name in ("without", "adding")
        }
        facts = {"now": _plain(self.now)} | {n: getattr(self, n) for n in ("horizon", "time_unit", "num_samples")}
        return {**events, **facts, "kinds": json.loads(self.to_frame().to_json(orient="records", double_precision=15))}

    def _estimates(self) -> dict[str, Estimate]:
        pairs = ((item.name, getattr(self, item.name)) for item in fields(self))
        return {name: value for name, value in pairs if isinstance(value, Estimate)}

    def __str__(self) -> str:
        parts = [f"without {listed(self.without, self.time_unit)}"] if self.without else []
        parts += [f"with {listed(self.adding, self.time_unit)} added"] if self.adding else []
        opening, horizon = " and ".join(parts), shown_time(self.horizon, self.time_unit)
        told = [self._sentence(kind, horizon) for kind in self._clearest()]
        text = "; ".join(told) if told else f"nothing changes within {horizon} beyond chance"
        source = f"From {self.num_samples:,} simulated futures of each world."
        return f"{opening[0].upper()}{opening[1:]}, {text}. {source} This is what the model believes; it is no experiment."

    def _clear(self) -> tuple[np.ndarray, np.ndarray]:
        """How clear the differences of probability and of count are, (C,) each."""
        if self.num_samples < _FEWEST_FUTURES:
            return np.zeros(len(self.kinds)), np.zeros(len(self.kinds))
        tests = 2 * len(self.kinds)
        return self.probability_difference.clear(tests), self.difference.clear(tests)

    def _clearest(self) -> list[int]:
        """At most three kinds whose difference is no chance, the clearest first."""
        clear = np.maximum(*self._clear())
        return [kind for kind in np.argsort(-clear, kind="stable")[:_MOST_SENTENCES].tolist() if clear[kind] > 0]

    def _sentence(self, kind: int, horizon: str) -> str:
        """ "the probability of alert within 1 h falls from 62 % to 11 % (95 % interval of the difference: ...)"."""
        if self._clear()[0][kind] > 0:
            what, ending, factor, show = "probability of", " points", 100.0, _percent
            before, after, change = self.probability_with, self.probability_without, self.probability_difference
        else:  # so many that the probability is near 1 in both worlds, or too few
            what, ending, factor, show = "expected number of", "", 1.0, _number
            before, after, change = self.count_with, self.count_without, self.difference
        moves = "rises" if change.value[kind] > 0 else "falls"
        ends = sorted(abs(factor * float(end[kind])) for end in (change.low, change.high))
        interval = f"95 % interval of the difference: {_number(ends[0])} to {_number(ends[1])}{ending}"
        values = f"{show(before.value[kind])} to {show(after.value[kind])}"
        return f"the {what} {self.kinds[kind]} within {horizon} {moves} from {values} ({interval})"


def what_if(
    mtpp: MTPPModel,
    windows: Windows,
    *,
    without: Any,
    adding: tuple[np.ndarray, np.ndarray, np.ndarray],
    horizon: float,
    num_samples: int,
    seed: int,
    progress: bool | None,
) -> WhatIf:
    """The futures of one window in both worlds. `adding`: times as the window counts them, marks, and times as people
    see them."""
    config: Any = mtpp.config
    if isinstance(mtpp, CallableMTPP):
        raise ValueError(
            "what_if draws futures; this point process is a function of log-probabilities, from which none can be "
            "drawn. Use a model with intensities, such as one that ehd-hf train makes."
        )
    spans: Any = windows.spans
    where = slice(spans.first[0], spans.first[0] + spans.lengths[0])
    times, marks, shown = spans.times[where] - spans.origins[0], spans.marks[where], windows.shown[where]
    events = _events(shown, marks, config.id2label)
    gone = np.zeros(len(events), dtype=bool)
    gone[_positions(without, events, int(spans.offset[0]), config)] = True
    new_times, new_marks, new_shown = adding
    new_times = new_times - spans.origins[0]
    for time, seen in zip(new_times, new_shown, strict=True):
        if not 0 <= time <= times[-1]:
            bounds = f"{shown_time(shown[0], config.time_unit)} to {shown_time(shown[-1], config.time_unit)}"
            got = f"got {shown_time(seen, config.time_unit)}. Move it there, or give more history."
            raise ValueError(f"what is added must lie in the events looked at, {bounds}, not after the last one; {got}")
    changed = np.concatenate([times[~gone], new_times]), np.concatenate([marks[~gone], new_marks])
    order = np.argsort(changed[0], kind="stable")  # behind events of the same time
    worlds = [(times, marks), (changed[0][order], changed[1][order])]
    counts, first = simulate(in_double(mtpp), worlds, float(times[-1]), horizon, num_samples, seed, progress)
    added = _events(new_shown, new_marks, config.id2label)
    places = np.argsort(order)[len(order) - len(added) :].tolist()
    return WhatIf(
        kinds=tuple(config.id2label[mark] for mark in range(config.num_marks)),
        without=tuple(event for event, is_gone in zip(events, gone, strict=True) if is_gone),
        adding=tuple(one._replace(position=place) for one, place in zip(added, places, strict=True)),
        now=shown[-1],
        horizon=horizon,
        time_unit=config.time_unit,
        num_samples=num_samples,
        **_estimates(counts, first),
    )


# --- futures


@torch.no_grad()
def simulate(
    mtpp: MTPPModel,
    worlds: Sequence[tuple[np.ndarray, np.ndarray]],
    now: float,
    horizon: float,
    num_samples: int,
    seed: int = 0,
    progress: bool | None = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Number of events of each kind up to `now + horizon`, and time from `now` to the first, inf if there is none:
    (W, S, C) each. Worlds are times and marks (T,) each, times counted from the window's origin; `mtpp` is in double
    precision, so that these keep short intervals."""
    longest = max(len(times) for times, _ in worlds)
    padded = [[np.pad(values, (longest - len(values), 0)) for values in world] for world in worlds]
    times, marks = (torch.from_numpy(np.stack(values)).to(mtpp.device) for values in zip(*padded, strict=True))
    lengths = torch.tensor([[len(world[0])] for world in worlds], device=mtpp.device)
    mask = torch.arange(longest, 0, -1, device=mtpp.device) <= lengths
    past = mtpp.past(times.double(), marks, mask)
    num_marks = mtpp.config.num_marks
    counts = torch.zeros(len(worlds), num_samples, num_marks, dtype=torch.int32, device=mtpp.device)
    first = torch.full(counts.shape, torch.inf, dtype=torch.float64, device=mtpp.device)
    size = max(1, _NUMBERS_AT_ONCE // (len(worlds) * (past.states.shape[1] + 4 * num_marks + 256)))
    generator = torch.Generator().manual_seed(seed)
    total, delay = len(worlds) * num_samples, 0 if progress else _SECONDS_WITHOUT_BAR
    with tqdm(total=total, desc="simulating", unit="future", delay=delay, disable=progress is False) as bar:
        for chunk in zip(counts.split(size, dim=1), first.split(size, dim=1), strict=True):
            _draw(mtpp, past, now, horizon, generator, *chunk, bar)
    return counts.cpu().numpy(), first.cpu().numpy()


def _draw(
    mtpp: MTPPModel, past: Past, now: float, horizon: float, generator: Any, counts: Tensor, first: Tensor, bar: Any
) -> None:
    """Fill in `counts` and `first` (W, S, C), event after event of all futures at once."""
    device, (num_worlds, number, _) = counts.device, counts.shape
    world = torch.arange(num_worlds, device=device).repeat_interleave(number)
    sample = torch.arange(number, device=device).repeat(num_worlds)
    past = past.rows(world)
    # Nothing has happened since the last event that was kept: its compensator up to now is behind us.
    survived = mtpp.total_compensator(past.states, now - past.last_times)
    if not bool(survived.isfinite().all()):
        raise ValueError("the model's intensities must be finite; got others. Check its weights and the events' times.")
    for _ in range(_MOST_EVENTS):
        drawn = torch.rand(number, 2, generator=generator, dtype=torch.float64).to(device)[sample]
        times, marks = mtpp.next_events(past, survived - torch.log1p(-drawn[:, 0]), drawn[:, 1])
        since = (times - now).clamp(min=0)  # a long silence is rounded
        inside = (since <= horizon).nonzero()[:, 0]
        bar.update(len(sample) - len(inside))
        if len(inside) == 0:
            return
        world, sample, since, marks = (values[inside] for values in (world, sample, since, marks))
        cells = world, sample, marks  # all different
        counts[cells] += 1
        first[cells] = torch.minimum(first[cells], since)
        past = mtpp.extend(past.rows(inside), now + since, marks)
        survived = torch.zeros_like(since)
    raise ValueError(
        f"a future must have at most {_MOST_EVENTS:,} events; {len(sample):,} of {num_worlds * number:,} have more within "
        f"{horizon:g}. Shorten the horizon; if events still explode, the model does not fit the log."
    )


# --- estimates


def _estimates(counts: np.ndarray, first: np.ndarray) -> dict[str, Estimate]:
    """Of two worlds, (2, S, C)."""
    happens = counts > 0
    change = counts[1].astype(np.int64) - counts[0]
    return {
        "count_with": _mean(counts[0], lowest=0.0),
        "count_without": _mean(counts[1], lowest=0.0),
        "difference": _mean(change),
        "probability_with": _share(happens[0]),
        "probability_without": _share(happens[1]),
        "probability_difference": _share_difference(*happens),
        "first_with": _first(first[0]),
        "first_without": _first(first[1]),
    }


def _mean(values: np.ndarray, lowest: float = -np.inf) -> Estimate:
    """Of (S, C) over S. One more in one future is never ruled out: no interval is a point."""
    number, mean = len(values), values.mean(0)
    half = _Z * np.sqrt((values.var(0) + 1 / number) / number)
    return Estimate(mean, np.maximum(mean - half, lowest), mean + half)


def _share(happens: np.ndarray) -> Estimate:
    """Of (S, C) over S, with Wilson's interval."""
    number, share = len(happens), happens.mean(0)
    centre = (share + _Z**2 / (2 * number)) / (1 + _Z**2 / number)
    half = _Z * np.sqrt(share * (1 - share) / number + _Z**2 / (4 * number**2)) / (1 + _Z**2 / number)
    return Estimate(share, np.minimum(centre - half, share).clip(0), np.maximum(centre + half, share).clip(max=1))


def _share_difference(before: np.ndarray, after: np.ndarray) -> Estimate:
    """Of pairs, with the interval of Bonett and Price: one more pair of either kind, then the normal one."""
    number = len(before)
    rises, falls = ((pair.sum(0) + 1) / (number + 2) for pair in (after & ~before, before & ~after))
    half = _Z * np.sqrt((rises + falls - (rises - falls) ** 2) / (number + 2))
    value = after.mean(0) - before.mean(0)
    return Estimate(value, (rises - falls - half).clip(-1), (rises - falls + half).clip(max=1))


def _first(times: np.ndarray) -> Estimate:
    """Median, 5 % and 95 % quantiles of what is finite in each column of (S, C)."""
    columns = (column[np.isfinite(column)] for column in times.T)
    quantiles = [np.quantile(some, (0.5, 0.05, 0.95)) if len(some) else np.full(3, np.nan) for some in columns]
    return Estimate(*np.array(quantiles).T)


# --- what people say


def _events(times: np.ndarray, marks: np.ndarray, id2label: Any) -> list[Event]:
    """Events as people know them; positions count from the first."""
    return [Event(at, time, id2label[mark]) for at, (time, mark) in enumerate(zip(times, marks.tolist(), strict=True))]


def _positions(without: Any, events: Sequence[Event], offset: int, config: Any) -> list[int]:
    """Positions in the window of the events that `without` names: an index in the sequence, negative from its end, a
    time, a mark for all its events, or a list of these."""
    if isinstance(without, list | tuple | set | np.ndarray | pd.Series | pd.Index):
        return [position for one in without for position in _positions(one, events, offset, config)]
    if isinstance(without, int | np.integer) and not isinstance(without, bool):
        total = offset + len(events)
        position = int(without) + (total if without < 0 else 0) - offset
        if not 0 <= position < len(events):
            seen = f"the events looked at are {offset} to {total - 1}, or {-len(events)} to -1 from the end"
            raise ValueError(f"there is no event {without} to take out: {seen}. Name one of them, or give more history.")
        return [position]
    if isinstance(without, str) and without in config.label2id:
        found = [event.position for event in events if event.mark == without]
        if not found:
            kinds = ", ".join(dict.fromkeys(event.mark for event in events))
            raise ValueError(f"there is no {without} to take out among the events looked at, which are of {kinds}.")
        return found
    return _at_time(without, events, config)


def _at_time(time: Any, events: Sequence[Event], config: Any) -> list[int]:
    """Positions of the events of a time."""
    has_timestamps, wanted = isinstance(events[0].time, np.datetime64), None
    if has_timestamps and isinstance(time, str | datetime | np.datetime64):
        wanted = _timestamp(time)
    elif not has_timestamps and isinstance(time, float | np.floating):
        wanted = float(time)
    if wanted is None:
        kinds = ", ".join(islice(config.id2label.values(), 12))
        times = "a timestamp" if has_timestamps else "a time as a float"
        expected = f"an index, {times}, or a kind, one of {kinds}{', ...' if config.num_marks > 12 else ''}"
        raise ValueError(f"an event to take out is given by {expected}; got {time!r}. Correct it.")
    if found := [event.position for event in events if event.time == wanted]:
        return found
    nearest = min(events, key=lambda event: abs(event.time - wanted))
    named = f"{nearest.mark} at {nearest.time}, index {nearest.position - len(events)} from the end"
    raise ValueError(f"there is no event at {time} to take out; the nearest is {named}. Pass that time or index.")


def _timestamp(value: Any) -> np.datetime64 | None:
    """In UTC, as events keep them; None if it is none."""
    time = pd.to_datetime(value, utc=True, errors="coerce")
    return None if pd.isna(time) else time.tz_localize(None).to_datetime64().astype("datetime64[ns]")


def in_units(horizon: Any, unit: str | None) -> float:
    """A horizon as a number in the model's unit of time."""
    length = horizon
    if isinstance(horizon, str | timedelta | np.timedelta64):
        is_bare = isinstance(horizon, str) and not any(letter.isalpha() for letter in horizon)
        span = pd.NaT if is_bare else pd.to_timedelta(horizon, errors="coerce")
        if not pd.isna(span) and unit is None:
            raise ValueError(f"a horizon of {horizon} needs a model that knows its unit of time. Pass a number instead.")
        length = np.nan if pd.isna(span) else span / pd.Timedelta(1, "ns") / unit_in_nanoseconds(unit or "s")
    is_number = isinstance(length, int | float | np.integer | np.floating) and not isinstance(length, bool)
    if not is_number or not 0 < length < np.inf:
        units = "the model's unit of time" if unit is None else unit
        remedy = "Pass horizon=1.0, or a text such as '1h' if the model knows its unit."
        raise ValueError(f"horizon must be a positive length of time in {units}; got {horizon!r}. {remedy}")
    return float(length)


def on_clock_of(events: EventSequences, others: EventSequences) -> np.ndarray:
    """Times of `others`, one sequence, as those of `events` count them."""
    if (events.epochs is None) != (others.epochs is None):
        kinds = ["numbers" if one.epochs is None else "timestamps" for one in (events, others)]
        raise ValueError(f"what is added must have times as the events have, {kinds[0]}; got {kinds[1]}. Convert them.")
    if events.epochs is None or others.epochs is None:
        return others.times
    gap = (others.epochs[0] - events.epochs[0]).astype("timedelta64[ns]").astype(np.int64)
    return others.times + gap / unit_in_nanoseconds(events.time_unit or "s")


def _plain(time: float | np.datetime64) -> str | float:
    return str(time) if isinstance(time, np.datetime64) else float(time)


def _percent(share: float) -> str:
    points = 100 * float(share)
    return f"{points:.0f} %" if 1 <= points <= 99 or points in (0.0, 100.0) else f"{points:.3g} %"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2g}"
