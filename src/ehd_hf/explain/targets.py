"""Which event is meant: by its index, its time, or the name of its mark."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd

from ..data.sequences import EventSequences, numbers_are_names

_MOST_LISTED = 5  # candidates in a message


def find_events(events: EventSequences, wanted: Any, *, each: bool = False) -> np.ndarray:
    """Position (M,) among all events of the one that is `wanted` in every sequence: an index in it, negative from the
    end; a time; or a mark, whose last event is meant, with `each` every one. Sequences without that mark have none."""
    names = events.id2label
    if isinstance(wanted, Integral) and not isinstance(wanted, bool):
        wanted, lengths = int(wanted), events.lengths
        if len(short := np.flatnonzero((lengths <= wanted) | (lengths < -wanted))):
            name, length = events.seq_ids[short[0]], lengths[short[0]]
            got = f"got {wanted} in sequence {name!r} of {length} events. They count from 0, or back from -1"
            raise ValueError(f"event must be the index of an event, from {-length} to {length - 1}; {got}.")
        return (events.offsets[:-1] if wanted >= 0 else events.offsets[1:]) + wanted
    if isinstance(wanted, str) and (mark := _mark_called(wanted, names, events.epochs is not None)) is not None:
        places = np.flatnonzero(events.marks == mark)
        if not len(places):
            there = ", ".join(names[int(other)] for other in np.unique(events.marks)[:_MOST_LISTED])
            raise ValueError(
                f"there is no event {names[mark]!r} here; the marks that occur are {there}. Name another."
            )
        owner = np.searchsorted(events.offsets, places, side="right")
        return places if each else places[np.append(np.diff(owner) > 0, True)]
    if isinstance(wanted, bool) or not isinstance(
        wanted, str | Real | np.datetime64 | datetime.date
    ):  # a Timestamp is a date
        got = f"got {type(wanted).__name__}"
        raise ValueError(f"event must be an index, a time or the name of a mark; {got}. Try event=-1, the last one.")
    return _at_time(events, wanted)


def kind_called(name: Any, id2label: Mapping[int, str]) -> int:
    """The number of a mark, given its name, a part of it that only one has, or, where no name is one, its number."""
    if isinstance(name, Integral) and not isinstance(name, bool):
        if numbers_are_names(id2label.values()):
            name = str(name)
        elif int(name) in id2label:
            return int(name)
    mark = _mark_called(name, id2label, False) if isinstance(name, str) else None
    if mark is None:
        listed = _listed(list(id2label.values()))
        raise ValueError(f"a kind must be a mark, one of {listed}; got {name!r}. Name it.")
    return mark


def kinds_called(names: Any, id2label: Mapping[int, str]) -> list[int]:
    """The same of one name or several."""
    several = [names] if isinstance(names, str) or not isinstance(names, Sequence) else names
    return [kind_called(name, id2label) for name in several]


def _mark_called(name: str, id2label: Mapping[int, str], may_be_time: bool) -> int | None:
    for mark, label in id2label.items():
        if label == name:
            return mark
    if may_be_time and name[:1].isdigit():
        return None
    is_part = bool(name.strip()) and not numbers_are_names([name])  # "1" is no short form of "10"
    like = [mark for mark, label in id2label.items() if is_part and name.lower() in label.lower()]
    if len(like) == 1:
        return like[0]
    if like:
        listed = _listed([id2label[mark] for mark in like])
        raise ValueError(f"{name!r} may be {listed}. Write the name that is meant.")
    if may_be_time:
        return None
    listed = _listed(list(id2label.values()))
    raise ValueError(f"there is no kind of event {name!r}; the model knows {listed}. Name one of these.")


def _at_time(events: EventSequences, wanted: Any) -> np.ndarray:
    """The one event at a time, in all sequences together."""
    shown = events.shown_times()
    if (shown.dtype.kind == "M") == isinstance(wanted, Real):
        got = f"got {wanted!r}, where times are {'timestamps' if shown.dtype.kind == 'M' else 'numbers'}"
        raise ValueError(f"event must be an index, a time as the events have it, or a mark; {got}.")
    if shown.dtype.kind == "M":
        try:
            moment: Any = pd.Timestamp(wanted)
        except ValueError:
            listed = _listed(list(events.id2label.values()))
            raise ValueError(f"{wanted!r} is neither a time nor a kind of event; the model knows {listed}.") from None
        moment = (moment.tz_convert(None) if moment.tzinfo else moment).to_datetime64()
        away: Any = np.abs(shown - moment) / np.timedelta64(1, "s")
        loose = 1.0
    else:
        away = np.abs(shown - float(wanted))
        loose = 1e-5 * abs(float(wanted))
    at = np.flatnonzero(away == 0)
    if not len(at):
        at = np.flatnonzero(away < loose)  # as times are printed
    if len(at) == 1:
        return at
    place = at if len(at) else np.sort(np.argsort(away, kind="stable")[:2])
    listed = _listed([_described(events, int(where), shown) for where in place])
    reason = "several events are at" if len(at) else "no event is at"
    raise ValueError(
        f"{reason} {wanted}; {'these' if len(at) else 'the nearest'} are {listed}. Name one by its index."
    )


def _described(events: EventSequences, place: int, shown: np.ndarray) -> str:
    """ "alert at 3.2 (event=4)"."""
    owner = int(np.searchsorted(events.offsets, place, side="right")) - 1
    where = f"event={place - events.offsets[owner]}"
    where += f" of sequence {events.seq_ids[owner]!r}" if len(events) > 1 else ""
    time = str(shown[place].astype("datetime64[s]")).replace("T", " ") if shown.dtype.kind == "M" else shown[place]
    return f"{events.id2label[int(events.marks[place])]} at {time} ({where})"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more
